//! TLS as libpq means it: whether to use it, and what of the server's certificate is checked.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How much TLS is asked for; the names and meanings of `sslmode` of libpq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TlsMode {
    /// Never.
    Disable,
    /// Only where the server insists on it.
    Allow,
    /// Where it is to be had. Whoever sits in between can prevent it.
    Prefer,
    /// Always, with any certificate; with roots of one's own as `VerifyCa`.
    Require,
    /// Always, with a certificate of a known authority.
    VerifyCa,
    /// Always, with a certificate of a known authority for the name that is connected to.
    VerifyFull,
}

impl TlsMode {
    /// The mode of this name.
    pub(crate) fn named(name: &str) -> Option<TlsMode> {
        Some(match name {
            "disable" => TlsMode::Disable,
            "allow" => TlsMode::Allow,
            "prefer" => TlsMode::Prefer,
            "require" => TlsMode::Require,
            "verify-ca" => TlsMode::VerifyCa,
            "verify-full" => TlsMode::VerifyFull,
            _ => return None,
        })
    }

    /// The ways to connect, in the order they are tried.
    pub(crate) fn ways(self, ca_file: Option<&Path>) -> Result<Vec<Way>, String> {
        let unchecked = || Ok::<_, String>(Way::tls(Arc::new(Unchecked(aws_lc_rs::default_provider()))));
        Ok(match (self, ca_file) {
            (TlsMode::Disable, _) => vec![Way::Plain],
            (TlsMode::Allow, _) => vec![Way::Plain, unchecked()?],
            (TlsMode::Prefer, _) => vec![unchecked()?, Way::Plain],
            (TlsMode::Require, None) => vec![unchecked()?],
            (TlsMode::Require | TlsMode::VerifyCa, Some(file)) => {
                vec![Way::tls(Arc::new(AnyName(verifier(from_file(file)?)?)))]
            }
            (TlsMode::VerifyCa, None) => return Err(WEAK.to_owned()),
            (TlsMode::VerifyFull, Some(file)) => vec![Way::tls(verifier(from_file(file)?)?)],
            (TlsMode::VerifyFull, None) => vec![Way::tls(verifier(of_the_system()?)?)],
        })
    }
}

/// Anybody can have a certificate of some public authority for some name.
const WEAK: &str = "sslmode=verify-ca would accept a certificate of any public authority for any name: name your own \
                    authority's file, or use sslmode=verify-full";

/// One way to connect.
#[derive(Clone)]
pub(crate) enum Way {
    /// Without TLS.
    Plain,
    /// With it or not at all.
    Tls(MakeRustlsConnect),
}

impl Way {
    fn tls(verifier: Arc<dyn ServerCertVerifier>) -> Way {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider knows the versions that are safe");
        Way::Tls(MakeRustlsConnect::new(
            config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth(),
        ))
    }
}

fn from_file(path: &Path) -> Result<RootCertStore, String> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|e| format!("{}: not a PEM file of certificates: {e}", path.display()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    match roots.is_empty() {
        true => Err(format!("{}: it holds no certificate", path.display())),
        false => Ok(roots),
    }
}

fn of_the_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match added {
        0 => Err("this machine has no root certificates: name a file of them".to_owned()),
        _ => Ok(roots),
    }
}

fn verifier(roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(|e| e.to_string())
}

/// Takes any certificate; that the server has its key is checked.
#[derive(Debug)]
struct Unchecked(CryptoProvider);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Takes a certificate of a known authority for whatever name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last: all else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
