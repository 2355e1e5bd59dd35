//! HTTP/1.1 over plain sockets, for clients that cost next to nothing: requests are bytes made before.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context as _, Result, ensure};

/// Bytes per read.
pub(crate) const BUFFER_BYTES: usize = 1 << 20;

/// The head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    /// Bytes of the head itself.
    pub(crate) head_bytes: usize,
    /// Bytes of the body, by its Content-Length.
    pub(crate) body_bytes: usize,
}

impl ResponseHead {
    /// The head at the start of `bytes`; `None` if it is incomplete.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes[..at]).to_ascii_lowercase();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("the response has no status: {text}"))?;
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.and_then(|length| length.trim().parse().ok());
        let body_bytes = length.with_context(|| format!("the response has no length: {text}"))?;
        Ok(Some(Self { status, head_bytes: at + 4, body_bytes }))
    }
}

/// A connection that sends each request immediately.
pub(crate) fn connect(address: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// A connection that drops bodies.
#[derive(Debug)]
pub(crate) struct DiscardingConnection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl DiscardingConnection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        Ok(Self { socket: connect(address)?, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends a request, reads the response and drops its body. Returns status and body bytes.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<(u16, u64)> {
        self.socket.write_all(request)?;
        let mut filled = 0;
        let head = loop {
            let bytes = self.socket.read(&mut self.buffer[filled..])?;
            ensure!(bytes > 0, "the connection was closed");
            filled += bytes;
            if let Some(head) = ResponseHead::parse(&self.buffer[..filled])? {
                break head;
            }
        };
        let mut left = head.body_bytes - (filled - head.head_bytes);
        while left > 0 {
            let bytes = self.socket.read(&mut self.buffer)?;
            ensure!(bytes > 0, "the body ended early");
            left -= bytes;
        }
        Ok((head.status, head.body_bytes as u64))
    }
}

/// A GET request, with further header lines.
pub(crate) fn get(path: &str, address: SocketAddr, headers: &[&str]) -> Vec<u8> {
    let mut text = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n");
    headers.iter().for_each(|header| text += &format!("{header}\r\n"));
    (text + "\r\n").into_bytes()
}

/// A POST request.
pub(crate) fn post(path: &str, address: SocketAddr, media: &str, body: &[u8]) -> Vec<u8> {
    [&head_with_body("POST", path, address, media, body.len(), &[])[..], body].concat()
}

/// The head of a request with a body.
pub(crate) fn head_with_body(
    method: &str,
    path: &str,
    address: SocketAddr,
    media: &str,
    length: usize,
    headers: &[String],
) -> Vec<u8> {
    let more: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n{more}\r\n"
    )
    .into_bytes()
}
