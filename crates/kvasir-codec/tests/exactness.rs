//! FORMAT.md "Exactness", against readings of it that share nothing with the decoder but the profile.

mod common;

use common::{Noise, Setup, cache, setups};
use kvasir_codec::{
    KvBuffer,
    authoring::{Basis, CoefficientCoding, Elements, Predictor, ProfileParts, Rotations, Scope},
    rope::sin_cos,
};
use kvasir_container::Head;
use kvasir_types::{Level, Pairing, Plane};

/// One token of one member, as the cache has it, from values in finest steps: multiply, add, rotate.
fn cached_row(setup: &Setup, scope: &Scope, member: usize, position: u64, steps: &[f32]) -> Vec<f32> {
    let start: usize = scope.members[..member].iter().map(|m| m.dim).sum();
    let m = &scope.members[member];
    let mut row: Vec<f32> = (0..m.dim).map(|i| steps[start + i] * m.gain + scope.mean[start + i]).collect();
    let layer = &setup.spec.layers[m.layer];
    let is_mla = matches!(layer.layout, kvasir_types::KvLayout::Mla { .. });
    let rotated = scope.unrope && m.plane == if is_mla { Plane::V } else { Plane::K };
    let Some(rope) = layer.rope.filter(|_| rotated).map(|r| &setup.spec.ropes[usize::from(r)]) else {
        return row;
    };
    for (pair, freq) in rope.freqs.iter().enumerate() {
        let (sin, cos) = sin_cos((position.wrapping_mul(*freq) >> 32) as u32);
        let offset = rope.offset as usize;
        let (a, b) = match rope.pairing {
            Pairing::Half => (offset + pair, offset + pair + rope.freqs.len()),
            Pairing::Interleaved => (offset + 2 * pair, offset + 2 * pair + 1),
        };
        let (x, y) = (row[a], row[b]);
        row[a] = (x * cos - y * sin) * rope.attention_factor;
        row[b] = (y * cos + x * sin) * rope.attention_factor;
    }
    row
}

/// Where level `level` puts a residual that is `fine` finest steps: FORMAT.md §4 in words, one division a level.
fn reconstructed(parts: &ProfileParts, coding: &CoefficientCoding, fine: i32, level: usize) -> i32 {
    let top = parts.levels.len() - 1;
    if i32::from(coding.entry) > level as i32 {
        return 0;
    }
    let up = (top - level) as u32;
    let q = (0..up).fold(fine, |q, _| (q + 1).div_euclid(3));
    let depth = (level as i32 - i32::from(coding.entry)) as usize;
    let shift = i32::from(parts.shifts[usize::from(coding.stage)][depth.min(7)]);
    q * 3i32.pow(up) - q.signum() * ((shift * 3i32.pow(up) + 128) >> 8)
}

#[test]
fn direct_profiles_are_bit_exact() {
    for setup in &setups()[..2] {
        let (first, text) = (1_000_003u64, Noise::new(31).tokens(270));
        let kv = cache(&setup.spec, &text, 32);
        let object = setup.encode(&text, first, &kv);
        let parts = setup.profile.parts();
        for level in 0..setup.profile.level_count() {
            let decoded = setup.decode(&object, level).expect("decodes");
            for scope in &parts.scopes {
                check_scope(setup, (&parts, scope), first, &kv, level, &decoded);
            }
        }
    }
}

#[test]
fn a_profile_knows_of_how_many_coefficients_its_elements_are() {
    for setup in setups() {
        let scopes = setup.profile.summary().scopes;
        let with_basis = scopes.iter().filter(|scope| scope.basis != "identity");
        let products: usize = with_basis.map(|scope| scope.rank * scope.elements).sum();
        let rank = setup.profile.basis_rank();
        assert_eq!(rank, products as f64 / setup.spec.elements_per_token() as f64);
        assert_eq!(rank == 0.0, setup.profile.is_direct());
    }
}

/// Recomputes a direct scope from the cache itself.
fn check_scope(
    setup: &Setup,
    (parts, scope): (&ProfileParts, &Scope),
    first: u64,
    kv: &KvBuffer,
    level: usize,
    decoded: &KvBuffer,
) {
    let (tokens, elements) = (kv.tokens(), scope.elements());
    let mut normalised = vec![0.0; elements * tokens];
    let (bound, mut raw) = (Elements::new(&setup.spec, scope), Vec::new());
    assert!(bound.read(kv, &(0..tokens), &mut raw));
    let rotations = Rotations::new(&setup.spec.ropes, first, &(0..tokens));
    bound.normalise(&scope.mean, &rotations, tokens, &mut raw, &mut normalised);
    for token in 0..tokens {
        let at = |token: usize, c: usize| normalised[token * elements + c];
        let mut steps = vec![0f32; elements];
        for (c, (steps, coding)) in steps.iter_mut().zip(&scope.coding).enumerate() {
            let predicted = match &scope.predictor {
                Predictor::AnchorFirst { group, anchor_ratio, .. } => {
                    // Groups restart at each span of 256 tokens.
                    let anchor = token - token % 256 % group;
                    let code = (at(anchor, c) * *anchor_ratio as f32).round_ties_even() as i32;
                    if token == anchor {
                        *steps = code as f32 / *anchor_ratio as f32;
                        continue;
                    }
                    (code + anchor_ratio / 2).div_euclid(*anchor_ratio)
                }
                _ => 0,
            };
            let fine = (at(token, c) - predicted as f32).round_ties_even() as i32;
            *steps = (predicted + reconstructed(parts, coding, fine, level)) as f32;
        }
        for (member, m) in scope.members.iter().enumerate() {
            let expected = cached_row(setup, scope, member, first + token as u64, &steps);
            let rows = decoded.rows(m.layer, m.plane, m.head);
            let found = &rows[token * m.dim..(token + 1) * m.dim];
            let bits = |row: &[f32]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(found), bits(&expected), "level {level}, token {token}, {m:?}");
        }
    }
}

/// Basis profiles: the product is within −30 dB of the level's own quantisation noise of an f64 product, per
/// layer and plane, and no element is off by more than 4 of its sigmas.
#[test]
fn products_are_within_tolerance_of_f64() {
    for setup in &setups()[2..] {
        let text = Noise::new(33).tokens(256);
        let kv = cache(&setup.spec, &text, 34);
        let object = setup.encode(&text, 1_000, &kv);
        let (head, parts) = (Head::parse(&object).expect("parses"), setup.profile.parts());
        for level in 0..setup.profile.level_count() {
            let decoded = setup.decode(&object, level).expect("decodes");
            for (index, scope) in parts.scopes.iter().enumerate() {
                let coefficients = setup
                    .decoder
                    .scope_coefficients(&head, &object, index, Level(level as u8), 0)
                    .expect("decodes");
                check_product(setup, scope, &coefficients, &kv, &decoded);
            }
        }
    }
}

fn check_product(setup: &Setup, scope: &Scope, coefficients: &[f32], kv: &KvBuffer, decoded: &KvBuffer) {
    let Basis::Trained { synthesis, .. } = &scope.basis else { panic!("a trained basis") };
    let (tokens, elements, rank) = (kv.tokens(), scope.elements(), scope.rank());
    let mut start = 0;
    for (member, m) in scope.members.iter().enumerate() {
        let (mut error, mut noise) = (0f64, 0f64);
        let mut worst = 0f64;
        for token in 0..tokens {
            let mut steps = vec![0f32; elements];
            let mut exact = vec![0f64; elements];
            for i in start..start + m.dim {
                let term = |c: usize| {
                    f64::from(coefficients[c * tokens + token]) * synthesis[c * elements + i].to_f64()
                };
                exact[i] = (0..rank).map(term).sum();
                steps[i] = exact[i] as f32;
            }
            let reference = cached_row(setup, scope, member, 1_000 + token as u64, &steps);
            for (i, reference) in reference.iter().enumerate() {
                let at = token * m.dim + i;
                let (found, truth) =
                    (decoded.rows(m.layer, m.plane, m.head)[at], kv.rows(m.layer, m.plane, m.head)[at]);
                let off = f64::from(found - reference);
                worst = worst.max(off.abs());
                error += off * off;
                noise += f64::from(truth - found).powi(2);
            }
        }
        assert!(error <= noise * 1e-3, "{m:?}: {error} against noise {noise}");
        assert!(worst <= 4.0 * (noise / (tokens * m.dim) as f64).sqrt(), "{m:?}: {worst}");
        start += m.dim;
    }
}
