//! The reader of profile files, the counterpart of `write.rs`. Total: every length is checked against the
//! available bytes before memory is allocated for it. `validate.rs` checks the values.

use half::f16;
use kvasir_container::ProfileHead;
use kvasir_types::{LEVELS_MAX, Plane};

use super::{
    Basis, CoefficientCoding, MAGIC, Member, PackedRows, Predictor, ProfileParts, Scope, TokenPredictor,
    TrainingNote, VERSION, VERSION_EXACT, VERSION_LOSSY, packed_bytes, unpack,
};
use crate::{
    ProfileError,
    limits::{PROFILE_BYTES_MAX, ROW_BITS_MAX, SCOPES_MAX, TOKEN_FACTORS_MAX},
    lossless::{ElementCoding, Lossless},
    rans::{COEFFICIENTS_MAX, TableBank},
};

/// Parses a profile file into parts that are not yet validated. Refuses one with which a token takes more than
/// `macs_max` multiply-adds.
pub(super) fn parse(bytes: &[u8], macs_max: u64) -> Result<ProfileParts, ProfileError> {
    let body = checked_body(bytes)?;
    let (head, rest) = ProfileHead::read(body)?;
    let ProfileHead { version, model_id, levels, .. } = head;
    let (exact_tokens, scope_count) = (usize::from(head.exact_tokens), head.scope_count as usize);
    let training = TrainingNote {
        recipe: head.recipe,
        note: head.note,
        tokens: head.tokens,
        held_out_tokens: head.held_out_tokens,
    };
    let (bank, rest) = TableBank::from_bytes(rest).map_err(|e| invalid("table bank", e))?;
    let mut r = Reader(rest);
    let shifts = bank.stage_tables().iter().map(|_| r.array("centroid shifts")).collect::<Result<_, _>>()?;
    if scope_count == 0 || scope_count > SCOPES_MAX {
        return Err(invalid("scope count", scope_count));
    }
    let mut macs = MultiplyAdds { most: macs_max, left: macs_max };
    let scopes = (0..scope_count).map(|_| r.scope(version, levels.len(), &mut macs));
    let scopes = scopes.collect::<Result<Vec<_>, _>>()?;
    if version == VERSION && !scopes.iter().all(Scope::is_measured) {
        return Err(invalid("power", "none, which is of an earlier version: a profile has one form"));
    }
    if !r.0.is_empty() {
        return Err(ProfileError::Trailing { extra_bytes: r.0.len() as u64 });
    }
    Ok(ProfileParts { model_id, exact_tokens, scopes, bank, shifts, levels, training })
}

/// The file without its checksum, once magic, version, length and checksum hold.
fn checked_body(bytes: &[u8]) -> Result<&[u8], ProfileError> {
    let mut r = Reader(bytes);
    if r.array::<8>("magic").map_err(|_| ProfileError::Magic)? != MAGIC {
        return Err(ProfileError::Magic);
    }
    let version = r.u16("version")?;
    if ![VERSION_LOSSY, VERSION_EXACT, VERSION].contains(&version) {
        return Err(ProfileError::Version { found: version, expected: VERSION });
    }
    r.take(6, "header")?;
    let total = r.u64("length")?;
    if total > PROFILE_BYTES_MAX {
        return Err(invalid("length", total));
    }
    match (bytes.len() as u64).checked_sub(total) {
        None => return Err(ProfileError::Truncated { field: "body" }),
        Some(0) => {}
        Some(extra_bytes) => return Err(ProfileError::Trailing { extra_bytes }),
    }
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(ProfileError::Truncated { field: "checksum" })?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(ProfileError::Checksum);
    }
    Ok(body)
}

fn invalid(field: &'static str, found: impl std::fmt::Display) -> ProfileError {
    ProfileError::Invalid { field, found: format!("{found}") }
}

/// Multiply-adds of decoding a token that the rest of the file may add.
struct MultiplyAdds {
    most: u64,
    left: u64,
}

impl MultiplyAdds {
    fn spend(&mut self, count: usize) -> Result<(), ProfileError> {
        let (what, most) = ("multiply-adds to decode a token", self.most);
        self.left = self.left.checked_sub(count as u64).ok_or(ProfileError::TooMuch { what, most })?;
        Ok(())
    }
}

/// The remaining bytes of the file.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize, field: &'static str) -> Result<&'a [u8], ProfileError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(ProfileError::Truncated { field })?;
        self.0 = rest;
        Ok(taken)
    }

    /// `count` items of `bytes` bytes each; a product that overflows is longer than any file.
    fn items(&mut self, count: usize, bytes: usize, field: &'static str) -> Result<&'a [u8], ProfileError> {
        self.take(count.checked_mul(bytes).ok_or(ProfileError::Truncated { field })?, field)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ProfileError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(ProfileError::Truncated { field })?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, ProfileError> {
        self.array(field).map(u16::from_le_bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, ProfileError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, ProfileError> {
        self.array(field).map(u64::from_le_bytes)
    }

    fn f32(&mut self, field: &'static str) -> Result<f32, ProfileError> {
        self.array(field).map(f32::from_le_bytes)
    }

    fn f32s(&mut self, count: usize, field: &'static str) -> Result<Vec<f32>, ProfileError> {
        let bytes = self.items(count, 4, field)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn f16s(&mut self, count: usize, field: &'static str) -> Result<Vec<f16>, ProfileError> {
        let bytes = self.items(count, 2, field)?;
        Ok(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b)).collect())
    }

    /// `rows` rows of `count` signed integers of `bits` bits (2 to 8) in offset binary.
    fn signed(
        &mut self,
        (rows, count, bits): (usize, usize, u8),
        field: &'static str,
    ) -> Result<Vec<i8>, ProfileError> {
        if !(2..=8).contains(&bits) {
            return Err(invalid(field, format!("{bits} bits")));
        }
        let row_bytes = packed_bytes(count, bits);
        let bytes = self.items(rows, row_bytes, field)?;
        let offset = 1i32 << (bits - 1);
        let row = |row| unpack(row, bits, count).map(move |code| (code.cast_signed() - offset) as i8);
        Ok(bytes.chunks_exact(row_bytes.max(1)).flat_map(row).collect())
    }

    fn scope(
        &mut self,
        version: u16,
        level_count: usize,
        macs: &mut MultiplyAdds,
    ) -> Result<Scope, ProfileError> {
        let [unrope, basis, predictor, lossless] = self.array::<4>("scope")?;
        // The version also determines whether there is an exact level: a profile has only one valid form.
        let is_as_said = version == VERSION || (version == VERSION_EXACT) == (lossless > 0);
        if unrope > 1 || lossless > 2 || !is_as_said {
            return Err(invalid("scope flags", format!("{unrope}, {lossless}")));
        }
        let member_count = self.u32("scope")? as usize;
        let rank = self.u32("scope")? as usize;
        let members = self.members(member_count, version)?;
        // At most 2^32 members (each 16 bytes of file) of 2^32 elements: no overflow in u64 = usize.
        let elements = members.iter().map(|m| m.dim).sum();
        let loss = self.f32s(level_count, "loss by level")?;
        let mean = self.f32s(elements, "mean")?;
        let coding = self.codings(rank, "coefficient table")?;
        let lossless = match lossless {
            0 => None,
            kind => Some(self.lossless(kind == 1, elements)?),
        };
        let predictor = match predictor {
            0 => Predictor::Mean,
            1 => Predictor::AnchorFirst {
                group: self.u32("predictor")? as usize,
                anchor_ratio: self.u32("predictor")?.cast_signed(),
                anchors: self.codings(rank, "anchor table")?,
            },
            2 => Predictor::Token(self.token(rank, macs)?),
            other => return Err(invalid("predictor", other)),
        };
        let basis = self.basis(basis, rank, elements, macs)?;
        Ok(Scope { members, unrope: unrope == 1, mean, basis, predictor, coding, loss, lossless })
    }

    fn members(&mut self, count: usize, version: u16) -> Result<Vec<Member>, ProfileError> {
        let is_measured = version == VERSION;
        let mut r = Reader(self.items(count, if is_measured { 20 } else { 16 }, "members")?);
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            members.push(Member {
                layer: usize::from(r.u16("members")?),
                plane: match r.u16("members")? {
                    0 => Plane::K,
                    1 => Plane::V,
                    other => return Err(invalid("plane", other)),
                },
                head: r.u32("members")? as usize,
                dim: r.u32("members")? as usize,
                gain: r.f32("members")?,
                power: if is_measured { r.f32("members")? } else { 0.0 },
            });
        }
        Ok(members)
    }

    fn codings(&mut self, count: usize, field: &'static str) -> Result<Vec<CoefficientCoding>, ProfileError> {
        let bytes = self.items(count, 4 + LEVELS_MAX, field)?;
        let coding = |[entry, stage, inner, reserved, trits @ ..]: &[u8; 4 + LEVELS_MAX]| match reserved {
            0 => Ok(CoefficientCoding {
                entry: entry.cast_signed(),
                stage: *stage,
                inner: *inner,
                trits: *trits,
            }),
            _ => Err(invalid(field, "reserved bits are set")),
        };
        bytes.as_chunks().0.iter().map(coding).collect()
    }

    fn lossless(&mut self, residual: bool, elements: usize) -> Result<Lossless, ProfileError> {
        let bytes = self.items(elements, 2, "exact level")?;
        let element = |[table, floor]: &[u8; 2]| ElementCoding { table: *table, floor: *floor };
        Ok(Lossless { residual, elements: bytes.as_chunks().0.iter().map(element).collect() })
    }

    fn token(&mut self, rank: usize, macs: &mut MultiplyAdds) -> Result<TokenPredictor, ProfileError> {
        let vocabulary = self.u32("predictor")? as usize;
        let factors = [usize::from(self.u16("predictor")?), usize::from(self.u16("predictor")?)];
        let table_bits = self.array::<2>("predictor")?;
        let [current, previous] = [0, 1].map(|which| (vocabulary, factors[which], table_bits[which]));
        let current = self.signed(current, "token factors")?;
        let previous = self.signed(previous, "token factors")?;
        let shifts = self.take(rank, "predictor shifts")?.to_vec();
        let matrix_bits = self.take(rank, "predictor matrix")?.to_vec();
        let count = factors[0] + factors[1];
        // Zeros are not in the file, so this is the only allocation larger than its input.
        let entries = bounded(count, rank)?;
        macs.spend(entries)?;
        let mut matrix = vec![0; entries];
        for (coefficient, bits) in matrix_bits.iter().enumerate().filter(|(_, bits)| **bits > 0) {
            let column = self.signed((1, count, *bits), "predictor matrix")?;
            matrix.iter_mut().skip(coefficient).step_by(rank).zip(column).for_each(|(m, v)| *m = v);
        }
        Ok(TokenPredictor { vocabulary, factors, current, previous, matrix, shifts, table_bits, matrix_bits })
    }

    fn basis(
        &mut self,
        kind: u8,
        rank: usize,
        elements: usize,
        macs: &mut MultiplyAdds,
    ) -> Result<Basis, ProfileError> {
        if kind == 0 {
            return Ok(Basis::Identity);
        }
        let entries = rank.checked_mul(elements).ok_or(ProfileError::Truncated { field: "basis" })?;
        // Packed rows become up to sixteen times as many bytes.
        macs.spend(entries)?;
        let (synthesis, packed) = match kind {
            1 | 2 => (self.f16s(entries, "basis")?, None),
            3 | 4 => {
                let packed = self.packed_rows(rank, elements)?;
                (packed.rows(elements), Some(packed))
            }
            other => return Err(invalid("basis", other)),
        };
        let analysis = match kind {
            2 | 4 => Some(self.f16s(entries, "analysis matrix")?),
            _ => None,
        };
        Ok(Basis::Trained { synthesis, analysis, packed })
    }

    fn packed_rows(&mut self, rank: usize, elements: usize) -> Result<PackedRows, ProfileError> {
        let bits = self.take(rank, "basis")?.to_vec();
        if let Some(wrong) = bits.iter().find(|bits| !(1..=ROW_BITS_MAX).contains(*bits)) {
            return Err(invalid("basis", format!("{wrong} bits an entry")));
        }
        let units = self.f32s(rank, "basis")?;
        // At most 2^32 rows, each with a separate byte in the file, of less than 2^47 bytes.
        let bytes = bits.iter().try_fold(0usize, |sum, b| sum.checked_add(packed_bytes(elements, *b)));
        let codes = self.take(bytes.ok_or(ProfileError::Truncated { field: "basis" })?, "basis")?.to_vec();
        Ok(PackedRows { bits, units, codes })
    }
}

/// Entries of a predictor's matrix; an error if no valid profile has as many.
fn bounded(factors: usize, rank: usize) -> Result<usize, ProfileError> {
    if factors > TOKEN_FACTORS_MAX || rank > COEFFICIENTS_MAX {
        return Err(invalid("predictor matrix", format!("{factors} factors of {rank} coefficients")));
    }
    Ok(factors * rank)
}
