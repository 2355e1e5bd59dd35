//! Packs an existing profile into fewer bytes: its f16 bases and its factors in as few bits as a budget
//! requires.

use half::f16;

use super::{
    TrainError,
    basis::{bank_bytes, scope_bytes},
    bit_allocation::{self, Allocation},
    weights,
};
use kvasir_codec::{
    Profile,
    authoring::{Basis, CoefficientCoding, Predictor, Scope, packed_bytes, ratio},
    limits::NOTE_BYTES_MAX,
    rans::{ALPHABET, TableBank},
};

/// Fields of a profile's own: magic to levels, without texts, and the checksum.
const HEADER_BYTES: usize = 96;
/// Bytes that packing adds to the note: the original profile.
const NOTE_BYTES: usize = 80;
/// Power of a coefficient that no level codes, in squared finest steps: below the resolution of the coarsest
/// level.
const SILENT_POWER: f64 = 0.25;

/// Packs trained bases to fit a profile of `bytes`, and the token predictor's tables to `table_bits` bits;
/// ranks fall if not all rows fit. Levels keep their steps. Their cost must be measured again: the result has
/// no KL, keeps the bits of the original, which are about right, and adds the loss of the basis to their
/// error.
///
/// # Errors
/// [`TrainError::Recipe`] for a number of bits that is not 2 to 8, [`TrainError::Budget`], [`TrainError::Size`].
pub fn pack(profile: &Profile, bytes: usize, table_bits: u8) -> Result<Profile, TrainError> {
    if !(2..=8).contains(&table_bits) {
        return Err(TrainError::Recipe { field: "table_bits", why: "factors have 2 to 8 bits".to_owned() });
    }
    fit(bytes, |room| {
        let packed = pack_to(profile, (bytes, room), table_bits)?;
        let found = packed.to_bytes().len();
        Ok((packed, found))
    })
}

/// The first result of `pack` that has at most `bytes`, with less and less room. It returns its size, too: the number
/// of bits of the predictor's weights is known only then.
fn fit<T>(
    bytes: usize,
    mut pack: impl FnMut(usize) -> Result<(T, usize), TrainError>,
) -> Result<T, TrainError> {
    let (mut room, mut less, mut excess_before) = (bytes, 0usize, usize::MAX);
    let mut least = usize::MAX;
    loop {
        let (packed, found) = pack(room)?;
        let excess = found.saturating_sub(bytes);
        if excess == 0 {
            return Ok(packed);
        }
        least = least.min(found);
        if room == 0 {
            return Err(TrainError::Size { bytes, least });
        }
        // Rows get smaller in steps, and other parts not at all: a reduction that does not halve the excess is doubled.
        let doubled = if excess > excess_before / 2 { less.saturating_mul(2) } else { 0 };
        less = doubled.max(excess.saturating_add(1));
        (room, excess_before) = (room.saturating_sub(less), excess);
    }
}

/// Packs into some of the budget, `(all bytes, room)`.
fn pack_to(profile: &Profile, (bytes, room): (usize, usize), table_bits: u8) -> Result<Profile, TrainError> {
    let mut parts = profile.parts();
    let all: usize = parts.scopes.iter().map(Scope::elements).sum();
    let levels = parts.levels.len();
    let texts = parts.training.recipe.len() + parts.training.note.len() + NOTE_BYTES;
    let fixed = HEADER_BYTES
        + texts
        + 12 * levels
        + bank_bytes(parts.bank.stage_tables().len(), parts.bank.trit_tables().len());
    let mut lost = 0.0;
    for scope in &mut parts.scopes {
        let share = scope.elements() as f64 / all as f64;
        let room = (room.saturating_sub(fixed) as f64 * share) as usize;
        lost += share * pack_scope(scope, &parts.bank, levels, (bytes, room), table_bits)?;
    }
    for level in &mut parts.levels {
        (level.kl, level.nmse) = (None, level.nmse + lost as f32);
    }
    // The original has the rest of a long note.
    let mut note = format!("packed from {} {}", profile.hash(), parts.training.note);
    note.truncate(note.floor_char_boundary(NOTE_BYTES_MAX));
    parts.training.note = note.trim().to_owned();
    Ok(Profile::assemble(parts)?)
}

/// Packs one scope into its share of a budget, `(all bytes, its own)`. Returns the share of its power that is
/// lost.
fn pack_scope(
    scope: &mut Scope,
    bank: &TableBank,
    levels: usize,
    (bytes, room): (usize, usize),
    table_bits: u8,
) -> Result<f64, TrainError> {
    let elements = scope.elements();
    let Basis::Trained { synthesis, analysis: None, .. } = &scope.basis else { return Ok(0.0) };
    let rows: Vec<f32> = synthesis.iter().copied().map(f16::to_f32).collect();
    let mut powers: Vec<f64> = scope.coding.iter().map(|coding| coded_power(coding, bank, levels)).collect();
    let (mut own, mut factors) = (scope_bytes(scope), 0);
    if let Predictor::Token(token) = &scope.predictor {
        let (repacked, predicted) = weights::repack(token, table_bits);
        powers.iter_mut().zip(predicted).for_each(|(power, p)| *power += p);
        own += repacked
            .factors
            .iter()
            .map(|k| repacked.vocabulary * packed_bytes(*k, table_bits))
            .sum::<usize>();
        factors = repacked.factor_count();
        scope.predictor = Predictor::Token(repacked);
    }
    // Rows stay in their order, so none may be dropped before a later one.
    let mut least = f32::INFINITY;
    let spectrum: Vec<f32> = powers
        .iter()
        .map(|power| {
            least = least.min(*power as f32);
            least
        })
        .collect();
    let rank = rows.len() / elements;
    let allocation = bit_allocation::allocate(&spectrum, elements, factors, room.saturating_sub(own), rank);
    let Allocation { bits, lost } = bit_allocation::within(bytes, allocation)?;
    super::draft::truncate(scope, bits.len());
    scope.basis = bit_allocation::basis(&rows, elements, Some(&bits));
    Ok(lost)
}

/// Power of the coded part of a coefficient's stage, in squared finest steps.
fn coded_power(coding: &CoefficientCoding, bank: &TableBank, levels: usize) -> f64 {
    if coding.entry == CoefficientCoding::NEVER {
        return SILENT_POWER;
    }
    let depth = u32::from((-coding.entry).max(0).cast_unsigned());
    let up = (levels - 1) as u32 - u32::from(coding.entry.max(0).cast_unsigned()) + depth;
    let Some(table) = bank.stage_tables().get(usize::from(coding.stage)) else { return SILENT_POWER };
    let square = |symbol: usize| if symbol < ALPHABET - 1 { (symbol as f64 - 7.0).powi(2) } else { 81.0 };
    let frequencies = table.frequencies().iter().enumerate();
    let mean = frequencies.map(|(symbol, f)| square(symbol) * f64::from(*f) / 4096.0).sum::<f64>();
    (mean + 1.0 / 12.0) * f64::from(ratio(up)).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        BasisRecipe, Recipe,
        common::{Noise, Setup, cache, error, mixed_spec},
    };

    #[test]
    fn a_packed_profile_is_small_and_codes_nearly_as_well() {
        let spec = mixed_spec(kvasir_types::KvDtype::Bf16);
        let recipe = BasisRecipe { token_factors: [6, 3], exact_tokens: Some(0), ..BasisRecipe::default() };
        let whole = Setup::new(spec.clone(), &Recipe::Basis(recipe));
        let small = pack(&whole.profile, 34_000, 5).expect("packs");
        assert!(small.to_bytes().len() <= 34_000 && small.to_bytes().len() < whole.profile.to_bytes().len());
        let small = Setup::of(spec, small);
        let tokens = Noise::new(9).tokens(300);
        let kv = cache(&small.spec, &tokens, 5);
        let loss = |setup: &Setup| {
            let object = setup.encode(&tokens, 0, &kv);
            error(&kv, &setup.decode(&object, 3).expect("decodes"))
        };
        let (before, after) = (loss(&whole), loss(&small));
        assert!(after < before * 2.0 + 1e-3, "{before} {after}");
    }

    #[test]
    fn a_size_that_does_not_fall_ends_soon() {
        let (bytes, mut rounds) = (1usize << 40, 0);
        let fixed = fit(bytes, |_| {
            rounds += 1;
            Ok(((), bytes + 1))
        });
        assert_eq!(fixed, Err(TrainError::Size { bytes, least: bytes + 1 }));
        assert!(rounds < 50, "{rounds}");
        // One that falls by whole MiB.
        assert_eq!(fit(bytes, |room| Ok((room, (room >> 20 << 20) + 100))), Ok(bytes - 101));
    }

    #[test]
    fn a_note_stays_readable_and_what_does_not_shrink_is_refused() {
        let whole = Setup::new(mixed_spec(kvasir_types::KvDtype::Bf16), &Recipe::Direct);
        let mut parts = whole.profile.parts();
        parts.training.note = "é".repeat(NOTE_BYTES_MAX / 2);
        let profile = Profile::assemble(parts).expect("the longest note");
        let file = pack(&profile, 1 << 20, 4).expect("packs").to_bytes();
        let read = Profile::from_bytes(&file).expect("readable");
        assert!(read.training().note.starts_with(&format!("packed from {} éé", profile.hash())));
        let refused = pack(&profile, 1_000, 4).expect_err("nothing to pack");
        assert_eq!(refused, TrainError::Size { bytes: 1_000, least: file.len() });
    }
}
