//! S3 on files: the calls the pipeline needs, atomic and without bookkeeping files.
//!
//! A body is received whole, written to a temporary file and renamed to its place, so a reader sees a whole object or
//! none, also when the process is killed. Nothing is synchronised to the disk: a power cut may lose objects. ETags
//! change with every write but are no checksums. Not here: multipart uploads, copies, versions, tags, metadata,
//! checksums (requests that carry them are accepted, they are not verified).

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use s3s::dto::{
    Bucket, CommonPrefix, CreateBucketInput, CreateBucketOutput, DeleteObjectInput, DeleteObjectOutput,
    DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag, ETagCondition, GetObjectInput, GetObjectOutput,
    HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListBucketsInput, ListBucketsOutput,
    ListObjectsV2Input, ListObjectsV2Output, Object, PutObjectInput, PutObjectOutput, StreamingBlob, Timestamp,
};
use s3s::{Body, S3, S3Error, S3Request, S3Response, S3Result, s3_error};

use super::error::StackError;
use super::paths::{dir_part, object_file, object_part, prefix_dir};

/// Directory of files that are being written; no bucket can have this name.
const TEMPORARY: &str = ".writing";

/// The largest object, since a body is held in memory.
const MAX_OBJECT_BYTES: usize = 256 << 20;

/// Keys per page of a listing.
const MAX_KEYS: usize = 1000;

/// Buckets as directories below one directory.
#[derive(Debug)]
pub(super) struct FileObjects {
    root: PathBuf,
    writing: PathBuf,
    next: AtomicU64,
}

impl FileObjects {
    /// Opens the directory and removes what a killed process left half written.
    pub(super) fn open(root: &Path) -> Result<FileObjects, StackError> {
        let writing = root.join(TEMPORARY);
        if writing.exists() {
            fs::remove_dir_all(&writing).map_err(StackError::unwritable(root))?;
        }
        fs::create_dir_all(&writing).map_err(StackError::unwritable(root))?;
        Ok(FileObjects { root: root.to_owned(), writing, next: AtomicU64::new(0) })
    }

    fn bucket_dir(&self, bucket: &str) -> S3Result<PathBuf> {
        let dir = self.root.join(bucket);
        if dir.is_dir() { Ok(dir) } else { Err(s3_error!(NoSuchBucket, "there is no bucket {}", bucket)) }
    }

    /// Writes an object. With `create` an existing one stays and is an error of kind `AlreadyExists`.
    fn write(&self, file: &Path, chunks: &[Bytes], create: bool) -> io::Result<Metadata> {
        let temporary = self.writing.join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let written = self.write_and_place(&temporary, file, chunks, create);
        if written.is_err() || create {
            // After an error it may not exist; a hard link leaves it behind.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn write_and_place(&self, temporary: &Path, file: &Path, chunks: &[Bytes], create: bool) -> io::Result<Metadata> {
        let mut output = File::create(temporary)?;
        for chunk in chunks {
            output.write_all(chunk)?;
        }
        let metadata = output.metadata()?;
        let place = || if create { fs::hard_link(temporary, file) } else { fs::rename(temporary, file) };
        match place() {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = file.parent() {
                    fs::create_dir_all(parent)?;
                }
                place()?;
            }
            placed => placed?,
        }
        Ok(metadata)
    }

    fn open_object(&self, bucket: &str, key: &str) -> S3Result<(File, Metadata)> {
        let path = object_file(&self.bucket_dir(bucket)?, key);
        let file = File::open(&path).map_err(|err| failed(key, &err))?;
        let metadata = file.metadata().map_err(|err| failed(key, &err))?;
        Ok((file, metadata))
    }
}

#[async_trait]
impl S3 for FileObjects {
    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        let bucket = req.input.bucket;
        match fs::create_dir(self.root.join(&bucket)) {
            Ok(()) => Ok(S3Response::new(CreateBucketOutput::default())),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                Err(s3_error!(BucketAlreadyOwnedByYou, "bucket {} exists", bucket))
            }
            Err(err) => Err(failed(&bucket, &err)),
        }
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.bucket_dir(&req.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let mut buckets = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(|err| failed("buckets", &err))? {
            let entry = entry.map_err(|err| failed("buckets", &err))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != TEMPORARY {
                buckets.push(Bucket { name: Some(name), ..Bucket::default() });
            }
        }
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(buckets), ..ListBucketsOutput::default() }))
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let PutObjectInput { bucket, key, body, if_match, if_none_match, .. } = req.input;
        let create = match (if_match, if_none_match) {
            (None, None) => false,
            (None, Some(ETagCondition::Any)) => true,
            _ => return Err(s3_error!(NotImplemented, "of the conditions only If-None-Match: * is supported")),
        };
        let file = object_file(&self.bucket_dir(&bucket)?, &key);
        let chunks = receive(body.ok_or_else(|| s3_error!(IncompleteBody))?).await?;
        let metadata = self.write(&file, &chunks, create).map_err(|err| match err.kind() {
            io::ErrorKind::AlreadyExists => s3_error!(PreconditionFailed, "{} exists", key),
            _ => failed(&key, &err),
        })?;
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(etag(&metadata)), ..PutObjectOutput::default() }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let GetObjectInput { bucket, key, range, .. } = req.input;
        let (mut file, metadata) = self.open_object(&bucket, &key)?;
        let total = metadata.len();
        let wanted = match range {
            Some(range) => range.check(total)?,
            None => 0..total,
        };
        let bytes = read_range(&mut file, wanted.start, wanted.end - wanted.start).map_err(|err| failed(&key, &err))?;
        let content_range = range.map(|_| format!("bytes {}-{}/{total}", wanted.start, wanted.end.saturating_sub(1)));
        Ok(S3Response::new(GetObjectOutput {
            content_length: i64::try_from(bytes.len()).ok(),
            content_range,
            body: Some(StreamingBlob::from(Body::from(bytes))),
            e_tag: Some(etag(&metadata)),
            last_modified: metadata.modified().ok().map(Timestamp::from),
            ..GetObjectOutput::default()
        }))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let (_, metadata) = self.open_object(&req.input.bucket, &req.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: i64::try_from(metadata.len()).ok(),
            e_tag: Some(etag(&metadata)),
            last_modified: metadata.modified().ok().map(Timestamp::from),
            ..HeadObjectOutput::default()
        }))
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        let DeleteObjectInput { bucket, key, .. } = req.input;
        remove(&self.bucket_dir(&bucket)?, &key)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let DeleteObjectsInput { bucket, delete, .. } = req.input;
        if delete.objects.len() > MAX_KEYS {
            return Err(s3_error!(MalformedXML, "a request may name {} objects", MAX_KEYS));
        }
        let bucket = self.bucket_dir(&bucket)?;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for object in delete.objects {
            match remove(&bucket, &object.key) {
                Ok(()) if delete.quiet == Some(true) => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(object.key), ..DeletedObject::default() }),
                Err(err) => errors.push(s3s::dto::Error {
                    code: Some(err.code().as_str().to_owned()),
                    message: err.message().map(str::to_owned),
                    key: Some(object.key),
                    ..s3s::dto::Error::default()
                }),
            }
        }
        let (deleted, errors) = (Some(deleted), Some(errors));
        Ok(S3Response::new(DeleteObjectsOutput { deleted, errors, ..DeleteObjectsOutput::default() }))
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        let bucket = self.bucket_dir(&input.bucket)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.clone().or(input.start_after).unwrap_or_default();
        let limit = input.max_keys.and_then(|keys| usize::try_from(keys).ok()).unwrap_or(MAX_KEYS).min(MAX_KEYS);
        let mut keys = Vec::new();
        let parents = prefix.rfind('/').map_or("", |end| &prefix[..=end]);
        collect_keys(&prefix_dir(&bucket, &prefix), parents, &mut keys).map_err(|err| failed(&prefix, &err))?;
        keys.retain(|(key, _)| key.starts_with(&prefix) && *key > after);
        keys.sort_by(|a, b| a.0.cmp(&b.0));
        let mut output = ListObjectsV2Output { name: Some(input.bucket), ..ListObjectsV2Output::default() };
        fill_page(&mut output, keys, &prefix, input.delimiter.as_deref(), &after, limit);
        output.prefix = input.prefix;
        output.delimiter = input.delimiter;
        output.continuation_token = input.continuation_token;
        Ok(S3Response::new(output))
    }
}

/// Removes an object if it is there.
fn remove(bucket: &Path, key: &str) -> S3Result<()> {
    match fs::remove_file(object_file(bucket, key)) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(failed(key, &err)),
        _ => Ok(()),
    }
}

/// Puts keys into a page of a listing, those with the delimiter after the prefix folded together.
fn fill_page(
    output: &mut ListObjectsV2Output,
    keys: Vec<(String, Metadata)>,
    prefix: &str,
    delimiter: Option<&str>,
    after: &str,
    limit: usize,
) {
    let (mut objects, mut folded): (Vec<Object>, Vec<CommonPrefix>) = (Vec::new(), Vec::new());
    let mut last = String::new();
    let mut truncated = false;
    for (key, metadata) in keys {
        let fold = delimiter.and_then(|d| key[prefix.len()..].find(d).map(|at| &key[..prefix.len() + at + d.len()]));
        let name = fold.unwrap_or(&key);
        // A page that ended with a folded prefix goes on after all of its keys.
        if fold.is_some() && (name == last || name == after) {
            continue;
        }
        if objects.len() + folded.len() == limit {
            truncated = true;
            break;
        }
        last = name.to_owned();
        match fold {
            Some(fold) => folded.push(CommonPrefix { prefix: Some(fold.to_owned()) }),
            None => objects.push(Object {
                size: i64::try_from(metadata.len()).ok(),
                e_tag: Some(etag(&metadata)),
                last_modified: metadata.modified().ok().map(Timestamp::from),
                key: Some(key),
                ..Object::default()
            }),
        }
    }
    output.key_count = i32::try_from(objects.len() + folded.len()).ok();
    output.max_keys = i32::try_from(limit).ok();
    output.is_truncated = Some(truncated);
    output.next_continuation_token = truncated.then_some(last);
    output.contents = Some(objects);
    output.common_prefixes = Some(folded);
}

/// Receives a body.
async fn receive(mut body: StreamingBlob) -> S3Result<Vec<Bytes>> {
    let mut chunks = Vec::new();
    let mut total = 0;
    while let Some(chunk) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_next(cx)).await {
        let chunk = chunk.map_err(|err| s3_error!(IncompleteBody, "the body broke off: {}", err))?;
        total += chunk.len();
        if total > MAX_OBJECT_BYTES {
            return Err(s3_error!(EntityTooLarge, "an object may have {} bytes", MAX_OBJECT_BYTES));
        }
        chunks.push(chunk);
    }
    Ok(chunks)
}

fn read_range(file: &mut File, start: u64, len: u64) -> io::Result<Bytes> {
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::with_capacity(usize::try_from(len).map_err(io::Error::other)?);
    file.take(len).read_to_end(&mut bytes)?;
    Ok(Bytes::from(bytes))
}

/// All keys below a directory, in no order. `parents` is the key of the directory, ending in `/` or empty.
fn collect_keys(dir: &Path, parents: &str, keys: &mut Vec<(String, Metadata)>) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if let Some(part) = object_part(name) {
            // An object may be deleted while it is listed.
            if let Ok(metadata) = entry.metadata() {
                keys.push((format!("{parents}{part}"), metadata));
            }
        } else if let Some(part) = dir_part(name) {
            collect_keys(&entry.path(), &format!("{parents}{part}/"), keys)?;
        }
    }
    Ok(())
}

/// Changes with every write: when it was made and its length.
fn etag(metadata: &Metadata) -> ETag {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    ETag::Strong(format!("{:x}-{:x}", since.as_nanos(), metadata.len()))
}

/// A file could not be used: the key is missing, or the disk has a problem, which the caller may outlive.
fn failed(what: &str, err: &io::Error) -> S3Error {
    match err.kind() {
        io::ErrorKind::NotFound => s3_error!(NoSuchKey, "there is no object {}", what),
        io::ErrorKind::InvalidFilename => s3_error!(KeyTooLongError, "{}: {}", what, err),
        _ => s3_error!(InternalError, "{}: {}", what, err),
    }
}
