//! JSON of a rope: a formula if it yields exactly the frequencies, otherwise the frequencies.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{Pairing, Rope, RopeFormula, RopeScaling};
use crate::LAYERS_MAX;

/// Either `freqs`, or `rotary_dims`, `theta` and optionally `scaling`.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Rope))]
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RopeJson {
    /// Layout of pairs in a head.
    pairing: Pairing,
    /// First rotated element of a head.
    #[serde(default, skip_serializing_if = "is_zero")]
    offset: u32,
    /// Rotated elements of a head, even; with `theta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rotary_dims: Option<u32>,
    /// Base of the frequencies, `theta^(-2 i / rotary_dims)` radians per position for pair `i`; above 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(exclusive_minimum = 1.0))]
    theta: Option<f64>,
    /// Scaling of the frequencies for longer contexts; with `theta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scaling: Option<RopeScaling>,
    /// The frequencies, one per pair, in units of `2^-64` turn per position; without `theta`. Strings,
    /// because they need more than 53 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    freqs: Option<Vec<String>>,
    /// Factor on rotated keys. Default, depending on `scaling`: YaRN's `0.1 ln(factor) + 1`, otherwise 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(exclusive_minimum = 0.0))]
    attention_factor: Option<f32>,
}

fn is_zero(offset: &u32) -> bool {
    *offset == 0
}

impl Serialize for Rope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let formula = self.formula.clone().filter(|f| f.freqs().is_ok_and(|freqs| freqs == self.freqs));
        let factor = formula.as_ref().map_or(1.0, RopeFormula::attention_factor);
        let freqs = || self.freqs.iter().map(u64::to_string).collect();
        RopeJson {
            pairing: self.pairing,
            offset: self.offset,
            freqs: formula.is_none().then(freqs),
            rotary_dims: formula.as_ref().map(|f| f.rotary_dims),
            theta: formula.as_ref().map(|f| f.theta),
            scaling: formula.and_then(|f| f.scaling),
            attention_factor: (self.attention_factor != factor).then_some(self.attention_factor),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rope {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(RopeJson::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// All ropes of a spec. Their number is checked before formulas of a few bytes are expanded to frequencies.
pub(super) fn ropes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Rope>, D::Error> {
    let ropes = Vec::<RopeJson>::deserialize(deserializer)?;
    if ropes.len() > LAYERS_MAX {
        return Err(D::Error::custom(format!(
            "{} ropes: the maximum is {LAYERS_MAX}, one per layer",
            ropes.len()
        )));
    }
    ropes.into_iter().map(|rope| Rope::try_from(rope).map_err(D::Error::custom)).collect()
}

impl TryFrom<RopeJson> for Rope {
    type Error = String;

    fn try_from(json: RopeJson) -> Result<Self, String> {
        let RopeJson { pairing, offset, rotary_dims, theta, scaling, freqs, attention_factor } = json;
        let rope = match (freqs, theta, rotary_dims) {
            (Some(freqs), None, None) if scaling.is_none() => {
                let freq = |f: &String| f.parse().map_err(|e| format!("freqs: {e}"));
                let freqs = freqs.iter().map(freq).collect::<Result<_, _>>()?;
                Self { pairing, offset, freqs, attention_factor: 1.0, formula: None }
            }
            (None, Some(theta), Some(rotary_dims)) => {
                let formula = RopeFormula { rotary_dims, theta, scaling };
                Self { offset, ..Self::of(pairing, formula).map_err(|e| e.to_string())? }
            }
            _ => {
                return Err(
                    "a rope must have either `freqs`, or `rotary_dims`, `theta` and optionally `scaling`"
                        .to_owned(),
                );
            }
        };
        Ok(Self { attention_factor: attention_factor.unwrap_or(rope.attention_factor), ..rope })
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Rope {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        RopeJson::schema()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Rope {
    fn schemas(all: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
        RopeJson::schemas(all);
    }
}
