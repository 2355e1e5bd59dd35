//! The cost of an error by its position, measured on the model (bitstream design §3: "Gain").

use kvasir_types::{KvLayout, ModelSpec, Plane, Quality};

use kvasir_codec::TRANSPARENT_NOTE;

use super::QualityOracle;

/// Power of the test noise over the signal's: small enough for the KL to be proportional to it, large enough to be seen
/// above the rounding of the cache's own type.
const TEST_NMSE: f32 = 0.02;
/// No plane counts less than this share of the average: a measurement of nearly nothing is mostly noise.
const LEAST: f32 = 0.02;

/// Nats per token and unit of NMSE, by `2 · layer + plane`; empty if nothing was measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Sensitivity {
    absolute: Vec<f32>,
    relative: Vec<f32>,
}

impl Sensitivity {
    /// All planes have the same weight.
    pub(super) fn unknown() -> Self {
        Self::default()
    }

    /// By the bounds of [`Quality::Transparent`]: the smaller a plane's bound, the higher the cost of an
    /// error.
    pub(super) fn of_bounds(spec: &ModelSpec) -> Self {
        let planes = spec.layers.iter().flat_map(|kv| Plane::ALL.map(|plane| (kv.layout, plane)));
        let cost = |(layout, plane): (KvLayout, Plane)| {
            let (heads, dim) = layout.planes()[plane as usize];
            // As `relative` expects it: for a whole plane.
            (heads * dim) as f32 / Quality::transparent_error(layout, plane) as f32
        };
        Self { absolute: Vec::new(), relative: relative(spec, &planes.map(cost).collect::<Vec<_>>()) }
    }

    /// Asks an oracle about every plane of every layer.
    pub(super) fn measure(
        spec: &ModelSpec,
        oracle: &mut dyn QualityOracle,
        progress: &mut dyn FnMut(&str, f32),
    ) -> Self {
        let mut absolute = Vec::with_capacity(2 * spec.layers.len());
        for (layer, kv) in spec.layers.iter().enumerate() {
            progress("measuring the cost of errors by layer", 0.05 * layer as f32 / spec.layers.len() as f32);
            for plane in Plane::ALL {
                let (heads, dim) = kv.layout.planes()[plane as usize];
                let kl =
                    if heads * dim == 0 { Some(0.0) } else { oracle.kl_of_noise(layer, plane, TEST_NMSE) };
                match kl {
                    Some(kl) if kl.is_finite() && kl >= 0.0 => absolute.push(kl / TEST_NMSE),
                    _ => return Self::unknown(),
                }
            }
        }
        let relative = relative(spec, &absolute);
        Self { absolute, relative }
    }

    /// The same losses, which nothing follows: an error of one unit counts the same in every plane.
    pub(super) fn alike(self) -> Self {
        Self { relative: Vec::new(), ..self }
    }

    /// The note about it in a profile.
    pub(super) fn note(&self) -> &'static str {
        match (self.absolute.is_empty(), self.relative.is_empty()) {
            (true, true) => "",
            (true, false) => TRANSPARENT_NOTE,
            (false, true) => "all planes count alike",
            (false, false) => "planes count by what errors in them cost",
        }
    }

    /// Whether an oracle answered.
    pub(super) fn is_known(&self) -> bool {
        !self.absolute.is_empty()
    }

    /// By plane, 1 on average over elements.
    pub(super) fn relative(&self) -> &[f32] {
        &self.relative
    }

    /// Loss of a unit of NMSE in a plane: nats per token if it was measured, else 1.
    pub(super) fn loss(&self, layer: usize, plane: Plane) -> f64 {
        self.absolute.get(2 * layer + plane as usize).map_or(1.0, |loss| f64::from(*loss))
    }
}

/// Cost of an error of one unit of a plane's power *in each of its elements*, over the average.
fn relative(spec: &ModelSpec, absolute: &[f32]) -> Vec<f32> {
    let sizes = spec.layers.iter().flat_map(|kv| kv.layout.planes()).map(|(heads, dim)| (heads * dim) as f32);
    let sizes: Vec<f32> = sizes.collect();
    // A plane's NMSE is a mean over its elements, so a larger plane spreads the same loss over more of them.
    let mean = absolute.iter().sum::<f32>() / sizes.iter().sum::<f32>().max(1.0);
    if mean <= 0.0 {
        return Vec::new();
    }
    absolute.iter().zip(&sizes).map(|(loss, size)| (loss / size.max(1.0) / mean).max(LEAST)).collect()
}
