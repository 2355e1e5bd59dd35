//! Sizes at equal quality, compared with the targets.

use serde::Serialize;

use super::{
    QualityRow, RECORDS,
    suite::{BUDGET, DIRECT, RETRAINED, RETRAINED_BUDGET, UNLIMITED},
};

/// KL values at which sizes are compared, nats per token.
pub const QUALITIES: [f64; 2] = [0.003, 0.001];
/// Share of the zero-prefix KL, which is all that the prefix is worth, at which sizes are compared, too.
pub const WORTH_SHARE: f64 = 0.045;
/// Most bytes there over the LMCache variant's, in the first domain and in others.
const WORTH_TARGETS: [f64; 2] = [0.08, 0.35];

/// The bits that a codec needs for a quality.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Crossing {
    /// The codec.
    pub codec: String,
    /// Its variant.
    pub variant: String,
    /// The text.
    pub domain: String,
    /// Tokens per chunk.
    pub chunk_tokens: usize,
    /// The KL.
    pub kl: f64,
    /// Which share of the zero-prefix KL that is; `None` for one of [`QUALITIES`]. The zero-prefix KL has an interval of
    /// its own, which is not in the bits' ends.
    pub kl_share: Option<f64>,
    /// Bits per element if the chunks of a context are divided between levels so that their mean KL is this;
    /// `None` if no level is as good.
    pub bits_per_element: Option<f64>,
    /// Bits per element of the smallest single level that is as good.
    pub level_bits_per_element: Option<f64>,
    /// As `bits_per_element`, on the curve of the KL's lower ends: least bits within the interval.
    pub bits_low: Option<f64>,
    /// The same on the curve of the upper ends.
    pub bits_high: Option<f64>,
}

/// A target and the measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// In words.
    pub target: String,
    /// Tokens per chunk.
    pub chunk_tokens: usize,
    /// The KL.
    pub kl: f64,
    /// Which share of the zero-prefix KL that is; `None` for one of [`QUALITIES`].
    pub kl_share: Option<f64>,
    /// Bytes over the other's bytes; `None` if one of the two has no level as good.
    pub ratio: Option<f64>,
    /// Why there is no ratio.
    pub note: String,
    /// Largest ratio that passes.
    pub at_most: f64,
    /// Whether it passes.
    pub pass: Option<bool>,
}

/// Least bits of levels, as (bits, kl), mixed so that their mean KL is `kl`: on the lower convex hull, never beyond its ends.
///
/// A chord between two levels in logarithms is a result that no user gets, and flatters codecs with levels far apart.
fn mixed(levels: &[(f64, f64)], kl: f64) -> Option<f64> {
    let mut sorted = levels.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for (bits, loss) in sorted {
        if hull.last().is_some_and(|last| loss >= last.1) {
            continue;
        }
        // A point on or above the chord around it is not a corner.
        while let [.., (x0, y0), (x1, y1)] = hull[..]
            && (y1 - y0) * (bits - x0) >= (loss - y0) * (x1 - x0)
        {
            hull.pop();
        }
        hull.push((bits, loss));
    }
    let coarsest = hull.first().filter(|(_, loss)| *loss <= kl).map(|(bits, _)| *bits);
    coarsest.or_else(|| {
        let pair = hull.windows(2).find(|pair| pair[1].1 <= kl)?;
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        Some(x0 + (y0 - kl) / (y0 - y1) * (x1 - x0))
    })
}

/// Bits of the smallest level whose KL is at most `kl`.
fn whole(levels: &[(f64, f64)], kl: f64) -> Option<f64> {
    levels.iter().filter(|(_, loss)| *loss <= kl).map(|(bits, _)| *bits).min_by(f64::total_cmp)
}

/// The zero-prefix KL of a domain, if `zeros` ran: all that the prefix is worth.
pub(super) fn worth(rows: &[QualityRow], domain: &str, chunk_tokens: usize) -> Option<f64> {
    let is = |row: &&QualityRow| {
        row.codec == "zeros" && row.domain == domain && row.chunk_tokens == chunk_tokens && row.kl > 0.0
    };
    rows.iter().find(is).map(|row| row.kl)
}

/// Sizes at equal quality of every codec, variant, text and chunk length.
pub fn crossings(rows: &[QualityRow]) -> Vec<Crossing> {
    let key =
        |row: &QualityRow| (row.codec.clone(), row.variant.clone(), row.domain.clone(), row.chunk_tokens);
    let mut keys: Vec<_> = rows.iter().map(key).collect();
    let mut seen = std::collections::HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
    let mut out = Vec::new();
    for key in keys {
        let own: Vec<&QualityRow> = rows.iter().filter(|row| key_is(row, &key)).collect();
        let curve =
            |of: fn(&QualityRow) -> f64| own.iter().map(|r| (r.bits_per_element, of(r))).collect::<Vec<_>>();
        let worth = worth(rows, &key.2, key.3).map(|worth| (WORTH_SHARE * worth, Some(WORTH_SHARE)));
        for (kl, kl_share) in QUALITIES.map(|kl| (kl, None)).into_iter().chain(worth) {
            let (codec, variant, domain, chunk_tokens) = key.clone();
            out.push(Crossing {
                codec,
                variant,
                domain,
                chunk_tokens,
                kl,
                kl_share,
                bits_per_element: mixed(&curve(|r| r.kl), kl),
                level_bits_per_element: whole(&curve(|r| r.kl), kl),
                bits_low: mixed(&curve(|r| r.kl_low), kl),
                bits_high: mixed(&curve(|r| r.kl_high), kl),
            });
        }
    }
    out
}

type Key = (String, String, String, usize);

fn key_is(row: &QualityRow, (codec, variant, domain, chunk_tokens): &Key) -> bool {
    row.codec == *codec
        && row.variant == *variant
        && row.domain == *domain
        && row.chunk_tokens == *chunk_tokens
}

/// A KL, and which share of the zero-prefix KL it is.
type Quality = (f64, Option<f64>);

/// One side of a comparison.
#[derive(Clone, Copy)]
struct Side<'a> {
    codec: &'a str,
    variant: &'a str,
    domain: &'a str,
}

/// Compares the measurements with the targets; `domains` are the texts, the profiles' own domain first.
pub fn verdicts(crossings: &[Crossing], domains: &[String], chunk_tokens: &[usize]) -> Vec<Verdict> {
    let Some(own) = domains.first() else { return Vec::new() };
    let (shortest, longest) = (chunk_tokens.iter().min(), chunk_tokens.iter().max());
    let bits = |side: Side<'_>, length: usize, kl: f64| {
        let is = |c: &&Crossing| {
            c.codec == side.codec
                && c.variant == side.variant
                && c.domain == side.domain
                && c.chunk_tokens == length
                && c.kl == kl
        };
        crossings.iter().find(is)?.bits_per_element
    };
    let fixed: [Quality; 2] = QUALITIES.map(|kl| (kl, None));
    let mut out = Vec::new();
    let mut compare = |target: &str, sides: [Side<'_>; 2], length: usize, at_most: f64, at: &[Quality]| {
        for &(kl, kl_share) in at {
            let [ours, theirs] = sides.map(|side| bits(side, length, kl));
            let ratio = ours.zip(theirs).map(|(a, b)| a / b);
            let pass = ratio.map(|ratio| ratio <= at_most);
            let note = match (ours, theirs) {
                (Some(_), Some(_)) => "",
                (Some(_), None) => "the other has no level as good",
                (None, Some(_)) => "ours has no level as good",
                (None, None) => "neither has a level as good",
            };
            let (target, note) = (target.to_owned(), note.to_owned());
            out.push(Verdict { target, chunk_tokens: length, kl, kl_share, ratio, note, at_most, pass });
        }
    };
    let side = |codec: &'static str, variant: &'static str| Side { codec, variant, domain: own };
    for (variant, factor) in [(BUDGET, 1.0), (UNLIMITED, 0.5)] {
        let ours = side("kvasir", variant);
        for (&length, lmcache) in shortest.into_iter().zip([0.20]).chain(longest.into_iter().zip([0.25])) {
            let peers = [
                ("the LMCache variant", side("lmcache", ""), lmcache * factor),
                ("the paper's CacheGen", side("cachegen_paper", ""), 0.30 * factor),
                ("the KVTC-like codec, same profile budget", side("kvtc_like", variant), 0.75 * factor),
                // The value of the coder does not depend on the profile.
                ("our symbols through Deflate", side("kvasir_deflate", variant), 0.93),
            ];
            for (peer, theirs, at_most) in peers {
                let target = format!("kvasir ({variant}) over {peer}");
                compare(&target, [ours, theirs], length, at_most, &fixed);
            }
        }
        // A KL of answers and one of a book's every token are not alike.
        for other in domains[1..].iter().filter(|other| own != RECORDS && *other != RECORDS) {
            let Some(&length) = longest else { continue };
            let there = Side { domain: other, ..ours };
            let target = format!("kvasir ({variant}) on {other} over {own}");
            compare(&target, [there, ours], length, 1.3, &fixed);
        }
    }
    if let Some(&length) = shortest {
        let target = "kvasir (direct) over the LMCache variant";
        compare(target, [side("kvasir", DIRECT), side("lmcache", "")], length, 0.60, &fixed);
    }
    for variant in [BUDGET, RETRAINED, RETRAINED_BUDGET] {
        for (index, domain) in domains.iter().enumerate() {
            let at_most = WORTH_TARGETS[index.min(1)];
            let sides = [("kvasir", variant), ("lmcache", "")].map(|(codec, variant)| Side {
                codec,
                variant,
                domain,
            });
            let own = crossings.iter().filter(|c| c.codec == "kvasir" && c.variant == variant);
            for of_worth in own.filter(|c| c.domain == *domain && c.kl_share.is_some()) {
                let target = format!("kvasir ({variant}) over the LMCache variant on {domain}");
                let at = [(of_worth.kl, of_worth.kl_share)];
                compare(&target, sides, of_worth.chunk_tokens, at_most, &at);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_mixed_and_nothing_is_read_beyond_them() {
        let levels = [(1.0, 1e-2), (2.0, 1e-3), (4.0, 1e-4)];
        for (kl, mix, level) in [
            (1e-3, Some(2.0), Some(2.0)),
            (5.5e-3, Some(1.5), Some(2.0)),
            (2e-2, Some(1.0), Some(1.0)),
            (5e-5, None, None),
        ] {
            let near = |bits: f64| mix.is_some_and(|mix: f64| (mix - bits).abs() < 1e-9);
            let found = mixed(&levels, kl);
            assert!(found == mix || found.is_some_and(near), "{kl}: {found:?}");
            assert_eq!(whole(&levels, kl), level, "{kl}");
        }
        // A level that is larger and worse than a mixture of others changes nothing.
        for other in [(1.5, 2e-2), (1.5, 9e-3)] {
            let with_bad = [levels[0], other, levels[1]];
            assert_eq!(mixed(&with_bad, 3e-3), mixed(&levels[..2], 3e-3));
        }
        // A single level has no mixture.
        assert_eq!((mixed(&levels[1..2], 2e-3), mixed(&levels[1..2], 1e-4)), (Some(2.0), None));
    }

    #[test]
    fn sizes_are_compared_at_a_share_of_what_the_prefix_is_worth() {
        let row = |domain: &str, codec: &str, variant: &str, bits_per_element: f64, kl: f64| QualityRow {
            codec: codec.to_owned(),
            variant: variant.to_owned(),
            domain: domain.to_owned(),
            chunk_tokens: 256,
            bits_per_element,
            kl,
            ..QualityRow::default()
        };
        let rows = [
            row("book", "kvasir", BUDGET, 0.5, 0.045),
            row("book", "lmcache", "", 10.0, 0.01),
            row("book", "zeros", "", 0.0, 1.0),
            row(RECORDS, "kvasir", BUDGET, 1.0, 0.09),
            row(RECORDS, "lmcache", "", 2.0, 0.09),
            row(RECORDS, "zeros", "", 0.0, 2.0),
            row("code", "kvasir", BUDGET, 1.0, 0.01),
            row("book", "kvasir", RETRAINED, 1.0, 0.045),
        ];
        let found = crossings(&rows);
        let of_worth = |domain: &str| {
            let own = found.iter().filter(|c| c.domain == domain && c.kl_share == Some(WORTH_SHARE));
            own.map(|c| (c.kl, c.bits_per_element)).collect::<Vec<_>>()
        };
        let book = [(0.045, Some(0.5)), (0.045, Some(10.0)), (0.045, None), (0.045, Some(1.0))];
        assert_eq!(of_worth("book"), book);
        assert_eq!(of_worth(RECORDS), [(0.09, Some(1.0)), (0.09, Some(2.0)), (0.09, None)]);
        assert!(of_worth("code").is_empty(), "zeros did not run there");
        let fixed = found.iter().filter(|c| c.kl_share.is_none()).count();
        assert_eq!(fixed, rows.len() * QUALITIES.len(), "the fixed qualities are compared as ever");

        let domains = ["book", RECORDS, "code"].map(str::to_owned);
        let verdicts = verdicts(&found, &domains, &[256]);
        let of_worth: Vec<_> = verdicts.iter().filter(|v| v.kl_share.is_some()).collect();
        let told: Vec<_> = of_worth.iter().map(|v| (v.kl, v.ratio, v.at_most, v.pass)).collect();
        let [budget, off, retrained] = [(0.045, 0.05, 0.08), (0.09, 0.5, 0.35), (0.045, 0.1, 0.08)];
        let expected = [(budget, true), (off, false), (retrained, false)];
        assert_eq!(told, expected.map(|((kl, ratio, most), pass)| (kl, Some(ratio), most, Some(pass))));
        let over_book = |v: &Verdict| v.target.ends_with(" over book");
        assert!(verdicts.iter().filter(|v| over_book(v)).all(|v| v.target.contains("code")));
        assert!(verdicts.iter().any(over_book));
    }
}
