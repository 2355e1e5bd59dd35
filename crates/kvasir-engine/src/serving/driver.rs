//! The thread that steps the scheduler.

use std::{collections::HashMap, sync::Arc, time::Instant};

use tokio::sync::{mpsc, oneshot};

use super::{Brought, Event, FinishReason, Request, RequestId, Scheduler, SubmitError};
use crate::paged::PagedKv;

/// What the thread is asked to do between two steps.
#[derive(Debug)]
pub(super) enum Command {
    /// Take a request; what happens to it is told on `told`, which ends with it.
    Submit {
        request: Request,
        brought: Option<Brought>,
        told: mpsc::UnboundedSender<Told>,
        reply: oneshot::Sender<Result<RequestId, SubmitError>>,
    },
    /// End a request.
    Cancel(RequestId),
    /// End a request that has all it wants; what it computed is kept.
    Finish(RequestId),
    /// Tokens of a prompt that are held in memory.
    Held { tokens: Arc<[u32]>, reply: oneshot::Sender<usize> },
    /// Pages for a load.
    Allocate { tokens: usize, reply: oneshot::Sender<Option<PagedKv>> },
    /// The pages of a finished sequence, shared.
    Share { tokens: Arc<[u32]>, reply: oneshot::Sender<Option<PagedKv>> },
}

/// What happened to a request. A request generates a bounded number of tokens, so its channel needs no bound.
#[derive(Debug, Clone, Copy)]
pub(super) enum Told {
    /// It runs now.
    Started { at: Instant, reused_tokens: usize },
    /// A token, from the step that began at `step`.
    Token { token: u32, step: Instant },
    /// It is over.
    Finished(FinishReason),
}

type Open = HashMap<RequestId, mpsc::UnboundedSender<Told>>;

/// Steps until nobody can send commands any more. Waits without work for the next command.
pub(super) fn run(mut scheduler: Scheduler, mut commands: mpsc::Receiver<Command>) {
    let mut open = Open::new();
    loop {
        if scheduler.open() == 0 {
            let Some(command) = commands.blocking_recv() else { return };
            obey(&mut scheduler, &mut open, command);
        }
        while let Ok(command) = commands.try_recv() {
            obey(&mut scheduler, &mut open, command);
        }
        let step = Instant::now();
        match scheduler.step() {
            Ok(events) => tell(&mut scheduler, &mut open, step, events),
            // Requests are checked before they run: this is the machine's fault, not theirs.
            Err(error) => {
                tracing::error!(%error, "a step failed; its requests are given up");
                for (id, told) in open.drain() {
                    scheduler.cancel(id);
                    let _ = told.send(Told::Finished(FinishReason::Cancelled));
                }
            }
        }
    }
}

fn obey(scheduler: &mut Scheduler, open: &mut Open, command: Command) {
    // Whoever asked may have gone away: then nobody wants the answer.
    match command {
        Command::Submit { request, brought, told, reply } => {
            let result = scheduler.submit(request, brought);
            if let Ok(id) = result {
                open.insert(id, told);
            }
            if let Err(Ok(id)) = reply.send(result) {
                open.remove(&id);
                scheduler.cancel(id);
            }
        }
        Command::Cancel(id) => {
            open.remove(&id);
            scheduler.cancel(id);
        }
        Command::Finish(id) => {
            // One that has ended by itself meanwhile has been told so.
            if let Some(Event::Finished { reason, .. }) = scheduler.finish(id)
                && let Some(told) = open.remove(&id)
            {
                let _ = told.send(Told::Finished(reason));
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

fn tell(scheduler: &mut Scheduler, open: &mut Open, step: Instant, events: Vec<Event>) {
    for event in events {
        let (id, told) = match event {
            // The step that starts a request is the first that can compute something for it.
            Event::Started { id, reused_tokens } => (id, Told::Started { at: step, reused_tokens }),
            Event::Token { id, token } => (id, Told::Token { token, step }),
            Event::Finished { id, reason } => (id, Told::Finished(reason)),
        };
        let listened = open.get(&id).is_some_and(|listener| listener.send(told).is_ok());
        if !listened {
            open.remove(&id);
            scheduler.cancel(id);
        } else if matches!(told, Told::Finished(_)) {
            open.remove(&id);
        }
    }
}
