//! Measures the cost of the hot index: disk and memory per chunk, and lookups per second, at growing numbers
//! of chunks; and disk per chunk if as many chunks were removed recently as there are.
//!
//! `cargo run --release -p kvasir-storage --example index_cost -- 10000 1000000`

use std::{path::Path, sync::Arc, time::Instant};

use kvasir_storage::index::{Index, IndexEntry, IndexRow, RemovedRow, Scope, Search};
use kvasir_types::{ModelId, SeqHash};

/// Chunks of a context: 98 K tokens in chunks of 1,536.
const CHUNKS: usize = 64;
/// Blocks of a chunk.
const BLOCKS: usize = 96;
const LOOKUPS: usize = 2_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scope = Scope::new(&"default".parse()?, &ModelId::from([1; 32]));
    let mut out = std::io::stdout().lock();
    for count in std::env::args().skip(1) {
        let count: usize = count.parse()?;
        let directory =
            std::env::temp_dir().join(format!("kvasir-index-cost-{}-{count}", std::process::id()));
        let index = Index::sled(directory.clone(), [0; 32], kvasir_storage::limits::INDEX_CACHE_BYTES)?;
        let start = Instant::now();
        for context in 0..count / CHUNKS {
            let blocks = context_blocks(context);
            for chunk in 0..CHUNKS {
                index.insert(scope, &entry(&blocks, chunk));
            }
        }
        let inserted = start.elapsed();
        index.flush();
        let (disk, memory) = (bytes_under(&directory), resident());
        // Every lookup walks the 64 chunks of another context.
        let contexts = (count / CHUNKS).max(1);
        let queries: Vec<_> = (0..LOOKUPS).map(|i| context_blocks(i * 7_919 % contexts)).collect();
        let mut times: Vec<_> = queries
            .iter()
            .map(|blocks| {
                let start = Instant::now();
                let walk = index.walk(scope, &[9; 32], blocks, Search::Fast, &|_| true);
                assert_eq!(walk.whole_blocks, BLOCKS * CHUNKS);
                start.elapsed()
            })
            .collect();
        times.sort();
        for context in contexts..contexts + count / CHUNKS {
            for last in context_blocks(context).chunks_exact(BLOCKS).map(|blocks| blocks[BLOCKS - 1]) {
                let removal = RemovedRow { expires_ms: i64::MAX, by_request: true };
                index.put_removed(scope, &(*last.as_bytes()).into(), removal);
            }
        }
        index.flush();
        let with_removals = bytes_under(&directory);
        use std::io::Write;
        writeln!(
            out,
            "{count} chunks: {:.0} B per chunk on disk, {:.0} B with as many removals, {} MiB resident, {:.0} inserts/s, lookup of 64 chunks p50 {:?} p99 {:?}",
            disk as f64 / count as f64,
            with_removals as f64 / count as f64,
            memory >> 20,
            count as f64 / inserted.as_secs_f64(),
            times[LOOKUPS / 2],
            times[LOOKUPS * 99 / 100],
        )?;
        drop(index);
        std::fs::remove_dir_all(directory)?;
    }
    Ok(())
}

fn context_blocks(context: usize) -> Vec<SeqHash> {
    let mut bytes = vec![0; BLOCKS * CHUNKS * 32];
    blake3::Hasher::new().update(&context.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes.as_chunks().0.iter().map(|hash| SeqHash::from(*hash)).collect()
}

fn entry(blocks: &[SeqHash], chunk: usize) -> IndexEntry {
    let own = &blocks[chunk * BLOCKS..][..BLOCKS];
    let last = own[BLOCKS - 1];
    IndexEntry {
        parent_hash: chunk.checked_sub(1).map_or([9; 32], |_| *blocks[chunk * BLOCKS - 1].as_bytes()),
        blocks: IndexEntry::short_blocks(own.iter().map(|b| &b.as_bytes()[..])),
        row: Arc::new(IndexRow {
            seq_hash: last,
            object_digest: (*last.as_bytes()).into(),
            profile_hash: [3; 32].into(),
            first_position: (chunk * 1536) as u64,
            token_count: 1536,
            kl_beneath: 0.0,
            head_bytes: 4_000,
            object_bytes: 10 << 20,
            level_bytes: vec![1 << 20, 2 << 20, 5 << 20, 10 << 20],
            errors: None,
        }),
    }
}

fn bytes_under(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|e| if e.path().is_dir() { bytes_under(&e.path()) } else { e.metadata().map_or(0, |m| m.len()) })
        .sum()
}

/// Resident memory, if the system reports it.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}
