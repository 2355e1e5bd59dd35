//! A TCP proxy in front of an S3 server that imitates the faults of networks and overloaded servers.
//!
//! Two kinds of trouble: single requests go wrong in one of the ways of [`Toxic`], and all of them have the [`Weather`] of
//! the moment. It knows just enough of HTTP/1.1 to tell requests apart: each goes over a connection of its own to the server, and
//! the answer ends where that connection does.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::faulty::Dice;

/// Ways to go wrong on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toxic {
    /// The proxy answers 503 SlowDown itself.
    SlowDown,
    /// The connection ends before the server hears anything.
    ResetBefore,
    /// The server hears half of the request's body.
    ResetUpload,
    /// The answer breaks off.
    ResetMidBody,
    /// The answer stops, and the connection stays open.
    Stall,
    /// The server did it, and the answer is a 500.
    Ambiguous,
    /// The answer arrives at about 1 MB/s.
    Narrow,
    /// A byte of an object's body is flipped.
    Flip,
}

impl Toxic {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SlowDown,
        Self::ResetBefore,
        Self::ResetUpload,
        Self::ResetMidBody,
        Self::Stall,
        Self::Ambiguous,
        Self::Narrow,
        Self::Flip,
    ];
}

/// The state of the connection to the server for all clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weather {
    /// Connections are cut.
    pub away: bool,
    /// Time that every request waits before the server hears of it.
    pub delay: Duration,
    /// Bytes per second of all answers and uploads together; no bound when absent.
    pub bytes_per_second: Option<u64>,
}

/// How long a stalled connection stays open.
const STALL: Duration = Duration::from_secs(20);
const HEAD_BYTES_MAX: usize = 64 << 10;
const REFUSAL: &str =
    "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>";

/// A running proxy; stops when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    /// Its address.
    pub address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    upstream: SocketAddr,
    plan: Mutex<Plan>,
    weather: Mutex<Weather>,
    /// When the link will have sent its queued bytes.
    idle_at: Mutex<Instant>,
}

#[derive(Debug)]
struct Plan {
    dice: Dice,
    per_mille: usize,
    among: &'static [Toxic],
    injected: [u64; Toxic::ALL.len()],
}

impl FaultProxy {
    /// Starts in front of `upstream`; this many of a thousand requests fail.
    pub async fn start(upstream: SocketAddr, seed: u64, per_mille: usize) -> Self {
        let (dice, injected) = (Dice::new(seed), [0; Toxic::ALL.len()]);
        let plan = Mutex::new(Plan { dice, per_mille, among: &Toxic::ALL, injected });
        let (weather, idle_at) = (Mutex::default(), Mutex::new(Instant::now()));
        let state = Arc::new(State { upstream, plan, weather, idle_at });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                tokio::spawn(async move { state.serve(client).await });
            }
        });
        Self { address, state, task }
    }

    /// Sets how many of a thousand requests fail.
    pub fn set(&self, per_mille: usize) {
        self.state.plan.lock().expect("not poisoned").per_mille = per_mille;
    }

    /// Sets how many of a thousand requests fail, and the kinds of failure.
    pub fn set_among(&self, per_mille: usize, among: &'static [Toxic]) {
        let mut plan = self.state.plan.lock().expect("not poisoned");
        (plan.per_mille, plan.among) = (per_mille, among);
    }

    /// Sets the state of the connection.
    pub fn weather(&self, weather: Weather) {
        *self.state.weather.lock().expect("not poisoned") = weather;
    }

    /// From now on every connection is cut, or none.
    pub fn away(&self, away: bool) {
        self.set(0);
        self.state.weather.lock().expect("not poisoned").away = away;
    }

    /// How often each went wrong, in the order of [`Toxic::ALL`].
    pub fn injected(&self) -> [u64; Toxic::ALL.len()] {
        self.state.plan.lock().expect("not poisoned").injected
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request: its head, the number of bytes of its body, and the part of them that has arrived already.
struct Request {
    head: Vec<u8>,
    body: Vec<u8>,
    body_bytes: usize,
    reads_object: bool,
}

impl State {
    fn decide(&self, request: &Request) -> (Option<Toxic>, usize) {
        let mut plan = self.plan.lock().expect("not poisoned");
        let Plan { dice, per_mille, among, injected } = &mut *plan;
        let (hit, toxic, amount) = (dice.chance(*per_mille), among[dice.below(among.len())], dice.below(4));
        let amount = dice.below([300, 3_000, 20_000, 200_000][amount]);
        let toxic = Some(toxic).filter(|t| hit && (*t != Toxic::Flip || request.reads_object));
        if let Some(at) = toxic.and_then(|t| Toxic::ALL.iter().position(|known| *known == t)) {
            injected[at] += 1;
        }
        (toxic, amount)
    }

    /// Serves one request; the connection ends after it.
    async fn serve(&self, mut client: TcpStream) {
        let _ = client.set_nodelay(true);
        let Some(request) = read_head(&mut client).await else { return };
        let weather = *self.weather.lock().expect("not poisoned");
        if weather.away {
            return;
        }
        if !weather.delay.is_zero() {
            tokio::time::sleep(weather.delay).await;
        }
        let (toxic, amount) = self.decide(&request);
        let _ = self.answer(&mut client, request, toxic, amount).await;
        let _ = client.shutdown().await;
    }

    async fn answer(
        &self,
        client: &mut TcpStream,
        request: Request,
        toxic: Option<Toxic>,
        amount: usize,
    ) -> std::io::Result<()> {
        match toxic {
            Some(Toxic::ResetBefore) => return Ok(()),
            Some(Toxic::SlowDown) => {
                relay_body(client, &mut tokio::io::sink(), request.body, request.body_bytes).await?;
                return refuse(client, "503 Slow Down").await;
            }
            _ => {}
        }
        let mut server = TcpStream::connect(self.upstream).await?;
        server.set_nodelay(true)?;
        server.write_all(&request.head).await?;
        if toxic == Some(Toxic::ResetUpload) && request.body_bytes > 0 {
            return relay_body(client, &mut server, request.body, request.body_bytes / 2).await;
        }
        relay_body(client, &mut server, request.body, request.body_bytes).await?;
        self.pace(request.body_bytes).await?;
        if toxic == Some(Toxic::Ambiguous) {
            tokio::io::copy(&mut server, &mut tokio::io::sink()).await?;
            return refuse(client, "500 Internal Server Error").await;
        }
        self.relay_answer(&mut server, client, toxic, amount).await
    }

    /// Waits until the link has room for this many more bytes.
    async fn pace(&self, bytes: usize) -> std::io::Result<()> {
        let Weather { away, bytes_per_second, .. } = *self.weather.lock().expect("not poisoned");
        if away {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        let Some(rate) = bytes_per_second else { return Ok(()) };
        let due = {
            let mut idle_at = self.idle_at.lock().expect("not poisoned");
            *idle_at = Instant::now().max(*idle_at) + Duration::from_secs_f64(bytes as f64 / rate as f64);
            *idle_at
        };
        tokio::time::sleep_until(due.into()).await;
        Ok(())
    }
}

async fn read_head(client: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if client.read_buf(&mut bytes).await.ok()? == 0 || bytes.len() > HEAD_BYTES_MAX {
            return None;
        }
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let body = bytes.split_off(end);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let lines = text.trim_end().split("\r\n");
    let value = |name: &str| {
        let headers = lines.clone().skip(1).filter_map(|line| line.split_once(':'));
        headers.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim().to_owned()).next()
    };
    let body_bytes = value("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    let first = lines.clone().next().unwrap_or_default();
    let reads_object = first.starts_with("GET ") && first.contains(".kvc");
    // Signatures do not cover this header.
    let kept = lines.clone().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let mut head = kept.collect::<Vec<_>>().join("\r\n");
    head.push_str("\r\nconnection: close\r\n\r\n");
    Some(Request { head: head.into_bytes(), body, body_bytes, reads_object })
}

async fn relay_body(
    client: &mut TcpStream,
    to: &mut (impl AsyncWriteExt + Unpin),
    begun: Vec<u8>,
    bytes: usize,
) -> std::io::Result<()> {
    let begun = &begun[..begun.len().min(bytes)];
    to.write_all(begun).await?;
    tokio::io::copy(&mut client.take((bytes - begun.len()) as u64), to).await?;
    to.flush().await
}

async fn refuse(client: &mut TcpStream, status: &str) -> std::io::Result<()> {
    let length = REFUSAL.len();
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/xml\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{REFUSAL}"
    );
    client.write_all(text.as_bytes()).await
}

impl State {
    async fn relay_answer(
        &self,
        server: &mut TcpStream,
        client: &mut TcpStream,
        toxic: Option<Toxic>,
        amount: usize,
    ) -> std::io::Result<()> {
        let mut part = vec![0; 32 << 10];
        let mut sent = 0;
        let mut flips = toxic == Some(Toxic::Flip);
        loop {
            let read = server.read(&mut part).await?;
            if read == 0 {
                return Ok(());
            }
            let bytes = &mut part[..read];
            // Behind the first packet there are only body bytes.
            if flips && sent > 0 {
                bytes[amount % read] ^= 1;
                flips = false;
            }
            match toxic {
                Some(Toxic::ResetMidBody) if sent + read > amount => {
                    return client.write_all(&bytes[..amount.saturating_sub(sent).min(read)]).await;
                }
                Some(Toxic::Stall) if sent + read > amount => {
                    client.write_all(&bytes[..amount.saturating_sub(sent).min(read)]).await?;
                    tokio::time::sleep(STALL).await;
                    return Ok(());
                }
                Some(Toxic::Narrow) => tokio::time::sleep(Duration::from_millis(30)).await,
                _ => {}
            }
            self.pace(read).await?;
            client.write_all(bytes).await?;
            sent += read;
        }
    }
}
