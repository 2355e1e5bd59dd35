//! Windows of generated records: lines with a number each, and questions about them. Only a model that reads its
//! prefix can answer, so the answers show what a codec loses of it.

use kvasir_engine::Model;

use super::{
    Text, Window,
    tasks::{Lines, draws},
};
use crate::BenchError;

/// The domain of these windows.
pub const RECORDS: &str = "records";

impl Text {
    /// `count` windows of generated records: `prefix` tokens of lines, then `suffix` tokens of questions, each about
    /// another one of the lines that lie wholly in the prefix. The same seed gives the same windows.
    ///
    /// # Errors
    /// [`BenchError::Records`] where lines or questions run out, or no question fits; the tokeniser's errors.
    pub fn records(
        model: &Model,
        count: usize,
        (prefix, suffix): (usize, usize),
        seed: u64,
    ) -> Result<Self, BenchError> {
        // Every window has a seed of its own, so that a part of the windows is the same as in the whole.
        let own = |index: usize| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64);
        let windows = (0..count).map(|index| window(model, (prefix, suffix), own(index)));
        let windows = windows.collect::<Result<_, _>>()?;
        Ok(Self { domain: RECORDS.to_owned(), windows, first: 0, spread: count })
    }
}

fn window(model: &Model, (prefix, suffix): (usize, usize), seed: u64) -> Result<Window, BenchError> {
    let impossible = || BenchError::Records { prefix, suffix, lines: Lines::MAX };
    let tokenizer = model.tokenizer();
    let mut below = draws(seed);
    let lines = Lines::new(Lines::MAX, &mut below);
    // Names that stood at the same places in other windows would be known to a codec that was calibrated on those.
    let mut order: Vec<usize> = (0..Lines::MAX).collect();
    (1..order.len()).rev().for_each(|last| order.swap(last, below(last + 1)));
    let mut order = order.into_iter();
    let mut tokens = Vec::new();
    // Whole lines of the prefix that were not asked about: a second answer could be read off the first.
    let mut left = Vec::new();
    while tokens.len() < prefix {
        let line = order.next().ok_or_else(impossible)?;
        tokens.extend(tokenizer.encode(&lines.line(line))?);
        if tokens.len() <= prefix {
            left.push(line);
        }
    }
    tokens.truncate(prefix);
    let end = prefix + suffix;
    let mut answers = Vec::new();
    while tokens.len() < end {
        if left.is_empty() {
            return Err(impossible());
        }
        let asked = left.swap_remove(below(left.len()));
        // Piece by piece, so that it is known which tokens are the answer.
        tokens.extend(tokenizer.encode(&lines.question(asked))?);
        let first = tokens.len();
        tokens.extend(tokenizer.encode(&lines.answer(asked))?);
        let answer = first..tokens.len();
        tokens.extend(tokenizer.encode(">\n")?);
        if tokens.len() <= end {
            answers.push(answer);
        }
    }
    tokens.truncate(end);
    if answers.is_empty() { Err(impossible()) } else { Ok(Window { tokens, answers }) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        KvCodec,
        codecs::{Plain, Storage, Zeros},
        quality::{Options, measure},
    };

    #[test]
    fn questions_are_about_lines_of_the_prefix_and_answers_are_their_numbers() {
        let model = Model::kvasir_tiny().expect("ships");
        let decode = |tokens: &[u32]| model.tokenizer().decode(tokens).expect("decodes");
        let (prefix, suffix) = (768, 256);
        let records =
            |seed: u64| Text::records(&model, 2, (prefix, suffix), seed).expect("lines enough").windows;
        let windows = records(7);
        assert!(windows == records(7) && windows[0] != windows[1] && windows[0] != records(8)[0]);
        for window in &windows {
            assert_eq!(window.tokens.len(), prefix + suffix);
            let (lines, questions) = window.tokens.split_at(prefix);
            for part in [lines, questions] {
                let text = decode(part);
                let whole = text.rsplit_once('\n').expect("whole lines").0.to_owned() + "\n";
                let at_once = model.tokenizer().encode(&whole).expect("encodes");
                assert!(part.starts_with(&at_once), "pieces are tokenised as the whole is: {whole}");
            }
            let (lines, questions) = (decode(lines), decode(questions));
            let mut names = BTreeSet::new();
            for answer in &window.answers {
                let before = decode(&window.tokens[prefix..answer.start]);
                let number = decode(&window.tokens[answer.clone()]);
                let question = before.lines().next_back().and_then(|line| {
                    line.strip_prefix("What is the REGISTER_CONTENT in line ")?
                        .strip_suffix("? The REGISTER_CONTENT is <")
                });
                let name = question.expect("a question up to its answer").to_owned();
                let line = format!("line {name}: REGISTER_CONTENT is <{number}>\n");
                assert!(lines.contains(&line), "{line}");
                assert!(names.insert(name), "asked twice: {line}");
            }
            assert_eq!(questions.matches(">\n").count(), names.len(), "every whole question is judged");
        }
    }

    #[test]
    fn names_stand_in_another_order_in_every_window() {
        let model = Model::kvasir_tiny().expect("ships");
        let neighbours = |window: &Window| {
            let text = model.tokenizer().decode(&window.tokens[..768]).expect("decodes");
            let names: Vec<_> =
                text.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect();
            names.windows(2).map(<[String]>::to_vec).collect::<BTreeSet<_>>()
        };
        let windows = Text::records(&model, 2, (768, 256), 7).expect("lines enough").windows;
        let [one, other] = [neighbours(&windows[0]), neighbours(&windows[1])];
        assert!(one.len() > 30 && one.intersection(&other).count() < 5, "{one:?} {other:?}");
    }

    #[test]
    fn windows_that_records_cannot_fill_are_refused() {
        let model = Model::kvasir_tiny().expect("ships");
        // More lines than names, no room for a question, more questions than lines.
        for sizes in [(4096, 256), (768, 20), (64, 256), (8, 64)] {
            let found = Text::records(&model, 1, sizes, 1);
            assert!(matches!(found, Err(BenchError::Records { .. })), "{sizes:?}");
        }
    }

    #[test]
    fn only_answers_are_judged() {
        let model = Model::kvasir_tiny().expect("ships");
        let text = Text::records(&model, 1, (256, 96), 1).expect("lines enough");
        let answers = &text.windows[0].answers;
        let options = Options { prefix: 256, chunk_tokens: vec![256] };
        let codecs: [&dyn KvCodec; 2] = [&Plain(Storage::Raw), &Zeros];
        let rows = measure(&model, &codecs, &text, &options, &mut |_| ()).expect("measures");
        let judged: usize = answers.iter().map(ExactSizeIterator::len).sum();
        for row in &rows {
            assert_eq!((row.asked, row.positions), (answers.len(), judged), "{}", row.codec);
        }
        let [raw, zeros] = &rows[..] else { panic!("{rows:?}") };
        assert!(raw.kl < 1e-9 && raw.retrieval == raw.retrieval_exact, "nothing is lost: {raw:?}");
        assert!(zeros.kl > 1e-6, "all is lost: {zeros:?}");
    }
}
