//! An S3 client from a typed configuration. It neither retries nor times out: the layers above it do.

use std::{str::FromStr, sync::Arc};

use object_store::{
    ClientOptions, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey},
    signer::Signer,
};

use crate::{
    config::StoreConfig, limits, observe::StoreObserver, presign::Presigner, trace::TracedConnector,
    unfinished::UnfinishedUploads,
};

/// Signs for the address that clients use, and probes with the one that the service uses.
pub(crate) fn presigner(
    config: &StoreConfig,
    bucket: &str,
    store: &AmazonS3,
) -> object_store::Result<Presigner> {
    let signer: Arc<dyn Signer> = match &config.public_endpoint {
        Some(endpoint) => {
            let public = StoreConfig { endpoint: Some(endpoint.clone()), ..config.clone() };
            Arc::new(builder(&public, bucket).build()?)
        }
        None => Arc::new(store.clone()),
    };
    Presigner::new(signer, Arc::new(store.clone()), &client_options(config))
}

/// Lists and aborts multipart uploads.
pub(crate) fn unfinished(
    config: &StoreConfig,
    store: &AmazonS3,
    observer: Arc<dyn StoreObserver>,
) -> object_store::Result<UnfinishedUploads> {
    UnfinishedUploads::new(store.clone(), &client_options(config), config.request_timeout, observer)
}

fn client_options(config: &StoreConfig) -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(limits::STORE_CONNECT_TIMEOUT)
        // An http:// endpoint is explicit consent; requests are signed, and secrets are not sent.
        .with_allow_http(config.endpoint.as_deref().is_some_and(|e| e.starts_with("http://")))
}

pub(crate) fn builder(config: &StoreConfig, bucket: &str) -> AmazonS3Builder {
    let client = client_options(config);
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let mut builder =
        AmazonS3Builder::new().with_client_options(client).with_http_connector(TracedConnector::default());
    for (name, value) in &config.options {
        // Ignore settings of AWS tools that object_store does not know.
        if let Ok(key) = AmazonS3ConfigKey::from_str(name) {
            builder = builder.with_config(key, value.expose());
        }
    }
    builder = builder.with_bucket_name(bucket).with_retry(retry);
    if let Some(endpoint) = &config.endpoint {
        // The backend adds the bucket in path style, its default. In virtual-hosted style it adds nothing, and a slash
        // at the end would begin every key.
        builder = builder.with_endpoint(endpoint.trim_end_matches('/'));
    }
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    if let Some(key) = &config.access_key_id {
        builder = builder.with_access_key_id(key);
    }
    if let Some(secret) = &config.secret_access_key {
        builder = builder.with_secret_access_key(secret.expose());
    }
    if let Some(token) = &config.session_token {
        builder = builder.with_token(token.expose());
    }
    builder
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use object_store::path::Path;

    use super::*;

    #[tokio::test]
    async fn the_bucket_is_in_the_path_unless_an_option_puts_it_into_the_host_name() {
        for (endpoint, is_hosted, expected) in [
            (Some("http://minio:9000"), None, "http://minio:9000/bucket/key"),
            (Some("http://minio:9000/"), Some("false"), "http://minio:9000/bucket/key"),
            (Some("http://bucket.minio:9000"), Some("true"), "http://bucket.minio:9000/key"),
            (Some("http://bucket.minio:9000/"), Some("true"), "http://bucket.minio:9000/key"),
            (None, None, "https://s3.here.amazonaws.com/bucket/key"),
            (None, Some("true"), "https://bucket.s3.here.amazonaws.com/key"),
        ] {
            let mut config = StoreConfig::new("s3://bucket".parse().expect("a url"));
            config.endpoint = endpoint.map(str::to_owned);
            config.region = Some("here".to_owned());
            config.access_key_id = Some("id".to_owned());
            config.secret_access_key = Some("secret".to_owned().into());
            if let Some(value) = is_hosted {
                config.options.insert("aws_virtual_hosted_style_request".to_owned(), value.to_owned().into());
            }
            let store = builder(&config, "bucket").build().expect("a store");
            let signer = presigner(&config, "bucket", &store).expect("a presigner");
            let mut url = signer.get(&Path::from("key"), Duration::from_secs(1)).await.expect("signs");
            url.set_query(None);
            assert_eq!(url.as_str(), expected, "{endpoint:?} {is_hosted:?}");
        }
    }
}
