//! Continuous batching: every step mixes prefill pieces and one token of every decoding sequence.

use std::{collections::VecDeque, sync::Arc};

use super::PrefixCache;
use crate::{
    error::EngineError,
    model::{Model, Sampler, Sampling, StepItem},
    paged::{PagePool, PagedKv},
};

/// A request's number, given by [`Scheduler::submit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What is to be generated.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Most tokens to generate, at least one.
    pub count: usize,
    /// How they are chosen.
    pub sampling: Sampling,
}

/// Bounds of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Sequences that run at once.
    pub sequences: usize,
    /// Tokens of one step, over all sequences: decoding ones take one each, prefills share the rest.
    pub step_tokens: usize,
    /// Requests that may wait.
    pub waiting: usize,
}

impl Default for SchedulerLimits {
    /// 8 sequences, 256 tokens a step (a prefill piece), 64 waiting.
    fn default() -> Self {
        Self { sequences: 8, step_tokens: 256, waiting: 64 }
    }
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full.
    #[error("{waiting} requests are waiting; try again later")]
    Busy {
        /// Requests waiting.
        waiting: usize,
    },
    /// It can never run.
    #[error("{tokens} tokens with the answer; the model's context is {context}, the pool holds {pool}")]
    TooLong {
        /// Prompt and answer.
        tokens: usize,
        /// The model's context.
        context: usize,
        /// Tokens of all pages.
        pool: usize,
    },
    /// Nothing to predict from, or nothing to predict.
    #[error("a request has at least one prompt token and generates at least one")]
    Empty,
    /// A token that the model does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// All tokens were generated.
    Length,
    /// It was cancelled.
    Cancelled,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request began to run.
    Started {
        /// Which.
        id: RequestId,
        /// Prompt tokens whose KV was there: brought along, or found in memory.
        reused_tokens: usize,
    },
    /// A token was generated.
    Token {
        /// For which request.
        id: RequestId,
        /// The token.
        token: u32,
    },
    /// A request ended.
    Finished {
        /// Which.
        id: RequestId,
        /// Why.
        reason: FinishReason,
    },
}

#[derive(Debug)]
struct Waiting {
    id: RequestId,
    request: Request,
    kv: Option<PagedKv>,
}

#[derive(Debug)]
struct Running {
    id: RequestId,
    /// Prompt and answer so far.
    tokens: Vec<u32>,
    /// Length at which it ends.
    end: usize,
    kv: PagedKv,
    sampler: Sampler,
}

impl Running {
    /// Tokens that are not cached yet: more than one in prefill, one in decode.
    fn pending(&self) -> usize {
        self.tokens.len() - self.kv.len()
    }
}

/// Runs requests over one model and one page pool.
#[derive(Debug)]
pub struct Scheduler {
    model: Arc<Model>,
    pool: Arc<PagePool>,
    limits: SchedulerLimits,
    cache: PrefixCache,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    next_id: u64,
}

impl Scheduler {
    /// A scheduler over `pool`, which must be of the model.
    pub fn new(model: Arc<Model>, pool: Arc<PagePool>, limits: SchedulerLimits) -> Self {
        let cache = PrefixCache::default();
        Self { model, pool, limits, cache, waiting: VecDeque::new(), running: Vec::new(), next_id: 0 }
    }

    /// Takes a request. `kv` is a cache, from this scheduler's pool, of a prefix of the prompt, if a load brought
    /// one.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing is kept then.
    pub fn submit(&mut self, request: Request, kv: Option<PagedKv>) -> Result<RequestId, SubmitError> {
        let (context, vocab) = (self.model.config().context, self.model.config().vocab);
        let pool = self.pool.pages_max() * self.pool.page_tokens();
        let tokens = request.prompt.len() + request.count;
        if request.prompt.is_empty() || request.count == 0 {
            return Err(SubmitError::Empty);
        }
        // The last generated token is never cached.
        if tokens - 1 > context.min(pool) {
            return Err(SubmitError::TooLong { tokens, context, pool });
        }
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab) {
            return Err(SubmitError::Token { token, vocab });
        }
        if self.waiting.len() >= self.limits.waiting {
            return Err(SubmitError::Busy { waiting: self.waiting.len() });
        }
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.waiting.push_back(Waiting { id, request, kv });
        Ok(id)
    }

    /// Ends a request at once; its pages go back.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|waiting| waiting.id != id);
        self.running.retain(|running| running.id != id);
        let found = self.waiting.len() + self.running.len() < before;
        found.then_some(Event::Finished { id, reason: FinishReason::Cancelled })
    }

    /// Requests that wait or run.
    pub fn open(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// The finished sequences that serve as prefixes.
    pub fn prefixes(&self) -> &PrefixCache {
        &self.cache
    }

    /// One step: admits what fits, computes once, samples. No events when nothing is open.
    ///
    /// # Errors
    /// [`EngineError`] of the arithmetic; requests are validated and their pages reserved before they run, so a
    /// request cannot cause one.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = Vec::new();
        self.admit(&mut events)?;
        let decoding = self.running.iter().filter(|r| r.pending() == 1).count();
        let mut prefill = self.limits.step_tokens.saturating_sub(decoding).max(1);
        let (mut items, mut owners) = (Vec::new(), Vec::new());
        for (index, running) in self.running.iter_mut().enumerate() {
            let pending = running.pending();
            let take = if pending == 1 { 1 } else { pending.min(prefill) };
            if pending > 1 {
                prefill -= take;
            }
            if take > 0 {
                let start = running.kv.len();
                items.push(StepItem { kv: &mut running.kv, tokens: &running.tokens[start..start + take] });
                owners.push(index);
            }
        }
        let logits = self.model.step(&mut items)?;
        drop(items);
        for (&index, logits) in owners.iter().zip(&logits) {
            let running = &mut self.running[index];
            if running.pending() == 0 {
                let token = running.sampler.choose(logits);
                running.tokens.push(token);
                events.push(Event::Token { id: running.id, token });
            }
        }
        self.retire(&mut events);
        Ok(events)
    }

    /// Starts waiting requests in order, as long as there are sequences and pages for prompt and answer; finished
    /// prefixes make room.
    fn admit(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        while self.running.len() < self.limits.sequences {
            let Some(mut next) = self.waiting.pop_front() else { return Ok(()) };
            let request = &next.request;
            let prompt = request.prompt.len();
            let mut kv = match next.kv.take() {
                Some(kv) => kv,
                None => self.cache.lookup(&request.prompt).ok().flatten().unwrap_or_else(|| self.new_kv()),
            };
            kv.truncate(prompt - 1); // the last prompt token's logits are needed
            let end = prompt + request.count;
            while kv.reserve(end - 1).is_err() {
                if self.cache.evict() || (self.running.is_empty() && self.drop_loaded()) {
                    continue;
                }
                // Others hold the pages: wait for them, keeping what a load has brought.
                next.kv = Some(kv);
                self.waiting.push_front(next);
                return Ok(());
            }
            events.push(Event::Started { id: next.id, reused_tokens: kv.len() });
            let sampler = Sampler::new(&request.sampling);
            self.running.push(Running { id: next.id, tokens: next.request.prompt, end, kv, sampler });
        }
        Ok(())
    }

    /// Drops what a load brought to the last request waiting: loaded caches must not lock each other out.
    fn drop_loaded(&mut self) -> bool {
        self.waiting.iter_mut().rev().any(|waiting| waiting.kv.take().is_some())
    }

    fn new_kv(&self) -> PagedKv {
        PagedKv::new(Arc::clone(&self.pool))
    }

    /// Ends what is complete and keeps its cache as a prefix.
    fn retire(&mut self, events: &mut Vec<Event>) {
        let (done, running) = self.running.drain(..).partition(|r| r.tokens.len() >= r.end);
        self.running = running;
        for finished in done {
            events.push(Event::Finished { id: finished.id, reason: FinishReason::Length });
            self.cache.insert(&finished.tokens[..finished.kv.len()], finished.kv);
        }
    }
}
