//! One result out of several runs: other codecs on the same windows, or other windows of the same text.

use kvasir_engine::quality::Estimate;

use super::{QualityRow, rows::over_windows, targets::worth};

/// Rows that are not of one measurement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A text was divided into other windows.
    #[error("{domain} was divided into {found} windows in one run and into {expected} in another")]
    Spread {
        /// The text.
        domain: String,
        /// Windows in the first run.
        expected: usize,
        /// Windows in the other.
        found: usize,
    },
    /// Two runs have the same codec, level, chunk length and window.
    #[error("{codec} was measured twice on window {window} of {domain}")]
    Twice {
        /// The codec.
        codec: String,
        /// The text.
        domain: String,
        /// The window.
        window: usize,
    },
    /// Codecs were not measured on the same windows, so their sizes cannot be compared.
    #[error("{codec} was measured on other windows of {domain} than {other}")]
    Windows {
        /// The codec.
        codec: String,
        /// The text.
        domain: String,
        /// The first codec.
        other: String,
    },
}

/// Joins rows of several runs: those of the same codec, variant, level, chunk length and text become one row over all of
/// their windows. A mean of a single window has no interval over windows: there only a joint one is right. Every row gets
/// its [`kl_share`](QualityRow::kl_share).
///
/// # Errors
/// [`JoinError`].
pub fn join(rows: impl IntoIterator<Item = QualityRow>) -> Result<Vec<QualityRow>, JoinError> {
    let mut joined: Vec<QualityRow> = Vec::new();
    for row in rows {
        if let Some(other) = joined.iter().find(|o| o.domain == row.domain && o.spread != row.spread) {
            let (expected, found) = (other.spread, row.spread);
            return Err(JoinError::Spread { domain: row.domain, expected, found });
        }
        match joined.iter_mut().find(|other| same_point(other, &row)) {
            Some(other) => add(other, &row)?,
            None => joined.push(row),
        }
    }
    for (index, row) in joined.iter().enumerate() {
        let first = joined[..index].iter().find(|o| o.domain == row.domain);
        if let Some(other) = first.filter(|o| o.window_kl.keys().ne(row.window_kl.keys())) {
            let (codec, other) = (row.codec.clone(), other.codec.clone());
            return Err(JoinError::Windows { codec, domain: row.domain.clone(), other });
        }
    }
    let share = |row: &QualityRow| worth(&joined, &row.domain, row.chunk_tokens).map(|worth| row.kl / worth);
    let shares: Vec<_> = joined.iter().map(share).collect();
    joined.iter_mut().zip(shares).for_each(|(row, share)| row.kl_share = share);
    Ok(joined)
}

fn same_point(a: &QualityRow, b: &QualityRow) -> bool {
    (a.level, a.chunk_tokens) == (b.level, b.chunk_tokens)
        && (&a.codec, &a.variant, &a.domain) == (&b.codec, &b.variant, &b.domain)
}

fn add(row: &mut QualityRow, more: &QualityRow) -> Result<(), JoinError> {
    if let Some(window) = more.window_kl.keys().find(|window| row.window_kl.contains_key(window)) {
        let (codec, domain, window) = (row.codec.clone(), row.domain.clone(), *window);
        return Err(JoinError::Twice { codec, domain, window });
    }
    let [(m, n), (p, q)] = [(row.windows, more.windows), (row.positions, more.positions)];
    let weighed = |a: f64, b: f64, m: usize, n: usize| (a * m as f64 + b * n as f64) / (m + n) as f64;
    let by_windows = |of: fn(&QualityRow) -> f64| weighed(of(row), of(more), m, n);
    let by_positions = |of: fn(&QualityRow) -> f64| weighed(of(row).ln(), of(more).ln(), p, q).exp();
    let (bytes, bits_per_element) = (by_windows(|r| r.bytes), by_windows(|r| r.bits_per_element));
    // Older rows do not tell how much was asked; it was as much in every window.
    let known = row.asked.min(more.asked) > 0;
    let (asked, also) = if known { (row.asked, more.asked) } else { (m, n) };
    let by_asked = |of: fn(&QualityRow) -> f64| weighed(of(row), of(more), asked, also);
    let (retrieval, retrieval_exact) = (by_asked(|r| r.retrieval), by_asked(|r| r.retrieval_exact));
    let (perplexity, perplexity_exact) =
        (by_positions(|r| r.perplexity), by_positions(|r| r.perplexity_exact));
    let agreements = row.top1 * row.positions as f64 + more.top1 * more.positions as f64;
    row.window_kl.extend(&more.window_kl);
    row.windows += more.windows;
    row.positions += more.positions;
    // Of a part of the windows it would be a wrong weight for the next piece.
    row.asked = if known { asked + also } else { 0 };
    let kl = over_windows(&row.window_kl);
    let top1 = Estimate::of_proportion(agreements.round() as usize, row.positions);
    *row = QualityRow {
        bytes,
        bits_per_element,
        error: row.error.zip(more.error).map(|(error, other)| error.max(other)),
        retrieval,
        retrieval_exact,
        perplexity,
        perplexity_exact,
        kl: kl.mean,
        kl_low: kl.low.max(0.0),
        kl_high: kl.high,
        top1: top1.mean,
        top1_low: top1.low,
        top1_high: top1.high,
        ..row.clone()
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        codecs::Uniform,
        quality::{Options, Text, measure},
    };
    use kvasir_engine::Model;
    use kvasir_types::{LevelError, Quality};

    #[test]
    fn pieces_of_a_measurement_are_the_measurement() {
        let model = Model::kvasir_tiny().expect("ships");
        let text: String =
            (0..400).map(|i| format!("The clerk counted {i} crates and {}. ", i * 7 % 13)).collect();
        let text = Text::new(&model, "counting", &text, 3, 288).expect("long enough");
        check_pieces(&model, &text);
        // Windows with different numbers of questions.
        let records = Text::records(&model, 3, (256, 100), 3).expect("lines enough");
        check_pieces(&model, &records);
    }

    fn check_pieces(model: &Model, text: &Text) {
        assert_eq!((text.windows.len(), text.spread), (3, 3));
        let options = Options { prefix: 256, chunk_tokens: vec![256] };
        let run = |codec: &Uniform, text: &Text| {
            measure(model, &[codec], text, &options, &mut |_| ()).expect("measures")
        };
        let codecs = &Uniform::ALL[..2];
        let whole: Vec<QualityRow> = codecs.iter().flat_map(|codec| run(codec, text)).collect();
        let pieces = [(0, 0..1), (0, 1..3), (1, 0..2), (1, 2..3)];
        let pieces = pieces.map(|(codec, part)| run(&codecs[codec], &text.clone().part(part)));
        let joined = join(pieces.iter().flatten().cloned()).expect("one measurement");
        assert_eq!(joined.len(), whole.len());
        for (a, b) in joined.iter().zip(&whole) {
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
            assert!(
                near(a.perplexity, b.perplexity) && near(a.kl, b.kl) && near(a.kl_high, b.kl_high),
                "{a:?} {b:?}"
            );
            assert!(
                near(a.bytes, b.bytes)
                    && near(a.bits_per_element, b.bits_per_element)
                    && near(a.top1_low, b.top1_low)
            );
            assert_eq!((&a.window_kl, a.windows, a.positions), (&b.window_kl, b.windows, b.positions));
            assert!(a.asked == b.asked && near(a.retrieval, b.retrieval), "{a:?} {b:?}");
        }
        // Pieces that do not belong to one measurement are rejected.
        let twice = pieces[0].iter().chain(&pieces[0]).cloned();
        assert!(matches!(join(twice), Err(JoinError::Twice { window: 0, .. })));
        let other_windows = pieces[0].iter().chain(&pieces[3]).cloned();
        assert!(matches!(join(other_windows), Err(JoinError::Windows { .. })));
        let mut spread = whole.clone();
        spread[1].spread = 4;
        assert!(matches!(join(spread), Err(JoinError::Spread { expected: 3, found: 4, .. })));
    }

    #[test]
    fn answers_are_joined_by_their_number_and_older_rows_load() {
        let row = |window: usize, asked: usize, retrieval: f64| QualityRow {
            codec: "zeros".to_owned(),
            error: Some(LevelError::at_least(retrieval + 0.5)),
            retrieval,
            asked,
            kl: 2.0,
            positions: 1,
            windows: 1,
            window_kl: [(window, 2.0)].into(),
            ..QualityRow::default()
        };
        let joined = |rows: [QualityRow; 2]| join(rows).expect("one measurement").remove(0);
        let both = joined([row(0, 1, 1.0), row(1, 3, 0.0)]);
        assert_eq!((both.retrieval, both.asked, both.kl_share), (0.25, 4, Some(1.0)));
        assert_eq!(both.quality(), Some(Quality::Balanced), "the larger error");
        let mut older = serde_json::to_value(row(1, 3, 0.0)).expect("JSON");
        for field in ["asked", "kl_share", "error"] {
            older.as_object_mut().and_then(|fields| fields.remove(field)).expect("a newer field");
        }
        let older = serde_json::from_value(older).expect("loads without them");
        let mixed = joined([row(0, 1, 1.0), older]);
        assert_eq!((mixed.retrieval, mixed.asked, mixed.error), (0.5, 0, None));
        assert_eq!(joined([mixed, row(2, 1, 0.125)]).retrieval, 0.375, "two windows and one");
    }
}
