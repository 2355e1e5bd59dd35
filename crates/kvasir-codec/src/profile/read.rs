//! The reader of profile files, the mirror of `write.rs`. Total: every length is checked against the bytes
//! that are there before anything is allocated for it; what the values mean is checked in `validate.rs`.

use half::f16;
use kvasir_types::{LEVELS_MAX, ModelId, Plane};

use super::{
    Basis, CoefficientCoding, LevelNote, MAGIC, Member, Predictor, ProfileParts, Scope, TokenPredictor,
    TrainingNote, VERSION, write::NO_KL,
};
use crate::{
    ProfileError,
    limits::{NOTE_BYTES_MAX, PROFILE_BYTES_MAX, SCOPES_MAX},
    rans::TableBank,
};

/// Parses a profile file into parts that are not yet validated.
pub(super) fn parse(bytes: &[u8]) -> Result<ProfileParts, ProfileError> {
    let body = checked_body(bytes)?;
    let mut r = Reader(body);
    r.take(10, "header")?; // magic and version, seen by `checked_body`
    let level_count = usize::from(r.u8("level count")?);
    let exact_tokens = usize::from(r.u8("exact token count")?);
    let scope_count = r.u32("scope count")? as usize;
    r.u64("length")?;
    let model_id = ModelId::from(r.array::<32>("model id")?);
    let recipe = r.text("recipe")?;
    let note = r.text("note")?;
    let (tokens, held_out_tokens) = (r.u64("training note")?, r.u64("training note")?);
    let training = TrainingNote { recipe, note, tokens, held_out_tokens };
    if level_count == 0 || level_count > LEVELS_MAX {
        return Err(invalid("level count", level_count));
    }
    let levels = (0..level_count).map(|_| r.level()).collect::<Result<_, _>>()?;
    let (bank, rest) = TableBank::from_bytes(r.0).map_err(|e| invalid("table bank", e))?;
    r.0 = rest;
    let shifts = bank.stage_tables().iter().map(|_| r.array("centroid shifts")).collect::<Result<_, _>>()?;
    if scope_count == 0 || scope_count > SCOPES_MAX {
        return Err(invalid("scope count", scope_count));
    }
    let scopes = (0..scope_count).map(|_| r.scope()).collect::<Result<_, _>>()?;
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
    if version != VERSION {
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

/// What is left of the file.
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

    fn u8(&mut self, field: &'static str) -> Result<u8, ProfileError> {
        self.array::<1>(field).map(|[byte]| byte)
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

    fn i8s(&mut self, count: usize, field: &'static str) -> Result<Vec<i8>, ProfileError> {
        Ok(self.take(count, field)?.iter().map(|b| b.cast_signed()).collect())
    }

    fn text(&mut self, field: &'static str) -> Result<String, ProfileError> {
        let bytes = usize::from(self.u16(field)?);
        if bytes > NOTE_BYTES_MAX {
            return Err(invalid(field, format!("{bytes} bytes of text")));
        }
        String::from_utf8(self.take(bytes, field)?.to_vec()).map_err(|e| invalid(field, e))
    }

    fn level(&mut self) -> Result<LevelNote, ProfileError> {
        let kl = self.f32("levels")?;
        let kl = (kl.to_bits() != NO_KL.to_bits()).then_some(kl);
        Ok(LevelNote { kl, bits_per_element: self.f32("levels")?, nmse: self.f32("levels")? })
    }

    fn scope(&mut self) -> Result<Scope, ProfileError> {
        let [unrope, basis, predictor, reserved] = self.array::<4>("scope")?;
        if unrope > 1 || reserved != 0 {
            return Err(invalid("scope flags", format!("{unrope}, {reserved}")));
        }
        let member_count = self.u32("scope")? as usize;
        let rank = self.u32("scope")? as usize;
        let members = self.members(member_count)?;
        // At most 2^32 members (each 16 bytes of file) of 2^32 elements: no overflow in u64 = usize.
        let elements = members.iter().map(|m| m.dim).sum();
        let mean = self.f32s(elements, "mean")?;
        let coding = self.codings(rank, "coefficient table")?;
        let predictor = match predictor {
            0 => Predictor::Mean,
            1 => Predictor::AnchorFirst {
                group: self.u32("predictor")? as usize,
                anchor_ratio: self.u32("predictor")?.cast_signed(),
                anchors: self.codings(rank, "anchor table")?,
            },
            2 => Predictor::Token(self.token(rank)?),
            other => return Err(invalid("predictor", other)),
        };
        let basis = self.basis(basis, rank, elements)?;
        Ok(Scope { members, unrope: unrope == 1, mean, basis, predictor, coding })
    }

    fn members(&mut self, count: usize) -> Result<Vec<Member>, ProfileError> {
        let mut r = Reader(self.items(count, 16, "members")?);
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

    fn token(&mut self, rank: usize) -> Result<TokenPredictor, ProfileError> {
        let vocabulary = self.u32("predictor")? as usize;
        let factors = [usize::from(self.u16("predictor")?), usize::from(self.u16("predictor")?)];
        // u32 × u16 and u17 × u32: no overflow in u64 = usize.
        Ok(TokenPredictor {
            vocabulary,
            factors,
            current: self.i8s(vocabulary * factors[0], "token factors")?,
            previous: self.i8s(vocabulary * factors[1], "token factors")?,
            matrix: self.i8s((factors[0] + factors[1]) * rank, "predictor matrix")?,
            shifts: self.take(rank, "predictor shifts")?.to_vec(),
        })
    }

    fn basis(&mut self, kind: u8, rank: usize, elements: usize) -> Result<Basis, ProfileError> {
        let entries = rank.checked_mul(elements).ok_or(ProfileError::Truncated { field: "basis" })?;
        match kind {
            0 => Ok(Basis::Identity),
            1 => Ok(Basis::Trained { synthesis: self.f16s(entries, "basis")?, analysis: None }),
            2 => Ok(Basis::Trained {
                synthesis: self.f16s(entries, "basis")?,
                analysis: Some(self.f16s(entries, "analysis matrix")?),
            }),
            other => Err(invalid("basis", other)),
        }
    }
}
