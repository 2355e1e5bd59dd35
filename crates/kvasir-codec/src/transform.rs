//! From cached rows to normalised elements and back: RoPE, static mean, gain (FORMAT.md "Transform").

use std::ops::Range;

use kvasir_types::{KvLayout, ModelSpec, Plane, Rope};

use crate::{
    HeadRows, KvSource, MemberView, ScopeReach,
    arch::RowKernel,
    direct_rows::{Scaling, scale_rows},
    profile::Scope,
    rope::Rotation,
};

/// The rope that rotates a plane's rows, as an index into the spec's ropes.
pub(crate) fn rope_index(spec: &ModelSpec, layer: usize, plane: Plane) -> Option<usize> {
    let kv = spec.layers.get(layer)?;
    let rotated = match kv.layout {
        KvLayout::Gqa { .. } | KvLayout::SlidingWindow { .. } => Plane::K,
        KvLayout::Mla { .. } => Plane::V,
        KvLayout::None => return None,
    };
    (plane == rotated).then_some(usize::from(kv.rope?))
}

/// The rotations of all of a model's ropes over a run of positions: made once a span, shared by its scopes.
#[derive(Debug)]
pub struct Rotations(Vec<Rotation>);

impl Rotations {
    /// Of the positions `first_position + tokens`.
    pub fn new(ropes: &[Rope], first_position: u64, tokens: &Range<usize>) -> Self {
        // Positions are taken modulo 2^64 everywhere: the phase is.
        let first = first_position.wrapping_add(tokens.start as u64);
        Self(ropes.iter().map(|rope| Rotation::new(rope, first, tokens.len())).collect())
    }

    /// That of one of the model's ropes.
    pub(crate) fn get(&self, rope: usize) -> Option<&Rotation> {
        self.0.get(rope)
    }
}

/// A scope's members as slices of its element vector, with their ropes resolved.
#[derive(Debug, Clone)]
pub struct Elements {
    members: Vec<MemberView>,
    count: usize,
}

/// Rows of members that are consecutive heads of one layer and plane, ready for a sink.
pub(crate) struct MemberRows<'a, T> {
    pub(crate) layer: usize,
    pub(crate) plane: Plane,
    pub(crate) first_head: usize,
    pub(crate) rows: HeadRows<'a, T>,
}

impl Elements {
    /// The layers and heads between the first and the last of its members.
    pub(crate) fn reach(&self, scope: usize) -> ScopeReach {
        let span = |of: fn(&MemberView) -> usize| {
            let (first, last) = (self.members.iter().map(of).min(), self.members.iter().map(of).max());
            first.unwrap_or(0)..last.map_or(0, |last| last + 1)
        };
        ScopeReach { scope, layers: span(|slot| slot.layer), heads: span(|slot| slot.head) }
    }

    /// The elements of a scope of a model.
    pub fn new(spec: &ModelSpec, scope: &Scope) -> Self {
        let mut start = 0;
        let slot = |member: &crate::profile::Member| {
            let slot = MemberView {
                layer: member.layer,
                plane: member.plane,
                head: member.head,
                dim: member.dim,
                gain: member.gain,
                start,
                rope: rope_index(spec, member.layer, member.plane).filter(|_| scope.unrope),
            };
            start += member.dim;
            slot
        };
        let members = scope.members.iter().map(slot).collect();
        Self { members, count: start }
    }

    /// The members as others see them.
    pub(crate) fn views(&self) -> impl Iterator<Item = MemberView> {
        self.members.iter().copied()
    }

    /// Elements of one token.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Reads `tokens` of a source unmodified, `[member][token][element]`. Returns whether all are finite.
    pub fn read(&self, source: &dyn KvSource, tokens: &Range<usize>, out: &mut Vec<f32>) -> bool {
        out.clear();
        out.resize(self.count * tokens.len(), 0.0);
        for slot in &self.members {
            let start = slot.start * tokens.len();
            let rows = &mut out[start..start + slot.dim * tokens.len()];
            source.read(slot.layer, slot.plane, slot.head, tokens.clone(), rows);
        }
        out.iter().all(|v| v.is_finite())
    }

    /// Un-ropes, centres and scales the output of [`read`](Self::read), into units of the finest step:
    /// `out[token][element]`, where a token's row may be longer than its elements. Uses `raw` as scratch.
    pub fn normalise(
        &self,
        mean: &[f32],
        rotations: &Rotations,
        tokens: usize,
        raw: &mut [f32],
        out: &mut [f32],
    ) {
        let stride = out.len().checked_div(tokens).unwrap_or(0);
        for slot in &self.members {
            let rows = &mut raw[slot.start * tokens..(slot.start + slot.dim) * tokens];
            let rotation = slot.rope.and_then(|rope| rotations.get(rope));
            let (mean, inverse) = (&mean[slot.start..slot.start + slot.dim], 1.0 / slot.gain);
            for (token, row) in rows.chunks_exact_mut(slot.dim).enumerate() {
                if let Some(rotation) = rotation {
                    rotation.unrotate(token, row);
                }
                let start = token * stride + slot.start;
                for ((out, x), mean) in out[start..start + slot.dim].iter_mut().zip(&*row).zip(mean) {
                    *out = (x - mean) * inverse;
                }
            }
        }
    }

    /// The inverse of [`normalise`](Self::normalise): `steps[token][element]` in units of the finest step to
    /// rows `[member][token][element]`. Multiply, add, rotate, in this order and never fused.
    pub(crate) fn denormalise(
        &self,
        mean: &[f32],
        rotations: &Rotations,
        tokens: usize,
        steps: &[f32],
        out: &mut [f32],
    ) {
        for slot in &self.members {
            let rows = &mut out[slot.start * tokens..(slot.start + slot.dim) * tokens];
            let rotation = slot.rope.and_then(|rope| rotations.get(rope));
            let mean = &mean[slot.start..slot.start + slot.dim];
            for (token, row) in rows.chunks_exact_mut(slot.dim).enumerate() {
                let start = token * self.count + slot.start;
                for ((x, steps), mean) in row.iter_mut().zip(&steps[start..start + slot.dim]).zip(mean) {
                    *x = steps * slot.gain + mean;
                }
                if let Some(rotation) = rotation {
                    rotation.rotate(token, row);
                }
            }
        }
    }

    /// Rows of a direct scope, `[member][token][element]`, from quantised `values`, `[element][token]`, of a level
    /// with this reconstruction: the same numbers as by [`denormalise`](Self::denormalise), in one pass.
    pub(crate) fn direct_rows(
        &self,
        mean: &[f32],
        rotations: &Rotations,
        tokens: usize,
        (up, shifts): (u32, &[u8]),
        values: &[i32],
        out: &mut [f32],
    ) {
        let kernel = RowKernel::best();
        for slot in &self.members {
            let range = slot.start..slot.start + slot.dim;
            let held = slot.start * tokens..(slot.start + slot.dim) * tokens;
            let scaling = Scaling { up, shifts: &shifts[range.clone()], gain: slot.gain, mean: &mean[range] };
            let rows = &mut out[held.clone()];
            scale_rows(kernel, &scaling, tokens, &values[held], rows);
            if let Some(rotation) = slot.rope.and_then(|rope| rotations.get(rope)) {
                rows.chunks_exact_mut(slot.dim)
                    .enumerate()
                    .for_each(|(token, row)| rotation.rotate(token, row));
            }
        }
    }

    /// Replaces the first `exact_tokens` tokens of `rows`, `[member][token][element]`, by `values` of the same
    /// order.
    pub(crate) fn overwrite<T: Copy>(
        &self,
        tokens: usize,
        exact_tokens: usize,
        values: &[T],
        rows: &mut [T],
    ) {
        for slot in &self.members {
            let (from, to) = (slot.start * exact_tokens, slot.start * tokens);
            let count = slot.dim * exact_tokens;
            rows[to..to + count].copy_from_slice(&values[from..from + count]);
        }
    }

    /// `[element][token]` from `rows`, `[member][token][element]`.
    pub fn by_element(&self, tokens: usize, rows: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; rows.len()];
        self.each_place(tokens, |by_element, by_token| out[by_element] = rows[by_token]);
        out
    }

    /// The inverse of [`by_element`](Self::by_element).
    pub(crate) fn by_token(&self, tokens: usize, values: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; values.len()];
        self.each_place(tokens, |by_element, by_token| out[by_token] = values[by_element]);
        out
    }

    fn each_place(&self, tokens: usize, mut each: impl FnMut(usize, usize)) {
        for slot in &self.members {
            let start = slot.start * tokens;
            for element in 0..slot.dim {
                for token in 0..tokens {
                    each(start + element * tokens + token, start + token * slot.dim + element);
                }
            }
        }
    }

    /// Cuts `rows`, `[member][token][element]` of `tokens` tokens, into runs of consecutive heads, keeping `kept` tokens.
    pub(crate) fn members<'a, T: Copy>(
        &'a self,
        tokens: usize,
        kept: &'a Range<usize>,
        rows: &'a [T],
    ) -> impl Iterator<Item = MemberRows<'a, T>> {
        let follows = |a: &MemberView, b: &MemberView| {
            (a.layer, a.plane, a.head + 1, a.dim) == (b.layer, b.plane, b.head, b.dim)
        };
        self.members.chunk_by(follows).map(move |run| {
            let MemberView { layer, plane, head, dim, start, .. } = run[0];
            let rows = &rows[start * tokens..(start + run.len() * dim) * tokens];
            let rows = HeadRows::dense(rows, run.len(), dim).part(0..run.len(), kept.clone());
            MemberRows { layer, plane, first_head: head, rows }
        })
    }
}
