//! Few tables for many distributions: k-means under the code length it costs to share a table.

/// Rounds of Lloyd's algorithm; the code length moves by less than 0.1 % after a few.
const ROUNDS: usize = 10;

/// Groups distributions, given as counts, into at most `tables` sums of counts.
///
/// Returns the group of every distribution and the summed counts of every group. Deterministic.
pub(super) fn cluster<const N: usize>(counts: &[[f64; N]], tables: usize) -> (Vec<usize>, Vec<[f64; N]>) {
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
        let costs: Vec<[f64; N]> = sums.iter().map(costs).collect();
        let mut moved = false;
        for (group, counts) in group.iter_mut().zip(counts) {
            let cost = |table: &[f64; N]| table.iter().zip(counts).map(|(c, n)| c * n).sum::<f64>();
            let best = (0..tables).min_by(|a, b| cost(&costs[*a]).total_cmp(&cost(&costs[*b])));
            let best = best.unwrap_or(*group);
            // Stay where it is as good, so that ties do not wander.
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
    (group, sums)
}

fn sum_groups<const N: usize>(counts: &[[f64; N]], group: &[usize], tables: usize) -> Vec<[f64; N]> {
    let mut sums = vec![[0.0; N]; tables];
    for (counts, group) in counts.iter().zip(group) {
        sums[*group].iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    sums
}

/// Bits of each symbol under a table made of `counts`; half a count for symbols that never occurred.
fn costs<const N: usize>(counts: &[f64; N]) -> [f64; N] {
    let total: f64 = counts.iter().map(|n| n + 0.5).sum();
    counts.map(|n| (total / (n + 0.5)).log2())
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
        let (group, sums) = cluster(&counts, 2);
        assert!(group.iter().enumerate().all(|(i, g)| *g == group[i % 2]));
        assert_ne!(group[0], group[1]);
        assert_eq!(sums[group[0]], [1800.0, 180.0, 20.0]);
    }

    #[test]
    fn there_are_never_more_tables_than_distributions() {
        let (group, sums) = cluster(&[[1.0, 2.0]], 128);
        assert_eq!((group, sums), (vec![0], vec![[1.0, 2.0]]));
        assert!(cluster::<2>(&[], 128).1.is_empty());
    }
}
