//! Named qualities, and the error that they bound.

use std::{fmt, str::FromStr, sync::LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{KvLayout, Plane};

/// A named quality. Each is a bound on the [`LevelError`] of a chunk's level.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Bit for bit.
    Exact,
    /// An error of at most 2.5e-4 in keys and 1e-3 in values: about that of an fp8 cache.
    Transparent,
    /// Ten times the error of `transparent`.
    Balanced,
    /// A hundred times the error of `transparent`.
    Small,
}

/// Error of keys that `transparent` allows: its power relative to the power of the keys about their mean.
/// Keys need a smaller error than values, because they pass through a softmax.
const KEY_ERROR: f64 = 2.5e-4;
/// The same for values.
const VALUE_ERROR: f64 = 1e-3;

impl Quality {
    /// All qualities, best first.
    pub const ALL: [Self; 4] = [Self::Exact, Self::Transparent, Self::Balanced, Self::Small];

    /// The largest error of this quality.
    pub const fn error_max(self) -> LevelError {
        match self {
            Self::Exact => LevelError::NONE,
            Self::Transparent => LevelError(LevelError::ONE),
            // The steps below 10 and 100: 9.5 and 98.7.
            Self::Balanced => LevelError(LevelError::ONE + 26),
            Self::Small => LevelError(LevelError::ONE + 53),
        }
    }

    /// The best quality that an error satisfies; `None` if it exceeds all bounds or is unknown.
    pub fn of(error: LevelError) -> Option<Self> {
        Self::ALL.into_iter().find(|quality| error <= quality.error_max())
    }

    /// The bound of `transparent` for a plane of a layer: error power relative to the power of the plane.
    pub const fn transparent_error(layout: KvLayout, plane: Plane) -> f64 {
        match (layout, plane) {
            // A latent row contains keys and values.
            (KvLayout::Mla { .. }, _) | (_, Plane::K) => KEY_ERROR,
            _ => VALUE_ERROR,
        }
    }

    /// The name in text and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Transparent => "transparent",
            Self::Balanced => "balanced",
            Self::Small => "small",
        }
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that is not a quality.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quality; use exact, transparent, balanced or small")]
pub struct QualityError(String);

impl FromStr for Quality {
    type Err = QualityError;

    fn from_str(text: &str) -> Result<Self, QualityError> {
        Self::ALL
            .into_iter()
            .find(|quality| quality.name() == text)
            .ok_or_else(|| QualityError(text.to_owned()))
    }
}

/// The error of a level of a chunk: the largest measured in any of its heads, relative to the bound of
/// `transparent` there.
///
/// Stored in steps of an eighth of an octave (9 %), rounded up. Larger errors compare as greater; an unknown
/// error is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LevelError(u8);

impl LevelError {
    /// The step that stands for 1.
    const ONE: u8 = 128;
    const STEPS_AN_OCTAVE: f64 = 8.0;

    /// No error: bit for bit.
    pub const NONE: Self = Self(0);
    /// Not measured, or too large for the scale.
    pub const UNKNOWN: Self = Self(u8::MAX);

    /// The step at or above a measured error.
    pub fn at_least(error: f64) -> Self {
        Self::step(error, f64::ceil)
    }

    fn step(error: f64, round: fn(f64) -> f64) -> Self {
        if error == 0.0 {
            return Self::NONE;
        }
        let step = round(f64::from(Self::ONE) + Self::STEPS_AN_OCTAVE * error.log2());
        // NaN is unknown as well.
        if step < f64::from(u8::MAX) { Self((step as u8).max(1)) } else { Self::UNKNOWN }
    }

    /// The error; `None` if it is unknown.
    pub fn get(self) -> Option<f64> {
        match self {
            Self::UNKNOWN => None,
            Self::NONE => Some(0.0),
            Self(step) => Some(((f64::from(step) - f64::from(Self::ONE)) / Self::STEPS_AN_OCTAVE).exp2()),
        }
    }

    /// The byte in objects.
    pub const fn to_byte(self) -> u8 {
        self.0
    }

    /// The error of a byte in an object.
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }
}

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            None => f.pad("unknown"),
            // Two decimals would show it as no error.
            Some(error) if error > 0.0 && error < 0.01 => f.pad(&format!("{error:.1e}")),
            Some(error) => f.pad(&format!("{error:.2}")),
        }
    }
}

/// The loss of KV compared with KV computed from the text alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Predicted logit KL in nats per token, as far as profiles know it.
    pub kl: f64,
    /// The largest measured error.
    pub error: LevelError,
    /// Length of the chain of computations over lossy KV, including this one.
    pub hops: u8,
}

impl Loss {
    /// No loss: computed from the text, or loaded bit for bit.
    pub const NONE: Self = Self { kl: 0.0, error: LevelError::NONE, hops: 0 };

    /// The larger of both, in each respect.
    pub fn worst(self, other: Self) -> Self {
        Self {
            kl: self.kl.max(other.kl),
            error: self.error.max(other.error),
            hops: self.hops.max(other.hops),
        }
    }

    /// Whether the predicted KL is known to be at most `max` nats per token. Profiles without predictions add 0: beside an
    /// error that is not `transparent`, a KL of 0 is unknown.
    pub fn is_within_kl(&self, max: f64) -> bool {
        let is_known = self.kl > 0.0 || self.error <= Quality::Transparent.error_max();
        is_known && self.kl <= max
    }

    /// The loss of a chunk that was computed over KV with this loss, and decoded at a level with this
    /// predicted KL and error.
    pub fn through(self, kl: f64, error: LevelError) -> Self {
        Self {
            kl: self.kl + kl,
            error: self.error.max(error),
            hops: self.hops.saturating_add(u8::from(error > LevelError::NONE)),
        }
    }
}

/// Enough digits to distinguish the steps.
fn three_digits(error: f64) -> f64 {
    if error == 0.0 {
        return 0.0;
    }
    let scale = 10f64.powi(2 - error.log10().floor() as i32);
    (error * scale).round() / scale
}

/// A number, or `null` if unknown.
impl Serialize for LevelError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A lookup's response has hundreds of them.
        static NUMBERS: LazyLock<[Option<f64>; 256]> =
            LazyLock::new(|| std::array::from_fn(|byte| LevelError(byte as u8).get().map(three_digits)));
        NUMBERS[usize::from(self.0)].serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LevelError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let error = Option::<f64>::deserialize(deserializer)?;
        Ok(error.filter(|error| *error >= 0.0).map_or(Self::UNKNOWN, |error| Self::step(error, f64::round)))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for LevelError {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type, schema::SchemaType};
        let types = SchemaType::from_iter([Type::Number, Type::Null]);
        let about = "An error relative to the bound of `transparent`: at most 0 is `exact`, 1 `transparent`, 10 `balanced`, 100 `small`; \
                     null if unknown.";
        RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(types).description(Some(about)).build()))
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for LevelError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_bound_the_error() {
        let of = |error| Quality::of(LevelError::at_least(error));
        assert_eq!(
            [0.0, 1e-30, 0.93, 1.0].map(of),
            [Quality::Exact, Quality::Transparent, Quality::Transparent, Quality::Transparent].map(Some)
        );
        assert_eq!(
            [1.01, 9.5, 10.1].map(of),
            [Quality::Balanced, Quality::Balanced, Quality::Small].map(Some)
        );
        assert_eq!(
            [98.0, 101.0, 1e9, f64::INFINITY, f64::NAN].map(of),
            [Some(Quality::Small), None, None, None, None]
        );
        for quality in Quality::ALL {
            assert_eq!(quality.name().parse(), Ok(quality));
            assert_eq!(Quality::of(quality.error_max()), Some(quality));
        }
        assert!("Exact".parse::<Quality>().is_err());
    }

    #[test]
    fn every_step_survives_json() {
        for byte in 0..=u8::MAX {
            let error = LevelError::from_byte(byte);
            let text = serde_json::to_string(&error).expect("a number");
            assert_eq!(serde_json::from_str::<LevelError>(&text).expect("a number"), error, "{text}");
        }
        assert_eq!(serde_json::from_str::<LevelError>("-1").expect("a number"), LevelError::UNKNOWN);
    }

    #[test]
    fn no_error_alone_is_shown_as_zero() {
        assert_eq!(LevelError::NONE.to_string(), "0.00");
        for byte in 1..=u8::MAX {
            let text = LevelError::from_byte(byte).to_string();
            assert_ne!(text.parse::<f64>(), Ok(0.0), "step {byte}: {text}");
        }
    }

    proptest! {
        #[test]
        fn a_step_is_never_below_its_error(error in 1e-4f64..1e4) {
            let step = LevelError::at_least(error).get().expect("on the scale");
            prop_assert!(step >= error * (1.0 - 1e-12) && step <= error * 1.0906);
        }
    }
}
