//! The held-out check: the actual cost and loss of a finished profile.

use std::{ops::Range, sync::Arc};

use kvasir_codec::container::Head;
use kvasir_types::{CHUNK_TOKENS_DEFAULT, ChainLink, Level, Loss, ModelSpec};

use super::{TrainError, TrainingContext, data::Corpus, sensitivity::Sensitivity};
use kvasir_codec::{
    ChunkDecoder, ChunkEncoder, ChunkInput, CpuDecoder, CpuEncoder, DecodeError, KvBuffer, Profile, Tokens,
    authoring::{Member, ProfileParts, plane_errors},
};

/// Most held-out tokens coded for the check.
const CHECK_TOKENS_MAX: usize = 6_144;

/// Encodes and decodes held-out chunks and records bits per element and error by level.
pub(super) fn note_levels(
    spec: &ModelSpec,
    corpus: &Corpus<'_>,
    mut parts: ProfileParts,
    sensitivity: &Sensitivity,
) -> Result<Profile, TrainError> {
    let profile = Arc::new(Profile::assemble(parts.clone())?);
    let spec = Arc::new(spec.clone());
    let encoder = CpuEncoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
    let decoder = CpuDecoder::new(Arc::clone(&spec), Arc::clone(&profile))?;
    let levels = profile.level_count();
    let planes = 2 * spec.layers.len();
    let (mut bits, mut errors) = (vec![0f64; levels], vec![vec![0f64; planes]; levels]);
    let mut powers = vec![0f64; planes];
    let mut elements = 0f64;
    for (context, range) in chunks(corpus) {
        let source = &corpus.contexts[context];
        let input = Tokens::from(&source.kv, range.start);
        let object = encode(&encoder, source, &range)?;
        let head = Head::parse(&object).map_err(|e| TrainError::Check(DecodeError::from(e)))?;
        let truth = KvBuffer::from_source(&spec, range.len(), &input);
        elements += (range.len() * spec.elements_per_token()) as f64;
        for level in 0..levels {
            let at = Level(level as u8);
            bits[level] += 8.0 * head.level_bytes(at).unwrap_or(object.len() as u64) as f64;
            let mut decoded = KvBuffer::new(&spec, range.len());
            decoder.decode(&head, &object, at, 0..range.len(), &mut decoded).map_err(TrainError::Check)?;
            add_scaled_powers(&spec, &truth, Some(&decoded), &mut errors[level]);
        }
        add_scaled_powers(&spec, &truth, None, &mut powers);
    }
    for (level, note) in parts.levels.iter_mut().enumerate() {
        note.bits_per_element = (bits[level] / elements.max(1.0)) as f32;
        let (error, power) = (errors[level].iter().sum::<f64>(), powers.iter().sum::<f64>());
        note.nmse = (error / power.max(f64::MIN_POSITIVE)) as f32;
    }
    for scope in &mut parts.scopes {
        for (loss, errors) in scope.loss.iter_mut().zip(&errors) {
            *loss = scope_loss(&spec, &scope.members, errors, &powers, sensitivity) as f32;
        }
    }
    Ok(Profile::assemble(parts)?)
}

/// The errors of the finest level but one on held-out chunks, relative to the bound of `transparent`, as the encoder
/// measures them; increasing.
pub(super) fn reserved_errors(
    spec: &ModelSpec,
    corpus: &Corpus<'_>,
    parts: &ProfileParts,
) -> Result<Vec<f64>, TrainError> {
    let profile = Arc::new(Profile::assemble(parts.clone())?);
    let level = Level(profile.lossy_levels().saturating_sub(2) as u8);
    let encoder = CpuEncoder::new(Arc::new(spec.clone()), profile)?;
    let mut errors = Vec::new();
    for (context, range) in chunks(corpus) {
        let object = encode(&encoder, &corpus.contexts[context], &range)?;
        let head = Head::parse(&object).map_err(|e| TrainError::Check(DecodeError::from(e)))?;
        let error = head.measured().and_then(|measured| measured.error(level).get());
        errors.push(error.unwrap_or(f64::INFINITY));
    }
    errors.sort_by(f64::total_cmp);
    Ok(errors)
}

/// A held-out chunk of a context.
fn encode(
    encoder: &CpuEncoder,
    source: &TrainingContext,
    range: &Range<usize>,
) -> Result<Vec<u8>, TrainError> {
    let input = ChunkInput {
        tokens: &source.tokens[range.clone()],
        preceding_token: range.start.checked_sub(1).map(|t| source.tokens[t]),
        first_position: source.first_position + range.start as u64,
        link: ChainLink::first([0; 32].into()),
        beneath: Loss::NONE,
        kv: &Tokens::from(&source.kv, range.start),
    };
    Ok(encoder.encode(&input)?)
}

/// Held-out chunks, longest first within the limit of the check.
fn chunks(corpus: &Corpus<'_>) -> Vec<(usize, Range<usize>)> {
    let mut chunks: Vec<(usize, Range<usize>)> = Vec::new();
    for segment in &corpus.held_out {
        match chunks.last_mut() {
            Some((context, range))
                if *context == segment.context
                    && range.end == segment.tokens.start
                    && segment.tokens.end - range.start <= CHUNK_TOKENS_DEFAULT =>
            {
                range.end = segment.tokens.end;
            }
            _ => chunks.push((segment.context, segment.tokens.clone())),
        }
    }
    let mut left = CHECK_TOKENS_MAX;
    chunks.retain(|(_, range)| {
        let fits = range.len() <= left;
        left -= if fits { range.len() } else { 0 };
        fits
    });
    chunks
}

/// The cost of the errors of a scope's members: its share of every plane's.
fn scope_loss(
    spec: &ModelSpec,
    members: &[Member],
    errors: &[f64],
    powers: &[f64],
    sensitivity: &Sensitivity,
) -> f64 {
    let of_member = |member: &Member| {
        let (heads, dim) = spec.layers[member.layer].layout.planes()[member.plane as usize];
        let index = 2 * member.layer + member.plane as usize;
        let nmse = errors[index] / powers[index].max(f64::MIN_POSITIVE);
        nmse * sensitivity.loss(member.layer, member.plane) * member.dim as f64 / (heads * dim).max(1) as f64
    };
    members.iter().map(of_member).sum()
}

/// Adds, by `2 · layer + plane`, the error of `decoded` (1 without it) times the plane's elements, so that
/// all elements have the same weight.
fn add_scaled_powers(spec: &ModelSpec, truth: &KvBuffer, decoded: Option<&KvBuffer>, sums: &mut [f64]) {
    let sizes = spec.layers.iter().flat_map(|kv| kv.layout.planes()).map(|(heads, dim)| heads * dim);
    let errors = plane_errors(spec, truth, decoded.unwrap_or(truth));
    for ((sum, error), size) in sums.iter_mut().zip(errors).zip(sizes) {
        let share = error.map_or(0.0, |error| if decoded.is_some() { error } else { 1.0 });
        *sum += share * (size * truth.tokens()) as f64;
    }
}
