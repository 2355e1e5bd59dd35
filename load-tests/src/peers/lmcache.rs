//! LMCache's own server (`lm://`), values in memory as its naive serde has them: raw bytes.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    sync::Arc,
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use tempfile::TempDir;

use super::{
    protocol::{LmCommand, Protocol, lm_request},
    target::{SampleValues, Target, WriteRequest, started, target},
};
use crate::process::free_port;

/// Its keys are parsed: model, cluster size, worker, chunk hash in hex, dtype.
fn key(number: usize) -> String {
    format!("kvasir-load@1@0@{number:x}@uint8")
}

/// A PUT has no answer, so an existence check follows on the same connection; its answer shows that the PUT
/// is done.
fn write(number: usize, value: &Bytes) -> WriteRequest {
    WriteRequest {
        before: lm_request(LmCommand::Put, &key(number), value.len()),
        value: value.clone(),
        behind: lm_request(LmCommand::Exist, &key(number), 0),
    }
}

/// Starts it with the values. `python` is one that has lmcache.
pub(super) async fn start(python: &Path, directory: &Arc<TempDir>, made: &SampleValues) -> Result<Target> {
    ensure!(
        python.exists(),
        "{} does not exist; create it with load-tests/peers/lmcache FOLDER",
        python.display()
    );
    let address = free_port()?;
    let mut command = Command::new(python);
    command.args(["-m", "lmcache.v1.server", "127.0.0.1", &address.port().to_string(), "cpu"]);
    let process = started(command, address).await?;
    let mut socket = TcpStream::connect(address)?;
    let mut asked = Vec::new();
    for (nth, (_, object)) in made.iter().enumerate() {
        let WriteRequest { before, value, behind } = write(nth, object);
        for part in [&before[..], &value, &behind] {
            socket.write_all(part)?;
        }
        let mut answer = [0; 36];
        socket.read_exact(&mut answer)?;
        ensure!(Protocol::Lmcache.is_acknowledged(&answer)?, "PUT");
        asked.push(lm_request(LmCommand::Get, &key(nth), 0));
    }
    let first = made.len();
    let writes = Box::new(move |nth, _: &_, object: &Bytes| write(first + nth, object));
    Ok(target("lmcache", (address, Protocol::Lmcache), (process, directory), asked, made, Some(writes)))
}
