//! The client's road: parts of chunks through `DevicePages`, as a load hands them over, and the copies of a save beside them.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    error::Error,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use kvasir_client::{
    limits::{DECODE_CONCURRENCY, DEVICE_TOKENS_MAX},
    pages::{BlockTable, DeviceDecoder, DevicePart, PartOutcome, Shard},
};
use kvasir_codec::{ChunkDecoder, KvBuffer, LayerGroup};
use kvasir_cuda::DevicePages;
use kvasir_types::{Level, Plane};

use crate::{
    rates::{BLOCK_TOKENS, FLASH, Subject, best, pages},
    report::{Report, Row},
    timed::Timed,
};

/// Chunks that a load brings.
const CHUNKS: usize = 4;

/// The pages of a load's chunks, and behind them those of a chunk that is saved.
struct Road<'a> {
    subject: &'a Subject,
    level: Level,
    store: Arc<DevicePages<Timed>>,
    loaded: BlockTable,
    saved: BlockTable,
}

/// All rows; returns whether what was decoded and copied is correct.
pub(crate) fn run(subject: &Subject, report: &mut Report) -> Result<bool, Box<dyn Error>> {
    let (timed, spec, groups) = (&subject.timed, &subject.shape.spec, subject.cpu.layer_groups());
    let [_, level] = subject.levels();
    let cache = pages(timed, &subject.shape, (CHUNKS + 1) * subject.slots(), FLASH, None)?;
    let kv = cache.kv.clone();
    // SAFETY: the planes are those of `cache`, which lives longer. The rows that a copy reads are decoded before it.
    let store = unsafe { DevicePages::new(Arc::new(timed.clone()), Arc::clone(spec), Shard::ALL, kv)? };
    let (all, of_chunk) = (cache.kv.blocks as u32, subject.slots() as u32 / BLOCK_TOKENS);
    let of_saved = all - of_chunk..all;
    let loaded = store.table(&(0..of_saved.start).collect::<Vec<_>>())?;
    let saved = store.table(&of_saved.clone().collect::<Vec<_>>())?;
    let road = Road { subject, level, store, loaded, saved };
    let is_right = |pages: Range<u32>, chunks| {
        let blocks: Vec<i32> = pages.map(u32::cast_signed).collect();
        subject.rows_are_right(level, &cache, &blocks, chunks)
    };
    let row = |chunks: usize, operation, bytes| Row {
        what: format!("{}, {} tokens x {chunks}", subject.shape.name, subject.tokens()),
        operation,
        bytes,
        predicted: "no model",
    };
    let (bytes, mut same, mut beside) = (subject.bytes(), true, None);

    report.row(&row(1, "load, a part (group of layers)", bytes / groups.len().max(1)), || {
        let (kernels, wall) =
            best(timed, || Ok(groups.iter().try_for_each(|group| road.decode(&road.saved, group, 0..1))?))?;
        same &= is_right(of_saved.clone(), 1)?;
        let parts = groups.len().max(1) as f64;
        Ok((Some(kernels / parts), Some(wall / parts)))
    })?;
    report.row(&row(CHUNKS, "load, as its threads do", CHUNKS * bytes), || {
        Ok((None, Some(best(timed, || Ok(road.load()?))?.1)))
    })?;
    report.row(&row(1, "copies of a save", bytes), || {
        let mut rows = KvBuffer::new(spec, subject.tokens());
        let (_, wall) =
            best(timed, || Ok((0..spec.layers.len()).try_for_each(|layer| road.copy(layer, &mut rows))?))?;
        same &= road.are_copies(&rows)?;
        Ok((None, Some(wall)))
    })?;
    report.row(&row(CHUNKS, "load, while a save copies", CHUNKS * bytes), || {
        let done = AtomicBool::new(false);
        let (loaded, copied) = thread::scope(|scope| {
            let copies = scope.spawn(|| road.copy_until(&done));
            let loaded = best(timed, || Ok(road.load()?));
            done.store(true, Ordering::Relaxed);
            (loaded, copies.join())
        });
        beside = Some(copied.map_err(|_| "the copies panicked")??);
        same &= is_right(0..all, CHUNKS + 1)?;
        Ok((None, Some(loaded?.1)))
    })?;
    if beside.is_some() {
        report.row(&row(1, "copies of a save, beside loads", bytes), || Ok((None, beside)))?;
    }
    Ok(same)
}

impl Road<'_> {
    /// Decodes a group of layers of chunks into their places of a table.
    fn decode(&self, table: &BlockTable, group: &LayerGroup, chunks: Range<usize>) -> Result<(), String> {
        let (subject, tokens) = (self.subject, 0..self.subject.tokens());
        let part = |chunk: usize| {
            let (object, first) = ((&subject.head, &subject.object[..]), chunk * subject.slots());
            DevicePart::new(table, &subject.shape.profile, object, group, self.level, first, tokens.clone())
        };
        let parts: Option<Vec<_>> = chunks.map(part).collect();
        let outcomes = self.store.decode(&parts.ok_or("the table is too short")?)?.outcomes;
        let is_decoded = |outcome: &PartOutcome| *outcome == PartOutcome::Decoded;
        let all = outcomes.iter().all(is_decoded);
        if all { Ok(()) } else { Err(format!("not all parts were decoded: {outcomes:?}")) }
    }

    /// What a load of all chunks does that has their bytes: early layers first, as many tokens at once and from as many threads.
    fn load(&self) -> Result<(), String> {
        let (groups, together) = (self.subject.cpu.layer_groups(), DEVICE_TOKENS_MAX / self.subject.tokens());
        let (together, next) = (together.clamp(1, CHUNKS), AtomicUsize::new(0));
        let batches = CHUNKS.div_ceil(together);
        let decode = || -> Result<(), String> {
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                let Some(group) = groups.get(job / batches) else { return Ok(()) };
                let first = job % batches * together;
                self.decode(&self.loaded, group, first..(first + together).min(CHUNKS))?;
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..DECODE_CONCURRENCY).map(|_| scope.spawn(decode)).collect();
            // All of them, also behind one that failed.
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            ended.into_iter().try_for_each(|ended| ended.unwrap_or_else(|_| Err("a decode panicked".into())))
        })
    }

    fn copy(&self, layer: usize, rows: &mut KvBuffer) -> Result<(), String> {
        let (spec, tokens) = (&self.subject.shape.spec, 0..self.subject.tokens());
        let is_copied = self.saved.read(spec, layer, &tokens, rows)?;
        if is_copied { Ok(()) } else { Err("a page is another request's".into()) }
    }

    /// Copies the saved chunk again and again; the milliseconds of one time.
    fn copy_until(&self, done: &AtomicBool) -> Result<f64, String> {
        let layers = self.subject.shape.spec.layers.len();
        let mut rows = KvBuffer::new(&self.subject.shape.spec, self.subject.tokens());
        let (start, mut copied) = (Instant::now(), 0);
        while copied == 0 || !done.load(Ordering::Relaxed) {
            self.copy(copied % layers, &mut rows)?;
            copied += 1;
        }
        Ok(start.elapsed().as_secs_f64() * 1e3 * layers as f64 / copied as f64)
    }

    /// Whether rows that were copied are those that the CPU decodes.
    fn are_copies(&self, rows: &KvBuffer) -> Result<bool, Box<dyn Error>> {
        let (expected, layers) = (self.subject.expected(self.level)?, &self.subject.shape.spec.layers);
        for (layer, plane) in (0..layers.len()).flat_map(|layer| Plane::ALL.map(|plane| (layer, plane))) {
            for head in 0..rows.heads(layer, plane) {
                let (copied, expected) = (rows.rows(layer, plane, head), expected.rows(layer, plane, head));
                if !copied.iter().copied().eq(expected.iter().map(|value| value.to_f32())) {
                    println!("FAIL copies of a save: layer {layer}, {plane:?}, head {head}");
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
