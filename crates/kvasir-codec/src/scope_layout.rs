//! Which heads share a scope.

use std::ops::Range;

use kvasir_types::{ModelSpec, Plane};

use crate::profile::{Basis, Member, Predictor, Scope};

/// Every head of `layers` and `planes` as one scope with unit gains and zero means; `None` if those layers
/// have no KV.
pub fn scope_of(spec: &ModelSpec, layers: Range<usize>, planes: &[Plane], unrope: bool) -> Option<Scope> {
    let mut members = Vec::new();
    for layer in layers {
        for &plane in planes {
            let (heads, dim) = spec.layers.get(layer)?.layout.planes()[plane as usize];
            members.extend((0..heads).map(|head| Member { layer, plane, head, dim, gain: 1.0, power: 0.0 }));
        }
    }
    let elements: usize = members.iter().map(|m| m.dim).sum();
    (elements > 0).then(|| Scope {
        members,
        unrope,
        mean: vec![0.0; elements],
        basis: Basis::Identity,
        predictor: Predictor::Mean,
        coding: Vec::new(),
        loss: Vec::new(),
        lossless: None,
    })
}

/// Scopes of `layers` layers each, planes joint or separate.
pub fn scopes(spec: &ModelSpec, layers: usize, joint: bool, unrope: bool) -> Vec<Scope> {
    let count = spec.layers.len();
    let starts = (0..count).step_by(layers.max(1));
    scopes_of(spec, starts.map(|start| start..(start + layers.max(1)).min(count)), joint, unrope)
}

/// Scopes of these layers each, planes joint or separate.
pub(crate) fn scopes_of(
    spec: &ModelSpec,
    layers: impl Iterator<Item = Range<usize>>,
    joint: bool,
    unrope: bool,
) -> Vec<Scope> {
    let planes: &[&[Plane]] = if joint { &[&Plane::ALL] } else { &[&[Plane::K], &[Plane::V]] };
    layers
        .flat_map(|layers| {
            planes.iter().filter_map(move |planes| scope_of(spec, layers.clone(), planes, unrope))
        })
        .collect()
}
