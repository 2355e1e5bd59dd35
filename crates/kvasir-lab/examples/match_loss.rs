//! Measures which of a trace's matches the hot index misses, compared with an exact index of every block of
//! every chunk.
//!
//! `cargo run --release -p kvasir-lab --example match_loss -- conversation_trace.jsonl mooncake 512`; without a trace, a
//! synthetic one is replayed. Every request is looked up and then stored, in chunks of 1,536 tokens and a tail of 256 or
//! more. The index is closed and opened again now and then, as replicas are.

use std::{collections::HashSet, io::Write as _, path::Path, sync::Arc};

use kvasir_replay::trace::{Request, SyntheticTrace, TraceReader};
use kvasir_storage::{
    index::{Index, IndexEntry, IndexRow, Scope, Search},
    limits::INDEX_CACHE_BYTES,
};
use kvasir_types::{
    BLOCK_TOKENS, CHUNK_TOKENS_DEFAULT, CHUNK_TOKENS_STEP, ChainLink, ModelId, RootHash, SeqHash,
};

const ROOT: [u8; 32] = [9; 32];
const CHUNK_BLOCKS: usize = CHUNK_TOKENS_DEFAULT / BLOCK_TOKENS;
/// Shortest tail that is stored, in blocks.
const TAIL_BLOCKS: usize = CHUNK_TOKENS_STEP / BLOCK_TOKENS;
/// Requests between two restarts.
const RESTART_EVERY: u64 = 3_000;

type Failure = Box<dyn std::error::Error>;

/// Both indexes, and their answers.
struct Comparison {
    index: Index,
    directory: tempfile::TempDir,
    scope: Scope,
    /// Every block of every stored chunk; a hash names all before it, too.
    exact: HashSet<SeqHash>,
    requests: u64,
    asked: u64,
    matched_exactly: u64,
    matched: u64,
    false_matches: u64,
    chunks: u64,
}

fn open(directory: &Path) -> Result<Index, Failure> {
    Ok(Index::sled(directory.to_owned(), [0; 32], INDEX_CACHE_BYTES)?)
}

/// The whole blocks of a request. A trace shows only which runs of tokens are equal.
fn blocks_of(request: &Request, trace_block_tokens: usize) -> Vec<SeqHash> {
    let count = request.input_tokens as usize / BLOCK_TOKENS;
    let mut link = ChainLink::first(ROOT.into());
    let blocks = (0..count.min(request.blocks.len() * trace_block_tokens / BLOCK_TOKENS)).map(|block| {
        let (run, at) =
            (block * BLOCK_TOKENS / trace_block_tokens, block * BLOCK_TOKENS % trace_block_tokens);
        let id = request.blocks[run];
        let token = |i: usize| (id as u32) ^ ((id >> 32) as u32).rotate_left(7) ^ ((at + i) as u32) << 20;
        let tokens: [u32; BLOCK_TOKENS] = std::array::from_fn(token);
        let hash = link.next(&tokens, &[]);
        link.parent = *hash.as_bytes();
        hash
    });
    blocks.collect()
}

fn entry(blocks: &[SeqHash], first: usize, end: usize) -> IndexEntry {
    let (own, last) = (&blocks[first..end], blocks[end - 1]);
    let tokens = (own.len() * BLOCK_TOKENS) as u32;
    IndexEntry {
        parent_hash: first
            .checked_sub(1)
            .map_or(RootHash::from(ROOT).first_parent(), |i| *blocks[i].as_bytes()),
        blocks: IndexEntry::short_blocks(own.iter().map(|b| &b.as_bytes()[..])),
        row: Arc::new(IndexRow {
            seq_hash: last,
            object_digest: (*last.as_bytes()).into(),
            profile_hash: [3; 32].into(),
            first_position: (first * BLOCK_TOKENS) as u64,
            token_count: tokens,
            kl_beneath: 0.0,
            errors: None,
            head_bytes: 4_000,
            object_bytes: u64::from(tokens) * 7_000,
            level_bytes: (1..=4).map(|level| u64::from(tokens) * level * 1_750).collect(),
        }),
    }
}

impl Comparison {
    fn new() -> Result<Self, Failure> {
        let directory = tempfile::tempdir()?;
        Ok(Self {
            index: open(directory.path())?,
            directory,
            scope: Scope::new(&"default".parse()?, &ModelId::from([1; 32])),
            exact: HashSet::new(),
            requests: 0,
            asked: 0,
            matched_exactly: 0,
            matched: 0,
            false_matches: 0,
            chunks: 0,
        })
    }

    fn serve(&mut self, blocks: &[SeqHash]) -> Result<(), Failure> {
        self.requests += 1;
        if self.requests.is_multiple_of(RESTART_EVERY) {
            self.index.flush();
            // A database is locked while it is open.
            self.index = Index::memory();
            self.index = open(self.directory.path())?;
        }
        let walk =
            self.index
                .walk(self.scope, &RootHash::from(ROOT).first_parent(), blocks, Search::Fast, &|_| true);
        let exact = blocks.iter().take_while(|hash| self.exact.contains(hash)).count();
        let matched = walk.matched_blocks();
        self.asked += blocks.len() as u64;
        self.matched += matched.min(exact) as u64;
        // Blocks are known by 24 bits of their hash where chunks diverge; readers compare the tokens.
        self.false_matches += u64::from(matched > exact);
        self.matched_exactly += exact as u64;
        for first in (0..blocks.len()).step_by(CHUNK_BLOCKS) {
            let end = (first + CHUNK_BLOCKS).min(blocks.len());
            if end - first < TAIL_BLOCKS {
                break;
            }
            self.index.insert(self.scope, &entry(blocks, first, end));
            self.chunks += u64::from(!self.exact.contains(&blocks[end - 1]));
            self.exact.extend(&blocks[first..end]);
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut comparison = Comparison::new()?;
    match &arguments[..] {
        [] => {
            let trace = SyntheticTrace::default();
            for request in trace.iter() {
                comparison.serve(&blocks_of(&request, trace.block_tokens as usize))?;
            }
        }
        [path, format, block_tokens] => {
            let mut reader = TraceReader::open(Path::new(path), format.parse()?)?;
            let (mut request, block_tokens) = (Request::default(), block_tokens.parse()?);
            while reader.read(&mut request)? {
                comparison.serve(&blocks_of(&request, block_tokens))?;
            }
        }
        _ => return Err("arguments: TRACE mooncake|bailian BLOCK_TOKENS, or none".into()),
    }
    let Comparison { requests, asked, matched_exactly, matched, false_matches, chunks, .. } = comparison;
    let tokens = |blocks: u64| blocks * BLOCK_TOKENS as u64;
    let lost = (matched_exactly - matched) as f64 / matched_exactly.max(1) as f64 * 100.0;
    writeln!(
        std::io::stdout(),
        "{requests} requests of {} tokens, {chunks} chunks: an exact index matches {}, the hot index {}: {lost:.3} % lost; \
         {false_matches} requests matched a block too many",
        tokens(asked),
        tokens(matched_exactly),
        tokens(matched),
    )?;
    Ok(())
}
