//! Continuous batching: every step mixes prefill pieces and one token of every decoding sequence.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use super::PrefixCache;
use crate::{
    error::EngineError,
    model::{Model, Sampler, Sampling, StepItem},
    paged::{PagePool, PagedKv},
};

/// A request's number, given by [`Scheduler::submit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// A request to generate tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Most tokens to generate, at least one.
    pub count: usize,
    /// How they are chosen.
    pub sampling: Sampling,
}

/// A loaded cache of a prefix of a prompt.
#[derive(Debug)]
pub struct LoadedPrefix {
    /// From the scheduler's pool. Either all of `..matched` is committed, or nothing is and the pages of the whole prompt
    /// are reserved, as a load leaves them.
    pub kv: PagedKv,
    /// Leading tokens of the prompt that the load was about; fewer than the prompt has.
    pub matched: usize,
    /// Ranges of them that it left out, ascending and disjoint: computed first, each over everything before it.
    pub holes: Vec<Range<usize>>,
    /// Leading tokens of the sequence that other requests may share; later tokens were loaded too coarsely.
    pub shareable: usize,
}

impl LoadedPrefix {
    /// A prefix without holes.
    pub fn whole(kv: PagedKv) -> Self {
        Self { matched: kv.len(), kv, holes: Vec::new(), shareable: usize::MAX }
    }

    /// Tokens that need not be computed.
    pub fn reused_tokens(&self) -> usize {
        self.matched - self.holes.iter().map(Range::len).sum::<usize>()
    }
}

/// Bounds of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerLimits {
    /// Sequences that run at the same time.
    pub sequences: usize,
    /// Tokens per step over all sequences: decoding sequences take one each, prefills share the rest. The
    /// last token of a prompt has a separate step, so that a request's first step always costs the same.
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

/// Why a request was rejected.
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
    #[error("a request needs at least one prompt token and must generate at least one")]
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
    /// The caller ended it: a stop sequence occurred.
    Stopped,
    /// It was cancelled.
    Cancelled,
}

/// An event of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// A request began to run.
    Started {
        /// Which.
        id: RequestId,
        /// Prompt tokens whose KV was present: loaded, or found in memory.
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

/// A request that waits for sequences or pages.
#[derive(Debug)]
struct QueuedRequest {
    id: RequestId,
    request: Request,
    loaded: Option<LoadedPrefix>,
}

/// A running sequence.
#[derive(Debug)]
struct RunningSequence {
    id: RequestId,
    /// Prompt and answer so far.
    tokens: Vec<u32>,
    /// Tokens of the prompt.
    prompt: usize,
    /// Length at which it ends.
    end: usize,
    kv: PagedKv,
    /// Ranges that a load omitted and that must still be computed.
    holes: VecDeque<Range<usize>>,
    /// End of the loaded range.
    matched: usize,
    shareable: usize,
    sampler: Sampler,
}

impl RunningSequence {
    /// Tokens that are not cached yet and may be computed in one step: of a hole, of the prompt except its
    /// last token, or the token from which the next is predicted.
    fn pending(&self) -> usize {
        let end = match self.holes.front() {
            Some(hole) => hole.end,
            None if self.kv.len() < self.prompt - 1 => self.prompt - 1,
            None => self.tokens.len(),
        };
        end - self.kv.len()
    }

    /// Marks as present what a load delivered behind a hole that is now filled.
    fn pass_holes(&mut self) -> Result<(), EngineError> {
        while self.holes.front().is_some_and(|hole| hole.end <= self.kv.len()) {
            self.holes.pop_front();
            self.kv.commit(self.holes.front().map_or(self.matched, |next| next.start))?;
        }
        Ok(())
    }
}

/// Runs requests over one model and one page pool.
#[derive(Debug)]
pub struct Scheduler {
    model: Arc<Model>,
    pool: Arc<PagePool>,
    limits: SchedulerLimits,
    cache: PrefixCache,
    waiting: VecDeque<QueuedRequest>,
    running: Vec<RunningSequence>,
    next_id: u64,
}

impl Scheduler {
    /// A scheduler over `pool`, which must be of the model.
    pub fn new(model: Arc<Model>, pool: Arc<PagePool>, limits: SchedulerLimits) -> Self {
        let cache = PrefixCache::new(Arc::clone(&pool));
        Self { model, pool, limits, cache, waiting: VecDeque::new(), running: Vec::new(), next_id: 0 }
    }

    /// Checks whether a request can ever run.
    ///
    /// # Errors
    /// [`SubmitError`], all but [`Busy`](SubmitError::Busy).
    pub fn check(model: &Model, pool: &PagePool, request: &Request) -> Result<(), SubmitError> {
        let (context, vocab) = (model.config().context, model.config().vocab);
        let pool = pool.pages_max() * pool.page_tokens();
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
        Ok(())
    }

    /// Submits a request, with the prefix that a load delivered.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing is kept then.
    pub fn submit(
        &mut self,
        request: Request,
        loaded: Option<LoadedPrefix>,
    ) -> Result<RequestId, SubmitError> {
        Self::check(&self.model, &self.pool, &request)?;
        if self.waiting.len() >= self.limits.waiting {
            return Err(SubmitError::Busy { waiting: self.waiting.len() });
        }
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.waiting.push_back(QueuedRequest { id, request, loaded });
        Ok(id)
    }

    /// Cancels a request immediately and releases its pages.
    pub fn cancel(&mut self, id: RequestId) -> Option<SchedulerEvent> {
        let before = self.waiting.len() + self.running.len();
        self.waiting.retain(|waiting| waiting.id != id);
        self.running.retain(|running| running.id != id);
        let found = self.waiting.len() + self.running.len() < before;
        found.then_some(SchedulerEvent::Finished { id, reason: FinishReason::Cancelled })
    }

    /// Ends a request immediately, as if it had asked for no more tokens; the computed KV is kept as a
    /// prefix.
    pub fn finish(&mut self, id: RequestId) -> Option<SchedulerEvent> {
        let at = self.running.iter().position(|running| running.id == id)?;
        let finished = self.running.remove(at);
        self.keep(&finished);
        Some(SchedulerEvent::Finished { id, reason: FinishReason::Stopped })
    }

    /// Requests that wait or run.
    pub fn open(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// The finished sequences that serve as prefixes.
    pub fn prefixes(&self) -> &PrefixCache {
        &self.cache
    }

    /// A sequence that shares the longest held prefix of `tokens`, in whole pages.
    pub fn prefix(&mut self, tokens: &[u32]) -> Option<PagedKv> {
        self.cache.lookup(tokens)
    }

    /// An empty cache with pages for `tokens` tokens, for a load to fill; finished prefixes are evicted to
    /// make room. `None` while running requests hold too many pages.
    pub fn allocate(&mut self, tokens: usize) -> Option<PagedKv> {
        let mut kv = self.new_kv();
        while kv.reserve(tokens).is_err() {
            if !self.cache.evict() {
                return None;
            }
        }
        Some(kv)
    }

    /// One step: admits what fits, computes once, samples. Returns no events when no request is open.
    ///
    /// # Errors
    /// [`EngineError`] of the arithmetic; requests are validated and their pages reserved before they run, so a
    /// request cannot cause one.
    pub fn step(&mut self) -> Result<Vec<SchedulerEvent>, EngineError> {
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
            running.pass_holes()?;
            if running.kv.len() == running.tokens.len() {
                let token = running.sampler.choose(logits);
                running.tokens.push(token);
                events.push(SchedulerEvent::Token { id: running.id, token });
            }
        }
        self.retire(&mut events);
        Ok(events)
    }

    /// Starts waiting requests in order, as long as there are sequences and pages for prompt and answer; finished
    /// prefixes make room.
    fn admit(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), EngineError> {
        while self.running.len() < self.limits.sequences {
            let Some(mut next) = self.waiting.pop_front() else { return Ok(()) };
            let request = &next.request;
            let prompt = request.prompt.len();
            let mut loaded = match next.loaded.take() {
                Some(loaded) => loaded,
                // The last prompt token's logits are needed, and no cache holds them.
                None => LoadedPrefix::whole(
                    self.cache.lookup(&request.prompt[..prompt - 1]).unwrap_or_else(|| self.new_kv()),
                ),
            };
            if loaded.kv.len() >= prompt {
                loaded.kv.truncate(prompt - 1);
                loaded.matched = prompt - 1;
            }
            let end = prompt + request.count;
            while loaded.kv.reserve(end - 1).is_err() {
                if self.cache.evict() || (self.running.is_empty() && self.drop_loaded()) {
                    continue;
                }
                // Other requests hold the pages: wait for them, and keep what the load delivered.
                next.loaded = Some(loaded);
                self.waiting.push_front(next);
                return Ok(());
            }
            events.push(SchedulerEvent::Started { id: next.id, reused_tokens: loaded.reused_tokens() });
            let LoadedPrefix { mut kv, matched, holes, shareable } = loaded;
            kv.commit(holes.first().map_or(matched, |hole| hole.start))?;
            let sampler = Sampler::new(&request.sampling);
            let (id, tokens, holes) = (next.id, next.request.prompt, holes.into());
            self.running.push(RunningSequence {
                id,
                tokens,
                prompt,
                end,
                kv,
                holes,
                matched,
                shareable,
                sampler,
            });
        }
        Ok(())
    }

    /// Drops the loaded prefix of the last request waiting: loaded caches must not lock each other out.
    fn drop_loaded(&mut self) -> bool {
        self.waiting.iter_mut().rev().any(|waiting| waiting.loaded.take().is_some())
    }

    fn new_kv(&self) -> PagedKv {
        PagedKv::new(Arc::clone(&self.pool))
    }

    /// Ends completed requests and keeps their caches as prefixes.
    fn retire(&mut self, events: &mut Vec<SchedulerEvent>) {
        let (done, running) = self.running.drain(..).partition(|r| r.tokens.len() >= r.end);
        self.running = running;
        for finished in done {
            events.push(SchedulerEvent::Finished { id: finished.id, reason: FinishReason::Length });
            self.keep(&finished);
        }
    }

    /// Keeps a sequence's cache as a prefix, as far as it may be shared.
    fn keep(&mut self, finished: &RunningSequence) {
        let shareable = finished.kv.len().min(finished.shareable);
        self.cache.insert(&finished.tokens[..shareable], &finished.kv);
    }
}
