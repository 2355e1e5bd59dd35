//! The part of a load handed to the engine: layers in place, and tokens for it to compute.

use std::ops::Range;

use kvasir_types::{Loss, TokenRange};

use super::{
    DriverEvent, LayerReady, RecomputeCause,
    decode::UnitScope,
    token_ranges::{covers, insert_range, remove_range},
};

/// The state of a load as the engine knows it. Each change returns the event to send.
#[derive(Debug)]
pub(super) struct LoadProgress {
    layers: LayerProgress,
    /// Tokens for the engine to compute. Sorted, disjoint.
    recompute: Vec<TokenRange>,
}

impl LoadProgress {
    /// A load of `tokens`, for ranks that hold the layers `held` of a model with `layers` layers.
    pub(super) fn new(held: Vec<Range<usize>>, layers: usize, tokens: TokenRange) -> Self {
        let layers = LayerProgress::new(held, layers, tokens);
        Self { layers, recompute: Vec::new() }
    }

    /// Layers of some tokens are in place, with this loss (including the loss beneath).
    pub(super) fn layers_ready(&mut self, scope: UnitScope, loss: Loss) -> DriverEvent {
        let UnitScope { rank, layers, tokens: token_range, level, .. } = scope;
        self.layers.add(rank, layers.clone(), token_range);
        let layers_complete = self.layers.complete(rank);
        DriverEvent::Ready(LayerReady { rank, layers, token_range, level, loss, layers_complete })
    }

    /// Gives tokens to the engine to compute; `None` if it already has them.
    pub(super) fn recompute(&mut self, range: TokenRange, cause: RecomputeCause) -> Option<DriverEvent> {
        if self.is_recomputed(range) {
            return None;
        }
        insert_range(&mut self.recompute, range);
        self.layers.exclude(range);
        Some(DriverEvent::Recompute { range, cause })
    }

    /// How many tokens of `range` the engine computes.
    pub(super) fn recomputed_tokens(&self, range: TokenRange) -> u64 {
        let within = |own: &TokenRange| own.end.min(range.end).saturating_sub(own.start.max(range.start));
        self.recompute.iter().map(within).sum()
    }

    /// Takes tokens back from the engine: they were loaded after all.
    pub(super) fn withdraw(&mut self, range: TokenRange) -> DriverEvent {
        remove_range(&mut self.recompute, range);
        self.layers.include(range);
        DriverEvent::Withdrawn { range }
    }

    /// Whether the engine computes all of `range`.
    pub(super) fn is_recomputed(&self, range: TokenRange) -> bool {
        covers(&self.recompute, range)
    }

    /// All token ranges that the engine computes.
    pub(super) fn into_recompute(self) -> Vec<TokenRange> {
        self.recompute
    }
}

/// For every rank and layer, the tokens that need not be waited for.
#[derive(Debug)]
struct LayerProgress {
    /// `[rank][layer]`: in place, or given to the engine to compute. Sorted, disjoint.
    settled: Vec<Vec<Vec<TokenRange>>>,
    /// Layers that each rank holds.
    held: Vec<Range<usize>>,
    /// Tokens of the load.
    tokens: TokenRange,
}

impl LayerProgress {
    fn new(held: Vec<Range<usize>>, layers: usize, tokens: TokenRange) -> Self {
        let held: Vec<_> = held.into_iter().map(|h| h.start.min(layers)..h.end.min(layers)).collect();
        Self { settled: vec![vec![Vec::new(); layers]; held.len()], held, tokens }
    }

    /// Excludes tokens that the engine computes: they need not be in place.
    fn exclude(&mut self, tokens: TokenRange) {
        self.settled.iter_mut().flatten().for_each(|layer| insert_range(layer, tokens));
    }

    /// Includes tokens again that the engine was going to compute: they were loaded after all.
    fn include(&mut self, tokens: TokenRange) {
        self.settled.iter_mut().flatten().for_each(|layer| remove_range(layer, tokens));
    }

    /// Layers of some tokens are in place on a rank.
    fn add(&mut self, rank: usize, layers: Range<usize>, tokens: TokenRange) {
        let layers = self.settled.get_mut(rank).and_then(|rank| rank.get_mut(layers));
        layers.into_iter().flatten().for_each(|layer| insert_range(layer, tokens));
    }

    /// Number of layers, from the rank's first, with no token of the load missing.
    fn complete(&self, rank: usize) -> usize {
        let (Some(layers), Some(held)) = (self.settled.get(rank), self.held.get(rank)) else { return 0 };
        let whole = |layer: &&Vec<TokenRange>| match layer.as_slice() {
            [only] => only.start <= self.tokens.start && only.end >= self.tokens.end,
            _ => false,
        };
        layers.get(held.clone()).map_or(0, |layers| layers.iter().take_while(whole).count())
    }
}

#[cfg(test)]
mod tests {
    use kvasir_types::Level;

    use super::*;

    fn tokens(start: u64, end: u64) -> TokenRange {
        TokenRange { start, end }
    }

    fn ready(progress: &mut LoadProgress, token_range: TokenRange, kl: f64) -> LayerReady {
        let scope = UnitScope { chunk: 0, rank: 0, layers: 0..2, tokens: token_range, level: Level(1) };
        match progress.layers_ready(scope, Loss { kl, ..Loss::NONE }) {
            DriverEvent::Ready(ready) => ready,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_engine_is_told_once_what_it_computes() {
        let mut progress = LoadProgress::new(vec![0..2, 0..2], 2, tokens(0, 100));
        let given = progress.recompute(tokens(50, 100), RecomputeCause::Text);
        let expected = tokens(50, 100);
        assert!(
            matches!(given, Some(DriverEvent::Recompute { range, cause: RecomputeCause::Text }) if range == expected)
        );
        assert!(progress.recompute(tokens(60, 90), RecomputeCause::Failed).is_none());
        assert!(progress.is_recomputed(tokens(60, 100)) && !progress.is_recomputed(tokens(40, 60)));
        assert_eq!(ready(&mut progress, tokens(0, 50), 0.0).layers_complete, 2);
        // Withdrawn tokens are waited for, and may be returned once more.
        progress.withdraw(tokens(50, 100));
        assert_eq!(ready(&mut progress, tokens(50, 80), 0.0).layers_complete, 0);
        assert!(progress.recompute(tokens(80, 100), RecomputeCause::Failed).is_some());
        assert_eq!(ready(&mut progress, tokens(50, 80), 0.0).layers_complete, 2);
        assert_eq!(progress.into_recompute(), [tokens(80, 100)]);
    }

    #[test]
    fn leading_layers_are_complete_when_no_token_is_missing() {
        let mut progress = LayerProgress::new(vec![0..usize::MAX, 2..4], 4, tokens(0, 100));
        progress.add(0, 0..2, tokens(0, 60));
        assert_eq!(progress.complete(0), 0);
        progress.add(0, 0..1, tokens(60, 100));
        assert_eq!(progress.complete(0), 1);
        // A failure after some layers were in place counts once.
        progress.exclude(tokens(0, 60));
        assert_eq!(progress.complete(0), 1);
        progress.exclude(tokens(60, 100));
        assert_eq!((progress.complete(0), progress.complete(1)), (4, 2));
        // Tokens loaded after all are waited for again.
        progress.include(tokens(20, 60));
        assert_eq!(progress.complete(0), 0);
        progress.add(0, 0..2, tokens(20, 60));
        assert_eq!(progress.complete(0), 2);
    }
}
