//! Sizes at equal quality, and what was set out to be reached.

use serde::Serialize;

use super::{
    QualityRow,
    suite::{BUDGET, DIRECT, UNLIMITED},
};

/// KL at which sizes are compared, nats a token.
pub const QUALITIES: [f64; 2] = [0.003, 0.001];

/// What a codec needs for a quality.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Crossing {
    /// The codec.
    pub codec: String,
    /// Its variant.
    pub variant: String,
    /// The text.
    pub domain: String,
    /// Tokens of a chunk.
    pub chunk_tokens: usize,
    /// The KL.
    pub kl: f64,
    /// Bits an element, log-log between the two measured points around it; `None` where none lie around it.
    pub bits_per_element: Option<f64>,
    /// The same on the curve of the KL's lower ends: least bits within the interval.
    pub bits_low: Option<f64>,
    /// The same on the curve of the upper ends.
    pub bits_high: Option<f64>,
}

/// A target and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// In words.
    pub target: String,
    /// Tokens of a chunk.
    pub chunk_tokens: usize,
    /// The KL.
    pub kl: f64,
    /// Bytes over the other's bytes; `None` where one of the two was not measured around this KL.
    pub ratio: Option<f64>,
    /// Why there is no ratio.
    pub note: String,
    /// Largest ratio that passes.
    pub at_most: f64,
    /// Whether it passes.
    pub pass: Option<bool>,
}

/// `bits` at which a curve of (bits, kl) reaches `kl`: between neighbours, in logarithms, never beyond the ends. Points
/// that cost more bits than another and are no better are left out.
fn interpolate(points: &[(f64, f64)], kl: f64) -> Option<f64> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut front: Vec<(f64, f64)> = Vec::new();
    for point in sorted {
        if front.last().is_none_or(|last| point.1 < last.1) {
            front.push(point);
        }
    }
    let pair = front.windows(2).find(|pair| pair[0].1 >= kl && kl >= pair[1].1)?;
    let [(x0, y0), (x1, y1)] = [pair[0], pair[1]].map(|(x, y)| (x.ln(), y.max(f64::MIN_POSITIVE).ln()));
    let share = if y0 == y1 { 0.0 } else { (y0 - kl.ln()) / (y0 - y1) };
    Some((x0 + share * (x1 - x0)).exp())
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
        for kl in QUALITIES {
            let (codec, variant, domain, chunk_tokens) = key.clone();
            out.push(Crossing {
                codec,
                variant,
                domain,
                chunk_tokens,
                kl,
                bits_per_element: interpolate(&curve(|r| r.kl), kl),
                bits_low: interpolate(&curve(|r| r.kl_low), kl),
                bits_high: interpolate(&curve(|r| r.kl_high), kl),
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

/// One side of a comparison.
#[derive(Clone, Copy)]
struct Side<'a> {
    codec: &'a str,
    variant: &'a str,
    domain: &'a str,
}

/// Compares what was measured with the targets; `domains` are the texts, the profiles' own domain first.
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
    let mut out = Vec::new();
    let mut compare = |target: String, ours: Side<'_>, theirs: Side<'_>, length: usize, at_most: f64| {
        for kl in QUALITIES {
            let ratio = bits(ours, length, kl).zip(bits(theirs, length, kl)).map(|(a, b)| a / b);
            let pass = ratio.map(|ratio| ratio <= at_most);
            let note = match (bits(ours, length, kl), bits(theirs, length, kl)) {
                (Some(_), Some(_)) => "",
                (Some(_), None) => "the other has no points around it",
                (None, Some(_)) => "ours has no points around it",
                (None, None) => "neither has points around it",
            };
            let (target, note) = (target.clone(), note.to_owned());
            out.push(Verdict { target, chunk_tokens: length, kl, ratio, note, at_most, pass });
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
                // The coder is worth what it is worth, whatever the profile.
                ("our symbols through Deflate", side("kvasir_deflate", variant), 0.93),
            ];
            for (peer, theirs, at_most) in peers {
                compare(format!("kvasir ({variant}) over {peer}"), ours, theirs, length, at_most);
            }
        }
        for other in &domains[1..] {
            let Some(&length) = longest else { continue };
            let there = Side { domain: other, ..ours };
            compare(format!("kvasir ({variant}) on {other} over {own}"), there, ours, length, 1.3);
        }
    }
    if let Some(&length) = shortest {
        let target = "kvasir (direct) over the LMCache variant".to_owned();
        compare(target, side("kvasir", DIRECT), side("lmcache", ""), length, 0.60);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_between_points_and_never_beyond() {
        let curve = [(1.0, 1e-2), (2.0, 1e-3), (4.0, 1e-4)];
        assert!((interpolate(&curve, 1e-3).unwrap() - 2.0).abs() < 1e-9);
        let middle = interpolate(&curve, 10f64.powf(-2.5)).unwrap();
        assert!((middle - 2f64.sqrt()).abs() < 1e-9, "{middle}");
        assert_eq!((interpolate(&curve, 2e-2), interpolate(&curve, 5e-5)), (None, None));
        // A point that is larger and worse than another does not bend the curve.
        let with_bad = [(1.0, 1e-2), (1.5, 2e-2), (2.0, 1e-3)];
        assert_eq!(interpolate(&with_bad, 3e-3), interpolate(&curve[..2], 3e-3));
    }
}
