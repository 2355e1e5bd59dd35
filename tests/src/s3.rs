//! An S3 server in the test process: the protocol by `s3s`, the objects in a map.
//!
//! `s3s-fs` is not used: it names files by the base64 of a key, and ours are longer than a file name may be.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::{TryStreamExt, stream};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kvasir_store::StoreConfig;
use s3s::{
    Body, S3, S3Request, S3Response, S3Result, auth::SimpleAuth, dto::*, s3_error, service::S3ServiceBuilder,
};
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, task::JoinHandle};

/// The only bucket.
pub const BUCKET: &str = "kvasir-test";
const KEY_ID: &str = "test-key";
const SECRET: &str = "test-secret";
/// Keys of one listing: small, so that tests page.
const PAGE: usize = 50;
/// Smallest part of an upload before its last one: S3's.
const PART_BYTES_MIN: usize = 5 << 20;

/// A running server; stops when dropped.
#[derive(Debug)]
pub struct S3Server {
    /// Its address.
    pub address: SocketAddr,
    objects: Objects,
    task: JoinHandle<()>,
}

/// How a server treats the condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conditions {
    /// Honours it.
    #[default]
    Honoured,
    /// Writes as if there were none, as some servers do.
    Ignored,
    /// Answers 501, as others do.
    Refused,
}

/// Features that a server deliberately lacks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lacks {
    /// How it treats `If-None-Match` and `If-Match` on writes.
    pub conditional_writes: Conditions,
    /// `x-amz-checksum-sha256` is not compared with the body, as some servers do.
    pub checksums: bool,
}

impl S3Server {
    /// Starts a server on a free port.
    pub async fn start(lacks: Lacks) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), lacks).await
    }

    /// As [`start`](Self::start), at an address.
    pub async fn start_at(address: SocketAddr, lacks: Lacks) -> Self {
        let objects = Objects { lacks, state: Arc::default(), next: Arc::default(), broken: Arc::default() };
        let mut builder = S3ServiceBuilder::new(objects.clone());
        builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        let service = builder.build();
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).expect("TCP");
                let service = service.clone();
                tokio::spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, objects, task }
    }

    /// How to open it, under a prefix.
    pub fn config(&self, prefix: &str) -> StoreConfig {
        Self::config_at(self.address, prefix)
    }

    /// As [`config`](Self::config), of the server at an address.
    pub fn config_at(address: SocketAddr, prefix: &str) -> StoreConfig {
        let url = format!("s3://{BUCKET}/{prefix}").parse().expect("a url");
        StoreConfig {
            endpoint: Some(format!("http://{address}")),
            region: Some("us-east-1".to_owned()),
            access_key_id: Some(KEY_ID.to_owned()),
            secret_access_key: Some(SECRET.to_owned().into()),
            ..StoreConfig::new(url)
        }
    }

    /// Keys of objects that contain a text.
    pub fn keys(&self, part: &str) -> Vec<String> {
        let state = self.objects.state.lock().expect("not poisoned");
        state.objects.keys().filter(|key| key.contains(part)).cloned().collect()
    }

    /// The keys of all objects, each with the ETag of its last write.
    pub fn contents(&self) -> BTreeMap<String, String> {
        let state = self.objects.state();
        state.objects.iter().map(|(key, stored)| (key.clone(), stored.etag.clone())).collect()
    }

    /// Asserts that no object was written or deleted `by` a request since its [`contents`](Self::contents) were `before`.
    pub fn assert_unchanged(&self, before: &BTreeMap<String, String>, by: &str) {
        let now = self.contents();
        let gone = before.iter().filter(|(key, etag)| now.get(*key) != Some(*etag));
        let new = now.keys().filter(|key| !before.contains_key(*key));
        let changed: Vec<_> = gone.map(|(key, _)| key).chain(new).collect();
        assert!(changed.is_empty(), "{by}: {changed:?}");
    }

    /// Overwrites an object, which no client should be able to do.
    pub fn overwrite(&self, key: &str, bytes: impl Into<Bytes>) {
        self.objects.write(key.to_owned(), bytes.into(), None, None).expect("no condition");
    }

    /// From now on, reads of objects whose keys contain a text break off in the middle and go on nowhere; empty: none do.
    pub fn break_reads_of(&self, part: &str) {
        part.clone_into(&mut self.objects.broken.lock().expect("not poisoned"));
    }

    /// Multipart uploads neither completed nor aborted.
    pub fn open_uploads(&self) -> usize {
        self.objects.state.lock().expect("not poisoned").uploads.len()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug, Clone)]
struct Objects {
    lacks: Lacks,
    state: Arc<Mutex<State>>,
    next: Arc<AtomicU64>,
    /// Reads of keys that contain this text break off; none if it is empty.
    broken: Arc<Mutex<String>>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<String, Upload>,
}

#[derive(Debug)]
struct Upload {
    key: String,
    begun: Timestamp,
    parts: BTreeMap<i32, Bytes>,
}

#[derive(Debug, Clone)]
struct Stored {
    bytes: Bytes,
    etag: String,
    modified: Timestamp,
}

async fn collect(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let Some(body) = body else { return Ok(Bytes::new()) };
    let parts: Vec<Bytes> = body.try_collect().await.map_err(|_| s3_error!(IncompleteBody))?;
    Ok(parts.concat().into())
}

impl Objects {
    fn breaks(&self, key: &str) -> bool {
        let broken = self.broken.lock().expect("not poisoned");
        !broken.is_empty() && key.contains(&*broken)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    fn unique(&self) -> String {
        format!("{:032x}", self.next.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn found(&self, bucket: &str, key: &str) -> S3Result<Stored> {
        if bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        self.state().objects.get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey))
    }

    /// Writes under the lock, so that conditions and writes are one step.
    fn write(
        &self,
        key: String,
        bytes: Bytes,
        if_match: Option<&ETagCondition>,
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<ETag> {
        if self.lacks.conditional_writes == Conditions::Refused
            && (if_match.is_some() || if_none_match.is_some())
        {
            return Err(s3_error!(NotImplemented));
        }
        let etag = self.unique();
        let mut state = self.state();
        let there = state.objects.get(&key).map(|o| ETag::Strong(o.etag.clone()));
        if self.lacks.conditional_writes == Conditions::Honoured {
            let matches = |condition: &ETagCondition| match (condition, &there) {
                (_, None) => false,
                (ETagCondition::Any, Some(_)) => true,
                (ETagCondition::ETag(etag), Some(there)) => etag.strong_cmp(there),
            };
            if if_none_match.is_some_and(matches) || if_match.is_some_and(|c| !matches(c)) {
                return Err(s3_error!(PreconditionFailed));
            }
        }
        let modified = Timestamp::from(std::time::SystemTime::now());
        state.objects.insert(key, Stored { bytes, etag: etag.clone(), modified });
        Ok(ETag::Strong(etag))
    }
}

#[async_trait::async_trait]
impl S3 for Objects {
    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        let bytes = collect(input.body).await?;
        let digest = BASE64_STANDARD.encode(Sha256::digest(&bytes));
        if !self.lacks.checksums && input.checksum_sha256.is_some_and(|wanted| wanted != digest) {
            return Err(s3_error!(BadDigest));
        }
        let etag = self.write(input.key, bytes, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(etag), ..Default::default() }))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        let stored = self.found(&input.bucket, &input.key)?;
        let etag = ETag::Strong(stored.etag);
        let is = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(wanted) => wanted.strong_cmp(&etag),
        };
        if input.if_match.as_ref().is_some_and(|c| !is(c)) {
            return Err(s3_error!(PreconditionFailed));
        }
        if input.if_none_match.as_ref().is_some_and(is) {
            return Err(s3_error!(NotModified));
        }
        let total = stored.bytes.len() as u64;
        let range = input.range.map(|range| range.check(total)).transpose()?;
        let part = range.clone().unwrap_or(0..total);
        let bytes = stored.bytes.slice(part.start as usize..part.end as usize);
        let length = bytes.len();
        let body = match self.breaks(&input.key) {
            true if range.is_some() => return Err(s3_error!(InternalError)),
            true => StreamingBlob::wrap(stream::iter([
                Ok(bytes.slice(..length / 2)),
                Err(std::io::Error::other("a broken disk")),
            ])),
            false => StreamingBlob::from(Body::from(bytes)),
        };
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(length as i64),
            content_range: range.map(|r| format!("bytes {}-{}/{total}", r.start, r.end - 1)),
            body: Some(body),
            e_tag: Some(etag),
            last_modified: Some(stored.modified),
            ..Default::default()
        }))
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let stored = self.found(&req.input.bucket, &req.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(stored.bytes.len() as i64),
            e_tag: Some(ETag::Strong(stored.etag)),
            last_modified: Some(stored.modified),
            ..Default::default()
        }))
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let CopySource::Bucket { bucket, key, .. } = &req.input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let source = self.found(bucket, key)?;
        let etag = self.write(req.input.key, source.bytes, None, None)?;
        let last_modified = Some(Timestamp::from(std::time::SystemTime::now()));
        let result = CopyObjectResult { e_tag: Some(etag), last_modified, ..Default::default() };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.state().objects.remove(&req.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let mut state = self.state();
        let deleted = req.input.delete.objects.into_iter().map(|object| {
            state.objects.remove(&object.key);
            DeletedObject { key: Some(object.key), ..Default::default() }
        });
        let deleted = Some(deleted.collect());
        Ok(S3Response::new(DeleteObjectsOutput { deleted, ..Default::default() }))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.clone().or(input.start_after).unwrap_or_default();
        let state = self.state();
        // A token that is a folder: the next page begins behind all of it.
        let delimiter = input.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
        let is_in_last = |key: &str| delimiter.is_some_and(|d| after.ends_with(d)) && key.starts_with(&after);
        let keys = state.objects.range(prefix.clone()..).filter(|(key, _)| **key > after && !is_in_last(key));
        let mut contents = Vec::new();
        let mut folders = std::collections::BTreeSet::new();
        let (mut truncated, mut last) = (None, None);
        for (key, stored) in keys.take_while(|(key, _)| key.starts_with(&prefix)) {
            let rest = &key[prefix.len()..];
            let end = delimiter.and_then(|d| rest.find(d).map(|at| at + d.len()));
            let folder = end.map(|end| format!("{prefix}{}", &rest[..end]));
            if folder.as_ref().is_some_and(|folder| folders.contains(folder)) {
                continue;
            }
            if contents.len() + folders.len() == PAGE {
                truncated = Some(());
                break;
            }
            last = Some(folder.clone().unwrap_or_else(|| key.clone()));
            match folder {
                Some(folder) => {
                    folders.insert(folder);
                }
                None => contents.push(Object {
                    key: Some(key.clone()),
                    size: Some(stored.bytes.len() as i64),
                    e_tag: Some(ETag::Strong(stored.etag.clone())),
                    last_modified: Some(stored.modified.clone()),
                    ..Default::default()
                }),
            }
        }
        let folders = folders.into_iter().map(|prefix| CommonPrefix { prefix: Some(prefix) });
        Ok(S3Response::new(ListObjectsV2Output {
            is_truncated: Some(truncated.is_some()),
            next_continuation_token: truncated.and(last),
            key_count: Some(contents.len() as i32),
            contents: Some(contents),
            common_prefixes: Some(folders.collect()),
            name: Some(input.bucket),
            prefix: Some(prefix),
            ..Default::default()
        }))
    }

    /// By key, then by id, two to a page: so that tests page.
    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = req.input;
        let after = input.key_marker.zip(input.upload_id_marker).unwrap_or_default();
        let prefix = input.prefix.unwrap_or_default();
        let state = self.state();
        let mut all: Vec<_> =
            state.uploads.iter().map(|(id, upload)| (&upload.key, id, &upload.begun)).collect();
        all.sort_by_key(|(key, id, _)| (*key, *id));
        all.retain(|(key, id, _)| {
            key.starts_with(&prefix) && (key.as_str(), id.as_str()) > (&*after.0, &*after.1)
        });
        let page: Vec<_> = all.iter().take(2).collect();
        let last = page.last().filter(|_| all.len() > page.len());
        let uploads = page.iter().map(|(key, id, begun)| MultipartUpload {
            key: Some((*key).clone()),
            upload_id: Some((*id).clone()),
            initiated: Some((*begun).clone()),
            ..Default::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            is_truncated: Some(last.is_some()),
            next_key_marker: last.map(|(key, ..)| (*key).clone()),
            next_upload_id_marker: last.map(|(_, id, _)| (*id).clone()),
            uploads: Some(uploads.collect()),
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let id = self.unique();
        let begun = Timestamp::from(std::time::SystemTime::now());
        let upload = Upload { key: req.input.key.clone(), begun, parts: BTreeMap::new() };
        self.state().uploads.insert(id.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(req.input.bucket),
            key: Some(req.input.key),
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let input = req.input;
        let bytes = collect(input.body).await?;
        let mut state = self.state();
        let upload = state.uploads.get_mut(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        upload.parts.insert(input.part_number, bytes);
        let e_tag = Some(ETag::Strong(format!("part-{}", input.part_number)));
        Ok(S3Response::new(UploadPartOutput { e_tag, ..Default::default() }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = req.input;
        let upload = self.state().uploads.remove(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        if upload.parts.values().rev().skip(1).any(|part| part.len() < PART_BYTES_MIN) {
            return Err(s3_error!(EntityTooSmall));
        }
        let bytes = upload.parts.into_values().collect::<Vec<_>>().concat().into();
        let etag =
            self.write(input.key.clone(), bytes, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            e_tag: Some(etag),
            bucket: Some(input.bucket),
            key: Some(input.key),
            ..Default::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.state().uploads.remove(&req.input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}

#[cfg(test)]
mod tests {
    use kvasir_store::{OpenStore, observe::NoObserver};
    use object_store::{ObjectStore as _, ObjectStoreExt as _, path::Path};

    use super::*;

    #[tokio::test]
    async fn folders_are_listed_over_pages() {
        let server = S3Server::start(Lacks::default()).await;
        let store = OpenStore::open(&server.config("p"), Arc::new(NoObserver)).expect("opens");
        for n in 0..2 * PAGE + 1 {
            for file in ["a", "b"] {
                let path = Path::from(format!("p/f/{n:03}/{file}"));
                store.objects().put(&path, "x".into()).await.expect("writes");
            }
            store.objects().put(&Path::from(format!("p/f/{n:03}.x")), "x".into()).await.expect("writes");
        }
        let listed = store.objects().list_with_delimiter(Some(&Path::from("p/f"))).await.expect("lists");
        assert_eq!((listed.common_prefixes.len(), listed.objects.len()), (2 * PAGE + 1, 2 * PAGE + 1));
    }
}
