//! The replica's egress bandwidth, shared by its tenants: each tenant with data to send gets an equal share,
//! however many connections and requests another has.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): a piece starts at the later of the virtual time and the
//! finish of its tenant's previous piece, and pieces are sent in the order of their start tags at the rate of
//! the link. A tenant's next piece gets its tag when the previous one is sent, so pieces of responses that end
//! before their turn cost nothing.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
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

/// How far the link may fall behind and catch up: the granularity of timers, no more.
const BURST: Duration = Duration::from_millis(20);

/// Shares the egress bandwidth fairly between tenants. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct EgressScheduler {
    tickets: mpsc::UnboundedSender<SendTicket>,
}

/// A request to send `bytes`, until it is granted. Each response being sent has one. Those of responses that
/// are gone stay until their tenant's turn.
#[derive(Debug)]
struct SendTicket {
    tenant: Name,
    bytes: usize,
    granted: oneshot::Sender<()>,
}

impl EgressScheduler {
    /// A scheduler for `bytes_per_second`. Must be created in a runtime.
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        let (tickets, submitted) = mpsc::unbounded_channel();
        tokio::spawn(FairQueue::new(bytes_per_second as f64).run(submitted));
        Self { tickets }
    }

    /// The response, each part of which waits until the tenant may send it.
    pub(crate) fn schedule(&self, tenant: &Name, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        if body.is_end_stream() {
            return Response::from_parts(parts, body);
        }
        let is_exact = body.size_hint().exact();
        let (scheduler, tenant) = (self.clone(), tenant.clone());
        let paced = body.into_data_stream().then(move |part| {
            let (scheduler, tenant) = (scheduler.clone(), tenant.clone());
            async move {
                if let Ok(part) = &part {
                    scheduler.acquire(tenant, part.len()).await;
                }
                part
            }
        });
        let mut response = Response::from_parts(parts, Body::from_stream(paced));
        // A stream has no length; without one the response would become chunked.
        if let Some(length) = is_exact {
            response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
        }
        response
    }

    /// Waits until a tenant may send `bytes`.
    async fn acquire(&self, tenant: Name, bytes: usize) {
        let (granted, grant) = oneshot::channel();
        // At shutdown the queue is gone: send without waiting.
        if self.tickets.send(SendTicket { tenant, bytes, granted }).is_ok() {
            let _ = grant.await;
        }
    }
}

/// Each tenant's tickets in the order of their arrival, and the tenants that have any in the order of the
/// start tags of their first ones.
struct FairQueue {
    rate: f64,
    /// Bytes granted to a tenant that always has data to send.
    virtual_time: u64,
    arrivals: u64,
    finish_tags: HashMap<Name, u64>,
    waiting: BinaryHeap<Reverse<(u64, u64, Name)>>,
    tickets: HashMap<Name, VecDeque<SendTicket>>,
    free_at: Instant,
}

impl FairQueue {
    fn new(rate: f64) -> Self {
        let (finish_tags, waiting, tickets) = (HashMap::new(), BinaryHeap::new(), HashMap::new());
        Self { rate, virtual_time: 0, arrivals: 0, finish_tags, waiting, tickets, free_at: Instant::now() }
    }

    async fn run(mut self, mut submitted: mpsc::UnboundedReceiver<SendTicket>) {
        loop {
            tokio::select! {
                biased;
                ticket = submitted.recv() => match ticket {
                    Some(ticket) => self.enqueue(ticket),
                    None => return,
                },
                () = tokio::time::sleep_until(self.free_at), if !self.waiting.is_empty() => self.dispatch(),
            }
        }
    }

    fn enqueue(&mut self, ticket: SendTicket) {
        let tenant = ticket.tenant.clone();
        let tickets = self.tickets.entry(tenant.clone()).or_default();
        tickets.push_back(ticket);
        if tickets.len() == 1 {
            self.line_up(tenant);
        }
    }

    /// Gives the first ticket of a tenant its start tag.
    fn line_up(&mut self, tenant: Name) {
        let start_tag = self.finish_tags.get(&tenant).copied().unwrap_or(0).max(self.virtual_time);
        self.arrivals += 1;
        self.waiting.push(Reverse((start_tag, self.arrivals, tenant)));
    }

    fn dispatch(&mut self) {
        let Some(Reverse((start_tag, _, tenant))) = self.waiting.pop() else { return };
        let mut tickets = self.tickets.remove(&tenant).unwrap_or_default();
        while let Some(SendTicket { bytes, granted, .. }) = tickets.pop_front() {
            // The response is gone: charge nothing.
            if granted.send(()).is_err() {
                continue;
            }
            self.virtual_time = self.virtual_time.max(start_tag);
            let earliest = Instant::now().checked_sub(BURST).unwrap_or(self.free_at);
            self.free_at = self.free_at.max(earliest) + Duration::from_secs_f64(bytes as f64 / self.rate);
            self.finish_tags.insert(tenant.clone(), start_tag.saturating_add(bytes as u64));
            break;
        }
        if !tickets.is_empty() {
            self.tickets.insert(tenant.clone(), tickets);
            self.line_up(tenant);
        }
        if self.waiting.is_empty() {
            // No tenant has a backlog; the next request starts now.
            self.finish_tags.retain(|_, tag| *tag > self.virtual_time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000;

    /// Bytes that a tenant's `streams`, each with pieces of `bytes`, send in ten seconds.
    fn load(
        scheduler: &EgressScheduler,
        tenant: &str,
        streams: usize,
        bytes: usize,
    ) -> Vec<tokio::task::JoinHandle<u64>> {
        let until = Instant::now() + Duration::from_secs(10);
        let stream = |_| {
            let (scheduler, tenant): (EgressScheduler, Name) =
                (scheduler.clone(), tenant.parse().expect("a name"));
            tokio::spawn(async move {
                let mut sent = 0;
                while tokio::time::timeout_at(until, scheduler.acquire(tenant.clone(), bytes)).await.is_ok() {
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
        let scheduler = EgressScheduler::new(RATE);
        let (greedy, modest) = (load(&scheduler, "a", 50, 64_000), load(&scheduler, "b", 1, 16_000));
        let (greedy, modest) = (sum(greedy).await, sum(modest).await);
        assert!((0.45..=0.55).contains(&modest), "{modest}");
        assert!((0.95..=1.06).contains(&(greedy + modest)), "{greedy} + {modest}");
    }

    #[tokio::test(start_paused = true)]
    async fn three_tenants_have_a_third_each_and_one_alone_has_all() {
        let scheduler = EgressScheduler::new(RATE);
        let loads = [("a", 20, 64_000), ("b", 3, 16_000), ("c", 1, 8_000)];
        let loads = loads.map(|(tenant, streams, bytes)| load(&scheduler, tenant, streams, bytes));
        for streams in loads {
            let share = sum(streams).await;
            assert!((0.29..=0.38).contains(&share), "{share}");
        }
        let alone = sum(load(&scheduler, "a", 1, 16_000)).await;
        assert!((0.95..=1.05).contains(&alone), "{alone}");
    }

    /// Clients that give up before their turn cost their tenant nothing.
    #[tokio::test(start_paused = true)]
    async fn responses_that_end_before_their_turn_are_free() {
        let scheduler = EgressScheduler::new(RATE);
        let b = load(&scheduler, "b", 50, 64_000);
        let until = Instant::now() + Duration::from_secs(10);
        let impatient = (0..10).map(|_| {
            let (scheduler, tenant): (EgressScheduler, Name) =
                (scheduler.clone(), "a".parse().expect("a name"));
            tokio::spawn(async move {
                let mut sent = 0;
                while Instant::now() < until {
                    let acquired = scheduler.acquire(tenant.clone(), 200_000);
                    let is_granted = tokio::time::timeout(Duration::from_millis(500), acquired).await.is_ok();
                    sent += if is_granted { 200_000 } else { 0 };
                }
                sent
            })
        });
        let a = sum(impatient.collect()).await;
        let b = sum(b).await;
        assert!(a > 0.35 && b > 0.35, "{a} {b}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_has_saved_nothing_up() {
        let scheduler = EgressScheduler::new(RATE);
        sum(load(&scheduler, "a", 4, 64_000)).await;
        let (a, b) = (load(&scheduler, "a", 4, 16_000), load(&scheduler, "b", 4, 16_000));
        let (a, b) = (sum(a).await, sum(b).await);
        assert!((0.45..=0.55).contains(&a) && (0.45..=0.55).contains(&b), "{a} {b}");
    }
}
