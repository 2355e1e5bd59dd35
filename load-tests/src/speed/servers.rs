//! The processes that are measured.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result};
use kvasir_store::StoreConfig;
use kvasir_tests::s3::S3Server;
use object_store::aws::{AmazonS3, AmazonS3Builder};

use super::arguments::SpeedArguments;
use crate::process::{ChildProcess, free_port, nginx};

/// nginx over a directory, with two workers.
pub(crate) fn nginx(binary: &Path, directory: &Path) -> Result<ChildProcess> {
    let address = free_port()?;
    ChildProcess::start_blocking(nginx::command(binary, directory, &address.to_string(), "2")?, address)
}

/// The store that the service and the direct writer use.
pub(crate) struct StoreUnderTest {
    pub(crate) config: StoreConfig,
    _server: Option<ChildProcess>,
}

/// The S3 store of the command line, or a local one.
pub(crate) fn s3_store(common: &SpeedArguments) -> Result<StoreUnderTest> {
    if let Some(url) = &common.s3 {
        let layers = kvasir_tests::process_layers().with_flags([("store.url", url.as_str())]);
        let config = layers.load().map_err(|error| anyhow::anyhow!("{error}"))?;
        return Ok(StoreUnderTest { config: config.store, _server: None });
    }
    let address = free_port()?;
    let server = ChildProcess::s3_server(address)?;
    Ok(StoreUnderTest { config: S3Server::config_at(address, "speed"), _server: Some(server) })
}

/// A directory as a store.
pub(crate) fn file_store(directory: &Path) -> Result<StoreUnderTest> {
    let url = url::Url::from_file_path(directory.join("store")).map_err(|()| anyhow::anyhow!("a path"))?;
    Ok(StoreUnderTest { config: StoreConfig::new(url), _server: None })
}

/// The store that `--store` names.
pub(crate) fn store(common: &SpeedArguments, directory: &Path) -> Result<StoreUnderTest> {
    if common.store == "s3" { s3_store(common) } else { file_store(directory) }
}

/// Adds the store's settings to a command of the service.
pub(crate) fn over(command: &mut Command, store: &StoreConfig) {
    command.args(["--store.url", store.url.as_str()]);
    if let Some(endpoint) = &store.endpoint {
        command.args(["--store.endpoint", endpoint]);
    }
    let secret = store.secret_access_key.as_ref().map(|secret| secret.expose());
    let variables = [
        ("AWS_REGION", store.region.as_deref()),
        ("AWS_ACCESS_KEY_ID", store.access_key_id.as_deref()),
        ("AWS_SECRET_ACCESS_KEY", secret),
    ];
    for (name, value) in variables.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
}

/// The service over a store, with all other files under `directory`.
pub(crate) fn kvasir(common: &SpeedArguments, store: &StoreConfig, directory: &Path) -> Result<ChildProcess> {
    let address = free_port()?;
    let mut command = Command::new(&common.kvasir);
    command.arg("serve").args(["--listen", &address.to_string()]);
    over(&mut command, store);
    command.arg("--cache.directory").arg(directory.join("cache")).args(["--log.filter", "warn"]);
    for setting in &common.settings {
        let (key, value) = setting.split_once('=').context("a setting as section.key=value")?;
        command.args([&format!("--{key}"), value]);
    }
    ChildProcess::start_blocking(command, address)
}

/// A plain client of an S3 store.
pub(crate) fn s3_client(config: &StoreConfig) -> Result<AmazonS3> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(config.url.host_str().unwrap_or_default())
        .with_region(config.region.as_deref().unwrap_or("us-east-1"))
        .with_allow_http(true);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_virtual_hosted_style_request(false);
    }
    if let (Some(id), Some(secret)) = (&config.access_key_id, &config.secret_access_key) {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret.expose());
    }
    Ok(builder.build()?)
}
