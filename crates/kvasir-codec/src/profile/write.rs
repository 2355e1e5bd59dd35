//! The writer of profile files; `read.rs` is its mirror. FORMAT.md "Profile file" is normative.

use half::f16;
use kvasir_container::NO_KL;
use kvasir_types::LEVELS_MAX;

use super::{
    Basis, CoefficientCoding, MAGIC, PackedRows, Predictor, Profile, Scope, TokenPredictor, VERSION,
    VERSION_EXACT, VERSION_LOSSY, pack,
};

/// The bytes of a profile.
pub(super) fn serialise(profile: &Profile) -> Vec<u8> {
    let version = match (profile.is_measured(), profile.is_lossless()) {
        (true, _) => VERSION,
        (false, true) => VERSION_EXACT,
        (false, false) => VERSION_LOSSY,
    };
    let mut w = Writer(Vec::new());
    w.bytes(&MAGIC);
    w.u16(version);
    w.u8(profile.levels.len() as u8);
    w.u8(profile.exact_tokens as u8);
    w.u32(profile.scopes.len() as u32);
    let total_at = w.0.len();
    w.u64(0);
    w.bytes(profile.model_id.as_bytes());
    w.text(&profile.training.recipe);
    w.text(&profile.training.note);
    w.u64(profile.training.tokens);
    w.u64(profile.training.held_out_tokens);
    for level in &profile.levels {
        w.f32(level.kl.unwrap_or(NO_KL));
        w.f32(level.bits_per_element);
        w.f32(level.nmse);
    }
    w.bytes(&profile.bank.to_bytes());
    profile.shifts.iter().for_each(|row| w.bytes(row));
    profile.scopes.iter().for_each(|scope| w.scope(scope, version));
    let total = (w.0.len() + 4) as u64;
    w.0[total_at..total_at + 8].copy_from_slice(&total.to_le_bytes());
    let crc = crc32c::crc32c(&w.0);
    w.u32(crc);
    w.0
}

struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn f32(&mut self, value: f32) {
        self.bytes(&value.to_le_bytes());
    }

    fn f16s(&mut self, values: &[f16]) {
        values.iter().for_each(|v| self.bytes(&v.to_le_bytes()));
    }

    fn text(&mut self, text: &str) {
        self.u16(text.len() as u16);
        self.bytes(text.as_bytes());
    }

    fn scope(&mut self, scope: &Scope, version: u16) {
        let (basis, predictor) = (basis_kind(&scope.basis), predictor_kind(&scope.predictor));
        self.u8(u8::from(scope.unrope));
        self.u8(basis);
        self.u8(predictor);
        self.u8(match &scope.lossless {
            None => 0,
            Some(lossless) => {
                if lossless.residual {
                    1
                } else {
                    2
                }
            }
        });
        self.u32(scope.members.len() as u32);
        self.u32(scope.rank() as u32);
        for member in &scope.members {
            self.u16(member.layer as u16);
            self.u16(member.plane as u16);
            self.u32(member.head as u32);
            self.u32(member.dim as u32);
            self.f32(member.gain);
            if version == VERSION {
                self.f32(member.power);
            }
        }
        scope.loss.iter().for_each(|v| self.f32(*v));
        scope.mean.iter().for_each(|v| self.f32(*v));
        scope.coding.iter().for_each(|c| self.coding(c));
        for element in scope.lossless.iter().flat_map(|lossless| &lossless.elements) {
            self.u8(element.table);
            self.u8(element.floor);
        }
        match &scope.predictor {
            Predictor::Mean => {}
            Predictor::AnchorFirst { group, anchor_ratio, anchors } => {
                self.u32(*group as u32);
                self.u32(anchor_ratio.cast_unsigned());
                anchors.iter().for_each(|c| self.coding(c));
            }
            Predictor::Token(token) => self.token(token),
        }
        if let Basis::Trained { synthesis, analysis, packed } = &scope.basis {
            match packed {
                Some(packed) => self.packed_rows(packed),
                None => self.f16s(synthesis),
            }
            self.f16s(analysis.as_deref().unwrap_or_default());
        }
    }

    fn packed_rows(&mut self, packed: &PackedRows) {
        self.bytes(&packed.bits);
        packed.units.iter().for_each(|unit| self.f32(*unit));
        self.bytes(&packed.codes);
    }

    fn coding(&mut self, coding: &CoefficientCoding) {
        self.u8(coding.entry.cast_unsigned());
        self.u8(coding.stage);
        self.u8(coding.inner);
        self.u8(0);
        debug_assert_eq!(coding.trits.len(), LEVELS_MAX);
        self.bytes(&coding.trits);
    }

    fn token(&mut self, token: &TokenPredictor) {
        self.u32(token.vocabulary as u32);
        self.u16(token.factors[0] as u16);
        self.u16(token.factors[1] as u16);
        self.bytes(&token.table_bits);
        let tables = [&token.current, &token.previous];
        for ((table, factors), bits) in tables.into_iter().zip(token.factors).zip(token.table_bits) {
            table.chunks_exact(factors.max(1)).for_each(|row| self.signed(row.iter().copied(), bits));
        }
        self.bytes(&token.shifts);
        self.bytes(&token.matrix_bits);
        let rank = token.shifts.len();
        for (coefficient, bits) in token.matrix_bits.iter().enumerate().filter(|(_, bits)| **bits > 0) {
            self.signed(token.matrix.iter().skip(coefficient).step_by(rank).copied(), *bits);
        }
    }

    /// A row of signed integers in offset binary.
    fn signed(&mut self, values: impl Iterator<Item = i8>, bits: u8) {
        let offset = 1i32 << (bits - 1);
        pack(values.map(|v| (i32::from(v) + offset).cast_unsigned()), bits, &mut self.0);
    }
}

/// Code of a basis: 0 identity, 1 trained, 2 with a separate analysis; 3 and 4 the same, packed.
fn basis_kind(basis: &Basis) -> u8 {
    match basis {
        Basis::Identity => 0,
        Basis::Trained { analysis, packed, .. } => {
            1 + u8::from(analysis.is_some()) + 2 * u8::from(packed.is_some())
        }
    }
}

/// Code of a predictor: 0 mean, 1 anchor-first, 2 token.
fn predictor_kind(predictor: &Predictor) -> u8 {
    match predictor {
        Predictor::Mean => 0,
        Predictor::AnchorFirst { .. } => 1,
        Predictor::Token(_) => 2,
    }
}
