//! How fast one core of this machine decodes a profile, and the cores that keep up with a link. A chunk is drawn
//! from the profile's own tables, so no KV is needed: its symbols are as frequent as those of the training text.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use kvasir_codec::{
    Bf16Buffer, ChunkDecoder as _, ChunkInput, CodedSpan, CpuDecoder, CpuEncoder, KvBuffer, LevelNote,
    PlanView, PredictorView, Profile, ProfileError,
    authoring::{Basis, ProfileParts, Scope},
    container::Head,
    rans::{
        AliasTable, Coding, ESCAPE, PieceEncoder, PieceError, PiecePlan, TableBank, TritTable, VALUE_MAX,
    },
};
use kvasir_model::plan::Rate;
use kvasir_types::{
    ChainLink, KvDtype, KvLayout, LayerKv, Level, Loss, ModelSpec, Pairing, Reuse, Rope, RopeFormula,
    SPAN_TOKENS,
};
use serde::Serialize;

use crate::{
    error::{CliError, CliResult, Exit},
    output::{bytes, columns},
};

/// Elements of a token that are decoded: of larger models, evenly spaced layers are measured.
const SAMPLE_ELEMENTS: usize = 16_384;
/// Most rounds over all levels; the median of a level's times counts.
const ROUNDS: usize = 5;
/// No round begins later.
const TIME_MAX: Duration = Duration::from_millis(400);
/// Links that decoding is compared with, in Gb/s.
const LINKS: [u32; 3] = [1, 10, 100];

/// Decoding at one level, on one core.
#[derive(Debug, Serialize)]
pub(crate) struct LevelSpeed {
    level: u8,
    seconds_per_1000_tokens: f64,
    /// By the bits an element that training measured; `None` if it measured none.
    bytes_per_1000_tokens: Option<f64>,
    cores: Vec<LinkCores>,
}

/// Cores that decode as fast as a link delivers.
#[derive(Debug, Serialize)]
struct LinkCores {
    gbit_per_s: u32,
    cores: f64,
}

impl LevelSpeed {
    fn new(level: u8, seconds: f64, note: &LevelNote, elements: usize) -> Self {
        let encoded = f64::from(note.bits_per_element) * elements as f64 * 1e3 / 8.0;
        let encoded = (encoded > 0.0).then_some(encoded);
        let of_link = |encoded: f64| {
            LINKS.map(|gbit_per_s| LinkCores { gbit_per_s, cores: cores(seconds, encoded, gbit_per_s) })
        };
        Self {
            level,
            seconds_per_1000_tokens: seconds,
            bytes_per_1000_tokens: encoded,
            cores: encoded.map_or_else(Vec::new, |encoded| of_link(encoded).into()),
        }
    }
}

/// Core seconds of decoding what a link delivers in one second.
fn cores(seconds: f64, encoded_bytes: f64, gbit_per_s: u32) -> f64 {
    f64::from(gbit_per_s) * 1e9 / 8.0 / encoded_bytes * seconds
}

/// KV bytes (16-bit) that so many cores decode per second, for each of `count` levels; none if none was measured.
pub(crate) fn rates(levels: &[LevelSpeed], elements: u64, cores: usize, count: usize) -> Vec<Rate> {
    let bytes = elements as f64 * 2.0 * 1e3 * cores as f64;
    let mut rates: Vec<_> =
        levels.iter().map(|level| Rate::measured(bytes / level.seconds_per_1000_tokens)).collect();
    // The exact level is not measured. It includes a decode of the level beneath it, so it is no faster.
    if let Some(beneath) = rates.last().copied() {
        rates.resize(count, Rate::assumed(beneath.value));
    }
    rates
}

/// A table of the levels, with its title.
pub(crate) fn table(levels: &[LevelSpeed]) -> String {
    if levels.is_empty() {
        return "decoding     the profile has an exact level alone, which is not measured".to_owned();
    }
    let links = LINKS.map(|link| format!("cores at {link} Gb/s"));
    let header = ["level", "seconds", "bytes"].map(str::to_owned).into_iter().chain(links);
    let mut rows = vec![header.collect::<Vec<_>>()];
    for level in levels {
        let size = level.bytes_per_1000_tokens.map_or_else(|| "–".to_owned(), |size| bytes(size as u64));
        let cells = [level.level.to_string(), format!("{:.4}", level.seconds_per_1000_tokens), size];
        let cores = level
            .cores
            .iter()
            .map(|link| format!("{:.*}", if link.cores < 10.0 { 2 } else { 0 }, link.cores));
        rows.push(cells.into_iter().chain(cores).collect());
    }
    format!("decoding 1,000 tokens on one core of this machine, measured now\n{}", columns(&rows))
}

/// Elements of a token's KV.
pub(crate) fn elements(profile: &Profile) -> usize {
    elements_of(&profile.parts().scopes)
}

fn elements_of(scopes: &[Scope]) -> usize {
    scopes.iter().map(Scope::elements).sum()
}

/// Measures every level but the exact one, which no table predicts; takes about a second, longer where a scope spans
/// many layers.
///
/// # Errors
/// If the profile's members are not the heads of any model.
pub(crate) fn measure(profile: &Profile) -> CliResult<Vec<LevelSpeed>> {
    let parts = profile.parts();
    let all = elements_of(&parts.scopes);
    let (spec, sample) = sample(parts);
    let share = elements_of(&sample.scopes) as f64 / all as f64;
    if sample.scopes.is_empty() || profile.lossy_levels() == 0 {
        return Ok(Vec::new());
    }
    let unsuitable =
        |error: ProfileError| CliError::new(Exit::Data, format!("decoding cannot be measured: {error}"), "");
    let sample = Arc::new(Profile::assemble(sample).map_err(unsuitable)?);
    let spec = Arc::new(spec);
    let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&sample)).map_err(unsuitable)?;
    let decoder = CpuDecoder::new(spec, sample).map_err(unsuitable)?;
    let object = drawn_chunk(&encoder)?;
    let head = Head::parse(&object).map_err(CliError::internal)?;
    let one_core = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(CliError::internal)?;
    let times = one_core.install(|| decode_times(&decoder, &head, &object))?;
    let scale = 1e3 / SPAN_TOKENS as f64 / share;
    let notes = profile.levels().iter();
    let level = |(index, (seconds, note)): (usize, (f64, &LevelNote))| {
        LevelSpeed::new(index as u8, seconds * scale, note, all)
    };
    Ok(times.into_iter().zip(notes).enumerate().map(level).collect())
}

/// Some of a profile's layers, as a profile of a model that has only those.
fn sample(mut parts: ProfileParts) -> (ModelSpec, ProfileParts) {
    let all = elements_of(&parts.scopes);
    let groups = layer_groups(parts.scopes);
    let step = all.div_ceil(SAMPLE_ELEMENTS).max(1);
    let first = (step / 2).min(groups.len().saturating_sub(1));
    parts.scopes = groups.into_iter().skip(first).step_by(step).flatten().collect();
    parts.exact_tokens = 0;
    for scope in &mut parts.scopes {
        // Encoders would derive one, which takes longer than the measurement; a drawn chunk needs none.
        if let Basis::Trained { synthesis, analysis, .. } = &mut scope.basis {
            analysis.get_or_insert_with(|| synthesis.clone());
        }
    }
    let spec = model_of(&mut parts.scopes);
    parts.model_id = spec.model_id();
    (spec, parts)
}

fn layers(scope: &Scope) -> (usize, usize) {
    let layers = scope.members.iter().map(|member| member.layer);
    (layers.clone().min().unwrap_or(0), layers.max().unwrap_or(0))
}

/// Scopes by layer, those that share layers together.
fn layer_groups(mut scopes: Vec<Scope>) -> Vec<Vec<Scope>> {
    scopes.sort_by_key(layers);
    let mut groups: Vec<(usize, Vec<Scope>)> = Vec::new();
    for scope in scopes {
        let (first, last) = layers(&scope);
        match groups.last_mut().filter(|(end, _)| first <= *end) {
            Some((end, group)) => {
                *end = last.max(*end);
                group.push(scope);
            }
            None => groups.push((last, vec![scope])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// A model with the layers of these scopes, which are numbered anew. Its positions rotate as many elements as
/// heads have: the angles do not affect the time.
fn model_of(scopes: &mut [Scope]) -> ModelSpec {
    let mut shapes = BTreeMap::<usize, ([(usize, usize); 2], bool)>::new();
    for scope in scopes.iter() {
        for member in &scope.members {
            let (planes, rotated) = shapes.entry(member.layer).or_default();
            let (heads, dim) = &mut planes[member.plane as usize];
            (*heads, *dim) = ((*heads).max(member.head + 1), member.dim);
            *rotated |= scope.unrope;
        }
    }
    let numbers: BTreeMap<usize, usize> = shapes.keys().copied().zip(0..).collect();
    for member in scopes.iter_mut().flat_map(|scope| &mut scope.members) {
        member.layer = numbers[&member.layer];
    }
    let rotary_dims = |[keys, values]: [(usize, usize); 2]| if keys == values { keys.1 } else { values.1 };
    let dims = shapes.values().filter(|(_, rotated)| *rotated).map(|(planes, _)| rotary_dims(*planes)).min();
    let formula = |dims: usize| RopeFormula { rotary_dims: dims as u32, theta: 1e4, scaling: None };
    let rope = dims.and_then(|dims| Rope::of(Pairing::Half, formula(dims)).ok());
    let layer = |([keys, values], rotated): ([(usize, usize); 2], bool)| LayerKv {
        layout: match keys == values {
            true => KvLayout::Gqa { kv_heads: keys.0 as u32, head_dim: keys.1 as u32 },
            false => KvLayout::Mla { latent: keys.1 as u32, rope_dims: values.1 as u32 },
        },
        rope: (rotated && rope.is_some()).then_some(0),
    };
    let layers = shapes.into_values().map(layer).collect();
    ModelSpec {
        weights: "layers of a profile".to_owned(),
        revision: "1".to_owned(),
        adapter: None,
        kv_dtype: KvDtype::Bf16,
        ropes: rope.into_iter().collect(),
        layers,
        thinning: None,
        reuse: Reuse::Prefix,
    }
}

/// An object of one span.
fn drawn_chunk(encoder: &CpuEncoder) -> CliResult<Vec<u8>> {
    let tokens: Vec<u32> = (0..SPAN_TOKENS as u32).collect();
    let no_kv = KvBuffer::new(encoder.spec(), 0);
    let input = ChunkInput {
        tokens: &tokens,
        preceding_token: None,
        first_position: 0,
        link: ChainLink::first([0; 32].into()),
        beneath: Loss::NONE,
        kv: &no_kv,
    };
    let mut draws = Draws { bank: encoder.profile().bank(), state: 1 };
    let spans = (0..encoder.scope_count()).map(|scope| drawn_span(encoder, scope, &mut draws));
    let spans = spans.collect::<Result<Vec<_>, _>>().map_err(CliError::internal)?;
    let (object, _) = encoder.assemble_spans(&input, spans).map_err(CliError::internal)?;
    Ok(object)
}

fn drawn_span(encoder: &CpuEncoder, scope: usize, draws: &mut Draws<'_>) -> Result<CodedSpan, PieceError> {
    let Some(view) = encoder.scope_view(scope) else { return Ok(CodedSpan::default()) };
    let mut span = CodedSpan::default();
    let mut tokens = SPAN_TOKENS;
    if let PredictorView::Anchors { group, plan, .. } = view.predictor {
        let anchors = SPAN_TOKENS.div_ceil(group);
        span.anchors = draws.piece(plan, anchors, &mut vec![0; view.rank * anchors])?;
        tokens -= anchors;
    }
    let mut values = vec![0; view.rank * tokens];
    for plan in view.levels {
        span.levels.push(draws.piece(plan, tokens, &mut values)?);
    }
    Ok(span)
}

/// Symbols, each as often as its table says.
struct Draws<'a> {
    bank: &'a TableBank,
    state: u64,
}

impl Draws<'_> {
    /// The piece of one level; `values`, `[coefficient][token]`, become those of that level.
    fn piece(
        &mut self,
        (coefficients, codings): PlanView<'_>,
        tokens: usize,
        values: &mut [i32],
    ) -> Result<Option<Vec<u8>>, PieceError> {
        if tokens == 0 || codings.is_empty() {
            return Ok(None);
        }
        let mut of_plan = Vec::with_capacity(codings.len() * tokens);
        for (coefficient, coding) in coefficients.iter().zip(codings) {
            for value in &mut values[coefficient * tokens..(coefficient + 1) * tokens] {
                *value = self.value(*coding, *value);
                of_plan.push(*value);
            }
        }
        let (plan, mut piece) = (PiecePlan { coefficients: codings, tokens }, Vec::new());
        PieceEncoder::best().encode_piece(self.bank, &plan, &of_plan, &mut piece)?;
        Ok((!piece.is_empty()).then_some(piece))
    }

    fn value(&mut self, coding: Coding, coarse: i32) -> i32 {
        let bank = self.bank;
        match coding {
            Coding::Stage { table, trits, trit_table } => {
                let entered = stage_value(&bank.stage_tables()[usize::from(table)], self.slot());
                (0..trits).fold(entered, |value, _| self.refined(trit_table, value))
            }
            Coding::Trit { table } => self.refined(table, coarse),
        }
    }

    fn refined(&mut self, table: u8, coarse: i32) -> i32 {
        let bank = self.bank;
        let table = &bank.trit_tables()[usize::from(table)];
        // Tables of many trits may draw more than a piece can hold.
        (3 * coarse + digit(table, coarse, self.slot())).clamp(-VALUE_MAX, VALUE_MAX)
    }

    /// 12 even bits.
    fn slot(&mut self) -> u32 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 52) as u32
    }
}

/// The value of a slot of a stage table; the smallest one above the symbols for the escape.
fn stage_value(table: &AliasTable, slot: u32) -> i32 {
    let mut end = 0;
    let is_before = |frequency: &u16| {
        end += u32::from(*frequency);
        end <= slot
    };
    let symbol = table.frequencies().iter().copied().take_while(is_before).count();
    if symbol >= ESCAPE { 8 } else { symbol as i32 - 7 }
}

/// The digit of a slot of a trit table, after a coarser value.
fn digit(table: &TritTable, coarse: i32, slot: u32) -> i32 {
    let [zero, up] = table.thresholds(TritTable::context(coarse)).map(u32::from);
    let folded = i32::from(slot >= zero) + i32::from(slot >= up) - 1;
    if coarse < 0 { -folded } else { folded }
}

/// Median seconds of each lossy level.
fn decode_times(decoder: &CpuDecoder, head: &Head, object: &[u8]) -> CliResult<Vec<f64>> {
    let mut times = vec![Vec::new(); decoder.profile().lossy_levels()];
    let mut rows = Bf16Buffer::new(decoder.spec(), SPAN_TOKENS);
    let started = Instant::now();
    for round in 0..=ROUNDS {
        for (level, times) in times.iter_mut().enumerate() {
            let start = Instant::now();
            let decoded = decoder.decode(head, object, Level(level as u8), 0..SPAN_TOKENS, &mut rows);
            decoded.map_err(CliError::internal)?;
            // The first round only fills caches and scratch memory.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64());
            }
        }
        if round > 0 && started.elapsed() > TIME_MAX {
            break;
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_the_seconds_of_the_bytes_of_a_second() {
        // 1,000 tokens are 1.25 MB and take 0.02 s: a link of 1 Gb/s brings 100 times as many each second.
        assert!((cores(0.02, 1.25e6, 1) - 2.0).abs() < 1e-9);
        let note = LevelNote { bits_per_element: 2.0, ..LevelNote::default() };
        let speed = LevelSpeed::new(3, 0.02, &note, 5_000);
        assert_eq!(speed.bytes_per_1000_tokens, Some(1.25e6));
        let cores: Vec<_> = speed.cores.iter().map(|link| link.cores.round()).collect();
        assert_eq!(cores, [2.0, 20.0, 200.0]);
        let text = table(&[speed]);
        assert!(text.contains("cores at 100 Gb/s") && text.contains("200"), "{text}");
    }

    #[test]
    fn a_level_of_unknown_size_has_no_cores() {
        let speed = LevelSpeed::new(0, 0.02, &LevelNote::default(), 5_000);
        assert!(speed.bytes_per_1000_tokens.is_none() && speed.cores.is_empty());
        assert!(table(&[speed]).contains('–'));
    }

    #[test]
    fn the_level_that_is_not_measured_is_assumed_as_fast_as_the_one_beneath() {
        let speeds = [0.01, 0.02].map(|seconds| LevelSpeed::new(0, seconds, &LevelNote::default(), 5_000));
        // 1,000 tokens are 10 MB.
        let all = rates(&speeds, 5_000, 2, 3);
        let close = |rate: &Rate, expected: f64| (rate.value / expected - 1.0).abs() < 1e-9;
        assert!(close(&all[0], 2e9) && close(&all[1], 1e9) && close(&all[2], 1e9), "{all:?}");
        assert_eq!([0, 1, 2].map(|level| all[level].source.as_str()), ["measured", "measured", "assumed"]);
        assert!(rates(&[], 5_000, 2, 1).is_empty());
    }

    #[test]
    fn symbols_are_drawn_as_often_as_their_tables_say() {
        let mut frequencies = [0; 16];
        (frequencies[6], frequencies[7], frequencies[ESCAPE]) = (1_000, 3_000, 96);
        let table = AliasTable::from_frequencies(&frequencies).expect("they sum to 4,096");
        let drawn = |value: i32| (0..4_096).filter(|slot| stage_value(&table, *slot) == value).count();
        assert_eq!([-1, 0, 1, 8].map(drawn), [1_000, 3_000, 0, 96]);
        let table = TritTable::new([[96, 4_000], [1_000, 2_000]]).expect("ascending");
        let drawn =
            |coarse, value: i32| (0..4_096).filter(|slot| digit(&table, coarse, *slot) == value).count();
        assert_eq!([-1, 0, 1].map(|value| drawn(0, value)), [96, 3_904, 96]);
        // Counted away from zero.
        assert_eq!([-1, 0, 1].map(|value| drawn(5, value)), [1_000, 1_000, 2_096]);
        assert_eq!([-1, 0, 1].map(|value| drawn(-5, value)), [2_096, 1_000, 1_000]);
    }
}
