//! Generated request traces: for tests, for sizes that no public trace has, and as a workload
//! that no policy was developed on.
//!
//! Five kinds of clients share one service, with as many clients of each kind as the requested number of requests
//! needs:
//!
//! | type | requests | reuse |
//! |---|---|---|
//! | `file` | questions about one of many documents, some with follow-ups | popularity (Zipf), then seconds to minutes |
//! | `api` | one app's system prompt and a unique part | popularity of apps, for hours |
//! | `text` | conversations that grow by each answer | think times |
//! | `agent` | a long plan, then steps in bursts that each add a little | seconds, then never |
//! | `batch` | the same contexts repeatedly, in order | one period: the worst case for LRU |
//!
//! Or two kinds that make long contexts ([`Callers::LongContext`]), half of the clients each:
//!
//! | type | requests | reuse |
//! |---|---|---|
//! | `document` | questions about one of 200 shared documents of 10 to 100 K tokens; new ones replace old ones | popularity (Zipf) for a while, then seconds to minutes |
//! | `one-shot` | a unique prompt of 1 to 50 K tokens | never |
//!
//! or the same with 1,000 documents that stay, each queried one question at a time
//! ([`Callers::SettledLongContext`]): only popularity predicts reuse.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io::{self, Write},
};

use kvasir_eviction::Moment;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::reader::Request;

/// The clients of a [`SyntheticTrace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// `file`, `api`, `text`, `agent` and `batch`.
    Various,
    /// `document` and `one-shot`.
    LongContext,
    /// The same, with documents that stay and are queried one question at a time.
    SettledLongContext,
}

/// The parameters of a generated trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyntheticTrace {
    /// The clients.
    pub callers: Callers,
    /// Equal seeds give equal traces.
    pub seed: u64,
    /// Requests.
    pub requests: usize,
    /// Requests per second.
    pub rate: f64,
    /// Length of prompts relative to the usual ones: 1 has documents of 20 to 300 blocks.
    pub scale: f64,
    /// Tokens per block.
    pub block_tokens: u64,
    /// Whether requests have the kind of their client and, when written, their turn. Those on which policies are
    /// compared have neither: a kind says whether a prompt comes back.
    pub labels: bool,
}

impl Default for SyntheticTrace {
    fn default() -> Self {
        Self {
            callers: Callers::Various,
            seed: 1,
            requests: 20_000,
            rate: 3.0,
            scale: 1.0,
            block_tokens: 64,
            labels: true,
        }
    }
}

const DOCUMENTS: usize = 400;
const APPS: usize = 60;
const BATCH_CONTEXTS: u64 = 250;
const LONG_DOCUMENTS: usize = 200;
const SETTLED_DOCUMENTS: usize = 1_000;
/// Mean time in seconds until a place among the long documents is taken by a new one.
const LONG_DOCUMENT_SECONDS: f64 = 2_400.0;

/// A client that will send another request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Caller {
    /// Microseconds after the start.
    at: u64,
    number: u64,
    kind: Kind,
    turn: u32,
    turns: u32,
    blocks: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    File,
    Api,
    Text,
    Agent,
    Batch,
    Document,
    OneShot,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Api => "api",
            Self::Text => "text",
            Self::Agent => "agent",
            Self::Batch => "batch",
            Self::Document => "document",
            Self::OneShot => "one-shot",
        }
    }
}

/// The requests of a [`SyntheticTrace`], ordered by time.
#[derive(Debug)]
pub struct SyntheticRequests {
    trace: SyntheticTrace,
    random: ChaCha8Rng,
    waiting: BinaryHeap<Reverse<Caller>>,
    next_arrival: f64,
    next_block: u64,
    next_number: u64,
    made: usize,
}

impl SyntheticTrace {
    /// Its requests.
    pub fn iter(&self) -> SyntheticRequests {
        SyntheticRequests {
            trace: *self,
            random: ChaCha8Rng::seed_from_u64(self.seed),
            waiting: BinaryHeap::new(),
            next_arrival: 0.0,
            // Blocks below belong to documents, prompts of apps and batches.
            next_block: 1 << 32,
            next_number: 0,
            made: 0,
        }
    }

    /// Writes it in the Bailian format.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        for (chat, request) in self.iter().enumerate() {
            let ids: Vec<String> = request.blocks.iter().map(u64::to_string).collect();
            let labels = if self.labels {
                format!("\"type\":\"{}\",\"turn\":{},", request.kind, request.turn)
            } else {
                String::new()
            };
            writeln!(
                out,
                "{{\"chat_id\":{chat},\"parent_chat_id\":-1,\"timestamp\":{:.3},\"input_length\":{},\"output_length\":1,\
                 {labels}\"hash_ids\":[{}]}}",
                request.at.as_micros() as f64 * 1e-6,
                request.input_tokens,
                ids.join(",")
            )?;
        }
        Ok(())
    }
}

impl SyntheticRequests {
    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.random.random_range(0.0..1.0f64)).ln()
    }

    /// A rank below `count`, the first being the most likely: Zipf with exponent 1 by inversion of its
    /// continuous counterpart.
    fn popular(&mut self, count: usize) -> usize {
        let share = self.random.random_range(0.0..1.0f64);
        (((count + 1) as f64).powf(share) as usize - 1).min(count - 1)
    }

    fn length(&mut self, low: f64, high: f64) -> u64 {
        let share = self.random.random_range(0.0..1.0f64);
        // Log-uniform: many short ones, few long ones.
        (((low.ln() + share * (high / low).ln()).exp() * self.trace.scale) as u64).max(1)
    }

    fn own(&mut self, blocks: &mut Vec<u64>, count: u64) {
        blocks.extend(self.next_block..self.next_block + count);
        self.next_block += count;
    }

    /// The blocks of a shared item: `family` and `rank` identify it and determine its length.
    fn shared(&self, family: u64, rank: u64, low: u64, high: u64) -> Vec<u64> {
        let spread = (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % (high - low);
        let length = (((low + spread) as f64 * self.trace.scale) as u64).max(1);
        let first = (family << 28) + (rank << 12);
        (first..first + length.min(1 << 12)).collect()
    }

    /// A long document that is among the popular ones at `at`: its place, and how often that place was
    /// replaced. Places are replaced in sequence.
    fn long_document(&mut self, at: u64) -> u64 {
        if self.trace.callers == Callers::SettledLongContext {
            return self.popular(SETTLED_DOCUMENTS) as u64;
        }
        let place = self.popular(LONG_DOCUMENTS);
        let lives = at as f64 * 1e-6 / LONG_DOCUMENT_SECONDS + place as f64 * 0.618_034 % 1.0;
        place as u64 + LONG_DOCUMENTS as u64 * lives as u64
    }

    fn arrive(&mut self, at: u64) -> Caller {
        let kind = match (self.trace.callers, self.random.random_range(0..100u32)) {
            (Callers::Various, 0..25) => Kind::File,
            (Callers::Various, 25..55) => Kind::Api,
            (Callers::Various, 55..80) => Kind::Text,
            (Callers::Various, 80..88) => Kind::Agent,
            (Callers::Various, _) => Kind::Batch,
            (Callers::LongContext | Callers::SettledLongContext, 0..50) => Kind::Document,
            (Callers::LongContext | Callers::SettledLongContext, _) => Kind::OneShot,
        };
        let block_tokens = self.trace.block_tokens;
        let blocks_of = |tokens: u64| (tokens / block_tokens.max(1)).max(2);
        let number = self.next_number;
        self.next_number += 1;
        let (mut blocks, turns) = match kind {
            Kind::File => {
                let document = self.popular(DOCUMENTS) as u64;
                (self.shared(1, document, 20, 300), 1 + self.random.random_range(0..4u32))
            }
            Kind::Api => {
                let app = self.popular(APPS) as u64;
                (self.shared(2, app, 4, 60), 1)
            }
            Kind::Text => (self.shared(3, number % 3, 2, 6), 1 + self.random.random_range(0..10u32)),
            Kind::Agent => (self.shared(4, number % 5, 40, 120), 5 + self.random.random_range(0..40u32)),
            Kind::Batch => (self.shared(5, number_of_batch(number), 60, 80), 1),
            Kind::Document => {
                let document = self.long_document(at);
                let blocks = self.shared(6, document, blocks_of(10_000), blocks_of(100_000));
                let questions = if self.trace.callers == Callers::LongContext { 5 } else { 1 };
                (blocks, 1 + self.random.random_range(0..questions))
            }
            Kind::OneShot => (Vec::new(), 1),
        };
        let added = match kind {
            Kind::OneShot => self.length(blocks_of(1_000) as f64, blocks_of(50_000) as f64),
            _ => self.length(1.0, 12.0),
        };
        self.own(&mut blocks, added);
        Caller { at, number, kind, turn: 1, turns, blocks }
    }

    /// The same client's next request, if it has one.
    fn again(&mut self, mut caller: Caller) -> Option<Caller> {
        if caller.turn >= caller.turns {
            return None;
        }
        let pause = match caller.kind {
            Kind::File | Kind::Document => 2.0 + self.exponential(40.0),
            Kind::Text => 5.0 + self.exponential(90.0),
            Kind::Agent => 1.0 + self.exponential(6.0),
            Kind::Api | Kind::Batch | Kind::OneShot => return None,
        };
        caller.at = caller.at.saturating_add((pause * 1e6) as u64);
        caller.turn += 1;
        let added = self.length(1.0, 8.0);
        self.own(&mut caller.blocks, added);
        Some(caller)
    }
}

/// The context of the batch that a client works on: all in sequence, repeatedly.
const fn number_of_batch(number: u64) -> u64 {
    (number / 8) % BATCH_CONTEXTS
}

impl Iterator for SyntheticRequests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        if self.made >= self.trace.requests {
            return None;
        }
        self.made += 1;
        let arrival = (self.next_arrival * 1e6) as u64;
        let caller = match self.waiting.peek() {
            Some(Reverse(waiting)) if waiting.at <= arrival => self.waiting.pop()?.0,
            _ => {
                // A third of the requests come from new clients; the others are their next turns.
                let mean = 3.0 / self.trace.rate;
                self.next_arrival += self.exponential(mean);
                self.arrive(arrival)
            }
        };
        let request = Request {
            at: Moment::from_micros(caller.at),
            kind: if self.trace.labels { caller.kind.name().to_owned() } else { String::new() },
            turn: caller.turn,
            pace_seconds: None,
            input_tokens: caller.blocks.len() as u64 * self.trace.block_tokens,
            blocks: caller.blocks.clone(),
        };
        if let Some(next) = self.again(caller) {
            self.waiting.push(Reverse(next));
        }
        Some(request)
    }
}
