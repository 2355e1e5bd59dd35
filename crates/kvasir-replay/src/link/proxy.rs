//! A TCP proxy on loopback whose links follow bandwidth series.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{BandwidthSeries, Shaper};

/// Bytes that are paced together: 0.13 ms at 1 Gb/s, 13 ms at 10 Mb/s.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces in flight (delay × bandwidth): 16 MiB, 130 ms at 1 Gb/s.
const PIECES_ON_THE_WAY: usize = 1024;
/// Most concurrent connections.
const CONNECTIONS_MAX: usize = 256;

/// Delay of a lost piece: the minimum retransmission timeout of Linux.
pub const RETRANSMIT: Duration = Duration::from_millis(200);

/// The behaviour of a link.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Bandwidth from the service to the client, shared by all connections.
    pub down: BandwidthSeries,
    /// Bandwidth the other way; unlimited when absent.
    pub up: Option<BandwidthSeries>,
    /// One-way delay.
    pub delay: Duration,
    /// Maximum additional delay of each piece; order is kept, as in TCP.
    pub jitter: Duration,
    /// Share of pieces that are lost and sent again after [`RETRANSMIT`]; later pieces wait for them.
    pub loss: f64,
}

impl LinkOptions {
    /// A download link without delay.
    pub const fn down(series: BandwidthSeries) -> Self {
        Self { down: series, up: None, delay: Duration::ZERO, jitter: Duration::ZERO, loss: 0.0 }
    }
}

/// The delays of pieces in addition to those caused by the link's bandwidth.
#[derive(Debug, Clone, Copy)]
struct Lateness {
    delay: Duration,
    jitter: Duration,
    loss: f64,
}

impl Lateness {
    const fn of(options: &LinkOptions) -> Self {
        Self { delay: options.delay, jitter: options.jitter, loss: options.loss }
    }

    fn draw(self) -> Duration {
        let lost = self.loss > 0.0 && rand::random::<f64>() < self.loss;
        let jitter = if self.jitter.is_zero() { 0.0 } else { rand::random::<f64>() };
        self.delay + self.jitter.mul_f64(jitter) + if lost { RETRANSMIT } else { Duration::ZERO }
    }
}

/// A shared link direction: the start of its time, and its queue.
#[derive(Debug)]
struct Direction {
    shaper: Mutex<(Instant, Shaper)>,
}

impl Direction {
    fn new(series: BandwidthSeries) -> Arc<Self> {
        Arc::new(Self { shaper: Mutex::new((Instant::now(), Shaper::new(series))) })
    }

    fn with<T>(&self, f: impl FnOnce(&mut (Instant, Shaper)) -> T) -> T {
        // The shaper is consistent even after a panic elsewhere.
        f(&mut self.shaper.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn reserve(&self, bytes: usize) -> Instant {
        self.with(|(start, shaper)| *start + shaper.reserve(start.elapsed(), bytes as u64))
    }
}

/// A TCP proxy on a free loopback port in front of `upstream`, shaped after a bandwidth series. All
/// connections share the link. Dropping it stops it and closes them.
#[derive(Debug)]
pub struct ShapedLink {
    address: SocketAddr,
    down: Arc<Direction>,
    accept: JoinHandle<()>,
}

impl ShapedLink {
    /// Starts the proxy; its series begins now.
    ///
    /// # Errors
    /// When no loopback port can be bound.
    pub async fn start(upstream: SocketAddr, options: LinkOptions) -> io::Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), upstream, options).await
    }

    /// As [`start`](Self::start), listening at the given address.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub async fn start_at(
        listen: SocketAddr,
        upstream: SocketAddr,
        options: LinkOptions,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let late = Lateness::of(&options);
        let down = Direction::new(options.down);
        let up = options.up.map(Direction::new);
        let accept = tokio::spawn(accept(listener, upstream, Arc::clone(&down), up, late));
        Ok(Self { address, down, accept })
    }

    /// The address for clients.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Restarts the series now.
    pub fn restart(&self) {
        self.down.with(|(start, shaper)| {
            *start = Instant::now();
            *shaper = Shaper::new(shaper.series().clone());
        });
    }

    /// Follows another series from its beginning, from now on.
    pub fn follow(&self, series: BandwidthSeries) {
        self.down.with(|(start, shaper)| {
            *start = Instant::now();
            *shaper = Shaper::new(series);
        });
    }

    /// Bytes sent to clients since the series began.
    pub fn bytes_down(&self) -> u64 {
        self.down.with(|(_, shaper)| shaper.sent())
    }
}

impl Drop for ShapedLink {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

async fn accept(
    listener: TcpListener,
    upstream: SocketAddr,
    down: Arc<Direction>,
    up: Option<Arc<Direction>>,
    late: Lateness,
) {
    // Aborted with this task when the link is dropped.
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        // An error here concerns one connection (closed before it was accepted), not the listener.
        let Ok((client, _)) = listener.accept().await else { continue };
        let (down, up) = (Arc::clone(&down), up.clone());
        connections.spawn(async move {
            // A close on either side, of any kind, ends the connection.
            let _ = connection(client, upstream, down, up, late).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(
    client: TcpStream,
    upstream: SocketAddr,
    down: Arc<Direction>,
    up: Option<Arc<Direction>>,
    late: Lateness,
) -> io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let downward = pump(server_read, client_write, Some(down), late);
    let upward = pump(client_read, server_write, up, late);
    tokio::try_join!(downward, upward).map(|_| ())
}

/// Moves bytes: each piece leaves when the link has carried it and arrives `delay` later.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    link: Option<Arc<Direction>>,
    late: Lateness,
) -> io::Result<()> {
    let (queue, mut arrivals) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_ON_THE_WAY);
    let send = async move {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            if count == 0 {
                return Ok::<_, io::Error>(());
            }
            let left = link.as_ref().map_or_else(Instant::now, |link| link.reserve(count));
            if left > Instant::now() {
                sleep_until(left).await;
            }
            if queue.send((left + late.draw(), buffer[..count].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    };
    let receive = async move {
        while let Some((due, bytes)) = arrivals.recv().await {
            if due > Instant::now() {
                sleep_until(due).await;
            }
            to.write_all(&bytes).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(send, receive).map(|_| ())
}
