//! What profiles are trained on, and how.

use kvasir_train::{BasisRecipe, Recipe};

use crate::error::{CliError, Exit};
#[cfg(feature = "demo")]
use {
    crate::{
        error::CliResult,
        progress::Step,
        shipped::{engine_error, text_tokens},
    },
    kvasir_engine::Model,
    std::path::PathBuf,
};

#[cfg(feature = "demo")]
/// Default number of contexts taken from texts: their caches are held in memory, 8 MB each.
pub const CONTEXTS_MAX: usize = 96;

/// Training data for a profile of the shipped model.
#[cfg(feature = "demo")]
#[derive(Debug, Clone, Copy)]
pub struct TextSource<'a> {
    /// Files, split into contexts.
    pub files: &'a [PathBuf],
    /// Maximum number of contexts from the files, evenly spaced.
    pub contexts: usize,
    /// Contexts that the model generates itself.
    pub own: usize,
    /// Seed of the generated contexts.
    pub seed: u64,
}

#[cfg(feature = "demo")]
/// The texts in windows of the model's context. Windows of files and generated windows alternate, so that
/// both are fitted, held out and evaluated.
pub fn training_texts(model: &Model, source: TextSource<'_>, step: &Step) -> CliResult<Vec<Vec<u32>>> {
    let size = model.config().context;
    let mut tell = |part| step.at("the model writes", part);
    let own = model.sample_texts(source.own, size, source.seed, &mut tell).map_err(engine_error)?;
    let mut named = Vec::new();
    for path in source.files {
        named.extend(text_tokens(model, path)?.chunks_exact(size).map(<[u32]>::to_vec));
    }
    let named = evenly(named, source.contexts);
    let count = own.len() + named.len();
    let (mut texts, mut own, mut named) = (Vec::with_capacity(count), own.into_iter(), named.into_iter());
    for index in 0..count {
        let (first, other): (&mut dyn Iterator<Item = _>, &mut dyn Iterator<Item = _>) =
            if index % 2 == 0 { (&mut own, &mut named) } else { (&mut named, &mut own) };
        texts.extend(first.next().or_else(|| other.next()));
    }
    if texts.is_empty() { Err(no_data()) } else { Ok(texts) }
}

#[cfg(feature = "demo")]
/// At most `count` of the windows, evenly spaced.
fn evenly(mut windows: Vec<Vec<u32>>, count: usize) -> Vec<Vec<u32>> {
    let (all, count) = (windows.len(), count.min(windows.len()));
    (0..count).map(|index| std::mem::take(&mut windows[index * all / count])).collect()
}

/// Bytes of a parameter in a checkpoint of 16-bit floats.
pub(crate) const PARAMETER_BYTES: f64 = 2.0;
/// Fewest contexts with a token before the profile has an entry for it.
const TOKEN_TEXTS: usize = 8;
/// Maximum size of the profile, as a share of the weights' bytes.
const WEIGHTS_SHARE: f64 = 0.1;
/// Most bytes of the profile for a model of unknown size: every reader and writer downloads it.
const PROFILE_BYTES_MAX: usize = 256 << 20;

/// How `kvasir profile retrain` trains, for a model of `parameters` if they are known.
pub fn retraining_recipe(parameters: Option<u64>) -> Recipe {
    let share = |parameters: u64| (WEIGHTS_SHARE * PARAMETER_BYTES * parameters as f64) as usize;
    Recipe::Basis(BasisRecipe {
        token_texts: TOKEN_TEXTS,
        budget_bytes: Some(parameters.map_or(PROFILE_BYTES_MAX, share)),
        ..BasisRecipe::default()
    })
}

pub(crate) fn no_data() -> CliError {
    CliError::new(
        Exit::Data,
        "there is no training data",
        "Give dumps with --kv, texts of at least two contexts with --texts, or --self-generated 32.",
    )
}

#[cfg(all(test, feature = "demo"))]
mod tests {
    use super::evenly;

    #[test]
    fn windows_are_taken_evenly() {
        let of = |all, count| evenly((0..all).map(|window| vec![window]).collect(), count).concat();
        assert_eq!(of(9, 3), [0, 3, 6]);
        assert_eq!(of(5, 3), [0, 1, 3]);
        for (all, count) in [(0, 4), (3, 4), (4, 4), (7, 0)] {
            assert_eq!(of(all, count).len(), all.min(count as u32) as usize, "{count} of {all}");
        }
    }
}
