//! The replica's egress bandwidth, shared by its tenants: each tenant with data to send gets an equal share,
//! however many connections and requests another has.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996): a piece starts at the later of the virtual time and the
//! finish of its tenant's previous piece, and pieces are sent in the order of their start tags at the rate of
//! the link. A tenant's next piece gets its tag when the previous one is sent, so pieces of responses that end
//! before their turn cost nothing.
//!
//! Among a tenant's loads with a deadline the earliest is served first (Liu, Layland 1973). A load that is late
//! has missed its deadline anyway: it waits for those that can still keep theirs. Other answers are sent in the
//! order of their arrival, and have half of the tenant's bytes while both wait: so the answer to a lookup does
//! not wait for loads, and loads do not wait for many answers without a deadline.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    http::header,
    response::Response,
};
use futures::{FutureExt, StreamExt};
use kvasir_types::Name;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{background_task::BackgroundTask, metrics::Metrics};

/// How far the link may fall behind and catch up: the granularity of timers, no more.
const BURST: Duration = Duration::from_millis(20);
/// A response is due this long after its request at the latest, so that none waits for ever.
const DUE_MAX: Duration = Duration::from_secs(10);
/// One of so many pieces of a tenant's loads is the one that is due first, also if it is late: so late loads go on.
const LATE_TURN: u64 = 8;
/// Tickets queued between two pieces: however fast they come, the link goes on.
const TICKETS_AT_ONCE: usize = 256;

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
    due: Option<Instant>,
    bytes: usize,
    granted: oneshot::Sender<()>,
}

impl EgressScheduler {
    /// A scheduler for `bytes_per_second`. Must be created in a runtime.
    pub(crate) fn new(bytes_per_second: u64, metrics: Arc<Metrics>) -> Self {
        let (tickets, submitted) = mpsc::unbounded_channel();
        tokio::spawn(run_queues(bytes_per_second as f64, submitted, metrics));
        Self { tickets }
    }

    /// The response to a request whose load has this deadline, each part of which waits until the tenant may send it.
    pub(crate) fn schedule(&self, tenant: &Name, deadline: Option<Instant>, response: Response) -> Response {
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
                    scheduler.acquire(tenant, deadline, part.len()).await;
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

    /// Waits until a tenant may send `bytes` for a load with this deadline.
    async fn acquire(&self, tenant: Name, due: Option<Instant>, bytes: usize) {
        let (granted, grant) = oneshot::channel();
        // At shutdown the queue is gone, or it panicked: send without waiting.
        if self.tickets.send(SendTicket { tenant, due, bytes, granted }).is_ok() {
            let _ = grant.await;
        }
    }
}

/// Runs a queue until the scheduler is gone. If it panics, what waits in it is sent without waiting, and a new queue takes what
/// comes: at once, because responses would wait out a pause as well.
async fn run_queues(rate: f64, mut submitted: mpsc::UnboundedReceiver<SendTicket>, metrics: Arc<Metrics>) {
    while AssertUnwindSafe(FairQueue::new(rate).run(&mut submitted)).catch_unwind().await.is_err() {
        metrics.health().background_panicked(BackgroundTask::Egress);
        tracing::error!(task = BackgroundTask::Egress.as_str(), "a background task panicked; it runs again");
    }
}

/// The deadline of a load that has so many milliseconds left.
pub(crate) fn deadline(left_ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(left_ms).min(DUE_MAX)
}

/// The tickets of a tenant that wait.
#[derive(Debug, Default)]
struct Backlog {
    /// Of loads with a deadline, by it and the order of their arrival.
    loads: BTreeMap<(Instant, u64), SendTicket>,
    /// Of other answers, in the order of their arrival.
    others: VecDeque<SendTicket>,
    /// Pieces of loads that were granted.
    load_pieces: u64,
    /// Bytes that loads were granted beyond those of other answers, while both waited.
    loads_ahead: i64,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.loads.is_empty() && self.others.is_empty()
    }

    fn push(&mut self, arrival: u64, ticket: SendTicket) {
        match ticket.due {
            Some(due) => _ = self.loads.insert((due, arrival), ticket),
            None => self.others.push_back(ticket),
        }
    }

    /// Takes the ticket to be granted next.
    fn pop(&mut self, now: Instant) -> Option<SendTicket> {
        if self.loads.is_empty() || (self.loads_ahead >= 0 && !self.others.is_empty()) {
            return self.others.pop_front();
        }
        let in_time = self.loads.range((now, 0)..).next().map(|(key, _)| *key);
        match in_time.filter(|_| !self.load_pieces.is_multiple_of(LATE_TURN)) {
            Some(key) => self.loads.remove(&key),
            None => self.loads.pop_first().map(|(_, ticket)| ticket),
        }
    }

    /// Counts bytes that were granted. Who has nothing to send saves nothing up.
    fn charge(&mut self, is_load: bool, bytes: usize) {
        if is_load {
            self.load_pieces += 1;
            self.loads_ahead += bytes as i64;
            if self.others.is_empty() {
                self.loads_ahead = self.loads_ahead.min(0);
            }
        } else {
            self.loads_ahead -= bytes as i64;
            if self.loads.is_empty() {
                self.loads_ahead = self.loads_ahead.max(0);
            }
        }
    }
}

/// Each tenant's tickets, and the tenants that have any in the order of the start tags of their next ones.
struct FairQueue {
    rate: f64,
    /// Bytes granted to a tenant that always has data to send.
    virtual_time: u64,
    arrivals: u64,
    finish_tags: HashMap<Name, u64>,
    waiting: BinaryHeap<Reverse<(u64, u64, Name)>>,
    backlogs: HashMap<Name, Backlog>,
    free_at: Instant,
}

impl FairQueue {
    fn new(rate: f64) -> Self {
        let (finish_tags, waiting, backlogs) = (HashMap::new(), BinaryHeap::new(), HashMap::new());
        Self { rate, virtual_time: 0, arrivals: 0, finish_tags, waiting, backlogs, free_at: Instant::now() }
    }

    async fn run(mut self, submitted: &mut mpsc::UnboundedReceiver<SendTicket>) {
        let mut tickets = Vec::new();
        loop {
            tokio::select! {
                biased;
                count = submitted.recv_many(&mut tickets, TICKETS_AT_ONCE) => match count {
                    0 => return,
                    _ => tickets.drain(..).for_each(|ticket| self.enqueue(ticket)),
                },
                () = tokio::time::sleep_until(self.free_at), if !self.waiting.is_empty() => {}
            }
            if self.free_at <= Instant::now() {
                self.dispatch();
            }
        }
    }

    fn enqueue(&mut self, ticket: SendTicket) {
        let tenant = ticket.tenant.clone();
        self.arrivals += 1;
        let backlog = self.backlogs.entry(tenant.clone()).or_default();
        let was_empty = backlog.is_empty();
        backlog.push(self.arrivals, ticket);
        if was_empty {
            self.line_up(tenant);
        }
    }

    /// Gives the next ticket of a tenant its start tag.
    fn line_up(&mut self, tenant: Name) {
        let start_tag = self.finish_tags.get(&tenant).copied().unwrap_or(0).max(self.virtual_time);
        self.arrivals += 1;
        self.waiting.push(Reverse((start_tag, self.arrivals, tenant)));
    }

    fn dispatch(&mut self) {
        let Some(Reverse((start_tag, _, tenant))) = self.waiting.pop() else { return };
        let mut backlog = self.backlogs.remove(&tenant).unwrap_or_default();
        while let Some(SendTicket { due, bytes, granted, .. }) = backlog.pop(Instant::now()) {
            // The response is gone: charge nothing.
            if granted.send(()).is_err() {
                continue;
            }
            backlog.charge(due.is_some(), bytes);
            self.virtual_time = self.virtual_time.max(start_tag);
            let earliest = Instant::now().checked_sub(BURST).unwrap_or(self.free_at);
            self.free_at = self.free_at.max(earliest) + Duration::from_secs_f64(bytes as f64 / self.rate);
            self.finish_tags.insert(tenant.clone(), start_tag.saturating_add(bytes as u64));
            break;
        }
        if !backlog.is_empty() {
            self.backlogs.insert(tenant.clone(), backlog);
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

    fn scheduler() -> EgressScheduler {
        EgressScheduler::new(RATE, Arc::new(Metrics::new()))
    }

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
                while tokio::time::timeout_at(until, scheduler.acquire(tenant.clone(), None, bytes))
                    .await
                    .is_ok()
                {
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
        let scheduler = scheduler();
        let (greedy, modest) = (load(&scheduler, "a", 50, 64_000), load(&scheduler, "b", 1, 16_000));
        let (greedy, modest) = (sum(greedy).await, sum(modest).await);
        assert!((0.45..=0.55).contains(&modest), "{modest}");
        assert!((0.95..=1.06).contains(&(greedy + modest)), "{greedy} + {modest}");
    }

    #[tokio::test(start_paused = true)]
    async fn three_tenants_have_a_third_each_and_one_alone_has_all() {
        let scheduler = scheduler();
        let loads = [("a", 20, 64_000), ("b", 3, 16_000), ("c", 1, 8_000)];
        let loads = loads.map(|(tenant, streams, bytes)| load(&scheduler, tenant, streams, bytes));
        for streams in loads {
            let share = sum(streams).await;
            assert!((0.29..=0.38).contains(&share), "{share}");
        }
        let alone = sum(load(&scheduler, "a", 1, 16_000)).await;
        assert!((0.95..=1.05).contains(&alone), "{alone}");
    }

    /// How long each of these loads takes that begin together: of so many bytes, with this deadline.
    async fn times(loads: &[(usize, Option<f64>)]) -> Vec<f64> {
        let (scheduler, begun) = (scheduler(), Instant::now());
        let tasks = loads.iter().map(|(bytes, deadline)| {
            let (scheduler, tenant): (_, Name) = (scheduler.clone(), "a".parse().expect("a name"));
            let (bytes, due) = (*bytes, deadline.map(|seconds| begun + Duration::from_secs_f64(seconds)));
            tokio::spawn(async move {
                for _ in 0..bytes / 10_000 {
                    scheduler.acquire(tenant.clone(), due, 10_000).await;
                }
                begun.elapsed().as_secs_f64()
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut times = Vec::new();
        for task in tasks {
            times.push(task.await.expect("no panic"));
        }
        times
    }

    /// In equal parts the first would need two seconds.
    #[tokio::test(start_paused = true)]
    async fn the_load_with_the_earlier_deadline_is_served_first() {
        let times = times(&[(1_000_000, Some(2.5)), (1_000_000, Some(1.5))]).await;
        assert!(times[1] < 1.3 && times[0] < 2.1, "{times:?}");
    }

    /// It has missed its deadline whatever happens, and goes on.
    #[tokio::test(start_paused = true)]
    async fn a_load_that_is_late_waits_and_is_not_forgotten() {
        let times = times(&[(200_000, Some(0.0)), (1_000_000, Some(1.4)), (4_000_000, Some(9.0))]).await;
        assert!(times[1] < 1.4, "{times:?}");
        assert!((1.4..2.0).contains(&times[0]), "{times:?}");
        assert!(times[2] < 5.5, "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn answers_without_a_deadline_have_half_beside_loads() {
        let times = times(&[(500_000, None), (500_000, Some(2.0)), (3_000_000, Some(9.0))]).await;
        assert!((0.9..1.1).contains(&times[0]) && (0.9..1.1).contains(&times[1]), "{times:?}");
    }

    /// The answer to a lookup, whose load is perhaps due before those that are under way.
    #[tokio::test(start_paused = true)]
    async fn a_short_answer_does_not_wait_for_loads() {
        let times = times(&[(900_000, Some(0.95)), (10_000, None)]).await;
        assert!(times[1] < 0.05, "{times:?}");
    }

    /// Fifty streams of which each waits for three seconds.
    #[tokio::test(start_paused = true)]
    async fn answers_without_a_deadline_take_turns_however_long_they_wait() {
        let scheduler = scheduler();
        for stream in load(&scheduler, "a", 50, 64_000) {
            let sent = stream.await.expect("no panic");
            assert!((3 * 64_000..=4 * 64_000).contains(&sent), "{sent}");
        }
    }

    /// Clients that give up before their turn cost their tenant nothing.
    #[tokio::test(start_paused = true)]
    async fn responses_that_end_before_their_turn_are_free() {
        let scheduler = scheduler();
        let b = load(&scheduler, "b", 50, 64_000);
        let until = Instant::now() + Duration::from_secs(10);
        let impatient = (0..10).map(|_| {
            let (scheduler, tenant): (EgressScheduler, Name) =
                (scheduler.clone(), "a".parse().expect("a name"));
            tokio::spawn(async move {
                let mut sent = 0;
                while Instant::now() < until {
                    let acquired = scheduler.acquire(tenant.clone(), None, 200_000);
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

    /// Their clients hang up at once.
    #[tokio::test(start_paused = true)]
    async fn tickets_that_keep_coming_do_not_stop_the_link() {
        let scheduler = scheduler();
        let flood = async {
            for _ in 0..1_000 {
                for _ in 0..1_000 {
                    let (granted, _) = oneshot::channel();
                    let tenant = "a".parse().expect("a name");
                    let ticket = SendTicket { tenant, due: None, bytes: 1_000, granted };
                    scheduler.tickets.send(ticket).expect("it runs");
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = scheduler.acquire("b".parse().expect("a name"), None, 1_000) => {}
            () = flood => panic!("nothing was sent"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_has_saved_nothing_up() {
        let scheduler = scheduler();
        sum(load(&scheduler, "a", 4, 64_000)).await;
        let (a, b) = (load(&scheduler, "a", 4, 16_000), load(&scheduler, "b", 4, 16_000));
        let (a, b) = (sum(a).await, sum(b).await);
        assert!((0.45..=0.55).contains(&a) && (0.45..=0.55).contains(&b), "{a} {b}");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_panic_nobody_is_forgotten_and_the_link_is_shared_again() {
        let metrics = Arc::new(Metrics::new());
        let scheduler = EgressScheduler::new(1, Arc::clone(&metrics));
        let tenant = |name: &str| -> Name { name.parse().expect("a name") };
        let begun = Instant::now();
        // At this rate the first would take longer than a duration can be.
        let both = async {
            let endless = scheduler.acquire(tenant("a"), None, usize::MAX);
            tokio::join!(endless, scheduler.acquire(tenant("b"), None, 10))
        };
        tokio::time::timeout(Duration::from_secs(60), both).await.expect("what waited is sent");
        for _ in 0..3 {
            scheduler.acquire(tenant("b"), None, 10).await;
        }
        assert_eq!(begun.elapsed().as_secs(), 20, "the second and the third waited for their turn");
        let text = String::from_utf8(metrics.render()).expect("text");
        assert!(text.contains("kvasir_background_panics_total{task=\"egress\"} 1\n"), "{text}");
    }
}
