//! The event log: the latest events, bounded, and positions in it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use kvasir_api::Event;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{limits, now_ms};

/// The latest events, bounded.
#[derive(Debug)]
pub struct EventLog {
    state: Mutex<LogState>,
    changed: watch::Sender<u64>,
    /// Distinguishes positions in this log from those in other replicas' logs.
    replica_tag: String,
}

#[derive(Debug, Default)]
struct LogState {
    events: VecDeque<(Arc<Event>, usize)>,
    /// Number of the first event still in the log.
    first: u64,
    bytes: usize,
    /// Number of the first event from which on all replicas' events are here; `None` while they are not.
    complete_from: Option<u64>,
}

/// A reader's position: the number of its next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition(u64);

/// The result of a read.
#[derive(Debug, Clone, PartialEq)]
pub enum Portion {
    /// The next events; empty if there are none yet.
    Events(Vec<Arc<Event>>),
    /// This many unread events were dropped.
    Missed(u64),
}

impl EventLog {
    pub(crate) fn new(replica: &str) -> Self {
        let replica_tag = blake3::hash(replica.as_bytes()).to_hex()[..8].to_owned();
        let state = LogState { complete_from: Some(0), ..LogState::default() };
        Self { state: Mutex::new(state), changed: watch::Sender::new(0), replica_tag }
    }

    /// Says whether the events of other replicas are here from now on.
    pub(crate) fn set_complete(&self, is_complete: bool) {
        let mut state = self.state.lock();
        let end = state.first + state.events.len() as u64;
        state.complete_from = is_complete.then(|| state.complete_from.unwrap_or(end));
    }

    /// Whether the events of other replicas are here.
    pub fn is_complete(&self) -> bool {
        self.state.lock().complete_from.is_some()
    }

    /// Appends an event, assigns its id, and drops the oldest ones beyond the bounds.
    pub(crate) fn push(&self, mut event: Event) {
        let mut state = self.state.lock();
        let number = state.first + state.events.len() as u64;
        event.event_id = format!("{}-{}-{number}", event.timestamp_ms, self.replica_tag);
        let bytes = size_of::<Event>() + event.block_hashes.len() * (16 + size_of::<String>()) + 128;
        state.bytes += bytes;
        state.events.push_back((Arc::new(event), bytes));
        while state.events.len() > limits::EVENTS_KEPT_MAX || state.bytes > limits::EVENTS_KEPT_BYTES {
            let Some((_, bytes)) = state.events.pop_front() else { break };
            state.bytes -= bytes;
            state.first += 1;
        }
        drop(state);
        self.changed.send_replace(number + 1);
    }

    /// An id for an event sent to a single reader: names the end of the log.
    pub(crate) fn now_id(&self) -> String {
        let LogPosition(end) = self.end();
        format!("{}-{}-{}", now_ms(), self.replica_tag, end.saturating_sub(1))
    }

    /// The end of the log: only future events.
    pub fn end(&self) -> LogPosition {
        let state = self.state.lock();
        LogPosition(state.first + state.events.len() as u64)
    }

    /// The position after a reader's last event. `None` if events in between were dropped, or may have been.
    /// `lag` is the longest time after which a replica hears of another's event.
    pub fn after(&self, id: &str, lag: Duration) -> Option<LogPosition> {
        let mut parts = id.splitn(3, '-');
        let millis: u64 = parts.next()?.parse().ok()?;
        let (replica_tag, number) = (parts.next()?, parts.next()?.parse::<u64>().ok()?);
        let state = self.state.lock();
        let first = state.first.max(state.complete_from?);
        if replica_tag == self.replica_tag {
            let end = state.first + state.events.len() as u64;
            return (first..=end).contains(&number.saturating_add(1)).then(|| LogPosition(number + 1));
        }
        // Another replica's event: start well before it, if those events are still here.
        let overlap = limits::EVENTS_OVERLAP.saturating_add(lag).as_millis();
        let from = millis.saturating_sub(u64::try_from(overlap).unwrap_or(u64::MAX));
        let kept = state.events.iter().skip(usize::try_from(first - state.first).unwrap_or(usize::MAX));
        let skipped = kept.take_while(|(event, _)| event.timestamp_ms < from).count();
        (skipped > 0).then(|| LogPosition(first + skipped as u64))
    }

    /// The events at a position, at most [`limits::EVENTS_BATCH`]; advances the position.
    pub fn read(&self, place: &mut LogPosition) -> Portion {
        let state = self.state.lock();
        if place.0 < state.first {
            let missed = state.first - place.0;
            return Portion::Missed(missed);
        }
        let skip = usize::try_from(place.0 - state.first).unwrap_or(usize::MAX);
        let events: Vec<_> =
            state.events.iter().skip(skip).take(limits::EVENTS_BATCH).map(|(e, _)| Arc::clone(e)).collect();
        place.0 += events.len() as u64;
        Portion::Events(events)
    }

    /// Whether any reader is waiting for events.
    pub fn has_readers(&self) -> bool {
        self.changed.receiver_count() > 0
    }

    /// A watch on changes: the number of the next event.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use kvasir_api::EventType;
    use kvasir_types::Medium;

    use super::*;

    #[test]
    fn what_was_not_heard_is_not_resumed() {
        let log = EventLog::new("r");
        (0..3).for_each(|n| log.push(event(10_000 + n, 1)));
        let last_id = || {
            let events = log.read(&mut LogPosition(log.end().0 - 1));
            let Portion::Events(events) = events else { panic!("they are there") };
            events[0].event_id.clone()
        };
        let heard = last_id();
        assert_eq!(log.after(&heard, Duration::ZERO), Some(log.end()));
        log.set_complete(false);
        log.push(event(20_000, 1));
        let (alone, of_other) = (last_id(), "90000-other-7");
        assert_eq!(
            (
                log.after(&heard, Duration::ZERO),
                log.after(&alone, Duration::ZERO),
                log.after(of_other, Duration::ZERO)
            ),
            (None, None, None)
        );
        log.set_complete(true);
        assert_eq!((log.after(&heard, Duration::ZERO), log.after(of_other, Duration::ZERO)), (None, None));
        assert_eq!(log.after(&alone, Duration::ZERO), Some(log.end()), "nothing was missed since");
        log.push(event(30_000, 1));
        log.set_complete(true);
        assert_eq!(log.after(of_other, Duration::ZERO), Some(log.end()));
    }

    fn event(timestamp_ms: u64, blocks: usize) -> Event {
        Event {
            event_id: String::new(),
            timestamp_ms,
            event_type: EventType::Stored,
            tenant_id: "t".parse().expect("a name"),
            namespace: None,
            model_id: None,
            model_name: None,
            lora_name: None,
            block_size: 16,
            backend_id: "r".parse().expect("a name"),
            medium: Medium::Object,
            level: None,
            seq_hash: None,
            object_digest: None,
            profile_hash: None,
            parent_hash: None,
            base_block_idx: None,
            block_hashes: vec!["0".repeat(16); blocks],
            reason: None,
        }
    }

    fn ids(portion: Portion) -> Vec<String> {
        match portion {
            Portion::Events(events) => events.iter().map(|e| e.event_id.clone()).collect(),
            Portion::Missed(missed) => panic!("{missed} missed"),
        }
    }

    #[test]
    fn readers_go_on_where_they_were() {
        let log = EventLog::new("a");
        let mut place = log.end();
        assert_eq!(log.read(&mut place), Portion::Events(Vec::new()));
        for i in 0..100 {
            log.push(event(1_000_000 + i, 1));
        }
        let first = ids(log.read(&mut place));
        assert_eq!(first.len(), limits::EVENTS_BATCH);
        let mut again = log.after(&first[9], Duration::ZERO).expect("there");
        assert_eq!(ids(log.read(&mut again))[0], first[10]);
        assert_eq!(ids(log.read(&mut place)).len(), 100 - limits::EVENTS_BATCH);
        for bad in [
            "",
            "1-2",
            "x-y-z",
            &format!("1-{}-100", log.replica_tag),
            &format!("1-{}-18446744073709551615", log.replica_tag),
        ] {
            assert_eq!(log.after(bad, Duration::ZERO), None, "{bad}");
        }
    }

    #[test]
    fn what_another_replica_had_not_heard_of_yet_is_told() {
        let log = EventLog::new("b");
        [10_000, 40_000, 66_000].into_iter().for_each(|at| log.push(event(at, 1)));
        // The other one told an event of 65 s before it read the batch with that of 40 s.
        let mut place = log.after("65000-other-7", Duration::from_secs(28)).expect("the log reaches back");
        assert_eq!(ids(log.read(&mut place)).len(), 2);
    }

    #[test]
    fn a_reader_of_another_replica_gets_some_events_twice_and_none_never() {
        let (old, new) = (EventLog::new("a"), EventLog::new("b"));
        old.push(event(60_000, 1));
        let mut place = LogPosition(0);
        let last = ids(old.read(&mut place)).remove(0);
        assert_eq!(new.after(&last, Duration::ZERO), None, "an empty log cannot say what was missed");
        for at in [30_000, 55_000, 61_000] {
            new.push(event(at, 1));
        }
        let mut place = new.after(&last, Duration::ZERO).expect("the log reaches back");
        assert_eq!(ids(new.read(&mut place)).len(), 2, "within the overlap and after it");
    }

    #[test]
    fn the_log_is_bounded_and_slow_readers_are_told() {
        let log = EventLog::new("a");
        let mut slow = log.end();
        let blocks = 1_024;
        let events = 2 * limits::EVENTS_KEPT_BYTES / (blocks * 40);
        for i in 0..events as u64 {
            log.push(event(i, blocks));
        }
        assert!(log.state.lock().bytes <= limits::EVENTS_KEPT_BYTES);
        let kept = log.state.lock().events.len() as u64;
        assert!(kept < events as u64, "{kept}");
        assert_eq!(log.read(&mut slow), Portion::Missed(events as u64 - kept));
    }
}
