//! LMCache's S3 connector, used as LMCache uses it, against the same MinIO. It addresses buckets by host
//! name, so that name is defined in a separate mount namespace, which needs root.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::{arguments::PeersArguments, table::PeerMeasurement, target::PeerServer};
use crate::process::minio::{KEY, SECRET};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/lmcache_s3.py");
/// Adds the name to a copy of the file of hosts, lays it over that for this process alone, and becomes the script.
const NAMED: &str = r#"{ cat /etc/hosts; echo 127.0.0.1 kvasir-load.localhost; } >"$1" && mount --bind "$1" /etc/hosts && shift && exec "$@""#;

/// ConnectorRounds of reads and of writes.
#[derive(Debug, Deserialize)]
pub(super) struct ConnectorRounds {
    pub(super) get: Vec<PeerMeasurement>,
    pub(super) put: Vec<PeerMeasurement>,
}

/// Measures it at one size, against a server that is one process.
pub(super) async fn measure(
    arguments: &PeersArguments,
    server: PeerServer,
    value_bytes: usize,
    directory: &Path,
) -> Result<ConnectorRounds> {
    let python = &arguments.lmcache;
    ensure!(
        python.exists(),
        "{} does not exist; create it with load-tests/peers/lmcache FOLDER",
        python.display()
    );
    let numbers = [value_bytes, arguments.values, arguments.connections].map(|number| number.to_string());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", NAMED, "sh"]).arg(directory.join("hosts")).arg(python).arg(SCRIPT);
    command.args([&server.address.port().to_string(), &server.id.to_string(), KEY, SECRET]).args(numbers);
    command.args([arguments.seconds.to_string(), arguments.rounds.to_string()]);
    command.arg(arguments.writes_of(value_bytes).to_string());
    command.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await?.context("no `unshare`")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{SCRIPT}: {}", error.lines().last().unwrap_or_default());
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default()).context("parsing the output of the script")
}
