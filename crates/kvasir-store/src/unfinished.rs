//! Unfinished multipart uploads: their parts are invisible, but billed, until they are aborted.
//!
//! `object_store` starts such uploads but cannot list them. So this module calls the S3 API's
//! `ListMultipartUploads` at URLs signed by the client's own signer, without access to the credentials.
//! Nothing depends on it, so there are no retries: failures wait for the collector's next pass.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{Method, Request};
use object_store::{
    ClientOptions, Error, Result,
    aws::AmazonS3,
    client::{HttpClient, HttpConnector, HttpRequestBody},
    multipart::MultipartStore,
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use serde::Deserialize;

use crate::{
    limits,
    observe::{StoreObserver, StoreOp, observed},
    trace::TracedConnector,
};

/// Lifetime of the URL of one page: it is used at once.
const URL_LIFE: Duration = Duration::from_secs(60);

/// An upload that was started and neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// The intended object.
    pub path: Path,
    /// The store's id of it.
    upload_id: String,
    /// Time of its start, in milliseconds since 1970 by the store's clock.
    pub begun_ms: i64,
}

/// The unfinished uploads of one bucket.
#[derive(Debug, Clone)]
pub struct UnfinishedUploads {
    store: AmazonS3,
    http: HttpClient,
    wait_max: Duration,
    observer: Arc<dyn StoreObserver>,
}

impl UnfinishedUploads {
    pub(crate) fn new(
        store: AmazonS3,
        options: &ClientOptions,
        wait_max: Duration,
        observer: Arc<dyn StoreObserver>,
    ) -> Result<Self> {
        Ok(Self { store, http: TracedConnector::default().connect(options)?, wait_max, observer })
    }

    /// Those under `prefix`, at most [`limits::UNFINISHED_LISTED_MAX`].
    ///
    /// # Errors
    /// If the store does not respond, or does not support such listings.
    pub async fn list(&self, prefix: &Path) -> Result<Vec<Unfinished>> {
        let mut all = Vec::new();
        let mut after: Option<[String; 2]> = None;
        while all.len() < limits::UNFINISHED_LISTED_MAX {
            let asking = self.page(prefix, after.take());
            let page = observed(&*self.observer, StoreOp::List, |_| 0, self.with_deadline(asking)).await?;
            all.extend(page.uploads.into_iter().filter_map(Upload::understood));
            match (page.is_truncated, page.next_key_marker, page.next_upload_id_marker) {
                (true, Some(key), Some(upload)) => after = Some([key, upload]),
                _ => break,
            }
        }
        Ok(all)
    }

    /// Deletes its parts. One that was completed or aborted in the meantime is no error.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn abort(&self, upload: &Unfinished) -> Result<()> {
        let aborting = self.store.abort_multipart(&upload.path, &upload.upload_id);
        match observed(&*self.observer, StoreOp::Multipart, |()| 0, self.with_deadline(aborting)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            done => done,
        }
    }

    async fn page(&self, prefix: &Path, after: Option<[String; 2]>) -> Result<Page> {
        let mut query = vec![
            ("uploads".to_owned(), String::new()),
            ("prefix".to_owned(), format!("{prefix}/")),
            ("max-uploads".to_owned(), "1000".to_owned()),
        ];
        if let Some([key, upload]) = after {
            query.extend([("key-marker".to_owned(), key), ("upload-id-marker".to_owned(), upload)]);
        }
        let options = SignedUrlOptions::new().with_query(query);
        // The empty path is the bucket itself.
        let url = self.store.signed_url_opts(Method::GET, &Path::default(), URL_LIFE, &options).await?;
        let request = Request::get(url.as_str()).body(HttpRequestBody::empty()).map_err(failed)?;
        let answer = self.http.execute(request).await.map_err(failed)?;
        let status = answer.status();
        let body = answer.into_body().bytes().await.map_err(failed)?;
        if !status.is_success() {
            return Err(failed(format!("status code: {status}")));
        }
        quick_xml::de::from_reader(&*body).map_err(failed)
    }

    async fn with_deadline<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let answered = tokio::time::timeout(self.wait_max, request).await;
        answered.unwrap_or_else(|_| Err(failed("no answer in time")))
    }
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "unfinished uploads", source: source.into() }
}

/// `ListMultipartUploadsResult`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    #[serde(default)]
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
    #[serde(default, rename = "Upload")]
    uploads: Vec<Upload>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Upload {
    key: String,
    upload_id: String,
    initiated: String,
}

impl Upload {
    /// `None` if a date or key is invalid.
    fn understood(self) -> Option<Unfinished> {
        let begun = humantime::parse_rfc3339(&self.initiated).ok()?;
        let since = begun.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let begun_ms = i64::try_from(since.as_millis()).ok()?;
        Some(Unfinished { path: Path::parse(self.key).ok()?, upload_id: self.upload_id, begun_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_s3_api_reference_is_understood() {
        let page: Page = quick_xml::de::from_str(
            r#"<?xml version="1.0" encoding="UTF-8"?>
            <ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
              <Bucket>bucket</Bucket> <KeyMarker></KeyMarker> <UploadIdMarker></UploadIdMarker>
              <NextKeyMarker>my-movie.m2ts</NextKeyMarker>
              <NextUploadIdMarker>YW55IGlkZWEgd2h5</NextUploadIdMarker>
              <MaxUploads>3</MaxUploads> <IsTruncated>true</IsTruncated>
              <Upload>
                <Key>my-divisor</Key> <UploadId>XMgbGlrZSBlbHZpbmc</UploadId>
                <Initiator><ID>arn:aws:iam::111122223333:user/user1</ID></Initiator>
                <StorageClass>STANDARD</StorageClass> <Initiated>2010-11-10T20:48:33.000Z</Initiated>
              </Upload>
              <Upload>
                <Key>my-movie.m2ts</Key> <UploadId>VXBsb2FkIElE</UploadId> <Initiated>someday</Initiated>
              </Upload>
            </ListMultipartUploadsResult>"#,
        )
        .expect("is understood");
        let next =
            (page.is_truncated, page.next_key_marker.as_deref(), page.next_upload_id_marker.as_deref());
        assert_eq!(next, (true, Some("my-movie.m2ts"), Some("YW55IGlkZWEgd2h5")));
        let understood: Vec<_> = page.uploads.into_iter().filter_map(Upload::understood).collect();
        let expected = Unfinished {
            path: "my-divisor".into(),
            upload_id: "XMgbGlrZSBlbHZpbmc".to_owned(),
            begun_ms: 1_289_422_113_000,
        };
        assert_eq!(understood, [expected], "what has no date is left alone");
        let none: Page = quick_xml::de::from_str("<ListMultipartUploadsResult/>").expect("is understood");
        assert!(none.uploads.is_empty() && !none.is_truncated);
    }
}
