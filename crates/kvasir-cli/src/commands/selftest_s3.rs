//! `kvasir selftest --s3`: the same check for the S3 front end, as an S3 client.

use std::{
    fmt,
    time::{Duration, Instant},
};

use clap::Args;
use futures::TryStreamExt;
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
};
use url::Url;
use uuid::Uuid;

use super::selftest::{PAUSE, Timings, wrong};
use crate::error::{CliError, CliResult, Exit};

/// Bucket of the test object.
const BUCKET: &str = "selftest";
/// Size of the test object: more than one part, and several frames of the hot tier.
const BYTES: usize = 3 << 20;

/// The access key of an S3 client, from the usual environment variables.
#[derive(Args)]
pub(super) struct AccessKeyArguments {
    #[arg(long = "s3-access-key-id", env = "AWS_ACCESS_KEY_ID", hide = true)]
    id: Option<String>,
    #[arg(long = "s3-secret-access-key", env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true, hide = true)]
    secret: Option<String>,
}

impl fmt::Debug for AccessKeyArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessKeyArguments").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Stores a new object, then reads, lists and removes it. Returns its size in bytes.
pub(super) async fn run(
    url: &Url,
    access_key: &AccessKeyArguments,
    patience: Duration,
    timings: &mut Timings,
) -> CliResult<usize> {
    let store = client(url, access_key)?;
    let key = Uuid::new_v4();
    let path = Path::from("selftest").join(key.to_string());
    let bytes: Vec<u8> = key.as_bytes().iter().copied().cycle().take(BYTES).collect();
    timings.of("put", put(&store, &path, &bytes)).await?;
    let tested = async {
        timings.of("get", get(&store, &path, &bytes, patience)).await?;
        timings.of("list", list(&store, &path, patience)).await
    }
    .await;
    // Remove it whether or not it came back; report the first error.
    let removed = timings.of("delete", async { store.delete(&path).await.map_err(|e| failed(&e)) }).await;
    tested.and(removed)?;
    timings.of("gone", gone(&store, &path, patience)).await?;
    Ok(bytes.len())
}

fn client(url: &Url, access_key: &AccessKeyArguments) -> CliResult<AmazonS3> {
    // Without these two, the client would query its cloud's metadata address for a minute.
    let (Some(id), Some(secret)) = (&access_key.id, &access_key.secret) else {
        let hint = "`kvasir token --s3` makes an access key. A service without authentication accepts `anyone` for both.";
        return Err(CliError::new(
            Exit::Usage,
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
            hint,
        ));
    };
    let builder =
        AmazonS3Builder::new().with_endpoint(url.as_str().trim_end_matches('/')).with_allow_http(true);
    let builder = builder.with_access_key_id(id).with_secret_access_key(secret).with_bucket_name(BUCKET);
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    builder.with_retry(retry).build().map_err(|e| failed(&e))
}

async fn put(store: &AmazonS3, path: &Path, bytes: &[u8]) -> CliResult {
    let stored = store.put_opts(path, bytes.to_vec().into(), PutMode::Create.into()).await;
    stored.map_err(|e| failed(&e))?;
    match store.put(path, "other bytes".into()).await {
        Err(Error::Precondition { .. }) => Ok(()),
        Err(other) => Err(failed(&other)),
        Ok(_) => Err(wrong("an overwrite with different bytes was accepted")),
    }
}

async fn get(store: &AmazonS3, path: &Path, bytes: &[u8], patience: Duration) -> CliResult {
    let read = until(patience, async || match store.get(path).await {
        Ok(found) => found.bytes().await.map(Some).map_err(|e| failed(&e)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(failed(&error)),
    });
    match read.await? {
        Some(read) if read == bytes => Ok(()),
        Some(_) => Err(wrong("the fetched data differs from the stored data")),
        None => Err(wrong("the stored object is not found")),
    }
}

async fn list(store: &AmazonS3, path: &Path, patience: Duration) -> CliResult {
    let folder = Path::from("selftest");
    let listed = until(patience, async || {
        let mut listed = store.list(Some(&folder)).map_ok(|meta| meta.location);
        while let Some(found) = listed.try_next().await.map_err(|e| failed(&e))? {
            if found == *path {
                return Ok(Some(()));
            }
        }
        Ok(None)
    });
    listed.await?.ok_or_else(|| wrong("the stored object is not listed"))
}

async fn gone(store: &AmazonS3, path: &Path, patience: Duration) -> CliResult {
    let gone = until(patience, async || match store.head(path).await {
        Ok(_) => Ok(None),
        Err(Error::NotFound { .. }) => Ok(Some(())),
        Err(error) => Err(failed(&error)),
    });
    gone.await?.ok_or_else(|| wrong("the removed object is still readable"))
}

/// Retries until there is an answer: other replicas may need a moment.
async fn until<T>(patience: Duration, ask: impl AsyncFn() -> CliResult<Option<T>>) -> CliResult<Option<T>> {
    let started = Instant::now();
    loop {
        match ask().await? {
            None if started.elapsed() < patience => tokio::time::sleep(PAUSE).await,
            answer => return Ok(answer),
        }
    }
}

fn failed(error: &Error) -> CliError {
    let mut message = error.to_string();
    // The client's own text hides the service's answer; the innermost cause contains it.
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message = error.to_string();
        cause = error.source();
    }
    CliError::new(Exit::Unavailable, message, "The service's docs/s3.md explains its answers.")
}
