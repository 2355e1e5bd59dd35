//! Tracks which layers are in place for which tokens.

use std::ops::Range;

use kvasir_types::TokenRange;

use super::token_ranges::{insert_range, remove_range};

/// Keeps, for every rank and layer, the tokens that need not be waited for any more.
#[derive(Debug)]
pub(super) struct LayerProgress {
    /// `[rank][layer]`: in place, or given to the engine to compute. Sorted, disjoint.
    settled: Vec<Vec<Vec<TokenRange>>>,
    /// Layers that each rank holds.
    held: Vec<Range<usize>>,
    /// Tokens of the load.
    tokens: u64,
}

impl LayerProgress {
    pub(super) fn new(held: Vec<Range<usize>>, layers: usize, tokens: u64) -> Self {
        let held: Vec<_> = held.into_iter().map(|h| h.start.min(layers)..h.end.min(layers)).collect();
        Self { settled: vec![vec![Vec::new(); layers]; held.len()], held, tokens }
    }

    /// Excludes tokens that the engine computes: they need not be in place.
    pub(super) fn exclude(&mut self, tokens: TokenRange) {
        self.settled.iter_mut().flatten().for_each(|layer| insert_range(layer, tokens));
    }

    /// Includes tokens again that the engine was to compute: they are loaded after all.
    pub(super) fn include(&mut self, tokens: TokenRange) {
        self.settled.iter_mut().flatten().for_each(|layer| remove_range(layer, tokens));
    }

    /// Layers of some tokens are in place on a rank.
    pub(super) fn add(&mut self, rank: usize, layers: Range<usize>, tokens: TokenRange) {
        let layers = self.settled.get_mut(rank).and_then(|rank| rank.get_mut(layers));
        layers.into_iter().flatten().for_each(|layer| insert_range(layer, tokens));
    }

    /// Layers, from the first that the rank holds, for which no token of the load is missing.
    pub(super) fn complete(&self, rank: usize) -> usize {
        let (Some(layers), Some(held)) = (self.settled.get(rank), self.held.get(rank)) else { return 0 };
        let whole = |layer: &&Vec<TokenRange>| match layer.as_slice() {
            [only] => only.start == 0 && only.end >= self.tokens,
            _ => false,
        };
        layers.get(held.clone()).map_or(0, |layers| layers.iter().take_while(whole).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(start: u64, end: u64) -> TokenRange {
        TokenRange { start, end }
    }

    #[test]
    fn leading_layers_are_complete_when_no_token_is_missing() {
        let mut progress = LayerProgress::new(vec![0..usize::MAX, 2..4], 4, 100);
        progress.add(0, 0..2, tokens(0, 60));
        assert_eq!(progress.complete(0), 0);
        progress.add(0, 0..1, tokens(60, 100));
        assert_eq!(progress.complete(0), 1);
        // What failed after some of its layers were in place counts once.
        progress.exclude(tokens(0, 60));
        assert_eq!(progress.complete(0), 1);
        progress.exclude(tokens(60, 100));
        assert_eq!((progress.complete(0), progress.complete(1)), (4, 2));
        // What is loaded after all is waited for again.
        progress.include(tokens(20, 60));
        assert_eq!(progress.complete(0), 0);
        progress.add(0, 0..2, tokens(20, 60));
        assert_eq!(progress.complete(0), 2);
    }
}
