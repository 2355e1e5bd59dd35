//! Multipart uploads.

use kvasir_storage::{PartContent, PutObject, PutPart, StoredPart};
use s3s::{S3Request, S3Result, dto::*, s3_error};
use uuid::Uuid;

use super::{
    errors::S3Failure,
    held_body::HeldBody,
    objects,
    operations::{Operations, key, namespace, principal},
    uploads::{Declared, Upload},
};
use crate::{limits, quota_reservation};

impl Operations {
    /// An upload is only an id: nothing is written before its parts.
    pub(super) fn begin_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<CreateMultipartUploadOutput> {
        objects::refuse_attributes(&request.headers)?;
        let CreateMultipartUploadInput { bucket, key: name, .. } = request.input;
        namespace(&bucket)?;
        key(&name)?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(bucket),
            key: Some(name),
            upload_id: Some(Uuid::now_v7().to_string()),
            ..CreateMultipartUploadOutput::default()
        })
    }

    pub(super) async fn put_part(&self, request: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
        let principal = principal(&request)?;
        let UploadPartInput { body, content_length, part_number, upload_id, .. } = request.input;
        let bytes = objects::length(content_length, &request.headers)?;
        let upload_id = upload(&upload_id)?;
        let number = number(part_number)?;
        let storage = self.state().storage().map_err(S3Failure::from)?;
        let held = request.extensions.get::<HeldBody>().cloned().unwrap_or_default();
        let is_signed = request.credentials.is_some();
        let declared =
            Declared { bytes, headers: &request.headers, trailers: request.trailing_headers, is_signed };
        let mut upload = Upload::new(self.state(), body, held, declared)?;
        let stored = async {
            let reservation = quota_reservation::reserve(self.state(), &principal, bytes).await?;
            let tenant = principal.tenant.clone();
            let put = PutPart { tenant, upload_id, number, bytes, reservation };
            Ok::<_, S3Failure>(storage.ingest().put_part(put, upload.parts()).await?)
        };
        match stored.await {
            Ok(content) => {
                let e_tag = Some(ETag::Strong(content.to_string()));
                Ok(UploadPartOutput { e_tag, ..UploadPartOutput::default() })
            }
            Err(error) => Err(upload.failure(error).await),
        }
    }

    pub(super) async fn complete_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let principal = principal(&request)?;
        let is_create = objects::is_create(request.input.if_none_match.as_ref())?;
        let CompleteMultipartUploadInput { bucket, key, upload_id, multipart_upload, .. } = request.input;
        let parts = parts(multipart_upload.and_then(|upload| upload.parts).unwrap_or_default())?;
        let bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.content.bytes()));
        let put = objects::listed_put(&principal, &bucket, &key, bytes)?;
        let (storage, upload_id) = (self.state().storage().map_err(S3Failure::from)?, upload(&upload_id)?);
        // Its parts may have been counted by another replica, and count until they are deleted.
        let reservation =
            quota_reservation::reserve_object(self.state(), &principal, &put.namespace, bytes).await;
        let reservation = reservation.map_err(S3Failure::from)?;
        let reserved = PutObject { reservation, ..put.clone() };
        let stored = storage.ingest().complete_parts(upload_id, reserved, parts).await;
        let stored = stored.map_err(S3Failure::from)?;
        let e_tag = Some(self.etag_of_stored(storage, &put, &stored, is_create).await?);
        let (bucket, key) = (Some(bucket), Some(key));
        Ok(CompleteMultipartUploadOutput { bucket, key, e_tag, ..CompleteMultipartUploadOutput::default() })
    }

    pub(super) async fn abort_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<AbortMultipartUploadOutput> {
        let principal = principal(&request)?;
        let storage = self.state().storage().map_err(S3Failure::from)?;
        let aborted =
            storage.ingest().abort_parts(&principal.tenant, upload(&request.input.upload_id)?).await;
        aborted.map_err(S3Failure::from)?;
        Ok(AbortMultipartUploadOutput::default())
    }
}

fn upload(id: &str) -> S3Result<Uuid> {
    id.parse().map_err(|_| s3_error!(NoSuchUpload, "there is no upload {id:?}"))
}

fn number(number: i32) -> S3Result<u16> {
    let fits = u16::try_from(number).ok().filter(|number| (1..=limits::S3_PARTS_MAX).contains(number));
    fits.ok_or_else(|| s3_error!(InvalidArgument, "part numbers must be 1 to {}", limits::S3_PARTS_MAX))
}

/// The parts of an object, as its client lists them.
fn parts(listed: Vec<CompletedPart>) -> S3Result<Vec<StoredPart>> {
    if listed.is_empty() || listed.len() > usize::from(limits::S3_PARTS_MAX) {
        return Err(s3_error!(MalformedXML, "an object must have 1 to {} parts", limits::S3_PARTS_MAX));
    }
    let parts = listed.into_iter().map(|part| {
        let number = number(part.part_number.unwrap_or_default())?;
        let content = part.e_tag.as_ref().and_then(|tag| tag.value().parse::<PartContent>().ok());
        let unknown = || s3_error!(InvalidPart, "part {number} has an ETag that no UploadPart returned");
        Ok(StoredPart { number, content: content.ok_or_else(unknown)? })
    });
    let parts: Vec<StoredPart> = parts.collect::<S3Result<_>>()?;
    if parts.windows(2).any(|pair| pair[0].number >= pair[1].number) {
        return Err(s3_error!(InvalidPartOrder, "list each part once, in the order of their numbers"));
    }
    Ok(parts)
}
