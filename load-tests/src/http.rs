//! An HTTP/1.1 client that costs next to nothing: requests are bytes made before, bodies are thrown away.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context as _, Result, bail};

/// One connection.
pub(crate) struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: vec![0; 1 << 20] })
    }

    /// Sends a request, reads the answer and drops its body. Gives status and body bytes.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<(u16, u64)> {
        self.socket.write_all(request)?;
        let mut filled = 0;
        let end = loop {
            let bytes = self.socket.read(&mut self.buffer[filled..])?;
            if bytes == 0 {
                bail!("the connection was closed");
            }
            filled += bytes;
            if let Some(at) = self.buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).context("a status")?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: u64 = length.and_then(|l| l.trim().parse().ok()).context("a length")?;
        let mut left = length - (filled - end) as u64;
        while left > 0 {
            let bytes = self.socket.read(&mut self.buffer)?;
            if bytes == 0 {
                bail!("the body ended early");
            }
            left -= bytes as u64;
        }
        Ok((status, length))
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
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: {media}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
