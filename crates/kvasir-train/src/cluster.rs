//! Few tables for many distributions: k-means under the code length it costs to share a table.

use kvasir_codec::rans::{ALPHABET, ESCAPE};

/// Rounds of Lloyd's algorithm; the code length moves by less than 0.1 % after a few.
const ROUNDS: usize = 10;

/// Groups distributions, given as counts, into at most `tables` sums of counts. `expected` turns counts into
/// the counts expected of other samples, all above zero.
///
/// Returns the group of every distribution and the expected counts of every group. Deterministic.
pub(super) fn cluster<const N: usize>(
    counts: &[[f64; N]],
    tables: usize,
    expected: impl Fn(&[f64; N]) -> [f64; N],
) -> (Vec<usize>, Vec<[f64; N]>) {
    let mut order: Vec<usize> = (0..counts.len()).collect();
    let entropies: Vec<f64> = counts.iter().map(entropy).collect();
    order.sort_by(|a, b| entropies[*a].total_cmp(&entropies[*b]).then(a.cmp(b)));
    let tables = tables.min(counts.len());
    let mut group = vec![0; counts.len()];
    for (place, &index) in order.iter().enumerate() {
        group[index] = place * tables / counts.len();
    }
    let mut sums = sum_groups(counts, &group, tables);
    for _ in 0..ROUNDS {
        let costs: Vec<[f64; N]> = sums.iter().map(|sum| costs(&expected(sum))).collect();
        let mut moved = false;
        for (group, counts) in group.iter_mut().zip(counts) {
            let cost = |table: &[f64; N]| table.iter().zip(counts).map(|(c, n)| c * n).sum::<f64>();
            let best = (0..tables).min_by(|a, b| cost(&costs[*a]).total_cmp(&cost(&costs[*b])));
            let best = best.unwrap_or(*group);
            // Keep the group if it is equally good, so that ties do not oscillate.
            if best != *group && cost(&costs[best]) < cost(&costs[*group]) {
                *group = best;
                moved = true;
            }
        }
        sums = sum_groups(counts, &group, tables);
        if !moved {
            break;
        }
    }
    (group, sums.iter().map(expected).collect())
}

fn sum_groups<const N: usize>(counts: &[[f64; N]], group: &[usize], tables: usize) -> Vec<[f64; N]> {
    let mut sums = vec![[0.0; N]; tables];
    for (counts, group) in counts.iter().zip(group) {
        sums[*group].iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    sums
}

/// Bits of each symbol with a table made of `counts`.
fn costs<const N: usize>(counts: &[f64; N]) -> [f64; N] {
    let total: f64 = counts.iter().sum();
    counts.map(|n| (total / n).log2())
}

/// Half a count more of every symbol.
pub(super) fn half_more<const N: usize>(counts: &[f64; N]) -> [f64; N] {
    counts.map(|n| n + 0.5)
}

/// Largest expected count of a value without samples, relative to its neighbour.
const FALL_MAX: f64 = 0.25;

/// Counts of stage symbols, extrapolated to more samples: the tails continue where the samples end, between
/// those of an exponential and a Gaussian. Tables are shared by coefficients that happened to lack the same
/// values; in other text, each of these values would be an escape.
pub(super) fn with_tails(counts: &[f64; ALPHABET]) -> [f64; ALPHABET] {
    let mut expected = half_more(counts);
    let occurred = |s: &usize| counts[*s] > 0.0;
    let (Some(first), Some(last)) = ((0..ESCAPE).find(occurred), (0..ESCAPE).rfind(occurred)) else {
        return expected;
    };
    let mut extend = |outside: &mut dyn Iterator<Item = usize>, outer: usize, inner: usize| {
        let fall = if outer == inner { 0.0 } else { (counts[outer] / counts[inner].max(0.5)).powi(2) };
        let (mut tail, mut least) = (counts[outer], 0.5);
        for symbol in outside {
            tail *= fall.min(FALL_MAX);
            expected[symbol] = tail.max(least);
            least *= FALL_MAX;
        }
    };
    extend(&mut (0..first).rev(), first, last.min(first + 1));
    extend(&mut (last + 1..ESCAPE), last, first.max(last.saturating_sub(1)));
    expected
}

/// Bits a symbol.
pub(super) fn entropy<const N: usize>(counts: &[f64; N]) -> f64 {
    let total: f64 = counts.iter().sum();
    let bits = |n: &f64| if *n > 0.0 { n * (total / n).log2() } else { 0.0 };
    if total > 0.0 { counts.iter().map(bits).sum::<f64>() / total } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_of_two_kinds_get_two_tables() {
        let counts: Vec<[f64; 3]> =
            (0..40).map(|i| if i % 2 == 0 { [90.0, 9.0, 1.0] } else { [10.0, 20.0, 70.0] }).collect();
        let (group, sums) = cluster(&counts, 2, half_more);
        assert!(group.iter().enumerate().all(|(i, g)| *g == group[i % 2]));
        assert_ne!(group[0], group[1]);
        assert_eq!(sums[group[0]], [1800.5, 180.5, 20.5]);
    }

    #[test]
    fn there_are_never_more_tables_than_distributions() {
        let (group, sums) = cluster(&[[1.0, 2.0]], 128, half_more);
        assert_eq!((group, sums), (vec![0], vec![[1.5, 2.5]]));
        assert!(cluster::<2>(&[], 128, half_more).1.is_empty());
    }

    #[test]
    fn tails_go_on_where_samples_end() {
        let mut counts = [0.0; ALPHABET];
        counts[5..10].copy_from_slice(&[8.0, 90.0, 600.0, 100.0, 10.0]);
        let expected = with_tails(&counts);
        assert!(expected.iter().all(|n| *n > 0.0));
        assert_eq!(expected[5..10], counts[5..10].iter().map(|n| n + 0.5).collect::<Vec<_>>());
        assert!(
            (0..4).all(|s| expected[s] < expected[s + 1]) && (10..14).all(|s| expected[s] > expected[s + 1])
        );
        // as good as nothing of all, however flat the samples are
        for values in [3..4, 3..5, 0..15] {
            let mut flat = [0.0; ALPHABET];
            flat[values.clone()].fill(400.0);
            let outside: f64 =
                (0..ESCAPE).filter(|s| !values.contains(s)).map(|s| with_tails(&flat)[s]).sum();
            assert!(outside < 0.35 * 400.0 * values.len().min(2) as f64, "{values:?}: {outside}");
        }
        assert_eq!(with_tails(&[0.0; ALPHABET]), [0.5; ALPHABET]);
    }
}
