//! MinIO, over a directory, with presigned URLs: signing is the client's work and not measured.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use bytes::Bytes;
use object_store::{
    ObjectStoreExt as _,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path as StorePath,
    signer::Signer as _,
};
use reqwest::Method;
use tempfile::TempDir;

use super::{
    arguments::PeersArguments,
    protocol::Protocol,
    target::{SampleValues, Target, put, target},
};
use crate::{
    http,
    process::{
        free_port,
        minio::{self, BUCKET, KEY, SECRET},
    },
};

/// Life of a presigned URL: longer than a comparison.
const URL_LIFE: Duration = Duration::from_secs(4 * 3600);
/// Attempts of the first write, and the pause between two: the server listens before it takes any.
const ATTEMPTS: usize = 40;
const PAUSE: Duration = Duration::from_millis(250);

/// Starts it with the values, and with URLs for this many writes.
pub(super) async fn start(
    arguments: &PeersArguments,
    directory: &Arc<TempDir>,
    made: &SampleValues,
    writes: usize,
) -> Result<Target> {
    let (binary, address) = (minio::binary(arguments.minio.as_ref())?, free_port()?);
    let process = minio::start(&binary, directory.path(), address).await?;
    let store = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_endpoint(format!("http://{address}"))
        .with_virtual_hosted_style_request(false)
        .with_allow_http(true)
        .with_access_key_id(KEY)
        .with_secret_access_key(SECRET)
        .build()?;
    let signed = async |method: Method, path: &StorePath| {
        let url = store.signed_url(method, path, URL_LIFE).await?;
        anyhow::Ok(format!("{}?{}", url.path(), url.query().unwrap_or_default()))
    };
    let (mut asked, mut urls) = (Vec::new(), Vec::new());
    for (nth, (_, object)) in made.iter().enumerate() {
        let path = StorePath::from(format!("value-{nth}"));
        store_value(&store, &path, object).await?;
        asked.push(http::get(&signed(Method::GET, &path).await?, address, &[]));
    }
    for nth in 0..writes {
        urls.push(signed(Method::PUT, &StorePath::from(format!("write-{nth}"))).await?);
    }
    let writes = Box::new(move |nth: usize, _: &_, object: &Bytes| {
        put(&urls[nth], address, "application/octet-stream", object, &[])
    });
    Ok(target("minio", (address, Protocol::Http), (process, directory), asked, made, Some(writes)))
}

async fn store_value(store: &AmazonS3, path: &StorePath, object: &Bytes) -> Result<()> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match store.put(path, object.clone().into()).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(PAUSE).await;
    }
    bail!("MinIO takes nothing: {last:?}")
}
