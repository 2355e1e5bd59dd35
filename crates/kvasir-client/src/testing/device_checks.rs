//! The check of a device that decodes into its own pages, for [`check_page_store`](super::check_page_store).

use std::{fmt::Display, ops::Range, sync::Arc};

use kvasir_codec::{
    ChunkDecoder as _, ChunkEncoder as _, ChunkInput, CpuDecoder, CpuEncoder, KvBuffer, Profile,
    container::Head, starter,
};
use kvasir_types::{ChainLink, Level, Loss, ModelSpec};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{PageStoreFault, TestedPages, page_checks::planes};
use crate::pages::{BlockTable, DevicePart, HostPages, PartOutcome, WriteGate};

/// Tokens of the chunk: one span and a part of another.
const TOKENS: usize = 300;
/// A part of them that begins and ends inside of spans, and of most pages.
const PART: Range<usize> = 37..290;
/// Seed of the chunk's values, so that a fault can be reproduced.
const SEED: u64 = 24;

/// A chunk of the model's first profile, whose rows are the same bits on every decoder.
struct Chunk {
    profile: Arc<Profile>,
    decoder: CpuDecoder,
    head: Head,
    object: Vec<u8>,
}

fn no_chunk(error: &dyn Display) -> PageStoreFault {
    PageStoreFault(format!("no chunk of this model could be made to check its device: {error}"))
}

impl Chunk {
    fn new(spec: &ModelSpec) -> Result<Self, PageStoreFault> {
        let (mut random, mut kv) = (StdRng::seed_from_u64(SEED), KvBuffer::new(spec, TOKENS));
        kv.as_mut_slice().iter_mut().for_each(|value| *value = random.random_range(-1.0..1.0));
        let tokens: Vec<u32> = (0..TOKENS as u32).collect();
        let profile = Arc::new(starter(spec, &tokens, 0, &kv).map_err(|error| no_chunk(&error))?);
        let spec = Arc::new(spec.clone());
        let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile));
        let input = ChunkInput {
            tokens: &tokens,
            preceding_token: None,
            first_position: 0,
            link: ChainLink::first([0; 32].into()),
            beneath: Loss::NONE,
            kv: &kv,
        };
        let object = encoder.map_err(|error| no_chunk(&error))?.encode(&input);
        let object = object.map_err(|error| no_chunk(&error))?;
        let head = Head::parse(&object).map_err(|error| no_chunk(&error))?;
        let decoder = CpuDecoder::new(spec, Arc::clone(&profile)).map_err(|error| no_chunk(&error))?;
        Ok(Self { profile, decoder, head, object })
    }

    /// Has the device of a table decode two parts at once as a load does, one group of layers after the other.
    ///
    /// # Errors
    /// What it says, if that is not `expected`.
    fn decode(
        &self,
        table: &BlockTable,
        level: Level,
        parts: &[Range<usize>; 2],
        expected: &[PartOutcome; 2],
    ) -> Result<(), String> {
        let device = table.device().ok_or("there is none any more")?;
        for group in self.decoder.layer_groups() {
            let part = |tokens: Range<usize>| {
                let object = (&self.head, &self.object[..]);
                DevicePart::new(table, &self.profile, object, group, level, 0, tokens)
            };
            let parts: Option<Vec<_>> = parts.clone().into_iter().map(part).collect();
            let outcomes = device.decode(&parts.ok_or("the table is too short")?)?.outcomes;
            if outcomes != expected {
                return Err(format!("of two parts it says {outcomes:?}"));
            }
        }
        Ok(())
    }

    /// What the device should have written, by the CPU.
    fn decode_to(
        &self,
        host: &BlockTable,
        spec: &ModelSpec,
        level: Level,
        tokens: Range<usize>,
    ) -> Result<(), PageStoreFault> {
        let gate = WriteGate::default();
        let mut sink = host.sink(spec, 0, &gate);
        let decoded = self.decoder.decode(&self.head, &self.object, level, tokens, &mut sink);
        decoded.map_err(|error| no_chunk(&error))
    }
}

/// The first row in which the pages differ from the host's, by name.
fn difference(spec: &ModelSpec, pages: &impl TestedPages, host: &HostPages) -> Option<String> {
    for (layer, plane, heads, _) in planes(spec) {
        for (head, token) in (0..heads).flat_map(|head| (0..TOKENS).map(move |token| (head, token))) {
            if pages.row(layer, plane, head, token) != host.row(layer, plane, head, token) {
                return Some(format!("layer {layer}, {plane:?}, head {head}, token {token}"));
            }
        }
    }
    None
}

/// Checks what the device decodes into pages of a whole model against the CPU's rows. Without a device there is nothing to
/// check.
pub(super) fn check_device<P: TestedPages>(
    spec: &ModelSpec,
    make: impl Fn(&ModelSpec, usize) -> P,
) -> Result<(), PageStoreFault> {
    let pages = make(spec, TOKENS);
    let table = pages.table();
    if table.device().is_none() {
        return Ok(());
    }
    let fault = |what: String| Err(PageStoreFault(what));
    let room = table.tokens();
    if room < TOKENS as u64 {
        return fault(format!("pages for {TOKENS} tokens were asked for, the table has room for {room}"));
    }
    let chunk = Chunk::new(spec)?;
    let host = HostPages::new(spec, table.page_tokens(), TOKENS).map_err(|error| no_chunk(&error))?;
    let host_table = host.table();
    let finest = Level(chunk.profile.lossy_levels().saturating_sub(1) as u8);
    for (level, tokens) in [(Level(0), 0..TOKENS), (finest, PART), (finest, 0..TOKENS)] {
        let middle = usize::midpoint(tokens.start, tokens.end);
        let halves = [tokens.start..middle, middle..tokens.end];
        let answer = [PartOutcome::Decoded, PartOutcome::Decoded];
        if let Err(reason) = chunk.decode(&table, level, &halves, &answer) {
            return fault(format!("the device did not decode a sound chunk: {reason}"));
        }
        chunk.decode_to(&host_table, spec, level, tokens.clone())?;
        if let Some(row) = difference(spec, &pages, &host) {
            let what = format!("after tokens {tokens:?}: the device's row of {row} is not the CPU's");
            return fault(what);
        }
    }
    pages.reassign();
    let page_tokens = table.page_tokens();
    // Where pages are short, parts are cut at the end of one, so that each has its own.
    let cut = (TOKENS / 2).checked_next_multiple_of(page_tokens).filter(|cut| *cut < TOKENS);
    let middle = cut.unwrap_or(TOKENS / 2);
    let parts = [0..middle, middle..TOKENS];
    let answer = [PartOutcome::Stale, PartOutcome::Stale];
    if let Err(reason) = chunk.decode(&table, Level(0), &parts, &answer) {
        let what = "a device was asked to decode into pages that were reassigned: write nothing, and say it";
        return fault(format!("{what}; {reason}"));
    }
    if let Some(row) = difference(spec, &pages, &host) {
        return fault(format!("a device wrote the row of {row} after its page was reassigned"));
    }
    if cut.is_none() {
        return Ok(());
    }
    let table = pages.table();
    let mut mixed = table.pages().to_vec();
    for page in mixed.iter_mut().take(middle / page_tokens) {
        page.generation = page.generation.wrapping_sub(1);
    }
    let answer = [PartOutcome::Stale, PartOutcome::Decoded];
    let what = "of two parts, only the first has pages that were reassigned";
    if let Err(reason) = chunk.decode(&table.with_pages(mixed), Level(0), &parts, &answer) {
        return fault(format!("{what}: {reason}"));
    }
    chunk.decode_to(&host_table, spec, Level(0), middle..TOKENS)?;
    match difference(spec, &pages, &host) {
        None => Ok(()),
        Some(row) => fault(format!("{what}: the device's row of {row} is not the CPU's")),
    }
}
