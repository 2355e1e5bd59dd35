//! Measures the quality of a decoded cache with the model.

use kvasir_codec::{KvBuffer, KvSink as _};
use kvasir_engine::{Logits, Model, PagedKv, logits::top1, quality::Samples};

use kvasir_types::{ModelSpec, Plane};

use crate::BenchError;

/// Tokens of a repeated passage that are not counted: the model has to recognise the repetition first.
const RECOGNITION: usize = 8;
/// Tokens of a repeated passage.
const REPEATED: usize = 48;

/// Answers of one cache.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers {
    pub(super) suffix: Option<Logits>,
    /// Tokens of the repeated passage that were predicted right, of how many.
    pub(super) retrieved: (usize, usize),
}

/// The questions of a window: the text after the prefix, and a passage of the prefix again.
#[derive(Debug)]
pub(super) struct Questions<'a> {
    model: &'a Model,
    pub(super) suffix: &'a [u32],
    repeated: &'a [u32],
}

impl<'a> Questions<'a> {
    pub(super) fn new(model: &'a Model, prefix: &'a [u32], suffix: &'a [u32]) -> Self {
        let start = prefix.len() / 3;
        let repeated = &prefix[start..(start + REPEATED).min(prefix.len())];
        Self { model, suffix, repeated }
    }

    /// Runs the questions over a cache, which is not changed.
    pub(super) fn ask(&self, kv: &PagedKv) -> Result<Answers, BenchError> {
        let run = |tokens: &[u32]| {
            self.model
                .logits(&mut kv.fork(kv.len()).map_err(BenchError::from)?, tokens)
                .map_err(BenchError::from)
        };
        let suffix = run(self.suffix)?;
        let mut answers = Answers { suffix: Some(suffix), retrieved: (0, 0) };
        // As much of the repetition as the context has room for.
        let room = self.model.config().context.saturating_sub(kv.len()).min(self.repeated.len());
        if room > RECOGNITION + 1 {
            let rows = run(&self.repeated[..room])?;
            let asked = RECOGNITION..room - 1;
            let right = |index: &usize| top1(rows.row(*index)) == self.repeated[index + 1] as usize;
            answers.retrieved = (asked.clone().filter(right).count(), asked.len());
        }
        Ok(answers)
    }

    /// Compares with the answers of the exact cache.
    pub(super) fn compare(&self, exact: &Answers, lossy: &Answers) -> Samples {
        let mut samples = Samples::default();
        if let (Some(exact), Some(lossy)) = (&exact.suffix, &lossy.suffix) {
            samples.add(exact, lossy, self.suffix);
        }
        samples
    }
}

/// A dense cache in the engine's pages.
pub(super) fn paged(model: &Model, kv: &KvBuffer) -> Result<PagedKv, BenchError> {
    let mut pages = model.new_kv()?;
    pages.reserve(kv.tokens())?;
    let mut sink = pages.sink(0)?;
    each_head(model.spec(), |layer, plane, head| {
        sink.write(layer, plane, head, 0, kv.rows(layer, plane, head))
    });
    sink.finish()?;
    pages.commit(kv.tokens())?;
    Ok(pages)
}

/// Every head of a model.
pub(super) fn each_head(spec: &ModelSpec, mut each: impl FnMut(usize, Plane, usize)) {
    for (layer, kv) in spec.layers.iter().enumerate() {
        for (plane, (heads, _)) in Plane::ALL.into_iter().zip(kv.layout.planes()) {
            (0..heads).for_each(|head| each(layer, plane, head));
        }
    }
}
