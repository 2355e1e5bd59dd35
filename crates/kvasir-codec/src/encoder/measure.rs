//! The errors of a span's lossy levels, by head, as a reader's cache will have them: in the type that it has.
//!
//! A scope without a basis is measured whole. A product with a basis costs as much as the analysis, at every level, so there a
//! sample of tokens stands for the span, with three standard errors added.

use std::ops::Range;

use kvasir_types::{KvDtype, LevelError, ModelSpec, Plane, Quality};

use super::span::SpanJob;
use crate::{
    MemberView, e4m3,
    levels::ratio,
    lossless::{FloatFormat, float_of},
    matrix::Matrix,
    prepared_scope::PreparedScope,
    profile::{Member, Predictor, Profile, Scope},
};

/// Tokens of a span that are measured if a basis must be multiplied.
const SAMPLE_TOKENS: usize = 16;
/// Standard errors that are added to a sample's result.
const STANDARD_ERRORS: f64 = 3.0;
/// An error that is equal at all tokens is not averaged out by attention: it counts ten times.
const CONSTANT_WEIGHT: f64 = 10.0;
/// The error of one token may be this many times the bound.
const TOKEN_ALLOWANCE: f64 = 16.0;
/// Where the power of rounding to the cache's type is below this share of a level's, it is added: to round and to rotate
/// costs more than the rest of a measurement.
const ROUNDING_SHARE: f64 = 1.0 / 64.0;

/// Errors of one head at one level, in squares of the finest step.
#[derive(Debug, Clone, Default)]
struct HeadErrors {
    /// Estimated sum over all tokens.
    total: f64,
    /// Variance of that estimate.
    variance: f64,
    /// The worst token's.
    worst: f64,
    /// Estimated sum over all tokens of the error itself, by element.
    sums: Vec<f64>,
}

/// Errors of one scope, over the spans that were added.
#[derive(Debug, Clone)]
pub(super) struct ScopeErrors {
    /// Tokens that are not stored exactly.
    tokens: usize,
    /// Those of them that were measured.
    measured: usize,
    /// `[level][member]`.
    levels: Vec<Vec<HeadErrors>>,
    /// `[member]`: of the finest level if its piece is left out; empty where that was not measured.
    left_out: Vec<HeadErrors>,
}

impl ScopeErrors {
    /// The errors of one span; `None` if the profile has no reference powers, or the scope has anchors.
    pub(super) fn of(job: &SpanJob<'_>) -> Option<Self> {
        let scope = job.scope;
        match &scope.predictor {
            _ if !scope.is_measured() => None,
            _ if job.prepared.levels.is_empty() => Some(Self::exact(job.prepared)),
            Predictor::AnchorFirst { .. } => None,
            Predictor::Mean if matches!(job.analysis, Matrix::Identity) => Some(Self::direct(job)),
            Predictor::Mean | Predictor::Token(_) => Some(Self::sampled(job)),
        }
    }

    /// `heads` are those of the [`steps`].
    fn new(
        job: &SpanJob<'_>,
        tokens: usize,
        measured: usize,
        heads: impl Iterator<Item = Vec<HeadErrors>>,
    ) -> Self {
        let mut levels: Vec<_> = heads.collect();
        let left_out = levels.split_off(job.prepared.levels.len()).pop().unwrap_or_default();
        Self { tokens, measured, levels, left_out }
    }

    /// Of a span that is stored exactly, or has no lossy level.
    pub(super) fn exact(prepared: &PreparedScope) -> Self {
        let heads = prepared
            .elements
            .views()
            .map(|member| HeadErrors { sums: vec![0.0; member.dim], ..HeadErrors::default() });
        let heads: Vec<_> = heads.collect();
        let levels = prepared.levels.iter().map(|_| heads.clone()).collect();
        Self { tokens: 0, measured: 0, levels, left_out: Vec::new() }
    }

    fn direct(job: &SpanJob<'_>) -> Self {
        let tokens = job.exact..job.ropes.tokens();
        let levels = steps(job);
        let mut heads = vec![Vec::new(); levels.len()];
        let (mut cached, mut rows, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for member in job.prepared.elements.views() {
            cached.resize(member.dim * tokens.len(), 0.0);
            read(job, &member, tokens.clone(), &mut cached);
            rows.clear();
            rows.extend_from_slice(&cached);
            normalise(job, &member, tokens.clone(), &mut rows);
            errors.resize(rows.len(), 0.0);
            let rounding =
                rounding_power(job.encoder.spec.kv_dtype, &cached) / f64::from(member.gain).powi(2);
            for (level, heads) in levels.iter().zip(&mut heads) {
                let elements = member.start..member.start + member.dim;
                let (present, shifts) = (&level.present[elements.clone()], &level.shifts[elements]);
                for (decoded, row) in errors.chunks_exact_mut(member.dim).zip(rows.chunks_exact(member.dim)) {
                    for (((y, x), present), shift) in decoded.iter_mut().zip(row).zip(present).zip(shifts) {
                        *y = present * level.reconstruct(*x, *shift);
                    }
                }
                let is_rounded = rounding > ROUNDING_SHARE * level.power() * rows.len() as f64;
                if is_rounded {
                    to_errors(job, &member, tokens.clone(), &cached, &mut errors);
                } else {
                    errors.iter_mut().zip(&rows).for_each(|(y, x)| *y = x - *y);
                }
                let mut head = head_errors(member.dim, tokens.len(), &errors);
                head.total += if is_rounded { 0.0 } else { rounding };
                heads.push(head);
            }
        }
        Self::new(job, tokens.len(), tokens.len(), heads.into_iter())
    }

    fn sampled(job: &SpanJob<'_>) -> Self {
        let all = job.exact..job.ropes.tokens();
        let stride = all.len().div_ceil(SAMPLE_TOKENS).max(1);
        let tokens: Vec<usize> = all.clone().skip(stride / 2).step_by(stride).collect();
        let (count, elements, rank) = (tokens.len(), job.prepared.elements.count(), job.scope.rank());
        if count == 0 {
            return Self::exact(job.prepared);
        }
        let (mut cached, mut truth) = (vec![0.0; count * elements], vec![0.0; count * elements]);
        for member in job.prepared.elements.views() {
            let of = member.start..member.start + member.dim;
            let rows = cached.chunks_exact_mut(elements).zip(truth.chunks_exact_mut(elements));
            for (token, (cached, truth)) in tokens.iter().zip(rows) {
                read(job, &member, *token..*token + 1, &mut cached[of.clone()]);
                truth[of.clone()].copy_from_slice(&cached[of.clone()]);
                normalise(job, &member, *token..*token + 1, &mut truth[of.clone()]);
            }
        }
        let mut coefficients = vec![0.0; rank * count];
        job.analysis.analyse(count, &truth, &mut coefficients);
        let (text, preceding) = (job.input.tokens, job.input.preceding_token);
        let predicted = job.prepared.text.predict(job.scope, text, preceding, &job.ropes.span);
        let predicted = predicted.chunks_exact(job.ropes.tokens());
        let predictions: Vec<f32> =
            predicted.flat_map(|row| tokens.iter().map(|token| row[*token] as f32)).collect();
        let (mut decoded, mut values) = (vec![0.0; truth.len()], vec![0.0; coefficients.len()]);
        let levels = steps(job).into_iter().map(|level| {
            let rows = values.chunks_exact_mut(count).zip(coefficients.chunks_exact(count));
            for (c, ((values, coefficients), predictions)) in
                rows.zip(predictions.chunks_exact(count)).enumerate()
            {
                for ((value, coefficient), predicted) in values.iter_mut().zip(coefficients).zip(predictions)
                {
                    let rest = level.reconstruct(coefficient - predicted, level.shifts[c]);
                    *value = predicted + level.present[c] * rest;
                }
            }
            job.synthesis.synthesise(count, &values, &mut decoded);
            let heads = job.prepared.elements.views().map(|member| {
                let of = member.start..member.start + member.dim;
                let rows = cached.chunks_exact(elements).zip(decoded.chunks_exact(elements));
                let mut errors = Vec::with_capacity(member.dim * count);
                for (token, (cached, decoded)) in tokens.iter().zip(rows) {
                    let at = errors.len();
                    errors.extend_from_slice(&decoded[of.clone()]);
                    to_errors(job, &member, *token..*token + 1, &cached[of.clone()], &mut errors[at..]);
                }
                head_errors(member.dim, all.len(), &errors)
            });
            heads.collect()
        });
        Self::new(job, all.len(), count, levels)
    }

    /// Of the finest lossy level alone.
    pub(super) fn finest(&self) -> Self {
        self.only(self.levels.last().cloned())
    }

    /// Of the finest lossy level alone, without its piece; `None` if that was not measured.
    pub(super) fn finest_left_out(&self) -> Option<Self> {
        (!self.left_out.is_empty()).then(|| self.only(Some(self.left_out.clone())))
    }

    fn only(&self, level: Option<Vec<HeadErrors>>) -> Self {
        Self { levels: level.into_iter().collect(), left_out: Vec::new(), ..*self }
    }

    /// Makes the errors those of a span whose finest piece is left out.
    pub(super) fn leave_out_finest(&mut self) {
        if let Some(finest) = self.levels.last_mut() {
            *finest = std::mem::take(&mut self.left_out);
        }
    }

    /// Tokens that are not stored exactly.
    pub(super) const fn tokens(&self) -> usize {
        self.tokens
    }

    /// The largest error of a head of the scope, relative to the bound of `transparent`.
    pub(super) fn worst(&self, spec: &ModelSpec, scope: &Scope) -> f64 {
        let heads = self.levels.iter().flat_map(|heads| scope.members.iter().zip(heads));
        heads.filter_map(|(member, head)| self.relative(spec, member, head)).fold(0.0, f64::max)
    }

    /// The error of a head, relative to the bound of `transparent`.
    fn relative(&self, spec: &ModelSpec, member: &Member, head: &HeadErrors) -> Option<f64> {
        let layout = spec.layers.get(member.layer)?.layout;
        let power = f64::from(member.power) * Quality::transparent_error(layout, member.plane);
        Some(self.bounded(head) * f64::from(member.gain).powi(2) / power)
    }

    /// Adds another span of the scope.
    pub(super) fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.measured += other.measured;
        for (sum, head) in self.levels.iter_mut().flatten().zip(other.levels.iter().flatten()) {
            sum.total += head.total;
            sum.variance += head.variance;
            sum.worst = sum.worst.max(head.worst);
            sum.sums.iter_mut().zip(&head.sums).for_each(|(sum, x)| *sum += x);
        }
    }

    /// The error of a head to which the bounds apply, in squares of the finest step per element.
    fn bounded(&self, head: &HeadErrors) -> f64 {
        if self.tokens == 0 {
            return 0.0;
        }
        let (tokens, dim) = (self.tokens as f64, head.sums.len() as f64);
        let mean = head.total / tokens;
        let constant = head.sums.iter().map(|sum| (sum / tokens).powi(2)).sum::<f64>();
        // Errors that are independent have this much in common by chance.
        let constant = (constant - mean / self.measured.max(1) as f64).max(0.0);
        let mean = mean + STANDARD_ERRORS * head.variance.sqrt() / tokens;
        mean.max(constant * CONSTANT_WEIGHT).max(head.worst / TOKEN_ALLOWANCE) / dim
    }
}

/// Combines the results of all scopes' spans, `[scope][span]`, for a chunk; `None` if one of them was not
/// measured.
pub(super) fn measured(
    spec: &ModelSpec,
    profile: &Profile,
    spans: usize,
    coded: &[Option<ScopeErrors>],
) -> Option<Vec<Vec<LevelError>>> {
    let mut levels = vec![vec![LevelError::NONE; 2 * spec.layers.len()]; profile.lossy_levels()];
    for (scope, spans) in profile.scopes.iter().zip(coded.chunks_exact(spans)) {
        let mut spans = spans.iter();
        let mut sum = spans.next()?.clone()?;
        for span in spans {
            sum.add(span.as_ref()?);
        }
        for (errors, heads) in levels.iter_mut().zip(&sum.levels) {
            for (member, head) in scope.members.iter().zip(heads) {
                let error = sum.relative(spec, member, head)?;
                // A lossy level is never called exact: zeros lose their signs, the tokens that were not measured may
                // differ, and so may the last bits of a reader's products.
                let error = if error == 0.0 && sum.tokens > 0 { f64::MIN_POSITIVE } else { error };
                let plane = errors.get_mut(2 * member.layer + usize::from(member.plane == Plane::V))?;
                *plane = (*plane).max(LevelError::at_least(error));
            }
        }
    }
    Some(levels)
}

/// Rows of one head as they are cached, `[token][element]` of the span's `tokens`.
fn read(job: &SpanJob<'_>, member: &MemberView, tokens: Range<usize>, rows: &mut [f32]) {
    let start = job.ropes.span.start;
    job.input.kv.read(
        member.layer,
        member.plane,
        member.head,
        start + tokens.start..start + tokens.end,
        rows,
    );
}

/// Turns what was [`read`] into finest steps about the mean.
fn normalise(job: &SpanJob<'_>, member: &MemberView, tokens: Range<usize>, rows: &mut [f32]) {
    let rotation = member.rope.and_then(|rope| job.ropes.rotations().get(rope));
    let (mean, inverse) = (&job.scope.mean[member.start..member.start + member.dim], 1.0 / member.gain);
    for (token, row) in tokens.zip(rows.chunks_exact_mut(member.dim)) {
        if let Some(rotation) = rotation {
            rotation.unrotate(token, row);
        }
        row.iter_mut().zip(mean).for_each(|(x, mean)| *x = (*x - mean) * inverse);
    }
}

/// Turns decoded rows, in finest steps about the mean, into their errors in finest steps: what a reader's cache has of
/// them against the rows that were `cached`.
fn to_errors(job: &SpanJob<'_>, member: &MemberView, tokens: Range<usize>, cached: &[f32], rows: &mut [f32]) {
    let rotation = member.rope.and_then(|rope| job.ropes.rotations().get(rope));
    let mean = &job.scope.mean[member.start..member.start + member.dim];
    for (token, row) in tokens.clone().zip(rows.chunks_exact_mut(member.dim)) {
        row.iter_mut().zip(mean).for_each(|(x, mean)| *x = *x * member.gain + mean);
        if let Some(rotation) = rotation {
            rotation.rotate(token, row);
        }
    }
    round(job.encoder.spec.kv_dtype, rows);
    let inverse = 1.0 / member.gain;
    rows.iter_mut().zip(cached).for_each(|(x, cached)| *x = (cached - *x) * inverse);
    if let Some(rotation) = rotation {
        tokens.zip(rows.chunks_exact_mut(member.dim)).for_each(|(token, row)| rotation.unrotate(token, row));
    }
}

/// The power of rounding such rows to a cache's type, at its widest steps; infinite where that says nothing.
fn rounding_power(dtype: KvDtype, cached: &[f32]) -> f64 {
    /// Below 2^-14 the steps of f16 are these.
    const LEAST_STEP: f64 = 1.0 / (1 << 24) as f64;
    /// What is decoded to twice as much is infinite in f16.
    const LARGE: f32 = 32_768.0;
    match float_of(dtype) {
        None => 0.0,
        // Most of its values have few bits.
        Some(FloatFormat::E4m3) => f64::INFINITY,
        Some(FloatFormat::F16) if cached.iter().any(|x| x.abs() > LARGE) => f64::INFINITY,
        Some(float @ (FloatFormat::Bf16 | FloatFormat::F16)) => {
            // A step is at most 2^-mantissa of a value.
            let steps = f64::from(power_of(cached)) * 0.25f64.powi(float.mantissa_bits() as i32);
            (steps + cached.len() as f64 * LEAST_STEP.powi(2)) / 12.0
        }
    }
}

/// Rounds rows to a cache's type, as decoders do.
fn round(dtype: KvDtype, rows: &mut [f32]) {
    const BLOCK: usize = 64;
    match float_of(dtype) {
        // Decoded rows of the others are f32.
        None => {}
        // Those past the type's largest value become it.
        Some(FloatFormat::E4m3) => rows.iter_mut().for_each(|x| *x = e4m3::decode(e4m3::encode(*x))),
        Some(float @ (FloatFormat::Bf16 | FloatFormat::F16)) => {
            let mut patterns = [0; BLOCK];
            for rows in rows.chunks_mut(BLOCK) {
                let patterns = &mut patterns[..rows.len()];
                float.patterns(rows, patterns);
                float.values(patterns, rows);
            }
        }
    }
}

/// Of the errors of some of a span's `tokens`, `[token][element]`.
fn head_errors(dim: usize, tokens: usize, errors: &[f32]) -> HeadErrors {
    let count = (errors.len() / dim.max(1)).max(1) as f64;
    let (mut sum, mut square, mut worst) = (0f64, 0f64, 0f64);
    let mut sums = vec![0f32; dim];
    for row in errors.chunks_exact(dim) {
        let power = f64::from(power_of(row));
        // A value at the end of the type's range may be rounded to infinity; a rotation makes it NaN.
        let power = if power.is_nan() { f64::INFINITY } else { power };
        sum += power;
        square += power * power;
        worst = worst.max(power);
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let tokens = tokens as f64;
    let scale = tokens / count;
    // Of a sample without replacement.
    let spread = (square - sum * sum / count).max(0.0) / (count - 1.0).max(1.0);
    let variance = tokens * tokens * (1.0 - count / tokens.max(1.0)).max(0.0) * spread / count;
    HeadErrors {
        total: sum * scale,
        variance,
        worst,
        sums: sums.iter().map(|x| f64::from(*x) * scale).collect(),
    }
}

/// The sum of squares, in lanes that a compiler can vectorise.
fn power_of(row: &[f32]) -> f32 {
    const LANES: usize = 8;
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut lanes = [0f32; LANES];
    for chunk in whole {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x * x);
    }
    lanes.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>()
}

/// How the levels of a scope round, and last the finest one without its piece if the encoder may leave it out.
fn steps(job: &SpanJob<'_>) -> Vec<LevelSteps> {
    let levels = job.prepared.levels.len();
    let left_out = (job.encoder.leaves_out_finest && levels > 1).then(|| {
        // Values of the level below, times 3: the finest level has no shifts.
        let below = LevelSteps::new(job, levels - 2);
        LevelSteps { shifts: vec![0.0; below.shifts.len()], ..below }
    });
    (0..levels).map(|level| LevelSteps::new(job, level)).chain(left_out).collect()
}

/// How a level of a scope rounds.
struct LevelSteps {
    ratio: f32,
    inverse: f32,
    /// 1 if the level has the coefficient, 0 if it is as predicted.
    present: Vec<f32>,
    /// Centroid shifts in finest steps.
    shifts: Vec<f32>,
}

impl LevelSteps {
    fn new(job: &SpanJob<'_>, level: usize) -> Self {
        let (up, shifts) = job.prepared.reconstruction(level);
        let ratio = ratio(up) as f32;
        let has = |entry: i8| if i32::from(entry) <= level as i32 { 1.0 } else { 0.0 };
        Self {
            ratio,
            inverse: 1.0 / ratio,
            present: job.scope.coding.iter().map(|coding| has(coding.entry)).collect(),
            shifts: shifts.iter().map(|shift| crate::levels::towards_zero(up, *shift) as f32).collect(),
        }
    }

    /// The power of an element's error, in squares of the finest step.
    fn power(&self) -> f64 {
        f64::from(self.ratio).powi(2) / 12.0
    }

    /// A decoder's value, in finest steps. Ratios are odd, so no value of the finest level is a tie.
    fn reconstruct(&self, value: f32, shift: f32) -> f32 {
        let level = nearest(nearest(value) * self.inverse);
        level * self.ratio - level.clamp(-1.0, 1.0) * shift
    }
}

/// To the nearest integer, ties to even, of values below 2^22.
fn nearest(value: f32) -> f32 {
    /// 1.5 · 2^23: sums with it have no room for a fraction.
    const WHOLE: f32 = 12_582_912.0;
    (value + WHOLE) - WHOLE
}

#[cfg(test)]
mod tests {
    use kvasir_types::{KvLayout, LayerKv, Reuse};

    use super::*;
    use crate::{KvBuffer, noise::Noise, starter};

    #[test]
    fn only_what_is_stored_exactly_is_called_exact() {
        let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 1, head_dim: 4 }, rope: None };
        let spec = ModelSpec {
            weights: "synthetic/small".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype: KvDtype::Fp8E4m3,
            ropes: Vec::new(),
            layers: vec![layer],
            thinning: None,
            reuse: Reuse::Prefix,
        };
        let (mut noise, mut kv) = (Noise::new(1), KvBuffer::new(&spec, 200));
        kv.as_mut_slice().fill_with(|| noise.normal());
        let profile = starter(&spec, &noise.tokens(200), 0, &kv).expect("a sample");
        let of = |tokens, measured| {
            let heads = |scope: &Scope| {
                let head =
                    |member: &Member| HeadErrors { sums: vec![0.0; member.dim], ..HeadErrors::default() };
                let levels = vec![scope.members.iter().map(head).collect(); profile.lossy_levels()];
                Some(ScopeErrors { tokens, measured, levels, left_out: Vec::new() })
            };
            let coded: Vec<_> = profile.scopes.iter().map(heads).collect();
            super::measured(&spec, &profile, 1, &coded).expect("measured")
        };
        assert!(of(0, 0).concat().iter().all(|error| *error == LevelError::NONE));
        assert!(of(200, 200).concat().iter().all(|error| *error > LevelError::NONE));
        assert!(of(200, 13).concat().iter().all(|error| *error > LevelError::NONE));
    }
}
