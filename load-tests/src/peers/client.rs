//! A client with very little overhead, so that the servers get two full cores: plain sockets, prepared
//! requests, and a comparison of every answer with its expected bytes.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;

use super::{
    protocol::Protocol,
    table::PeerMeasurement,
    target::{PeerServer, WriteRequest},
    tls,
};
use crate::{
    http,
    process::usage,
    traffic::objects::{Pool, SyntheticObject},
};

/// Longest distinguishable latency: a minute.
const MICROS_MAX: u64 = 60_000_000;

/// A socket, or TLS over one.
trait Duplex: Read + Write {}

impl<T: Read + Write> Duplex for T {}

struct VerifyingConnection {
    socket: Box<dyn Duplex>,
    buffer: Vec<u8>,
    protocol: Protocol,
}

impl VerifyingConnection {
    fn open(server: PeerServer) -> Result<Self> {
        let socket = http::connect(server.address)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let is_tls = server.protocol == Protocol::Https;
        let socket: Box<dyn Duplex> = if is_tls { Box::new(tls::connect(socket)?) } else { Box::new(socket) };
        Ok(Self { socket, buffer: vec![0; http::BUFFER_BYTES], protocol: server.protocol })
    }

    /// Sends a request and compares the answer.
    fn get(&mut self, pool: &Pool, request: &[u8], known: &SyntheticObject) -> Result<()> {
        self.socket.write_all(request)?;
        let mut filled = 0;
        let (head, length) = loop {
            let read = self.socket.read(&mut self.buffer[filled..])?;
            ensure!(read > 0, "the connection was closed");
            filled += read;
            if let Some(found) = self.protocol.head(&self.buffer[..filled])? {
                break found;
            }
        };
        ensure!(length as u64 == known.bytes, "{length} bytes instead of {}", known.bytes);
        let (mut at, mut begin, mut behind) = (0, head, 0);
        loop {
            let body = &self.buffer[begin..filled];
            let body = &body[..body.len().min(length - at)];
            if !known.is(pool, at as u64, body) {
                bail!("wrong bytes from {at} on");
            }
            at += body.len();
            behind += filled - begin - body.len();
            if at == length && behind >= self.protocol.trailer() {
                return Ok(());
            }
            // The rest of the trailer may arrive separately.
            begin = 0;
            filled = self.socket.read(&mut self.buffer)?;
            ensure!(filled > 0, "the body ended early");
        }
    }

    /// Writes, and waits for the acknowledgement.
    fn put(&mut self, write: &WriteRequest) -> Result<()> {
        self.socket.write_all(&write.before)?;
        self.socket.write_all(&write.value)?;
        self.socket.write_all(&write.behind)?;
        let mut filled = 0;
        while !self.protocol.is_acknowledged(&self.buffer[..filled])? {
            let read = self.socket.read(&mut self.buffer[filled..])?;
            ensure!(read > 0, "the connection was closed");
            filled += read;
        }
        Ok(())
    }
}

/// The totals of one connection.
struct ConnectionTotals {
    latency: Histogram<u64>,
    bytes: u64,
}

impl ConnectionTotals {
    fn nothing() -> Result<Self> {
        Ok(Self { latency: Histogram::new_with_bounds(1, MICROS_MAX, 3)?, bytes: 0 })
    }

    fn add(&mut self, start: Instant, bytes: u64) {
        self.latency.saturating_record(start.elapsed().as_micros() as u64);
        self.bytes += bytes;
    }
}

/// Gets values over this many connections for a while.
pub(super) fn gets(
    server: PeerServer,
    pool: &Pool,
    values: &[(Vec<u8>, SyntheticObject)],
    connections: usize,
    seconds: Duration,
) -> Result<PeerMeasurement> {
    measure(server, connections, |nth, begun| {
        let (mut connection, mut counted) =
            (VerifyingConnection::open(server)?, ConnectionTotals::nothing()?);
        for (request, known) in values.iter().cycle().skip(nth * values.len() / connections) {
            if begun.elapsed() >= seconds {
                break;
            }
            let start = Instant::now();
            connection.get(pool, request, known)?;
            counted.add(start, known.bytes);
        }
        Ok(counted)
    })
}

/// Puts all of the writes over this many connections.
pub(super) fn puts(
    server: PeerServer,
    writes: &[WriteRequest],
    connections: usize,
) -> Result<PeerMeasurement> {
    measure(server, connections, |nth, _| {
        let (mut connection, mut counted) =
            (VerifyingConnection::open(server)?, ConnectionTotals::nothing()?);
        for write in writes.iter().skip(nth).step_by(connections) {
            let start = Instant::now();
            connection.put(write)?;
            counted.add(start, write.value.len() as u64);
        }
        Ok(counted)
    })
}

fn measure(
    server: PeerServer,
    connections: usize,
    one: impl Fn(usize, Instant) -> Result<ConnectionTotals> + Sync,
) -> Result<PeerMeasurement> {
    let before = usage::usage_of(&usage::family(server.id));
    let begun = Instant::now();
    let counted = std::thread::scope(|scope| {
        let one = &one;
        let asking: Vec<_> = (0..connections).map(|nth| scope.spawn(move || one(nth, begun))).collect();
        asking.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    let took = begun.elapsed().as_secs_f64();
    let after = usage::usage_of(&usage::family(server.id));
    let mut all = ConnectionTotals::nothing()?;
    for ConnectionTotals { latency, bytes } in counted {
        all.latency.add(latency)?;
        all.bytes += bytes;
    }
    let gigabytes = all.bytes as f64 / 1e9;
    let ms = |quantile: f64| all.latency.value_at_quantile(quantile) as f64 / 1e3;
    Ok(PeerMeasurement {
        gb_per_s: gigabytes / took,
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        cpu_s_per_gb: (after.cpu_s - before.cpu_s) / gigabytes,
        resident_mib: after.resident_mib,
        requests: all.latency.len(),
    })
}
