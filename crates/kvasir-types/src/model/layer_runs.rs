//! JSON of layers: runs of equal ones.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{KvLayout, LayerKv};
use crate::LAYERS_MAX;

/// Consecutive equal layers.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerRun {
    /// Number of layers.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 256))]
    count: u32,
    /// Shape of each layer's cache.
    layout: KvLayout,
    /// Index into the spec's `ropes`; absent if keys are not rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rope: Option<u8>,
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

pub(super) fn serialize<S: Serializer>(layers: &[LayerKv], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(layers.chunk_by(|a, b| a == b).filter_map(|run| {
        let first = run.first()?;
        Some(LayerRun { count: run.len() as u32, layout: first.layout, rope: first.rope })
    }))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LayerKv>, D::Error> {
    let mut layers = Vec::new();
    for LayerRun { count, layout, rope } in Vec::<LayerRun>::deserialize(deserializer)? {
        let room = LAYERS_MAX.saturating_sub(layers.len());
        if count == 0 || (count > 1 && count as usize > room) {
            let message =
                format!("count {count} in `layers`: all runs together must have 1 to {LAYERS_MAX} layers");
            return Err(D::Error::custom(message));
        }
        layers.extend(std::iter::repeat_n(LayerKv { layout, rope }, count as usize));
    }
    Ok(layers)
}
