//! The single checks of [`check_page_store`](super::check_page_store), for one rank's pages.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
};

use kvasir_codec::{KvBuffer, KvSink as _};
use kvasir_types::{ModelSpec, Plane};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{PageStoreFault, TestedPages, values::RandomRows};
use crate::pages::{BlockTable, PageRef, PageRows, Rows, Shard, WriteGate, widen};

/// Writes with random cuts.
const WRITES: usize = 48;
/// Runs of tokens that are read of every layer.
const READS: usize = 6;
/// How often pages are reassigned while a thread writes.
const RACES: usize = 24;
/// Seed of all randomness, so that a fault can be reproduced.
const SEED: u64 = 22;

/// Layer, plane, head and token of a row on the device.
type Place = (usize, Plane, usize, usize);

/// A run of rows: layer, plane, heads, tokens.
type Cut = (usize, Plane, Range<usize>, Range<usize>);

pub(super) struct PageChecks<'a, P> {
    spec: &'a ModelSpec,
    device: ModelSpec,
    shard: Shard,
    tokens: usize,
    pages: P,
    random: StdRng,
    /// The expected contents of the pages.
    expected: BTreeMap<(usize, usize, usize, usize), Vec<u8>>,
}

impl<'a, P: TestedPages> PageChecks<'a, P> {
    pub(super) fn new(spec: &'a ModelSpec, device: ModelSpec, shard: Shard, tokens: usize, pages: P) -> Self {
        let random = StdRng::seed_from_u64(SEED);
        Self { spec, device, shard, tokens, pages, random, expected: BTreeMap::new() }
    }

    pub(super) fn run(mut self) -> Result<(), PageStoreFault> {
        let (tokens, room) = (self.tokens as u64, self.pages.table().tokens());
        if room < tokens {
            return self
                .fault(&format!("pages for {tokens} tokens were asked for, the table has room for {room}"));
        }
        self.look()?;
        self.cuts()?;
        self.reads()?;
        self.stale_tables()?;
        self.other_pages()?;
        self.threads_side_by_side()?;
        (0..RACES).try_for_each(|_| self.race())
    }

    fn fault<T>(&self, what: &str) -> Result<T, PageStoreFault> {
        let part = if self.shard == Shard::ALL { String::new() } else { format!(" (as {:?})", self.shard) };
        Err(PageStoreFault(format!("{what}{part}")))
    }

    fn table(&self) -> BlockTable {
        self.pages.table().with_shard(self.shard.clone())
    }

    /// Every row of every plane of the device.
    fn places(&self) -> Vec<Place> {
        let of_plane = |(layer, plane, heads, _)| {
            let rows = (0..heads).flat_map(|head| (0..self.tokens).map(move |token| (head, token)));
            rows.map(move |(head, token)| (layer, plane, head, token)).collect::<Vec<Place>>()
        };
        planes(&self.device).into_iter().flat_map(of_plane).collect()
    }

    /// Records the contents of the pages.
    fn look(&mut self) -> Result<(), PageStoreFault> {
        for place @ (layer, plane, head, token) in self.places() {
            let row = self.pages.row(layer, plane, head, token);
            let bytes =
                self.device.layers[layer].layout.planes()[plane as usize].1 * self.spec.kv_dtype.bytes();
            if row.len() != bytes {
                let (name, found) = (name(place), row.len());
                return self.fault(&format!("the row of {name} was read as {found} bytes; it has {bytes}"));
            }
            self.expected.insert(key(place), row);
        }
        Ok(())
    }

    fn note(&mut self, (layer, plane, heads, tokens): Cut, rows: &RandomRows) {
        for (row_head, head) in heads.enumerate() {
            for (row_token, token) in tokens.clone().enumerate() {
                self.expected.insert(key((layer, plane, head, token)), rows.bytes(row_head, row_token));
            }
        }
    }

    /// Compares the contents of the pages with the recorded ones.
    fn holds(&self, when: &str) -> Result<(), PageStoreFault> {
        for place @ (layer, plane, head, token) in self.places() {
            let (found, right) = (self.pages.row(layer, plane, head, token), &self.expected[&key(place)]);
            if found == *right {
                continue;
            }
            let elsewhere = self
                .places()
                .into_iter()
                .find(|other| self.expected[&key(*other)] == found && found.iter().any(|byte| *byte != 0));
            let hint =
                elsewhere.map_or(String::new(), |other| format!(", which is the row of {}", name(other)));
            let (name, found, right) = (name(place), hex(&found), hex(right));
            return self
                .fault(&format!("{when}: the row of {name} reads {found}.. instead of {right}..{hint}"));
        }
        Ok(())
    }

    fn random_rows(&mut self, (layer, plane, heads, tokens): &Cut) -> RandomRows {
        let elements = self.device.layers[*layer].layout.planes()[*plane as usize].1;
        RandomRows::new(self.spec.kv_dtype, [heads.len(), tokens.len(), elements], &mut self.random)
    }

    /// Writes rows of the device's layers and heads as a load does. Returns the number of refused rows.
    fn write(&mut self, table: &BlockTable, (layer, plane, heads, tokens): &Cut, rows: Rows<'_>) -> usize {
        let layer = layer + self.shard.layers.start;
        let count = self.spec.layers[layer].layout.planes()[*plane as usize].0;
        let first_head = self.shard.heads_of(count).start + heads.start;
        let first_token = self.random.random_range(0..=tokens.start);
        let gate = WriteGate::default();
        let mut sink = table.sink(self.spec, first_token as u64, &gate);
        sink.write_rows(layer, *plane, first_head, tokens.start - first_token, rows);
        sink.stale_rows
    }

    fn random_range(&mut self, count: usize) -> Range<usize> {
        let start = self.random.random_range(0..count);
        start..self.random.random_range(start..count) + 1
    }

    /// Writes everything, then random cuts of heads and tokens.
    fn cuts(&mut self) -> Result<(), PageStoreFault> {
        let planes = planes(&self.device);
        if planes.is_empty() {
            // a rank of layers without a cache
            return Ok(());
        }
        let mut cuts: Vec<Cut> =
            planes.iter().map(|&(layer, plane, heads, _)| (layer, plane, 0..heads, 0..self.tokens)).collect();
        for _ in 0..WRITES {
            let (layer, plane, heads, _) = planes[self.random.random_range(0..planes.len())];
            cuts.push((layer, plane, self.random_range(heads), self.random_range(self.tokens)));
        }
        let table = self.table();
        for cut in cuts {
            let rows = self.random_rows(&cut);
            let refused = self.write(&table, &cut, rows.rows());
            let (layer, plane, heads, tokens) = cut.clone();
            let what =
                format!("after a write of layer {layer}, {plane:?}, heads {heads:?}, tokens {tokens:?}");
            if refused > 0 {
                return self.fault(&format!(
                    "{what}: {refused} rows were refused although the pages are the table's"
                ));
            }
            self.note(cut, &rows);
            self.holds(&what)?;
        }
        Ok(())
    }

    /// A layer's rows as a save reads them, and whether the store says that they are the table's.
    fn read(
        &self,
        table: &BlockTable,
        layer: usize,
        tokens: &Range<usize>,
    ) -> Result<(bool, KvBuffer), String> {
        let mut found = KvBuffer::new(self.spec, tokens.len());
        let layer = layer + self.shard.layers.start;
        let is_the_tables = table.read(self.spec, layer, tokens, &mut found)?;
        Ok((is_the_tables, found))
    }

    /// Reads random runs of tokens. A store that refuses the first is not saved from.
    fn reads(&mut self) -> Result<(), PageStoreFault> {
        let (table, mut has_read) = (self.table(), false);
        for _ in 0..READS {
            let tokens = self.random_range(self.tokens);
            for (layer, plane, heads, elements) in planes(&self.device) {
                let (is_the_tables, found) = match self.read(&table, layer, &tokens) {
                    Ok(read) => read,
                    Err(_) if !has_read => return Ok(()),
                    Err(reason) => {
                        return self
                            .fault(&format!("a save could read some of the table's rows only: {reason}"));
                    }
                };
                has_read = true;
                if !is_the_tables {
                    return self.fault("a save was refused pages that are the table's");
                }
                let in_model = layer + self.shard.layers.start;
                let count = self.spec.layers[in_model].layout.planes()[plane as usize].0;
                let first_head = self.shard.heads_of(count).start;
                let mut right = vec![0.0; elements];
                for (head, token) in
                    (0..heads).flat_map(|head| tokens.clone().map(move |token| (head, token)))
                {
                    widen(self.spec.kv_dtype, &self.expected[&key((layer, plane, head, token))], &mut right);
                    let at = (token - tokens.start) * elements;
                    let row = &found.rows(in_model, plane, first_head + head)[at..at + elements];
                    if !row.iter().zip(&right).all(|(a, b)| a.to_bits() == b.to_bits()) {
                        let name = name((layer, plane, head, token));
                        return self.fault(&format!(
                            "a save that reads tokens {tokens:?} reads another row of {name}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Tables from before a reassignment.
    fn stale_tables(&mut self) -> Result<(), PageStoreFault> {
        let old = self.table();
        self.pages.reassign();
        self.look()?;
        for (layer, plane, heads, _) in planes(&self.device) {
            let cut = (layer, plane, 0..heads, 0..self.tokens);
            let rows = self.random_rows(&cut);
            if self.write(&old, &cut, rows.rows()) != heads * self.tokens {
                return self
                    .fault("a table from before a reassignment still writes: compare the page's generation");
            }
            self.holds("after a table from before a reassignment was refused")?;
            if self.read(&old, layer, &(0..self.tokens)).is_ok_and(|(is_the_tables, _)| is_the_tables) {
                return self.fault(
                    "a save reads pages of a table from before a reassignment: compare the page's generation",
                );
            }
        }
        Ok(())
    }

    /// Pages of a future generation, and pages that do not exist.
    fn other_pages(&mut self) -> Result<(), PageStoreFault> {
        let table = self.table();
        let Some(page) = table.pages().first().copied() else { return Ok(()) };
        let others = [
            (PageRef { generation: page.generation.wrapping_add(1), ..page }, "a later generation of a page"),
            (PageRef { index: u32::MAX, ..page }, "a page that does not exist"),
        ];
        for (other, what) in others {
            for (layer, plane, heads, _) in planes(&self.device) {
                let rows = self.random_rows(&(layer, plane, 0..heads, 0..1));
                if table.store().write(other, &PageRows::new(layer, plane, 0, 0, rows.rows())) {
                    return self.fault(&format!("{what} was written: write nothing and answer false"));
                }
                self.holds(&format!("after {what} was refused"))?;
            }
        }
        Ok(())
    }

    /// Two threads write different heads of the same pages.
    fn threads_side_by_side(&mut self) -> Result<(), PageStoreFault> {
        let table = self.table();
        for (layer, plane, heads, _) in planes(&self.device) {
            let cuts = [0..heads / 2, heads / 2..heads].map(|heads| (layer, plane, heads, 0..self.tokens));
            let rows = [self.random_rows(&cuts[0]), self.random_rows(&cuts[1])];
            let refused = std::thread::scope(|scope| {
                let threads = [0, 1].map(|of| {
                    let (table, cut, rows) = (&table, &cuts[of], &rows[of]);
                    scope.spawn(move || write_pages(table, cut, rows.rows()))
                });
                threads.map(|thread| thread.join().unwrap_or(usize::MAX))
            });
            if refused != [0, 0] {
                return self
                    .fault("of two threads that wrote heads of the same pages, one was refused or panicked");
            }
            cuts.into_iter().zip(&rows).for_each(|(cut, rows)| self.note(cut, rows));
            self.holds("after two threads wrote heads of the same pages")?;
        }
        Ok(())
    }

    /// Reassigns pages while a thread writes, and lets their next owner write them.
    fn race(&mut self) -> Result<(), PageStoreFault> {
        let Some((layer, plane, heads, _)) = planes(&self.device).first().copied() else { return Ok(()) };
        let cut = (layer, plane, 0..heads, 0..self.tokens);
        let (theirs, ours, old) = (self.random_rows(&cut), self.random_rows(&cut), self.table());
        let (over, started) = (AtomicBool::new(false), Barrier::new(2));
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| {
                write_pages(&old, &cut, theirs.rows());
                started.wait();
                while !over.load(Ordering::Relaxed) {
                    write_pages(&old, &cut, theirs.rows());
                }
            });
            started.wait();
            std::thread::yield_now();
            self.pages.reassign();
            let refused = write_pages(&self.table(), &cut, ours.rows());
            over.store(true, Ordering::Relaxed);
            refused
        });
        if refused > 0 {
            return self.fault("a table that was made after a reassignment was refused");
        }
        // The thread has ended, and with it the write that raced with the reassignment.
        let places = (0..heads).flat_map(|head| (0..self.tokens).map(move |token| (head, token)));
        for (head, token) in places {
            if self.pages.row(layer, plane, head, token) != ours.bytes(head, token) {
                return self.fault(
                    "a thread with a table from before a reassignment wrote over the next owner's rows: compare the \
                     generation and write in one step, under one lock",
                );
            }
        }
        Ok(())
    }
}

/// Layer, plane, heads and elements of every non-empty plane.
pub(super) fn planes(spec: &ModelSpec) -> Vec<(usize, Plane, usize, usize)> {
    let planes = spec.layers.iter().enumerate().flat_map(|(layer, kv)| {
        Plane::ALL
            .into_iter()
            .zip(kv.layout.planes())
            .map(move |(plane, (heads, elements))| (layer, plane, heads, elements))
    });
    planes.filter(|(.., heads, elements)| heads * elements > 0).collect()
}

/// Writes straight into the pages of a table. Returns the number of refused rows.
fn write_pages(table: &BlockTable, (layer, plane, heads, tokens): &Cut, rows: Rows<'_>) -> usize {
    let mut refused = 0;
    for (page, first) in table.pages().iter().zip(tokens.clone().step_by(table.page_tokens())) {
        let part = rows.part(0..heads.len(), first..first + table.page_tokens());
        let (count, part) = (part.tokens(), PageRows::new(*layer, *plane, heads.start, 0, part));
        refused += if table.store().write(*page, &part) { 0 } else { count * heads.len() };
    }
    refused
}

const fn key((layer, plane, head, token): Place) -> (usize, usize, usize, usize) {
    (layer, plane as usize, head, token)
}

fn name((layer, plane, head, token): Place) -> String {
    format!("layer {layer}, {plane:?}, head {head}, token {token}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
