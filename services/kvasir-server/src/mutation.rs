//! Mutated inputs for parser tests: seeds that are cut, flipped, doubled and spliced, deterministically.

/// Calls `check` with `count` mutations.
pub(crate) fn of<T: AsRef<[u8]>>(seeds: &[T], count: u64, mut check: impl FnMut(&[u8])) {
    for n in 0..count {
        let mut hash = blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof();
        let mut number = |below: usize| {
            let mut bytes = [0; 8];
            hash.fill(&mut bytes);
            (u64::from_le_bytes(bytes) % below.max(1) as u64) as usize
        };
        let mut bytes = seeds[number(seeds.len())].as_ref().to_vec();
        for _ in 0..=number(4) {
            let (at, length) = (number(bytes.len() + 1), number(12));
            let end = (at + length).min(bytes.len());
            match number(5) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= 1 << number(8),
                2 => drop(bytes.drain(at..end)),
                3 => {
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
                _ => {
                    let other = seeds[number(seeds.len())].as_ref();
                    let from = number(other.len());
                    bytes.splice(at..end, other[from..(from + length).min(other.len())].iter().copied());
                }
            }
        }
        check(&bytes);
    }
}
