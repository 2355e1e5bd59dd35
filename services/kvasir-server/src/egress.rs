//! The replica's way out, shared by its tenants: each that has something to send gets an equal part of it, however many
//! connections and requests another has.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): a piece begins at the later of the virtual time and the end of
//! its tenant's piece before, and the pieces go in the order of their beginnings at the rate of the link.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    http::header,
    response::Response,
};
use futures::StreamExt;
use kvasir_types::Name;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

/// How far the link may be behind and catch up: the grain of timers, not more.
const BURST: Duration = Duration::from_millis(20);

/// The way out. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pieces: mpsc::UnboundedSender<Piece>,
}

/// Something that waits for its turn: one for each answer that is being sent, so as many as there are requests.
#[derive(Debug)]
struct Piece {
    tenant: Name,
    bytes: usize,
    go: oneshot::Sender<()>,
}

impl Link {
    /// A link that carries `bytes_per_second`. Must be made in a runtime.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        let (pieces, arriving) = mpsc::unbounded_channel();
        tokio::spawn(Queue::new(bytes_per_second as f64).run(arriving));
        Self { pieces }
    }

    /// The answer, each piece of which waits for the tenant's turn.
    pub(crate) fn share(&self, tenant: &Name, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        if body.is_end_stream() {
            return Response::from_parts(parts, body);
        }
        let is_exact = body.size_hint().exact();
        let (link, tenant) = (self.clone(), tenant.clone());
        let paced = body.into_data_stream().then(move |piece| {
            let (link, tenant) = (link.clone(), tenant.clone());
            async move {
                if let Ok(piece) = &piece {
                    link.turn(tenant, piece.len()).await;
                }
                piece
            }
        });
        let mut response = Response::from_parts(parts, Body::from_stream(paced));
        // A stream has no length of its own; without one the answer would become chunked.
        if let Some(length) = is_exact {
            response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
        }
        response
    }

    /// Waits until `bytes` of a tenant may go.
    async fn turn(&self, tenant: Name, bytes: usize) {
        let (go, turn) = oneshot::channel();
        // At shutdown nobody queues any more.
        if self.pieces.send(Piece { tenant, bytes, go }).is_ok() {
            let _ = turn.await;
        }
    }
}

/// Pieces in the order of their virtual beginnings.
struct Queue {
    rate: f64,
    /// Virtual time: bytes that a tenant which always has something to send was given.
    now: u64,
    arrivals: u64,
    ends: HashMap<Name, u64>,
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    pieces: HashMap<u64, Piece>,
    free_at: Instant,
}

impl Queue {
    fn new(rate: f64) -> Self {
        let (ends, waiting, pieces) = (HashMap::new(), BinaryHeap::new(), HashMap::new());
        Self { rate, now: 0, arrivals: 0, ends, waiting, pieces, free_at: Instant::now() }
    }

    async fn run(mut self, mut arriving: mpsc::UnboundedReceiver<Piece>) {
        loop {
            tokio::select! {
                biased;
                piece = arriving.recv() => match piece {
                    Some(piece) => self.arrived(piece),
                    None => return,
                },
                () = tokio::time::sleep_until(self.free_at), if !self.waiting.is_empty() => self.send(),
            }
        }
    }

    fn arrived(&mut self, piece: Piece) {
        let begins = self.ends.get(&piece.tenant).copied().unwrap_or(0).max(self.now);
        self.ends.insert(piece.tenant.clone(), begins.saturating_add(piece.bytes as u64));
        self.arrivals += 1;
        self.waiting.push(Reverse((begins, self.arrivals)));
        self.pieces.insert(self.arrivals, piece);
    }

    fn send(&mut self) {
        let Some(Reverse((begins, arrival))) = self.waiting.pop() else { return };
        let Some(piece) = self.pieces.remove(&arrival) else { return };
        self.now = self.now.max(begins);
        // Nobody there to send it any more: it costs nothing.
        if piece.go.send(()).is_ok() {
            let earliest = Instant::now().checked_sub(BURST).unwrap_or(self.free_at);
            self.free_at =
                self.free_at.max(earliest) + Duration::from_secs_f64(piece.bytes as f64 / self.rate);
        }
        if self.waiting.is_empty() {
            // Nobody is owed anything; whoever comes next begins now.
            self.ends.retain(|_, end| *end > self.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000;

    /// Bytes that a tenant's `streams`, each with pieces of `bytes`, get through in ten seconds.
    fn load(link: &Link, tenant: &str, streams: usize, bytes: usize) -> Vec<tokio::task::JoinHandle<u64>> {
        let until = Instant::now() + Duration::from_secs(10);
        let stream = |_| {
            let (link, tenant): (Link, Name) = (link.clone(), tenant.parse().expect("a name"));
            tokio::spawn(async move {
                let mut sent = 0;
                while tokio::time::timeout_at(until, link.turn(tenant.clone(), bytes)).await.is_ok() {
                    sent += bytes as u64;
                }
                sent
            })
        };
        (0..streams).map(stream).collect()
    }

    async fn sum(streams: Vec<tokio::task::JoinHandle<u64>>) -> f64 {
        let mut sum = 0;
        for stream in streams {
            sum += stream.await.expect("no panic");
        }
        sum as f64 / (10.0 * RATE as f64)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_of_many_streams_gets_no_more_than_one_of_one() {
        let link = Link::new(RATE);
        let (greedy, modest) = (load(&link, "a", 50, 64_000), load(&link, "b", 1, 16_000));
        let (greedy, modest) = (sum(greedy).await, sum(modest).await);
        assert!((0.45..=0.55).contains(&modest), "{modest}");
        assert!((0.95..=1.06).contains(&(greedy + modest)), "{greedy} + {modest}");
    }

    #[tokio::test(start_paused = true)]
    async fn three_tenants_have_a_third_each_and_one_alone_has_all() {
        let link = Link::new(RATE);
        let loads = [("a", 20, 64_000), ("b", 3, 16_000), ("c", 1, 8_000)];
        let loads = loads.map(|(tenant, streams, bytes)| load(&link, tenant, streams, bytes));
        for streams in loads {
            let share = sum(streams).await;
            assert!((0.29..=0.38).contains(&share), "{share}");
        }
        let alone = sum(load(&link, "a", 1, 16_000)).await;
        assert!((0.95..=1.05).contains(&alone), "{alone}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_has_saved_nothing_up() {
        let link = Link::new(RATE);
        sum(load(&link, "a", 4, 64_000)).await;
        let (a, b) = (load(&link, "a", 4, 16_000), load(&link, "b", 4, 16_000));
        let (a, b) = (sum(a).await, sum(b).await);
        assert!((0.45..=0.55).contains(&a) && (0.45..=0.55).contains(&b), "{a} {b}");
    }
}
