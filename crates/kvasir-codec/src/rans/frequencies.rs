//! Integer normalisation of counts: the same counts give the same table on every machine.

use super::constants::PROBABILITY_ONE;

/// Scales `counts` to frequencies that sum to [`PROBABILITY_ONE`]; symbols below `floor` get `floor[i]`.
///
/// A symbol that occurred gets at least 1, one that did not gets `floor[i]` (0 is legal and makes it uncodable).
/// The remainder goes where it costs least code length. All counts zero give the uniform table.
pub fn normalise<const N: usize>(counts: &[u64; N], floor: &[u32; N]) -> [u32; N] {
    let total: u128 = counts.iter().map(|&c| u128::from(c)).sum();
    if total == 0 {
        return normalise(&[1; N], floor);
    }
    let one = u128::from(PROBABILITY_ONE);
    let mut frequencies: [u32; N] = std::array::from_fn(|i| {
        let scaled = (u128::from(counts[i]) * one / total) as u32; // at most 4096
        scaled.max(floor[i]).max(u32::from(counts[i] > 0))
    });
    let least: [u32; N] = std::array::from_fn(|i| floor[i].max(u32::from(counts[i] > 0)));
    // One step more or less of frequency f changes the code length by count / (f ± 1/2), to first order.
    let weight = |i: usize, doubled: u32| (u128::from(counts[i]), u128::from(doubled));
    let less = |a: (u128, u128), b: (u128, u128)| (a.0 * b.1).cmp(&(b.0 * a.1));
    loop {
        let sum: u32 = frequencies.iter().sum();
        match sum.cmp(&PROBABILITY_ONE) {
            std::cmp::Ordering::Equal => return frequencies,
            std::cmp::Ordering::Less => {
                let gain = |i: &usize| weight(*i, 2 * frequencies[*i] + 1);
                let best = (0..N).max_by(|a, b| less(gain(a), gain(b)).then(b.cmp(a)));
                frequencies[best.expect("a table has symbols")] += 1;
            }
            std::cmp::Ordering::Greater => {
                let loss = |i: &usize| weight(*i, 2 * frequencies[*i] - 1);
                let candidates = (0..N).filter(|&i| frequencies[i] > least[i]);
                let best = candidates.min_by(|a, b| less(loss(a), loss(b)).then(a.cmp(b)));
                frequencies[best.expect("floors sum to far less than 4096")] -= 1;
            }
        }
    }
}
