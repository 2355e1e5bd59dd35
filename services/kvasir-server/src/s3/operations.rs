//! The supported S3 operations, implemented over the service's own objects. All others return
//! `NotImplemented`.

use kvasir_types::{Name, ObjectKey};
use s3s::{S3, S3Request, S3Response, S3Result, dto::*, s3_error};

use crate::{auth::Principal, state::AppState};

/// Implements the operations.
pub(super) struct Operations {
    state: AppState,
}

impl Operations {
    pub(super) fn new(state: AppState) -> Self {
        Self { state }
    }

    pub(super) fn state(&self) -> &AppState {
        &self.state
    }
}

/// The principal from the access check. Without it the request is rejected: an operation that the check does
/// not cover must not be open.
pub(super) fn principal<T>(request: &S3Request<T>) -> S3Result<Principal> {
    let found = request.extensions.get::<Principal>().cloned();
    found.ok_or_else(|| s3_error!(AccessDenied, "the operation has no principal"))
}

/// The namespace of a bucket.
pub(super) fn namespace(bucket: &str) -> S3Result<Name> {
    bucket.parse().map_err(|error| s3_error!(InvalidBucketName, "{error}"))
}

/// A key.
pub(super) fn key(key: &str) -> S3Result<ObjectKey> {
    key.parse().map_err(|error| s3_error!(KeyTooLongError, "{error}"))
}

#[async_trait::async_trait]
impl S3 for Operations {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.get(request).await.map(S3Response::new)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.head(request).await.map(S3Response::new)
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.put(request).await.map(S3Response::new)
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete(request).await.map(S3Response::new)
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.delete_many(request).await.map(S3Response::new)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.list_v2(request).await.map(S3Response::new)
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        self.list_v1(request).await.map(S3Response::new)
    }

    async fn list_buckets(
        &self,
        request: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        self.namespaces(request).await.map(S3Response::new)
    }

    /// A namespace exists once it contains an object, and any valid name may be used.
    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        namespace(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let location = format!("/{}", namespace(&request.input.bucket)?);
        Ok(S3Response::new(CreateBucketOutput { location: Some(location) }))
    }

    /// The response for a bucket in `us-east-1`, which clients treat as no region.
    async fn get_bucket_location(
        &self,
        _: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.begin_upload(request).map(S3Response::new)
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        self.put_part(request).await.map(S3Response::new)
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.complete_upload(request).await.map(S3Response::new)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.abort_upload(request).await.map(S3Response::new)
    }
}
