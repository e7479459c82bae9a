//! Tokens for MSK with IAM: a request to the cluster's service that is signed and not sent. The broker sends it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SignatureLocation, SigningSettings};
use aws_sigv4::sign::v4::SigningParams;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rdkafka::client::OAuthToken;

pub use aws_credential_types::Credentials;

/// How long a token is taken; connections that were opened with it last as long as the broker lets them.
pub const TOKEN_LIFETIME: Duration = Duration::from_mins(15);

const SERVICE: &str = "kafka-cluster";
const ACTION: &str = "Action=kafka-cluster%3AConnect";
const USER_AGENT: &str = concat!("payguard%2F", env!("CARGO_PKG_VERSION"));

/// No token could be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenError {
    /// There are no credentials of AWS.
    #[error("no AWS credentials for MSK: {0}")]
    Credentials(String),
    /// The request could not be signed.
    #[error("the request to MSK could not be signed: {0}")]
    Signing(String),
}

/// Makes tokens of the credentials of a process.
#[derive(Clone)]
pub struct MskTokens {
    region: String,
    credentials: SharedCredentialsProvider,
}

impl MskTokens {
    /// Tokens for the clusters of a region.
    #[must_use]
    pub fn new(region: &str, credentials: SharedCredentialsProvider) -> MskTokens {
        MskTokens { region: region.to_owned(), credentials }
    }

    /// A token, made with the credentials of now. It blocks until there are credentials; librdkafka asks on whatever
    /// thread polls a client, also on one that already drives a runtime, so the provider is asked on one of its own.
    ///
    /// # Errors
    /// When there are no credentials.
    pub(crate) fn token(&self) -> Result<OAuthToken, TokenError> {
        let credentials = std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.map_err(|err| TokenError::Credentials(err.to_string()))?;
                let provided = runtime.block_on(self.credentials.provide_credentials());
                // The provider's error names its sources, never a key.
                provided.map_err(|err| TokenError::Credentials(err.to_string()))
            });
            asked.join().unwrap_or_else(|_| Err(TokenError::Credentials("their provider panicked".to_owned())))
        })?;
        sign(&self.region, &credentials, SystemTime::now())
    }
}

/// The token of some credentials at some time: the signed address in base64, as MSK's own libraries make it.
///
/// # Errors
/// When the request cannot be signed.
pub fn sign(region: &str, credentials: &Credentials, now: SystemTime) -> Result<OAuthToken, TokenError> {
    let failed = |err: &dyn std::fmt::Display| TokenError::Signing(err.to_string());
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(TOKEN_LIFETIME);
    let identity = credentials.clone().into();
    let params = SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(SERVICE)
        .time(now)
        .settings(settings)
        .build()
        .map_err(|err| failed(&err))?;
    let address = format!("https://kafka.{region}.amazonaws.com/?{ACTION}");
    let request = SignableRequest::new("GET", &address, std::iter::empty(), SignableBody::Bytes(&[]));
    let signed = aws_sigv4::http_request::sign(request.map_err(|err| failed(&err))?, &params.into());
    let (instructions, _) = signed.map_err(|err| failed(&err))?.into_parts();
    let mut url = address;
    for (name, value) in instructions.params() {
        url.push_str(&format!("&{name}={}", percent_encoded(value)));
    }
    // Not signed: it only tells the broker's log who came.
    url.push_str(&format!("&User-Agent={USER_AGENT}"));
    let until = now + TOKEN_LIFETIME;
    let lifetime_ms = until.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    Ok(OAuthToken {
        token: URL_SAFE_NO_PAD.encode(url),
        // MSK takes the name from the signature; this one is for librdkafka's log.
        principal_name: "payguard".to_owned(),
        lifetime_ms: i64::try_from(lifetime_ms).unwrap_or(i64::MAX),
    })
}

fn percent_encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KEY: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    /// 2026-01-02 03:04:05 UTC.
    const NOW: u64 = 1_767_323_045;

    fn credentials(session: Option<&str>) -> Credentials {
        Credentials::new("AKIDEXAMPLE", KEY, session.map(str::to_owned), None, "test")
    }

    fn url(token: &OAuthToken) -> String {
        String::from_utf8(URL_SAFE_NO_PAD.decode(&token.token).unwrap()).unwrap()
    }

    /// The signatures were computed from the definition of signature version 4, not with this library.
    #[test]
    fn a_token_is_a_signed_address_that_is_taken_for_a_quarter_of_an_hour() {
        let signed = "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect\
                      &X-Amz-Algorithm=AWS4-HMAC-SHA256\
                      &X-Amz-Credential=AKIDEXAMPLE%2F20260102%2Feu-west-1%2Fkafka-cluster%2Faws4_request\
                      &X-Amz-Date=20260102T030405Z&X-Amz-Expires=900&X-Amz-SignedHeaders=host";
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        for (session, parameters) in [
            (None, "&X-Amz-Signature=7cc178453342e479def8e0e69cbff443ca929b5b0426af0f4b64554172c7195d"),
            (
                Some("a/token+with=signs"),
                "&X-Amz-Security-Token=a%2Ftoken%2Bwith%3Dsigns\
                 &X-Amz-Signature=19ea0bc81bfc6f4b1215005585cae0a019c5630dcf9bd4e4a0f72c9ae45f6ce1",
            ),
        ] {
            let token = sign("eu-west-1", &credentials(session), now).unwrap();
            let mut parts: Vec<String> = url(&token).split('&').map(str::to_owned).collect();
            let agent = parts.pop().unwrap();
            assert!(agent.starts_with("User-Agent=payguard%2F"), "{agent}");
            let expected = format!("{signed}{parameters}");
            let mut expected: Vec<&str> = expected.split('&').collect();
            // The order of the rest has no meaning.
            parts.sort();
            expected.sort_unstable();
            assert_eq!(parts, expected);
            assert_eq!(token.lifetime_ms, (i64::try_from(NOW).unwrap() + 900) * 1_000);
            assert!(!url(&token).contains(KEY));
        }
    }

    #[test]
    fn without_credentials_there_is_a_reason_and_no_token() {
        #[derive(Debug)]
        struct Empty;
        impl ProvideCredentials for Empty {
            fn provide_credentials<'a>(&'a self) -> aws_credential_types::provider::future::ProvideCredentials<'a>
            where
                Self: 'a,
            {
                let error = aws_credential_types::provider::error::CredentialsError::not_loaded("nowhere");
                aws_credential_types::provider::future::ProvideCredentials::ready(Err(error))
            }
        }
        let text =
            MskTokens::new("eu-west-1", SharedCredentialsProvider::new(Empty)).token().err().unwrap().to_string();
        assert!(text.starts_with("no AWS credentials for MSK: "), "{text}");
        let given = MskTokens::new("eu-west-1", SharedCredentialsProvider::new(credentials(None)));
        // From within a runtime too.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(async { given.token() }).is_ok());
    }
}
