//! The head of a profile file: its model, how it was made, and the measured figures of its levels (FORMAT.md
//! "Profile file").

use kvasir_types::{LEVELS_MAX, ModelId};

/// First bytes of a profile file.
pub const PROFILE_MAGIC: [u8; 8] = *b"KVSRPROF";
/// Longest text field of a profile in bytes.
pub const NOTE_BYTES_MAX: usize = 4_096;
/// Longest head: fixed fields, two texts, two counts, and a note for each level.
pub const PROFILE_HEAD_BYTES_MAX: usize = 24 + 32 + 2 * (2 + NOTE_BYTES_MAX) + 16 + 12 * LEVELS_MAX;
/// Recipe of profiles that clients derive from the first cache they save.
pub const STARTER_RECIPE: &str = "starter";
/// Note of profiles that were trained to the bounds of quality `transparent`.
pub const TRANSPARENT_NOTE: &str = "errors follow the bounds of transparent";
/// The value in the file if no KL was measured.
pub const NO_KL: f32 = -1.0;
/// Versions of the format that this build reads.
const VERSIONS: std::ops::RangeInclusive<u16> = 2..=4;

/// The head of a profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileHead {
    /// Version of the format.
    pub version: u16,
    /// Tokens at the start of a context that are stored exactly.
    pub exact_tokens: u8,
    /// Scopes that the file has.
    pub scope_count: u32,
    /// Size of the whole file.
    pub bytes: u64,
    /// The model.
    pub model_id: ModelId,
    /// Name of the recipe.
    pub recipe: String,
    /// Free text: corpus, date, command.
    pub note: String,
    /// Tokens trained on.
    pub tokens: u64,
    /// Tokens held out, on which rates were measured.
    pub held_out_tokens: u64,
    /// One entry a level, coarsest first.
    pub levels: Vec<ProfileLevel>,
}

/// The figures of a level from training.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ProfileLevel {
    /// Predicted logit KL in nats per token against the uncompressed cache, if it was measured.
    pub kl: Option<f32>,
    /// Bits a KV element of everything up to this level, on held-out text, container included.
    pub bits_per_element: f32,
    /// Power of the error over the power of the signal, un-roped and scaled, on held-out text.
    pub nmse: f32,
}

/// How a profile was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileOrigin {
    /// A client made it of the first cache that it saved.
    FirstSave,
    /// Trained to the bounds of quality `transparent`, on stored caches or on dumps.
    Trained,
    /// Any other way.
    ByHand,
}

impl ProfileOrigin {
    /// The origin of a profile with that recipe and note.
    pub fn of(recipe: &str, note: &str) -> Self {
        match (recipe, note) {
            (STARTER_RECIPE, _) => Self::FirstSave,
            (_, TRANSPARENT_NOTE) => Self::Trained,
            _ => Self::ByHand,
        }
    }

    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FirstSave => "first_save",
            Self::Trained => "trained",
            Self::ByHand => "by_hand",
        }
    }
}

/// Why bytes are not the head of a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileHeadError {
    /// Not a profile at all.
    #[error("this is not a Kvasir profile: it does not start with the magic bytes `KVSRPROF`")]
    Magic,
    /// Written by another version of the format.
    #[error("the profile has format version {found}, this build reads up to {}", VERSIONS.end())]
    Version {
        /// Version in the file.
        found: u16,
    },
    /// The bytes end early.
    #[error("the profile ends in its {field}")]
    Truncated {
        /// The field being read.
        field: &'static str,
    },
    /// A field has a value no writer produces.
    #[error("the profile's {field} is invalid ({found})")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The value found.
        found: String,
    },
}

impl ProfileHead {
    /// Reads the head and returns the bytes after it. Total: no input panics.
    ///
    /// # Errors
    /// [`ProfileHeadError`].
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), ProfileHeadError> {
        let mut r = Reader(bytes);
        if r.array::<8>("magic").map_err(|_| ProfileHeadError::Magic)? != PROFILE_MAGIC {
            return Err(ProfileHeadError::Magic);
        }
        let version = u16::from_le_bytes(r.array("version")?);
        if !VERSIONS.contains(&version) {
            return Err(ProfileHeadError::Version { found: version });
        }
        let [level_count] = r.array("level count")?;
        let [exact_tokens] = r.array("exact token count")?;
        let scope_count = u32::from_le_bytes(r.array("scope count")?);
        let total = r.u64("length")?;
        let model_id = ModelId::from(r.array::<32>("model id")?);
        let (recipe, note) = (r.text("recipe")?, r.text("note")?);
        let (tokens, held_out_tokens) = (r.u64("training note")?, r.u64("training note")?);
        if level_count == 0 || usize::from(level_count) > LEVELS_MAX {
            return Err(invalid("level count", level_count));
        }
        let levels = (0..level_count).map(|_| r.level()).collect::<Result<_, _>>()?;
        let head = Self {
            version,
            exact_tokens,
            scope_count,
            bytes: total,
            model_id,
            recipe,
            note,
            tokens,
            held_out_tokens,
            levels,
        };
        Ok((head, r.0))
    }

    /// How the profile was made.
    pub fn origin(&self) -> ProfileOrigin {
        ProfileOrigin::of(&self.recipe, &self.note)
    }
}

fn invalid(field: &'static str, found: impl std::fmt::Display) -> ProfileHeadError {
    ProfileHeadError::Invalid { field, found: found.to_string() }
}

/// The remaining bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ProfileHeadError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(ProfileHeadError::Truncated { field })?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, ProfileHeadError> {
        self.array(field).map(u64::from_le_bytes)
    }

    fn f32(&mut self) -> Result<f32, ProfileHeadError> {
        self.array("levels").map(f32::from_le_bytes)
    }

    fn text(&mut self, field: &'static str) -> Result<String, ProfileHeadError> {
        let bytes = usize::from(u16::from_le_bytes(self.array(field)?));
        if bytes > NOTE_BYTES_MAX {
            return Err(invalid(field, format!("{bytes} bytes of text")));
        }
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(ProfileHeadError::Truncated { field })?;
        self.0 = rest;
        String::from_utf8(taken.to_vec()).map_err(|e| invalid(field, e))
    }

    fn level(&mut self) -> Result<ProfileLevel, ProfileHeadError> {
        let kl = self.f32()?;
        let kl = (kl.to_bits() != NO_KL.to_bits()).then_some(kl);
        Ok(ProfileLevel { kl, bits_per_element: self.f32()?, nmse: self.f32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(level_count: u8, recipe: &[u8], note: &[u8]) -> Vec<u8> {
        let mut bytes = PROFILE_MAGIC.to_vec();
        bytes.extend(4u16.to_le_bytes());
        bytes.extend([level_count, 4]);
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(999u64.to_le_bytes());
        bytes.extend([7; 32]);
        for text in [recipe, note] {
            bytes.extend((text.len() as u16).to_le_bytes());
            bytes.extend(text);
        }
        bytes.extend([100u64, 20].map(u64::to_le_bytes).concat());
        for level in 0..level_count {
            let kl = if level == 0 { 0.5 } else { NO_KL };
            bytes.extend([kl, f32::from(level), 0.25].map(f32::to_le_bytes).concat());
        }
        bytes
    }

    #[test]
    fn the_head_is_what_was_written_and_no_prefix_of_it_is_a_head() {
        let mut bytes = file(2, STARTER_RECIPE.as_bytes(), b"\xc3\xa9cu");
        let length = bytes.len();
        assert!(length <= PROFILE_HEAD_BYTES_MAX);
        bytes.extend(b"rest");
        let (head, rest) = ProfileHead::read(&bytes).expect("a head");
        assert_eq!((rest, head.bytes, head.exact_tokens, head.scope_count), (&b"rest"[..], 999, 4, 1));
        assert_eq!((head.model_id, head.tokens, head.held_out_tokens), (ModelId::from([7; 32]), 100, 20));
        assert_eq!((head.note.as_str(), head.origin()), ("écu", ProfileOrigin::FirstSave));
        let level = ProfileLevel { kl: Some(0.5), bits_per_element: 0.0, nmse: 0.25 };
        assert_eq!(head.levels, [level, ProfileLevel { kl: None, bits_per_element: 1.0, ..level }]);
        for end in 0..length {
            assert!(ProfileHead::read(&bytes[..end]).is_err(), "{end}");
        }
        assert_eq!(
            file(LEVELS_MAX as u8, &[b'r'; NOTE_BYTES_MAX], &[b'n'; NOTE_BYTES_MAX]).len(),
            PROFILE_HEAD_BYTES_MAX
        );
    }

    #[test]
    fn impossible_heads_are_refused() {
        let error = |bytes: &[u8]| ProfileHead::read(bytes).expect_err("refused");
        assert_eq!(error(b"KVSRPROG"), ProfileHeadError::Magic);
        let mut other = file(1, b"r", b"n");
        other[8] = 5;
        assert_eq!(error(&other), ProfileHeadError::Version { found: 5 });
        for (bytes, what) in [
            (file(0, b"r", b"n"), "level count"),
            (file(LEVELS_MAX as u8 + 1, b"r", b"n"), "level count"),
            (file(1, &[b'r'; NOTE_BYTES_MAX + 1], b"n"), "recipe"),
            (file(1, b"r", b"\xff"), "note"),
        ] {
            assert!(
                matches!(error(&bytes), ProfileHeadError::Invalid { field, .. } if field == what),
                "{what}"
            );
        }
        let made = ["", TRANSPARENT_NOTE].map(|note| ProfileOrigin::of("basis", note).as_str());
        assert_eq!(made, ["by_hand", "trained"]);
    }
}
