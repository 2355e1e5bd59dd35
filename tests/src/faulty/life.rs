//! One replica's connection to the store: whether it is alive, paused or cut off, and the number of its
//! faults.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use object_store::path::Path;
use tokio::{sync::watch, time::Instant};

/// After a wrong body was delivered, the service may detect that within this time, and hide the object until
/// it is requested again.
pub const FINDING_OUT: Duration = Duration::from_secs(20);

/// Whether a replica is alive. Requests of a dead one are neither executed nor answered.
#[derive(Debug, Clone)]
pub struct Life(Arc<State>);

#[derive(Debug)]
struct State {
    over: watch::Sender<bool>,
    paused: watch::Sender<bool>,
    without_journal: AtomicBool,
    without_store: AtomicBool,
    clock_error_ms: AtomicI64,
    faults: AtomicU64,
    misled: Mutex<Option<Instant>>,
}

impl Life {
    pub(super) fn new() -> Self {
        Self(Arc::new(State {
            over: watch::Sender::new(false),
            paused: watch::Sender::new(false),
            without_journal: AtomicBool::new(false),
            without_store: AtomicBool::new(false),
            clock_error_ms: AtomicI64::new(0),
            faults: AtomicU64::new(0),
            misled: Mutex::new(None),
        }))
    }

    /// Kills.
    pub fn end(&self) {
        self.0.over.send_replace(true);
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        *self.0.over.borrow()
    }

    /// Resolves when it is over.
    pub async fn over(&self) {
        let _ = self.0.over.subscribe().wait_for(|over| *over).await;
    }

    /// Holds back its requests and their answers.
    pub fn pause(&self, paused: bool) {
        self.0.paused.send_replace(paused);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        *self.0.paused.borrow()
    }

    /// Lets it no longer list, read or write the journal, or again.
    pub fn cut_off_from_journal(&self, is_cut_off: bool) {
        self.0.without_journal.store(is_cut_off, Ordering::Relaxed);
    }

    /// Lets none of its requests reach the store, or again.
    pub fn cut_off_from_store(&self, is_cut_off: bool) {
        self.0.without_store.store(is_cut_off, Ordering::Relaxed);
    }

    /// From its next probe on, what it takes for the store's time is this much too late, or too early where it is negative.
    pub fn set_clock_error_ms(&self, error_ms: i64) {
        self.0.clock_error_ms.store(error_ms, Ordering::Relaxed);
    }

    pub(super) fn clock_error_ms(&self) -> i64 {
        self.0.clock_error_ms.load(Ordering::Relaxed)
    }

    pub(super) fn is_cut_off_from(&self, path: &Path) -> bool {
        let is_of_journal = || path.parts().any(|part| part.as_ref() == "j");
        self.0.without_store.load(Ordering::Relaxed)
            || (self.0.without_journal.load(Ordering::Relaxed) && is_of_journal())
    }

    pub(super) async fn alive(&self) {
        if self.is_paused() {
            let _ = self.0.paused.subscribe().wait_for(|paused| !*paused).await;
        }
        if self.is_over() {
            std::future::pending::<()>().await;
        }
    }

    /// One of its requests went wrong, or was not sent at all because others had.
    pub fn note_fault(&self) {
        self.0.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// It received a body that differs from the stored one.
    pub(super) fn note_misled(&self) {
        *self.0.misled.lock().expect("not poisoned") = Some(Instant::now());
    }

    /// Whether all its requests since `begun`, when there had been `faults` faults, were executed and answered,
    /// and no wrong body from before can still mislead it.
    pub fn has_reached_the_store(&self, begun: Instant, faults: u64) -> bool {
        let misled = *self.0.misled.lock().expect("not poisoned");
        self.faults() == faults && !self.is_paused() && misled.is_none_or(|at| at + FINDING_OUT < begun)
    }

    /// Requests that went wrong so far.
    pub fn faults(&self) -> u64 {
        self.0.faults.load(Ordering::Relaxed)
    }
}
