//! Questions about a context: line retrieval in the style of LongEval, passkey retrieval, and extraction scored by F1.
//!
//! Made from a seed, so that the same task can be asked over an exact cache and over a lossy one. Whether a model can answer at
//! all is a property of the model: compare with the exact cache's score, not with 1.

use std::collections::HashMap;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use serde::Serialize;

use kvasir_engine::{EngineError, Model, Observer, PagedKv, logits::top1};

const ADJECTIVES: [&str; 8] = ["amber", "brave", "calm", "dusty", "eager", "faint", "gentle", "heavy"];
const NOUNS: [&str; 8] = ["anchor", "bridge", "candle", "door", "engine", "forest", "garden", "hammer"];
const NAMES: [&str; 8] = ["Anna", "Edward", "Martha", "Henry", "Lucy", "Thomas", "Emma", "Philip"];
const PLACES: [&str; 8] =
    ["London", "the harbour", "the mill", "Paris", "the church", "the river", "York", "the inn"];
const FILLER: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";

/// The kind of question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// One of many lines, by its name.
    Lines,
    /// A number within filler.
    Passkey,
    /// A fact within filler, in words.
    Extraction,
}

impl TaskKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lines, Self::Passkey, Self::Extraction];
}

/// A context and a question about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The text in the cache.
    pub context: String,
    /// The text computed over it.
    pub question: String,
    /// The expected answer.
    pub answer: String,
}

impl Task {
    /// A task whose context has about `words` words; the same seed gives the same task.
    pub fn new(kind: TaskKind, words: usize, seed: u64) -> Self {
        let mut below = draws(seed);
        match kind {
            TaskKind::Lines => lines(words / 7, &mut below),
            TaskKind::Passkey => {
                let key = 10_000 + below(90_000);
                let fact = format!("The pass key is {key}. Remember it. {key} is the pass key. ");
                let question = "What is the pass key? The pass key is".to_owned();
                Self { context: hidden(&fact, words, &mut below), question, answer: key.to_string() }
            }
            TaskKind::Extraction => {
                let (name, place) = (NAMES[below(8)], PLACES[below(8)]);
                let fact = format!("{name} lived near {place} with an old dog. ");
                let question = format!("Question: where did {name} live? Answer: {name} lived near");
                Self { context: hidden(&fact, words, &mut below), question, answer: place.to_owned() }
            }
        }
    }

    /// The model's answer over `kv`, the cache of the context's tokens, greedily and as long as the right one. `observer`
    /// may hide tokens ([`Thinned`](crate::budget::Thinned)). The cache stays as it is.
    ///
    /// # Errors
    /// As [`Model::logits`].
    pub fn ask(
        &self,
        model: &Model,
        kv: &PagedKv,
        observer: &mut dyn Observer,
    ) -> Result<String, EngineError> {
        let count = model.tokenizer().encode(&format!(" {}", self.answer))?.len();
        let mut fork = kv.fork(kv.len())?;
        let (mut said, mut next) = (Vec::new(), model.tokenizer().encode(&self.question)?);
        while said.len() < count {
            let logits = model.logits_observed(&mut fork, &next, observer)?;
            next = vec![top1(logits.row(logits.len() - 1)) as u32];
            said.extend(&next);
        }
        model.tokenizer().decode(&said)
    }
}

/// Numbers below a bound; the same seed gives the same ones.
pub(super) fn draws(seed: u64) -> impl FnMut(usize) -> usize {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    move |n: usize| (rng.next_u32() as usize) % n.max(1)
}

/// Lines with a number each, and a question about each of them.
pub(super) struct Lines {
    first: usize,
    contents: Vec<usize>,
}

impl Lines {
    /// The most lines: each has a name of its own.
    pub(super) const MAX: usize = ADJECTIVES.len() * NOUNS.len();

    /// At least one line, at most [`MAX`](Self::MAX).
    pub(super) fn new(count: usize, below: &mut impl FnMut(usize) -> usize) -> Self {
        let first = below(Self::MAX);
        Self { first, contents: (0..count.clamp(1, Self::MAX)).map(|_| 100 + below(900)).collect() }
    }

    fn name(&self, index: usize) -> String {
        // Names are distinct: a stride that is coprime to their number from a random start.
        let at = (self.first + index * 27) % Self::MAX;
        format!("{}-{}", ADJECTIVES[at / NOUNS.len()], NOUNS[at % NOUNS.len()])
    }

    /// A line of the context.
    pub(super) fn line(&self, index: usize) -> String {
        format!("line {}: REGISTER_CONTENT is <{}>\n", self.name(index), self.contents[index])
    }

    /// The question about it, up to the answer.
    pub(super) fn question(&self, index: usize) -> String {
        format!("What is the REGISTER_CONTENT in line {}? The REGISTER_CONTENT is <", self.name(index))
    }

    /// The answer.
    pub(super) fn answer(&self, index: usize) -> String {
        self.contents[index].to_string()
    }
}

fn lines(count: usize, below: &mut impl FnMut(usize) -> usize) -> Task {
    let lines = Lines::new(count, below);
    let context = (0..lines.contents.len()).map(|index| lines.line(index)).collect();
    let asked = below(lines.contents.len());
    Task { context, question: lines.question(asked), answer: lines.answer(asked) }
}

/// A fact somewhere in filler.
fn hidden(fact: &str, words: usize, below: &mut impl FnMut(usize) -> usize) -> String {
    let pieces = (words / FILLER.split_whitespace().count()).max(1);
    let place = below(pieces);
    (0..pieces)
        .map(|piece| if piece == place { format!("{FILLER}{fact}") } else { FILLER.to_owned() })
        .collect()
}

/// Lower case, letters and digits only, without articles: as SQuAD compares answers.
fn words_of(text: &str) -> Vec<String> {
    let clean = |c: char| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' };
    let text: String = text.chars().map(clean).collect();
    text.split_whitespace().filter(|word| !["a", "an", "the"].contains(word)).map(str::to_owned).collect()
}

/// Whether the given answer starts with the right one.
pub fn exact_match(said: &str, answer: &str) -> bool {
    words_of(said).starts_with(&words_of(answer))
}

/// Harmonic mean of precision and recall over words (SQuAD's F1).
pub fn f1(said: &str, answer: &str) -> f64 {
    let (said, answer) = (words_of(said), words_of(answer));
    let mut left: HashMap<&str, usize> = HashMap::new();
    answer.iter().for_each(|word| *left.entry(word).or_default() += 1);
    let mut common = 0.0;
    for word in &said {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1.0;
        }
    }
    if common == 0.0 { 0.0 } else { 2.0 * common / (said.len() + answer.len()) as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_holds_its_answer_once_and_comes_again_from_its_seed() {
        for kind in TaskKind::ALL {
            let task = Task::new(kind, 300, 7);
            assert_eq!(task, Task::new(kind, 300, 7));
            assert_ne!(task, Task::new(kind, 300, 8));
            assert!(task.context.contains(&task.answer) && !task.question.contains(&task.answer), "{task:?}");
        }
        let lines = Task::new(TaskKind::Lines, 448, 1).context;
        let names: std::collections::BTreeSet<_> =
            lines.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(names.len(), 64, "every line has a name of its own");
    }

    #[test]
    fn answers_are_scored_as_squad_does() {
        assert_eq!(f1("the harbour", "harbour"), 1.0);
        assert_eq!(f1("near the old harbour", "the harbour"), 0.5);
        assert_eq!((f1("", "x"), f1("y", "x"), f1("x x", "x")), (0.0, 0.0, 2.0 / 3.0));
        assert!(exact_match(" 12345. And", "12345") && !exact_match("1234", "12345"));
    }
}
