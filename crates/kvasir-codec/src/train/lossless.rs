//! The exact level of a profile: which tables and bases its symbols have, counted on the contexts.

use std::{ops::Range, sync::Arc};

use kvasir_container::Head;
use kvasir_types::Level;

use super::{TrainError, cluster::cluster, data::Corpus};
use crate::{
    ChunkDecoder, ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, DecodeError, KvBuffer, KvSource,
    LevelNote, Profile, Tokens,
    lossless::{ElementCoding, Float, Lossless, float_of},
    profile::ProfileParts,
    rans::{ALPHABET, AliasTable, STAGE_TABLES_MAX, StageSymbol, TableBank},
    transform::Elements,
};

/// Tables of exact levels; the others are the lossy levels'.
pub(super) const LOSSLESS_TABLES: usize = 24;
/// Most tokens counted.
const TOKENS_MAX: usize = 8_192;
/// Keys are exponents, plus up to 17 bits.
const KEYS: usize = 256 + 18;

/// Adds an exact level on top of a direct profile's levels, or makes it the only one.
pub(super) fn add(
    corpus: &Corpus<'_>,
    mut parts: ProfileParts,
    residual: bool,
) -> Result<ProfileParts, TrainError> {
    let Some(float) = float_of(corpus.spec.kv_dtype) else {
        let why = "caches of f32 and of scaled int8 values have no exact level: they are not 16-bit floats";
        return Err(TrainError::Recipe { field: "recipe", why: why.to_owned() });
    };
    let mut drafts = Vec::with_capacity(parts.scopes.len());
    for scope in 0..parts.scopes.len() {
        drafts.push(count(corpus, &parts, scope, float, residual)?);
    }
    let counts: Vec<[f64; ALPHABET]> = drafts.iter().flatten().map(|(_, counts)| *counts).collect();
    let (ids, sums) = cluster(&counts, LOSSLESS_TABLES);
    let kept = if residual { parts.bank.stage_tables().to_vec() } else { Vec::new() };
    let first = kept.len();
    debug_assert!(first + sums.len() <= STAGE_TABLES_MAX);
    let tables = sums.iter().map(|counts| AliasTable::from_counts(&counts.map(|n| n as u64 + 1)));
    parts.bank = TableBank::new(kept.into_iter().chain(tables).collect(), parts.bank.trit_tables().to_vec())
        .map_err(|e| crate::ProfileError::Invalid { field: "table bank", found: e.to_string() })?;
    parts.shifts.truncate(first);
    parts.shifts.resize(parts.bank.stage_tables().len(), Default::default());
    let mut ids = ids.into_iter();
    for (scope, draft) in parts.scopes.iter_mut().zip(drafts) {
        let with_table = |(coding, _): (ElementCoding, _)| ElementCoding {
            table: (first + ids.next().unwrap_or(0)) as u8, // fewer than 128
            ..coding
        };
        scope.lossless = Some(Lossless { residual, elements: draft.into_iter().map(with_table).collect() });
        if !residual {
            scope.coding.fill(crate::profile::CoefficientCoding::ABSENT);
            scope.loss.clear();
        }
        scope.loss.push(0.0);
    }
    if !residual {
        parts.levels.clear();
    }
    parts.levels.push(LevelNote { kl: Some(0.0), ..LevelNote::default() });
    Ok(parts)
}

/// How every element of a scope is coded, but for its table, and how often each of its symbols occurs.
fn count(
    corpus: &Corpus<'_>,
    parts: &ProfileParts,
    scope: usize,
    float: Float,
    residual: bool,
) -> Result<Vec<(ElementCoding, [f64; ALPHABET])>, TrainError> {
    let draft = Lossless { residual, elements: Vec::new() };
    let elements = Elements::new(corpus.spec, &parts.scopes[scope]);
    let floors: Vec<u8> = parts.scopes[scope]
        .members
        .iter()
        .flat_map(|member| {
            let floor = float.exponent(float.bits(0.5 * member.gain)).min(255) as u8;
            std::iter::repeat_n(if residual { floor } else { 0 }, member.dim)
        })
        .collect();
    let mut keys = vec![0u32; floors.len() * KEYS];
    each_segment(corpus, parts, residual, &mut |source, decoded, range| {
        let (mut raw, mut predicted) = (Vec::new(), Vec::new());
        elements.read(source, &range, &mut raw);
        elements.read(decoded, &(0..range.len()), &mut predicted);
        let tokens = range.len();
        let (raw, predicted) = (elements.by_element(tokens, &raw), elements.by_element(tokens, &predicted));
        for (index, (value, predicted)) in raw.iter().zip(&predicted).enumerate() {
            let element = index / tokens;
            let split = draft.split(float, floors[element], float.bits(*value), float.bits(*predicted));
            keys[element * KEYS + split.key as usize] += 1;
        }
    })?;
    let coding = |(counts, floor): (&[u32], &u8)| {
        let base = best_base(counts);
        let mut symbols = [0.0; ALPHABET];
        for (key, count) in counts.iter().enumerate() {
            symbols[StageSymbol::of(key as i32 - i32::from(base)).index()] += f64::from(*count);
        }
        (ElementCoding { table: 0, floor: *floor, base }, symbols)
    };
    Ok(keys.chunks_exact(KEYS).zip(&floors).map(coding).collect())
}

/// The base under which fewest keys escape; of several the one that centres the most frequent key.
fn best_base(counts: &[u32]) -> i16 {
    let most = (0..counts.len()).max_by_key(|key| counts[*key]).unwrap_or(0) as i64;
    let inside = |base: i64| {
        let keys = (base - 7).max(0)..(base + 8).min(counts.len() as i64);
        keys.map(|key| u64::from(counts[key as usize])).sum::<u64>()
    };
    let best = (most - 7..=most + 7).max_by_key(|base| (inside(*base), -(base - most).abs()));
    best.unwrap_or(most) as i16
}

/// Takes a context's cache, what a decoder makes of some of its tokens, and which.
type Each<'a> = dyn FnMut(&dyn KvSource, &KvBuffer, Range<usize>) + 'a;

/// Segments of the fitted contexts with what the finest lossy level makes of them.
fn each_segment(
    corpus: &Corpus<'_>,
    parts: &ProfileParts,
    residual: bool,
    each: &mut Each<'_>,
) -> Result<(), TrainError> {
    let spec = Arc::new(corpus.spec.clone());
    let profile = Arc::new(Profile::assemble(parts.clone())?);
    let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
    let decoder = CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
    let mut left = TOKENS_MAX;
    for segment in &corpus.fit {
        let (context, range) = (&corpus.contexts[segment.context], segment.tokens.clone());
        if range.len() > left {
            break;
        }
        left -= range.len();
        let mut decoded = KvBuffer::new(&spec, range.len());
        if residual {
            let input = ChunkInput {
                tokens: &context.tokens[range.clone()],
                preceding_token: None,
                first_position: range.start as u64,
                parent_hash: [0; 32],
                kl_beneath: 0.0,
                kv: &Tokens::from(&context.kv, range.start),
            };
            let object = encoder.encode(&input)?;
            let head = Head::parse(&object).map_err(|e| TrainError::Check(DecodeError::from(e)))?;
            let level = Level((profile.level_count() - 1) as u8);
            decoder.decode(&head, &object, level, 0..range.len(), &mut decoded).map_err(TrainError::Check)?;
        }
        each(&context.kv, &decoded, range);
    }
    Ok(())
}
