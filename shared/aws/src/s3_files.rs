//! Files under a prefix of a bucket: where savepoints of a deployed pipeline are.

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::operation::get_object::GetObjectError;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use payguard_engine::store::{FileInfo, FileStore};
use payguard_engine::{StoreError, StoreErrorKind};

use crate::client::Clients;
use crate::sdk_error::store_error;

/// [`FileStore`] on S3: the file at path `p` is the object `<prefix>/p`.
#[derive(Clone, Debug)]
pub struct S3Files {
    client: Client,
    bucket: String,
    /// With its trailing `/`; empty for the whole bucket.
    prefix: String,
    sign_payload: bool,
}

impl S3Files {
    /// The files under `prefix` of `bucket`.
    #[must_use]
    pub fn new(clients: &Clients, bucket: &str, prefix: &str) -> S3Files {
        let prefix = prefix.trim_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        S3Files {
            client: clients.s3.clone(),
            bucket: bucket.to_owned(),
            prefix,
            sign_payload: !clients.s3_is_plain_http,
        }
    }

    fn key(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    fn target(&self, path: &str) -> String {
        format!("s3://{}/{}{path}", self.bucket, self.prefix)
    }
}

#[async_trait]
impl FileStore for S3Files {
    fn location(&self) -> String {
        self.target("").trim_end_matches('/').to_owned()
    }

    async fn put_file(&self, path: &str, bytes: Bytes) -> Result<(), StoreError> {
        let request = self.client.put_object().bucket(&self.bucket).key(self.key(path)).body(ByteStream::from(bytes));
        let sent = match self.sign_payload {
            true => request.send().await,
            false => request.customize().disable_payload_signing().send().await,
        };
        sent.map(drop).map_err(|err| store_error("write file", self.target(path), err))
    }

    async fn get_file(&self, path: &str) -> Result<Option<Bytes>, StoreError> {
        let answer = self.client.get_object().bucket(&self.bucket).key(self.key(path)).send().await;
        let object = match answer {
            Ok(object) => object,
            Err(err) if matches!(err.as_service_error(), Some(GetObjectError::NoSuchKey(_))) => return Ok(None),
            Err(err) => return Err(store_error("read file", self.target(path), err)),
        };
        let body = object.body.collect().await.map_err(|err| {
            let detail = format!("the body broke off: {err}");
            StoreError::new(StoreErrorKind::Unavailable, "read file", self.target(path), detail)
        })?;
        Ok(Some(body.into_bytes()))
    }

    async fn list_files(&self, prefix: &str) -> Result<Vec<FileInfo>, StoreError> {
        let (mut files, mut token) = (Vec::new(), None);
        loop {
            let answer = self
                .client
                .list_objects_v2()
                .bucket(&self.bucket)
                .prefix(self.key(prefix))
                .set_continuation_token(token)
                .send()
                .await
                .map_err(|err| store_error("list files", self.target(prefix), err))?;
            for object in answer.contents() {
                let path = object.key().and_then(|key| key.strip_prefix(&self.prefix)).unwrap_or_default().to_owned();
                files.push(FileInfo { path, bytes: object.size().and_then(|n| u64::try_from(n).ok()).unwrap_or(0) });
            }
            token = answer.next_continuation_token().map(str::to_owned);
            if token.is_none() {
                files.sort();
                return Ok(files);
            }
        }
    }

    async fn delete_file(&self, path: &str) -> Result<(), StoreError> {
        let request = self.client.delete_object().bucket(&self.bucket).key(self.key(path));
        request.send().await.map(drop).map_err(|err| store_error("delete file", self.target(path), err))
    }
}
