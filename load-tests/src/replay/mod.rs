//! Replays a trace's prompts through the client crate, and checks at the end that everything acknowledged is
//! stored.

mod engine;
pub(crate) mod trace;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::{StreamExt as _, stream};

use self::{
    engine::{Engine, NOT_FOUND},
    trace::{Prompt, TraceFacts, TraceSpec},
};
use crate::{
    cluster::endpoints::Endpoints,
    scenario::outcome::Durability,
    traffic::record::{Completion, Failure},
};

/// Most acknowledged prompts that are loaded again at the end, and their concurrency.
const CHECKED_MAX: usize = 200;
const CHECKED_AT_ONCE: usize = 2;
/// Time of a load of one of them, and after which no attempt begins, and the pause between two. A load that a busy machine does not
/// complete at once is not a loss.
const CHECK_TIME: Duration = Duration::from_secs(120);
const CHECK_PAUSE: Duration = Duration::from_secs(2);
/// Attempts that may find less than was acknowledged.
const NOT_FOUND_MAX: usize = 5;

/// Which part of a trace, and how fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceWindow {
    pub(crate) seconds: f64,
    pub(crate) speed: f64,
    pub(crate) seed: u64,
}

/// One replay. Clones are of the same one.
#[derive(Clone)]
pub(crate) struct Replay {
    pub(crate) name: String,
    pub(crate) facts: TraceFacts,
    /// One for each replica.
    engines: Arc<[Engine]>,
    prompts: Arc<[Prompt]>,
    block_tokens: usize,
    acknowledged: Arc<Mutex<Vec<u64>>>,
}

impl Replay {
    /// Of a trace's part, against all replicas in turn.
    pub(crate) async fn of(
        name: &str,
        spec: &TraceSpec,
        file: Option<&PathBuf>,
        TraceWindow { seconds, speed, seed }: TraceWindow,
        endpoints: &Endpoints,
    ) -> Result<Self> {
        let (prompts, facts) = trace::prompts(spec, file, seconds, speed, seed)?;
        let token = endpoints.tokens.first().map(String::as_str);
        let mut engines = Vec::new();
        for url in &endpoints.urls {
            engines.push(Engine::connect(url, token, spec.layers).await?);
        }
        let (engines, prompts, block_tokens) = (engines.into(), prompts.into(), spec.block_tokens);
        Ok(Self {
            name: name.to_owned(),
            facts,
            engines,
            prompts,
            block_tokens,
            acknowledged: Arc::default(),
        })
    }

    fn engine(&self, number: u64) -> &Engine {
        &self.engines[number as usize % self.engines.len()]
    }

    /// When the prompts are due.
    pub(crate) fn due(&self) -> Vec<Duration> {
        self.prompts.iter().map(|prompt| prompt.at).collect()
    }

    /// Loads and checks the stored part of a prompt, and stores the rest.
    pub(crate) async fn prompt(&self, number: u64) -> Result<Completion, Failure> {
        let done =
            self.engine(number).prompt(self.prompts[number as usize].tokens(self.block_tokens)).await?;
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        Ok(done)
    }

    /// The figures, by name.
    pub(crate) fn figures(&self) -> Vec<(String, f64)> {
        Engine::figures(&self.engines, &self.name)
    }

    /// Loads the acknowledged prompts, or an even sample of them, once more.
    pub(crate) async fn check(&self, durability: &mut Durability) {
        let numbers = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone();
        durability.acknowledged += numbers.len() as u64;
        let checked = numbers.len().min(CHECKED_MAX);
        let check = |nth: usize| {
            let number = numbers[nth * numbers.len() / checked];
            // Uses another replica than the one that stored it, if there is one.
            let (prompt, engine) = (&self.prompts[number as usize], self.engine(number + 1));
            async move {
                let (begun, tokens, mut not_found) = (Instant::now(), prompt.tokens(self.block_tokens), 0);
                loop {
                    let checked = engine.check(&tokens, CHECK_TIME).await;
                    let Err(failure) = &checked else { return checked };
                    not_found += usize::from(failure.cause == NOT_FOUND);
                    let is_over = begun.elapsed() + CHECK_PAUSE >= CHECK_TIME || not_found == NOT_FOUND_MAX;
                    if failure.wrong || is_over {
                        return checked;
                    }
                    tokio::time::sleep(CHECK_PAUSE).await;
                }
            }
        };
        let mut results = stream::iter(0..checked).map(check).buffer_unordered(CHECKED_AT_ONCE);
        while let Some(result) = results.next().await {
            durability.checked += 1;
            match result {
                Ok(bytes) => durability.bytes += bytes,
                Err(failure) if failure.wrong => durability.wrong += 1,
                Err(_) => durability.lost += 1,
            }
        }
    }
}
