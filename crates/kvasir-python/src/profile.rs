//! Profiles: read, trained, described.

use std::{path::PathBuf, sync::Arc};

use kvasir_codec::{KvBuffer, Profile as CodecProfile};
use kvasir_dump::read_dump;
use kvasir_train::{BasisRecipe, Recipe, TrainingContext, train, train_transparent};
use kvasir_types::ModelSpec;
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    error::Failure,
    runtime::compute,
    spec::Spec,
    tensors::{Tensors, Use},
};

/// Tables and bases for encoding a model's caches.
#[pyclass(frozen, module = "kvasir._kvasir")]
pub(crate) struct Profile(pub(crate) Arc<CodecProfile>);

fn recipe(name: &str) -> Result<Recipe, Failure> {
    Ok(match name {
        "basis" => Recipe::Basis(BasisRecipe::default()),
        "direct" => Recipe::Direct,
        "exact-only" => Recipe::Exact,
        "exact-residual" => Recipe::DirectExact,
        "cachegen" => Recipe::CacheGen,
        other => {
            let message = format!("there is no recipe {other}");
            let remedy = "use basis, direct, exact-only, exact-residual or cachegen";
            return Err(Failure::input("unknown_recipe", message, remedy));
        }
    })
}

/// Trains, and reports to `progress`. An exception from it ends the call after the training, which cannot be
/// stopped.
fn trained(
    spec: &ModelSpec,
    contexts: &[TrainingContext],
    (recipe, finest_nmse): (&Recipe, Option<f64>),
    progress: Option<&Py<PyAny>>,
) -> Result<Profile, Failure> {
    let mut raised = None;
    let mut tell = |what: &str, share: f32| {
        if let (Some(progress), None) = (progress, &raised) {
            raised = Python::attach(|py| progress.call1(py, (what, share)).err());
        }
    };
    let profile = match finest_nmse {
        Some(finest_nmse) => train(spec, contexts, recipe, finest_nmse, &mut tell)?,
        None => train_transparent(spec, contexts, recipe, &mut tell)?,
    };
    match raised {
        Some(error) => Err(error.into()),
        None => Ok(Profile(Arc::new(profile))),
    }
}

#[pymethods]
impl Profile {
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        // `bytes` are immutable, so they may be read without the GIL.
        Ok(Self(compute(py, || Ok(Arc::new(CodecProfile::from_bytes(data)?)))?))
    }

    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.0.to_bytes()))
    }

    #[getter]
    fn profile_id(&self) -> String {
        self.0.hash().to_string()
    }

    #[getter]
    fn model_id(&self) -> String {
        self.0.model_id().to_string()
    }

    #[getter]
    fn recipe(&self) -> String {
        self.0.training().recipe.clone()
    }

    #[getter]
    fn is_lossless(&self) -> bool {
        self.0.is_lossless()
    }

    /// For each level, coarsest first: bits per element, NMSE, and predicted KL if it was measured.
    #[getter]
    fn levels(&self) -> Vec<(f32, f32, Option<f32>)> {
        self.0.levels().iter().map(|level| (level.bits_per_element, level.nmse, level.kl)).collect()
    }

    /// Trains on files.
    #[staticmethod]
    fn train_files(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        recipe: &str,
        finest_nmse: Option<f64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Self, Spec)> {
        let recipe = self::recipe(recipe)?;
        compute(py, || {
            let mut spec: Option<ModelSpec> = None;
            let mut contexts = Vec::with_capacity(paths.len());
            for path in &paths {
                let dump = read_dump(path)?;
                if spec.get_or_insert_with(|| dump.spec.clone()).model_id() != dump.spec.model_id() {
                    let message = format!("{} is of another model than the dumps before it", path.display());
                    return Err(Failure::input("mixed_dumps", message, "train on dumps of one model"));
                }
                contexts.push(TrainingContext { first_position: 0, tokens: dump.tokens, kv: dump.kv });
            }
            let none = || Failure::input("not_trainable", "there is no training data", "give dumps");
            let spec = spec.ok_or_else(none)?;
            let profile = trained(&spec, &contexts, (&recipe, finest_nmse), progress.as_ref())?;
            Ok((profile, Spec(Arc::new(spec))))
        })
    }

    /// Trains on tensors.
    #[staticmethod]
    fn train_tensors(
        py: Python<'_>,
        spec: &Spec,
        contexts: Vec<(Vec<u32>, Bound<'_, PyAny>)>,
        recipe: &str,
        finest_nmse: Option<f64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let recipe = self::recipe(recipe)?;
        let spec = &*spec.0;
        let borrow = |(tokens, kv): (Vec<u32>, Bound<'_, PyAny>)| {
            let tensors = Tensors::borrow(spec, &kv, tokens.len(), Use::Read)?;
            Ok((tokens, tensors))
        };
        let borrowed: Vec<_> = contexts.into_iter().map(borrow).collect::<Result<_, Failure>>()?;
        compute(py, || {
            let context = |(tokens, tensors): (Vec<u32>, Arc<Tensors>)| {
                let kv = KvBuffer::from_source(spec, tokens.len(), &*tensors);
                TrainingContext { first_position: 0, tokens, kv }
            };
            let contexts: Vec<_> = borrowed.into_iter().map(context).collect();
            trained(spec, &contexts, (&recipe, finest_nmse), progress.as_ref())
        })
    }
}
