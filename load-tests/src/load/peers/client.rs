//! A client that costs next to nothing, so that two cores are the servers': plain sockets, requests made before, and a
//! comparison of what comes with what it must be.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{
    objects::{Known, Pool},
    proc,
};

/// How answers begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1 with a Content-Length.
    Http,
    /// Redis: `$length\r\n`, the bytes, `\r\n`.
    Redis,
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measured {
    pub(crate) gb_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) cpu_s_per_gb: f64,
    pub(crate) resident_mib: f64,
    pub(crate) requests: u64,
}

/// Longest latency that is told apart: a minute.
const MICROS_MAX: u64 = 60_000_000;

struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Protocol {
    /// Where the head of an answer ends, and how many bytes follow.
    fn head(self, bytes: &[u8]) -> Result<Option<(usize, usize)>> {
        let end: &[u8] = if self == Self::Http { b"\r\n\r\n" } else { b"\r\n" };
        let Some(at) = bytes.windows(end.len()).position(|w| w == end) else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes[..at]).to_ascii_lowercase();
        let length = match self {
            Self::Http => {
                ensure!(text.starts_with("http/1.1 20"), "{text}");
                text.lines().find_map(|line| line.strip_prefix("content-length:")).context("a length")?.trim()
            }
            Self::Redis => text.strip_prefix('$').with_context(|| text.clone())?,
        };
        Ok(Some((at + end.len(), length.parse()?)))
    }
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { socket, buffer: vec![0; 1 << 20] })
    }

    /// Asks, and compares what comes.
    fn get(&mut self, pool: &Pool, protocol: Protocol, request: &[u8], known: &Known) -> Result<()> {
        self.socket.write_all(request)?;
        let mut filled = 0;
        let (head, length) = loop {
            let read = self.socket.read(&mut self.buffer[filled..])?;
            ensure!(read > 0, "the connection was closed");
            filled += read;
            if let Some(found) = protocol.head(&self.buffer[..filled])? {
                break found;
            }
        };
        ensure!(length as u64 == known.bytes, "{length} bytes instead of {}", known.bytes);
        let trailer = if protocol == Protocol::Redis { 2 } else { 0 };
        let (mut at, mut begin, mut behind) = (0, head, 0);
        loop {
            let body = &self.buffer[begin..filled];
            let body = &body[..body.len().min(length - at)];
            if !known.is(pool, at as u64, body) {
                bail!("wrong bytes from {at} on");
            }
            at += body.len();
            behind += filled - begin - body.len();
            if at == length && behind >= trailer {
                return Ok(());
            }
            // What is left of the trailer may come alone.
            begin = 0;
            filled = self.socket.read(&mut self.buffer)?;
            ensure!(filled > 0, "the body ended early");
        }
    }
}

/// Gets values over so many connections for a while; `id` is the server's process, whose family is charged.
pub(crate) fn measure(
    pool: &Pool,
    address: SocketAddr,
    protocol: Protocol,
    values: &[(Vec<u8>, Known)],
    id: u32,
    connections: usize,
    seconds: Duration,
) -> Result<Measured> {
    let before = proc::usage_of(&proc::family(id));
    let begun = Instant::now();
    let counted = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..connections)
            .map(|nth| {
                scope.spawn(move || -> Result<(Histogram<u64>, u64)> {
                    let mut connection = Connection::open(address)?;
                    let mut latency = Histogram::new_with_bounds(1, MICROS_MAX, 3)?;
                    let mut bytes = 0;
                    for (request, known) in values.iter().cycle().skip(nth * values.len() / connections) {
                        if begun.elapsed() >= seconds {
                            break;
                        }
                        let start = Instant::now();
                        connection.get(pool, protocol, request, known)?;
                        latency.saturating_record(start.elapsed().as_micros() as u64);
                        bytes += known.bytes;
                    }
                    Ok((latency, bytes))
                })
            })
            .collect();
        asking.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    let took = begun.elapsed().as_secs_f64();
    let after = proc::usage_of(&proc::family(id));
    let mut latency: Histogram<u64> = Histogram::new_with_bounds(1, MICROS_MAX, 3)?;
    let mut bytes = 0;
    for (one, count) in counted {
        latency.add(one)?;
        bytes += count;
    }
    let gigabytes = bytes as f64 / 1e9;
    let ms = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Measured {
        gb_per_s: gigabytes / took,
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        cpu_s_per_gb: (after.cpu_s - before.cpu_s) / gigabytes,
        resident_mib: after.resident_mib,
        requests: latency.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_when_they_are_whole() {
        let http = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nbody";
        assert_eq!(Protocol::Http.head(http).unwrap(), Some((http.len() - 4, 12)));
        assert_eq!(Protocol::Http.head(&http[..30]).unwrap(), None);
        assert!(Protocol::Http.head(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n").is_err());
        assert_eq!(Protocol::Redis.head(b"$5\r\nhello\r\n").unwrap(), Some((4, 5)));
        assert!(Protocol::Redis.head(b"-ERR\r\n").is_err());
    }
}
