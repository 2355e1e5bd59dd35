//! Profiles whose steps are calibrated with a model. A plane's cost is measured with noise, but a codec's
//! error is not noise: weights from it may save bits or waste them (on kvasir-tiny they waste them: README,
//! "What pays"). So both variants are trained, and the one that needs fewer bits is used.

use kvasir_types::ModelSpec;

use super::{
    FINEST_NMSE, QualityOracle, Recipe, Session, TrainError, TrainingContext, search::bits_at,
    sensitivity::Sensitivity,
};
use kvasir_codec::Profile;

/// KL values for the comparison, in multiples of the finest KL: 0.003 and 0.001 by design.
const COMPARED_AT: [f32; 2] = [10.0, 10.0 / 3.0];

/// See [`train_calibrated`](super::train_calibrated()).
pub(super) fn train(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    (oracle, finest_kl): (&mut dyn QualityOracle, f32),
    progress: &mut dyn FnMut(&str, f32),
) -> Result<Profile, TrainError> {
    let weighed = match recipe {
        Recipe::CacheGen | Recipe::Exact => Sensitivity::unknown(),
        Recipe::Direct | Recipe::DirectExact | Recipe::Basis(_) => {
            Sensitivity::measure(spec, oracle, progress)
        }
    };
    if !weighed.is_known() {
        return Ok(of(spec, contexts, recipe, weighed, (oracle, finest_kl), progress)?.0);
    }
    let alike = weighed.clone().alike();
    let (first, first_kl) =
        of(spec, contexts, recipe, weighed, (&mut *oracle, finest_kl), &mut |what, at| {
            progress(what, at / 2.0)
        })?;
    let (other, other_kl) = of(spec, contexts, recipe, alike, (oracle, finest_kl), &mut |what, at| {
        progress(what, 0.5 + at / 2.0)
    })?;
    let [weighed, alike] = [(&first, &first_kl), (&other, &other_kl)].map(|(p, kl)| bits(p, kl, finest_kl));
    progress(&format!("bits per element, planes weighted by cost and equally: {weighed:.3} {alike:.3}"), 1.0);
    Ok(if alike < weighed { other } else { first })
}

/// A profile, and the KL of its levels, which it also records.
fn of(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    recipe: &Recipe,
    sensitivity: Sensitivity,
    (oracle, finest_kl): (&mut dyn QualityOracle, f32),
    progress: &mut dyn FnMut(&str, f32),
) -> Result<(Profile, Vec<f32>), TrainError> {
    let session = Session::new(spec, contexts, recipe, sensitivity, progress)?;
    let (parts, step) = match recipe {
        Recipe::CacheGen | Recipe::Exact => {
            let step = session.step_of(FINEST_NMSE);
            (session.parts(step)?, step)
        }
        Recipe::Direct | Recipe::DirectExact | Recipe::Basis(_) => {
            session.calibrate(oracle, finest_kl, progress)?
        }
    };
    let profile = session.finish(parts, step, progress)?;
    progress("measuring the quality of every level", 0.98);
    let kl = oracle.kl_by_level(&profile);
    Ok((profile.with_predicted_kl(&kl)?, kl))
}

/// Bits per element at the KL values of the comparison, as their geometric mean; infinite if one is not
/// reached.
fn bits(profile: &Profile, kl: &[f32], finest_kl: f32) -> f32 {
    let bits = profile.levels().iter().map(|level| level.bits_per_element);
    let curve: Vec<_> = bits.zip(kl.iter().copied()).collect();
    let at = |times: &f32| bits_at(&curve, times * finest_kl).map_or(f32::INFINITY, f32::ln);
    (COMPARED_AT.iter().map(at).sum::<f32>() / COMPARED_AT.len() as f32).exp()
}

#[cfg(test)]
mod tests {
    use kvasir_types::{KvDtype, KvLayout, LayerKv, Plane, Reuse};

    use super::*;
    use crate::common::{Setup, contexts};
    use kvasir_codec::KvBuffer;

    /// A model whose KL equals the cost of errors in its planes, and that reports this cost, correctly or
    /// not.
    struct Judge {
        spec: ModelSpec,
        text: TrainingContext,
        cost: [f32; 2],
        told: [f32; 2],
    }

    impl Judge {
        fn kl(&self, back: &KvBuffer) -> f32 {
            let share = |plane: Plane| {
                let (mut error, mut power) = (0.0, 0.0);
                for (layer, head) in (0..self.spec.layers.len()).flat_map(|layer| [(layer, 0), (layer, 1)]) {
                    let (was, is) = (self.text.kv.rows(layer, plane, head), back.rows(layer, plane, head));
                    error += was.iter().zip(is).map(|(x, y)| (x - y) * (x - y)).sum::<f32>();
                    power += was.iter().map(|x| x * x).sum::<f32>();
                }
                self.cost[plane as usize] * error / power
            };
            Plane::ALL.into_iter().map(share).sum()
        }
    }

    impl QualityOracle for Judge {
        fn kl_by_level(&mut self, profile: &Profile) -> Vec<f32> {
            let setup = Setup::of(self.spec.clone(), profile.clone());
            let object = setup.encode(&self.text.tokens, 0, &self.text.kv);
            let back = |level| setup.decode(&object, level).expect("what was encoded");
            (0..profile.level_count()).map(|level| self.kl(&back(level))).collect()
        }

        fn kl_of_noise(&mut self, _: usize, plane: Plane, nmse: f32) -> Option<f32> {
            Some(self.told[plane as usize] * nmse)
        }
    }

    #[test]
    fn planes_are_weighed_where_that_pays() {
        let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 2, head_dim: 8 }, rope: None };
        let spec = ModelSpec {
            weights: "synthetic/judged".into(),
            revision: "1".into(),
            adapter: None,
            kv_dtype: KvDtype::F16,
            ropes: Vec::new(),
            layers: vec![layer; 2],
            thinning: None,
            reuse: Reuse::Prefix,
        };
        let mut contexts = contexts(&spec, 6, 300);
        let text = contexts.pop().expect("six");
        let (cost, recipe) = ([0.001, 1.0], Recipe::Direct);
        for (told, note) in
            [(cost, "planes count by what errors in them cost"), ([1.0, 0.001], "all planes count alike")]
        {
            let mut judge = Judge { spec: spec.clone(), text: text.clone(), cost, told };
            let profile =
                train(&spec, &contexts, &recipe, (&mut judge, 1e-2), &mut |_, _| ()).expect("trains");
            assert_eq!(profile.training().note, note, "{told:?}");
        }
    }
}
