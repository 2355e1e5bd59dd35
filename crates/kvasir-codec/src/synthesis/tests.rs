//! Products of tiles against whole ones.

use half::bf16;
use kvasir_types::{Pairing, Plane, Rope};
use proptest::prelude::*;

use super::*;
use crate::{
    arch::RowKernel,
    direct_rows::{
        TILE,
        bf16_tiles::{Bf16Rows, RotationTable, RowScratch, aligned},
    },
    noise::Noise,
    profile::{CoefficientCoding, Member, Predictor},
    rope::Rotation,
};

/// What each coefficient of a span is.
#[derive(Debug, Clone, Copy)]
enum Filling {
    Zeros,
    OneCoefficient,
    OneToken,
    Sparse,
    Dense,
}

const FILLINGS: [Filling; 5] =
    [Filling::Zeros, Filling::OneCoefficient, Filling::OneToken, Filling::Sparse, Filling::Dense];

fn below(noise: &mut Noise, end: usize) -> usize {
    ((noise.uniform() + 0.5) * end as f32) as usize % end
}

/// `[coefficient][token]`.
fn coefficients(filling: Filling, rank: usize, tokens: usize, noise: &mut Noise) -> Vec<f32> {
    let (row, column) = (below(noise, rank), below(noise, tokens));
    let mut has = |coefficient: usize, token: usize| match filling {
        Filling::Zeros => false,
        Filling::OneCoefficient => coefficient == row,
        Filling::OneToken => token == column,
        Filling::Sparse => below(noise, 20) == 0,
        Filling::Dense => true,
    };
    let held: Vec<bool> = (0..rank * tokens).map(|i| has(i / tokens, i % tokens)).collect();
    held.into_iter().map(|held| if held { (noise.normal() * 20.0).round() } else { 0.0 }).collect()
}

/// Two members, the first of `other` elements.
fn scope([other, dim]: [usize; 2], rank: usize, basis: Basis) -> Scope {
    let member = |dim| Member { layer: 0, plane: Plane::K, head: 0, dim, gain: 1.0, power: 0.0 };
    Scope {
        members: vec![member(other), member(dim)],
        unrope: true,
        mean: vec![0.0; other + dim],
        basis,
        predictor: Predictor::Mean,
        coding: vec![CoefficientCoding::ABSENT; rank],
        loss: Vec::new(),
        lossless: None,
    }
}

proptest! {
    /// Whether a tile's values fit 16 bits or not, on every path, and in both types of rows.
    #[test]
    fn every_kernel_gives_the_whole_product(
        (rank, tokens, dim, other) in (1usize..600, 1usize..70, 1usize..80, 1usize..9), pairs in 0usize..40,
        interleaved in any::<bool>(), seed in any::<u32>(), which in 0..FILLINGS.len(), identity in any::<bool>(),
        large in any::<bool>(),
    ) {
        let mut noise = Noise::new(u64::from(seed));
        let (elements, pairs) = (other + dim, pairs.min(dim / 2));
        let rank = if identity { elements } else { rank };
        let basis: Vec<f16> = (0..rank * elements).map(|i| match identity {
            true => f16::from_f32(f32::from(u8::from(i / elements == i % elements))),
            false => f16::from_f32(noise.normal() / (rank as f32).sqrt()),
        }).collect();
        let mut values = coefficients(FILLINGS[which], rank, tokens, &mut noise);
        if large {
            values.iter_mut().for_each(|x| *x *= 1000.0);
        }
        let trained = Basis::Trained { synthesis: basis.clone(), analysis: None, packed: None };
        let scope = scope([other, dim], rank, if identity { Basis::Identity } else { trained });
        let synthesis = Synthesis::new(&scope);
        let mean: Vec<f32> = (0..dim).map(|_| noise.normal()).collect();
        let pairing = if interleaved { Pairing::Interleaved } else { Pairing::Half };
        let rope = Rope { offset: (dim - 2 * pairs) as u32, ..Rope::plain(pairing, 2 * pairs.max(1), 10_000.0) };
        let rotation = (pairs > 0).then(|| RotationTable::new(&rope, 7, tokens));
        // The whole product, in f64.
        let mut expected = vec![0f32; tokens * dim];
        for (i, x) in expected.iter_mut().enumerate() {
            let (token, element) = (i / dim, i % dim);
            let column = |c: usize| basis[c * elements + other + element].to_f64();
            let term = |c: usize| f64::from(values[c * tokens + token]) * column(c);
            *x = (0..rank).map(term).sum::<f64>() as f32 * 0.5 + mean[element];
        }
        if pairs > 0 {
            let rotation = Rotation::new(&rope, 7, tokens);
            expected.chunks_exact_mut(dim).enumerate().for_each(|(token, row)| rotation.rotate(token, row));
        }
        let mut tiles = CoefficientTiles::default();
        tiles.reset(3, 5 * TILE); // another span, whose values must not show
        (0..3).for_each(|c| tiles.push(c, &[9.0; 5 * TILE]));
        tiles.reset(rank, tokens);
        values.chunks_exact(tokens).enumerate().for_each(|(c, row)| tiles.push(c, row));
        if let Synthesis::Trained(panels) = &synthesis {
            (0..tokens.div_ceil(TILE)).for_each(|tile| tiles.pair(tile, panels.most()));
        }
        for kernel in RowKernel::available() {
            let (mut rows, mut buffer) = (vec![f32::NAN; tokens * dim], Vec::new());
            let halves = aligned(&mut buffer, tokens * dim);
            let mut scratch = RowScratch::default();
            for tile in 0..tokens.div_ceil(TILE) {
                let coefficients = tiles.tile(tile);
                let member = MemberTile {
                    synthesis: coefficients.synthesis(&synthesis, &scope, (1, other)),
                    coefficients,
                    gain: 0.5,
                    mean: &mean,
                    rotation: rotation.as_ref(),
                    tile,
                };
                let held = tile * TILE * dim..tokens.min((tile + 1) * TILE) * dim;
                kernel.member_tile(&member, TileRows::Full(&mut rows[held.clone()]), &mut scratch);
                let half = Bf16Rows { rows: &mut halves[held], past_cache: seed % 2 == 0 };
                kernel.member_tile(&member, TileRows::Half(half), &mut scratch);
            }
            for (i, (x, expected)) in rows.iter().zip(&expected).enumerate() {
                let squares = (0..rank).map(|c| values[c * tokens + i / dim].powi(2)).sum::<f32>();
                // Six deviations of a rounded basis, and the rounding of sums.
                let most = squares.sqrt() * (3e-4 / (rank as f32).sqrt() + 2e-6);
                prop_assert!((x - expected).abs() <= most, "{} {i}: {x} {expected}", kernel.name());
                prop_assert_eq!(halves[i].to_bits(), bf16::from_f32(*x).to_bits(), "{} {}", kernel.name(), i);
            }
        }
    }
}
