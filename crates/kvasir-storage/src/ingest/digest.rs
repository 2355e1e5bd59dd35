//! BLAKE3 of bodies as they arrive.

/// One BLAKE3 chunk for each lane of the widest processors.
const PIECE_BYTES: usize = 16 << 10;

/// BLAKE3 of bytes in any cuts, taken in pieces that fill the processor's lanes. After a cut within a chunk,
/// the hasher alone would take one chunk, then one, two, four: most lanes would be idle.
#[derive(Debug, Default)]
pub(super) struct AlignedDigest {
    hasher: blake3::Hasher,
    /// Less than a piece.
    held: Vec<u8>,
}

impl AlignedDigest {
    /// Takes the next bytes.
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        if !self.held.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.held.len()));
            self.held.extend_from_slice(now);
            if self.held.len() < PIECE_BYTES {
                return;
            }
            self.hasher.update(&self.held);
            self.held.clear();
            bytes = later;
        }
        let (whole, rest) = bytes.split_at(bytes.len() - bytes.len() % PIECE_BYTES);
        self.hasher.update(whole);
        self.held.extend_from_slice(rest);
    }

    /// The digest of all bytes so far.
    pub(super) fn finalize(&self) -> [u8; 32] {
        *self.hasher.clone().update(&self.held).finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_cut() -> impl Strategy<Value = usize> {
        prop_oneof![Just(0_usize), Just(1_usize), Just(PIECE_BYTES), 0..3 * PIECE_BYTES]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_is_blake3_whatever_the_cuts_and_takes_whole_pieces(
            cuts in prop::collection::vec(any_cut(), 0..12),
        ) {
            let length: usize = cuts.iter().sum();
            let bytes: Vec<u8> = (0..length).map(|at| ((at * 31) >> 3) as u8).collect();
            let (mut digest, mut rest) = (AlignedDigest::default(), &bytes[..]);
            for cut in cuts {
                let (now, later) = rest.split_at(cut);
                digest.update(now);
                prop_assert!(digest.hasher.count().is_multiple_of(PIECE_BYTES as u64));
                prop_assert!(digest.held.len() < PIECE_BYTES);
                rest = later;
            }
            prop_assert_eq!(digest.finalize(), *blake3::hash(&bytes).as_bytes());
        }
    }
}
