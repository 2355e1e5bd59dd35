//! A server under comparison, and how to send it requests.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::Result;
use bytes::Bytes;
use tempfile::TempDir;

use super::protocol::Protocol;
use crate::{cluster::Cluster, http, process::ChildProcess, traffic::objects::SyntheticObject};

/// The server: its address, protocol, and the process whose family's CPU time is counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerServer {
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
    pub(super) id: u32,
}

/// One write, ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct WriteRequest {
    pub(super) before: Vec<u8>,
    pub(super) value: Bytes,
    pub(super) behind: Vec<u8>,
}

/// How the nth write of a round is sent.
pub(super) type WriteFactory = Box<dyn Fn(usize, &SyntheticObject, &Bytes) -> WriteRequest + Send + Sync>;
/// The generated values and their bytes.
pub(super) type SampleValues = Vec<(SyntheticObject, Bytes)>;

/// A server with values, ready for requests.
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) server: PeerServer,
    /// Requests for the values.
    pub(super) reads: Vec<(Vec<u8>, SyntheticObject)>,
    /// Absent if it is not written to.
    pub(super) writes: Option<WriteFactory>,
    pub(super) _handle: ServerHandle,
}

/// The handles that stop a target's processes when dropped.
pub(super) enum ServerHandle {
    Cluster { _world: Box<Cluster> },
    Process { _process: ChildProcess, _directory: Arc<TempDir> },
}

/// A PUT request.
pub(super) fn put(
    path: &str,
    address: SocketAddr,
    media: &str,
    value: &Bytes,
    headers: &[String],
) -> WriteRequest {
    let before = http::head_with_body("PUT", path, address, media, value.len(), headers);
    WriteRequest { before, value: value.clone(), behind: Vec::new() }
}

/// A server as a separate process without output.
pub(super) async fn started(mut command: Command, address: SocketAddr) -> Result<ChildProcess> {
    command.stderr(Stdio::null());
    ChildProcess::start(command, address).await
}

/// A target of a process; `asked` are requests for the values, in order.
pub(super) fn target(
    name: &'static str,
    (address, protocol): (SocketAddr, Protocol),
    (process, directory): (ChildProcess, &Arc<TempDir>),
    asked: Vec<Vec<u8>>,
    made: &SampleValues,
    writes: Option<WriteFactory>,
) -> Target {
    let known = made.iter().map(|(known, _)| known.clone());
    Target {
        name,
        server: PeerServer { address, protocol, id: process.id() },
        reads: asked.into_iter().zip(known).collect(),
        writes,
        _handle: ServerHandle::Process { _process: process, _directory: Arc::clone(directory) },
    }
}
