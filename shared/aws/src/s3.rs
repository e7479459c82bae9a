//! The segment store on S3.

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::operation::get_object::GetObjectError;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use bytes::Bytes;
use payguard_engine::StoreError;
use payguard_engine::store::SegmentStore;

use crate::client::Clients;
use crate::sdk_error::{code, describe, invalid, kind_of, missing, store_error};
use crate::usage::Usage;

/// [`SegmentStore`] on S3: the object of key `k` is `<pipeline>/k`.
#[derive(Clone, Debug)]
pub struct S3Segments {
    client: Client,
    bucket: String,
    pipeline: String,
    sign_payload: bool,
    usage: Arc<Usage>,
}

impl S3Segments {
    /// The segments of `pipeline` in `bucket`.
    #[must_use]
    pub fn new(clients: &Clients, bucket: &str, pipeline: &str, usage: Arc<Usage>) -> S3Segments {
        S3Segments {
            client: clients.s3.clone(),
            bucket: bucket.to_owned(),
            pipeline: pipeline.to_owned(),
            sign_payload: !clients.s3_is_plain_http,
            usage,
        }
    }

    fn object_key(&self, key: &str) -> String {
        format!("{}/{key}", self.pipeline)
    }

    fn target(&self, key: &str) -> String {
        format!("{}/{}/{key}", self.bucket, self.pipeline)
    }
}

#[async_trait]
impl SegmentStore for S3Segments {
    async fn put(&self, key: &str, bytes: Bytes) -> Result<(), StoreError> {
        let len = bytes.len();
        let request =
            self.client.put_object().bucket(&self.bucket).key(self.object_key(key)).body(ByteStream::from(bytes));
        let sent = match self.sign_payload {
            true => request.send().await,
            false => request.customize().disable_payload_signing().send().await,
        };
        sent.map_err(|err| store_error("put object", self.target(key), err))?;
        self.usage.put_object(len);
        Ok(())
    }

    async fn get(&self, key: &str, offset: u64, len: u64) -> Result<Bytes, StoreError> {
        let Some(last) = offset.checked_add(len).and_then(|end| end.checked_sub(1)).filter(|_| len > 0) else {
            return Ok(Bytes::new());
        };
        let answer = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(self.object_key(key))
            .range(format!("bytes={offset}-{last}"))
            .send()
            .await;
        let object = match answer {
            Ok(object) => object,
            // The object ends before `offset`: shorter than expected, as any short range.
            Err(err) if code(&err) == Some("InvalidRange") => return Ok(Bytes::new()),
            Err(err) if matches!(err.as_service_error(), Some(GetObjectError::NoSuchKey(_))) => {
                return Err(missing("get object", self.target(key), "object missing"));
            }
            // To those who may not list the bucket, as most functions, S3 says no more of an object that is not there.
            Err(err) if code(&err) == Some("AccessDenied") => {
                let detail = format!("object missing, or not to be read: {}", describe(&err));
                return Err(missing("get object", self.target(key), detail));
            }
            Err(err) => return Err(store_error("get object", self.target(key), err)),
        };
        let bytes = object.body.collect().await.map_err(|err| interrupted(self.target(key), err))?.into_bytes();
        self.usage.got_object(bytes.len());
        Ok(bytes)
    }

    async fn list(&self, prefix: &str, limit: usize) -> Result<Vec<String>, StoreError> {
        self.usage.list_request();
        let answer = self
            .client
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(self.object_key(prefix))
            .max_keys(i32::try_from(limit).unwrap_or(i32::MAX))
            .send()
            .await
            .map_err(|err| store_error("list objects", self.target(prefix), err))?;
        let pipeline = self.object_key("");
        let keys = answer.contents().iter().filter_map(|object| object.key()?.strip_prefix(&pipeline));
        Ok(keys.map(str::to_owned).collect())
    }

    async fn delete(&self, keys: &[String]) -> Result<(), StoreError> {
        let Some(first) = keys.first() else { return Ok(()) };
        let target = || format!("{} and {} more", self.target(first), keys.len() - 1);
        let wrong = |err: aws_sdk_s3::error::BuildError| invalid("delete objects", target(), err.to_string());
        let named = |key: &String| ObjectIdentifier::builder().key(self.object_key(key)).build();
        let objects = keys.iter().map(named).collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let delete = Delete::builder().set_objects(Some(objects)).quiet(true).build().map_err(wrong)?;
        let answer = self
            .client
            .delete_objects()
            .bucket(&self.bucket)
            .delete(delete)
            .send()
            .await
            .map_err(|err| store_error("delete objects", target(), err))?;
        match answer.errors().first() {
            None => Ok(()),
            Some(err) => {
                let detail = format!("{}: {}", err.code().unwrap_or("no code"), err.message().unwrap_or("no message"));
                let kind = kind_of(err.code());
                Err(StoreError::new(kind, "delete objects", err.key().unwrap_or_default(), detail))
            }
        }
    }
}

/// The connection broke while the body was read: the object may be in order.
fn interrupted(target: String, err: aws_sdk_s3::primitives::ByteStreamError) -> StoreError {
    let mut error = StoreError::new(
        payguard_engine::StoreErrorKind::Unavailable,
        "get object",
        target,
        format!("the body broke off: {err}"),
    );
    error.source = Some(Box::new(err));
    error
}
