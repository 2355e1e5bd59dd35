//! Redis without persistence: the remote store of LMCache deployments.

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
    protocol::Protocol,
    target::{SampleValues, Target, WriteRequest, started, target},
};
use crate::process::free_port;

fn set(key: &str, value: &Bytes) -> WriteRequest {
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
    WriteRequest { before: head.into_bytes(), value: value.clone(), behind: b"\r\n".to_vec() }
}

pub(super) async fn start(binary: &Path, directory: &Arc<TempDir>, made: &SampleValues) -> Result<Target> {
    let address = free_port()?;
    let mut command = Command::new(binary);
    let port = address.port().to_string();
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(directory.path());
    let process = started(command, address).await?;
    let mut socket = TcpStream::connect(address)?;
    let mut asked = Vec::new();
    for (nth, (_, object)) in made.iter().enumerate() {
        let key = format!("value-{nth}");
        let write = set(&key, object);
        for part in [&write.before[..], &write.value, &write.behind] {
            socket.write_all(part)?;
        }
        let mut answer = [0; 5];
        socket.read_exact(&mut answer)?;
        ensure!(&answer == b"+OK\r\n", "SET: {}", String::from_utf8_lossy(&answer));
        asked.push(format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes());
    }
    let writes = Box::new(|nth, _: &_, object: &Bytes| set(&format!("write-{nth}"), object));
    Ok(target("redis", (address, Protocol::Redis), (process, directory), asked, made, Some(writes)))
}
