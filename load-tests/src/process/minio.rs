//! MinIO over a directory.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use kvasir_store::StoreConfig;

use super::ChildProcess;

pub(crate) const KEY: &str = "load-test-key";
pub(crate) const SECRET: &str = "load-test-secret";
pub(crate) const BUCKET: &str = "kvasir-load";

/// The binary given, or the one that `tests/servers/minio install` builds.
pub(crate) fn binary(given: Option<&PathBuf>) -> Result<PathBuf> {
    let built = || {
        let versions = std::fs::read_dir("target/servers/minio").ok()?;
        versions.flatten().map(|entry| entry.path().join("minio")).find(|path| path.is_file())
    };
    let found = given.cloned().or_else(built);
    found.context("MinIO is not installed; build it with `tests/servers/minio install`")
}

/// Starts it with an empty bucket. It listens before it takes writes.
pub(crate) async fn start(binary: &Path, directory: &Path, address: SocketAddr) -> Result<ChildProcess> {
    let data = directory.join("minio");
    std::fs::create_dir_all(data.join(BUCKET))?;
    let mut command = Command::new(binary);
    command.args(["server", "--quiet", "--address", &address.to_string()]).arg(&data).stderr(Stdio::null());
    command.envs([
        ("MINIO_ROOT_USER", KEY),
        ("MINIO_ROOT_PASSWORD", SECRET),
        ("MINIO_BROWSER", "off"),
        ("MINIO_CI_CD", "1"),
        // For clients that address a bucket by host name; the others use the path.
        ("MINIO_DOMAIN", "localhost"),
    ]);
    ChildProcess::start(command, address).await
}

/// How the service reaches it.
pub(crate) fn config(address: SocketAddr) -> Result<StoreConfig> {
    Ok(StoreConfig {
        endpoint: Some(format!("http://{address}")),
        region: Some("us-east-1".to_owned()),
        access_key_id: Some(KEY.to_owned()),
        secret_access_key: Some(SECRET.to_owned().into()),
        ..StoreConfig::new(format!("s3://{BUCKET}/scale").parse()?)
    })
}
