//! The thread that steps the scheduler.

use std::{collections::HashMap, sync::Arc, time::Instant};

use tokio::sync::{mpsc, oneshot};

use super::{FinishReason, LoadedPrefix, Request, RequestId, Scheduler, SchedulerEvent, SubmitError};
use crate::paged::PagedKv;

/// A command to the scheduler's thread, executed between two steps.
#[derive(Debug)]
pub(super) enum Command {
    /// Submits a request. Its replies are sent on `replies`, which closes when the request ends.
    Submit {
        request: Request,
        loaded: Option<LoadedPrefix>,
        replies: mpsc::UnboundedSender<SchedulerReply>,
        reply: oneshot::Sender<Result<RequestId, SubmitError>>,
    },
    /// Cancels a request.
    Cancel(RequestId),
    /// Ends a request that has all it needs; the computed KV is kept.
    Finish(RequestId),
    /// Tokens of a prompt that are held in memory.
    Held { tokens: Arc<[u32]>, reply: oneshot::Sender<usize> },
    /// Pages for a load.
    Allocate { tokens: usize, reply: oneshot::Sender<Option<PagedKv>> },
    /// The pages of a finished sequence, shared.
    Share { tokens: Arc<[u32]>, reply: oneshot::Sender<Option<PagedKv>> },
}

/// A reply to a request. A request generates a bounded number of tokens, so its channel needs no bound.
#[derive(Debug, Clone, Copy)]
pub(super) enum SchedulerReply {
    /// It runs now.
    Started { at: Instant, reused_tokens: usize },
    /// A token, from the step that began at `step`.
    Token { token: u32, step: Instant },
    /// It is over.
    Finished(FinishReason),
}

type ReplySenders = HashMap<RequestId, mpsc::UnboundedSender<SchedulerReply>>;

/// Steps the scheduler until the command channel closes. Without work it waits for the next command.
pub(super) fn run(mut scheduler: Scheduler, mut commands: mpsc::Receiver<Command>) {
    let mut senders = ReplySenders::new();
    loop {
        if scheduler.open() == 0 {
            let Some(command) = commands.blocking_recv() else { return };
            execute(&mut scheduler, &mut senders, command);
        }
        while let Ok(command) = commands.try_recv() {
            execute(&mut scheduler, &mut senders, command);
        }
        let step = Instant::now();
        match scheduler.step() {
            Ok(events) => deliver(&mut scheduler, &mut senders, step, events),
            // Requests are checked before they run: this is the machine's fault, not theirs.
            Err(error) => {
                tracing::error!(%error, "a step failed; its requests are given up");
                for (id, replies) in senders.drain() {
                    scheduler.cancel(id);
                    let _ = replies.send(SchedulerReply::Finished(FinishReason::Cancelled));
                }
            }
        }
    }
}

/// Executes a command.
fn execute(scheduler: &mut Scheduler, senders: &mut ReplySenders, command: Command) {
    // If the caller has dropped the receiver, the answer is not needed.
    match command {
        Command::Submit { request, loaded, replies, reply } => {
            let result = scheduler.submit(request, loaded);
            if let Ok(id) = result {
                senders.insert(id, replies);
            }
            if let Err(Ok(id)) = reply.send(result) {
                senders.remove(&id);
                scheduler.cancel(id);
            }
        }
        Command::Cancel(id) => {
            senders.remove(&id);
            scheduler.cancel(id);
        }
        Command::Finish(id) => {
            // A request that has ended in the meantime already has its last reply.
            if let Some(SchedulerEvent::Finished { reason, .. }) = scheduler.finish(id)
                && let Some(replies) = senders.remove(&id)
            {
                let _ = replies.send(SchedulerReply::Finished(reason));
            }
        }
        Command::Held { tokens, reply } => {
            let _ = reply.send(scheduler.prefixes().held(&tokens));
        }
        Command::Allocate { tokens, reply } => {
            let _ = reply.send(scheduler.allocate(tokens));
        }
        Command::Share { tokens, reply } => {
            let _ = reply.send(scheduler.prefix(&tokens));
        }
    }
}

/// Delivers the events of a step to the requests they are about.
fn deliver(
    scheduler: &mut Scheduler,
    senders: &mut ReplySenders,
    step: Instant,
    events: Vec<SchedulerEvent>,
) {
    for event in events {
        let (id, reply) = match event {
            // The step that starts a request is the first that can compute something for it.
            SchedulerEvent::Started { id, reused_tokens } => {
                (id, SchedulerReply::Started { at: step, reused_tokens })
            }
            SchedulerEvent::Token { id, token } => (id, SchedulerReply::Token { token, step }),
            SchedulerEvent::Finished { id, reason } => (id, SchedulerReply::Finished(reason)),
        };
        let listened = senders.get(&id).is_some_and(|listener| listener.send(reply).is_ok());
        if !listened {
            senders.remove(&id);
            scheduler.cancel(id);
        } else if matches!(reply, SchedulerReply::Finished(_)) {
            senders.remove(&id);
        }
    }
}
