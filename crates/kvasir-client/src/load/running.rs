//! A running load, as its owner holds it.

use std::{ops::Range, sync::Arc, time::Duration};

use kvasir_types::{Level, Loss, TokenRange};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    Beneath, LoadReport, Loaded,
    arrival::Arrival,
    token_ranges::{insert_range, remove_range},
};
use crate::pages::WriteGate;

/// KV that is in its pages.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerReady {
    /// The rank whose table was written, as an index into the tables of the load.
    pub rank: usize,
    /// Layers of the model.
    pub layers: Range<usize>,
    /// Tokens of the context.
    pub token_range: TokenRange,
    /// The level it was decoded at.
    pub level: Level,
    /// Loss of the KV, including the loss beneath the chunk.
    pub loss: Loss,
    /// Leading layers now in place on this rank for *all* tokens of the load, except those to be computed.
    /// The suffix may start on these.
    pub layers_complete: usize,
}

/// Why the engine has to compute tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecomputeCause {
    /// They are not stored, or are the last token, whose logits no cache holds.
    NotStored,
    /// Computing was predicted to be faster than fetching, or no worse within the available time.
    Text,
    /// The read failed, or its data is damaged.
    Failed,
}

/// Events of the load's task for its owner, in order.
#[derive(Debug)]
pub(crate) enum DriverEvent {
    /// Layers of some tokens are in their pages.
    Ready(LayerReady),
    /// The engine must compute these tokens. Supersedes a `Ready` for some of their layers.
    Recompute { range: TokenRange, cause: RecomputeCause },
    /// Tokens given to the engine to compute are decoded into their pages after all.
    Withdrawn { range: TokenRange },
    /// The load has ended. Sent once, last.
    Done { report: Box<LoadReport> },
}

/// The task of a load and the channels to it.
#[derive(Debug)]
struct Task {
    events: mpsc::UnboundedReceiver<DriverEvent>,
    commands: mpsc::Sender<Arrival>,
    handle: JoinHandle<()>,
    gate: Arc<WriteGate>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
        // From here on nothing is written.
        self.gate.close();
    }
}

/// A running load. It proceeds whether or not it is polled. Dropping it cancels it: its requests are
/// abandoned at once, and after `drop` returns nothing writes to the tables.
#[derive(Debug)]
pub(crate) struct Running {
    /// None for a miss.
    task: Option<Task>,
    beneath: Arc<Beneath>,
    /// Tokens of the session; leading ones that the engine already had; end of the load.
    tokens: u64,
    present: u64,
    matched: u64,
    /// Ranges handed over below exact quality, with their loss.
    lossy: Vec<(TokenRange, Loss)>,
    /// Ranges that the engine reported as computed.
    computed: Vec<TokenRange>,
    report: Option<Box<LoadReport>>,
}

impl Running {
    /// An empty load over `tokens` tokens: all of them must be computed except the `present` ones.
    pub(crate) fn miss(present: u64, tokens: u64, beneath: &Arc<Beneath>) -> Self {
        Self {
            task: None,
            beneath: Arc::clone(beneath),
            tokens,
            present: present.min(tokens),
            matched: 0,
            lossy: Vec::new(),
            computed: Vec::new(),
            report: None,
        }
    }

    /// The load that `handle` runs, which ends before token `matched`.
    pub(super) fn with(
        self,
        (events, commands): (mpsc::UnboundedReceiver<DriverEvent>, mpsc::Sender<Arrival>),
        handle: JoinHandle<()>,
        gate: Arc<WriteGate>,
        matched: u64,
    ) -> Self {
        Self { task: Some(Task { events, commands, handle, gate }), matched, ..self }
    }

    /// The end of the load, as a token.
    pub(crate) const fn matched_tokens(&self) -> u64 {
        self.matched
    }

    /// The next event except `Done`; `None` when the load has ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<DriverEvent> {
        match self.task.as_mut()?.events.recv().await? {
            DriverEvent::Ready(ready) => {
                if ready.loss != Loss::NONE {
                    // Layers arrive separately; the loss of a token is the largest of its layers.
                    match self.lossy.iter_mut().find(|(range, _)| *range == ready.token_range) {
                        Some((_, loss)) => *loss = loss.worst(ready.loss),
                        None => self.lossy.push((ready.token_range, ready.loss)),
                    }
                    self.beneath.handed_over(ready.loss);
                }
                Some(DriverEvent::Ready(ready))
            }
            DriverEvent::Done { report } => {
                self.beneath.settle(if report.stale_rows == 0 { report.loss } else { Loss::NONE });
                self.report = Some(report);
                None
            }
            event @ (DriverEvent::Recompute { .. } | DriverEvent::Withdrawn { .. }) => Some(event),
        }
    }

    pub(crate) async fn computed(&mut self, range: TokenRange, took: Duration) {
        insert_range(&mut self.computed, range);
        if let Some(task) = &self.task {
            // If the load has ended, the receiver is gone; ignore that.
            let _ = task.commands.send(Arrival::Computed { range, took }).await;
        }
    }

    pub(crate) async fn finish(mut self) -> Loaded {
        while self.next().await.is_some() {}
        let (report, all) = (self.report.take(), TokenRange { start: 0, end: self.tokens });
        let is_usable = report.as_ref().is_some_and(|report| report.stale_rows == 0);
        let mut missing = match &report {
            Some(report) if is_usable => report.recompute.clone(),
            _ => Vec::new(),
        };
        insert_range(&mut missing, TokenRange { start: if is_usable { self.matched } else { 0 }, ..all });
        remove_range(&mut missing, TokenRange { start: 0, end: self.present });
        for range in &self.computed {
            remove_range(&mut missing, *range);
        }
        let lossy = if is_usable { std::mem::take(&mut self.lossy) } else { Vec::new() };
        Loaded::new((self.present, all.end), missing, lossy, report)
    }
}
