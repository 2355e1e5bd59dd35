//! Measures the quality of a decoded cache with the model.

use std::ops::Range;

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
    /// Answers, or else tokens of the repeated passage, that were predicted right, of how many.
    pub(super) retrieved: (usize, usize),
}

/// The questions of a window: the text after the prefix and, if that has no answers, a passage of the prefix again.
#[derive(Debug)]
pub(super) struct Questions<'a> {
    model: &'a Model,
    pub(super) suffix: &'a [u32],
    /// Where the answers lie in the suffix.
    answers: Vec<Range<usize>>,
    repeated: &'a [u32],
}

impl<'a> Questions<'a> {
    /// `answers` are ranges of the window, as in [`Window`](super::Window).
    pub(super) fn new(
        model: &'a Model,
        prefix: &'a [u32],
        suffix: &'a [u32],
        answers: &[Range<usize>],
    ) -> Self {
        let start = prefix.len() / 3;
        let repeated = &prefix[start..(start + REPEATED).min(prefix.len())];
        let answers = answers.iter().map(|a| a.start - prefix.len()..a.end - prefix.len()).collect();
        Self { model, suffix, answers, repeated }
    }

    /// Runs the questions over a cache, which is not changed.
    pub(super) fn ask(&self, kv: &PagedKv) -> Result<Answers, BenchError> {
        let run = |tokens: &[u32]| {
            self.model
                .logits(&mut kv.fork(kv.len()).map_err(BenchError::from)?, tokens)
                .map_err(BenchError::from)
        };
        let suffix = run(self.suffix)?;
        if !self.answers.is_empty() {
            let retrieved = answered(&self.answers, self.suffix, |position| top1(suffix.row(position)));
            return Ok(Answers { suffix: Some(suffix), retrieved });
        }
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

    /// Compares with the answers of the exact cache, before each token that is judged.
    pub(super) fn compare(&self, exact: &Answers, lossy: &Answers) -> Samples {
        let mut samples = Samples::default();
        if let (Some(exact), Some(lossy)) = (&exact.suffix, &lossy.suffix) {
            if self.answers.is_empty() {
                samples.add(exact, lossy, self.suffix);
            } else {
                let before = self.answers.iter().flat_map(|answer| answer.start - 1..answer.end - 1);
                samples.add_at(exact, lossy, self.suffix, before);
            }
        }
        samples
    }
}

/// Answers of which every token is predicted right, of how many. `predicted` is the likeliest token after a position.
fn answered(answers: &[Range<usize>], suffix: &[u32], predicted: impl Fn(usize) -> usize) -> (usize, usize) {
    let right = |answer: &&Range<usize>| (*answer).clone().all(|at| predicted(at - 1) == suffix[at] as usize);
    (answers.iter().filter(right).count(), answers.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_right_if_all_of_its_tokens_are() {
        let suffix = [7, 1, 2, 7, 3, 4, 7];
        let answers = [1..3, 4..6];
        let of = |predicted: [usize; 6]| answered(&answers, &suffix, |position| predicted[position]);
        assert_eq!(of([1, 2, 0, 3, 4, 0]), (2, 2), "what is between the answers does not count");
        assert_eq!(of([1, 2, 7, 3, 0, 7]), (1, 2));
        assert_eq!(of([0, 1, 2, 0, 3, 4]), (0, 2), "a token too late");
    }
}
