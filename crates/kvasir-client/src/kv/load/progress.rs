//! What the engine was handed of a load: layers that are in place, and tokens that it computes.

use std::ops::Range;

use kvasir_types::TokenRange;

use super::{
    LayerReady, LoadEvent, RecomputeCause,
    decode::UnitScope,
    token_ranges::{covers, insert_range, remove_range},
};

/// What the engine was told of a load. Each change is the event to tell it.
#[derive(Debug)]
pub(super) struct LoadProgress {
    layers: LayerProgress,
    /// Predicted KL above which tokens are flagged.
    kl_bound: f64,
    /// Given to the engine to compute. Sorted, disjoint, as `flagged`.
    recompute: Vec<TokenRange>,
    flagged: Vec<TokenRange>,
}

impl LoadProgress {
    /// A load of `tokens`, for ranks that hold the layers `held` of a model with so many `layers`.
    pub(super) fn new(held: Vec<Range<usize>>, layers: usize, tokens: u64, kl_bound: f64) -> Self {
        let layers = LayerProgress::new(held, layers, tokens);
        Self { layers, kl_bound, recompute: Vec::new(), flagged: Vec::new() }
    }

    /// Layers of some tokens are in place, and `predicted_kl` is that of their level and of what lies beneath.
    pub(super) fn layers_ready(&mut self, scope: UnitScope, predicted_kl: f64) -> LoadEvent {
        let UnitScope { rank, layers, tokens: token_range, level, .. } = scope;
        let flagged = predicted_kl > self.kl_bound;
        if flagged {
            insert_range(&mut self.flagged, token_range);
        }
        self.layers.add(rank, layers.clone(), token_range);
        let layers_complete = self.layers.complete(rank);
        LoadEvent::LayerReady(LayerReady {
            rank,
            layers,
            token_range,
            level,
            predicted_kl,
            flagged,
            layers_complete,
        })
    }

    /// Gives tokens to the engine to compute; `None` where it has them already.
    pub(super) fn recompute(&mut self, range: TokenRange, cause: RecomputeCause) -> Option<LoadEvent> {
        if self.is_recomputed(range) {
            return None;
        }
        insert_range(&mut self.recompute, range);
        self.layers.exclude(range);
        Some(LoadEvent::Recompute { range, cause })
    }

    /// Takes tokens back from the engine: they are loaded after all.
    pub(super) fn withdraw(&mut self, range: TokenRange) -> LoadEvent {
        remove_range(&mut self.recompute, range);
        self.layers.include(range);
        LoadEvent::Withdrawn { range }
    }

    /// Whether the engine computes all of `range`.
    pub(super) fn is_recomputed(&self, range: TokenRange) -> bool {
        covers(&self.recompute, range)
    }

    /// All that the engine computes, and all that was flagged.
    pub(super) fn into_ranges(self) -> (Vec<TokenRange>, Vec<TokenRange>) {
        (self.recompute, self.flagged)
    }
}

/// Keeps, for every rank and layer, the tokens that need not be waited for any more.
#[derive(Debug)]
struct LayerProgress {
    /// `[rank][layer]`: in place, or given to the engine to compute. Sorted, disjoint.
    settled: Vec<Vec<Vec<TokenRange>>>,
    /// Layers that each rank holds.
    held: Vec<Range<usize>>,
    /// Tokens of the load.
    tokens: u64,
}

impl LayerProgress {
    fn new(held: Vec<Range<usize>>, layers: usize, tokens: u64) -> Self {
        let held: Vec<_> = held.into_iter().map(|h| h.start.min(layers)..h.end.min(layers)).collect();
        Self { settled: vec![vec![Vec::new(); layers]; held.len()], held, tokens }
    }

    /// Excludes tokens that the engine computes: they need not be in place.
    fn exclude(&mut self, tokens: TokenRange) {
        self.settled.iter_mut().flatten().for_each(|layer| insert_range(layer, tokens));
    }

    /// Includes tokens again that the engine was to compute: they are loaded after all.
    fn include(&mut self, tokens: TokenRange) {
        self.settled.iter_mut().flatten().for_each(|layer| remove_range(layer, tokens));
    }

    /// Layers of some tokens are in place on a rank.
    fn add(&mut self, rank: usize, layers: Range<usize>, tokens: TokenRange) {
        let layers = self.settled.get_mut(rank).and_then(|rank| rank.get_mut(layers));
        layers.into_iter().flatten().for_each(|layer| insert_range(layer, tokens));
    }

    /// Layers, from the first that the rank holds, for which no token of the load is missing.
    fn complete(&self, rank: usize) -> usize {
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
    use kvasir_types::Level;

    use super::*;

    fn tokens(start: u64, end: u64) -> TokenRange {
        TokenRange { start, end }
    }

    fn ready(progress: &mut LoadProgress, token_range: TokenRange, kl: f64) -> LayerReady {
        let scope = UnitScope { chunk: 0, rank: 0, layers: 0..2, tokens: token_range, level: Level(1) };
        match progress.layers_ready(scope, kl) {
            LoadEvent::LayerReady(ready) => ready,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_engine_is_told_once_what_it_computes() {
        let mut progress = LoadProgress::new(vec![0..2, 0..2], 2, 100, f64::INFINITY);
        let given = progress.recompute(tokens(50, 100), RecomputeCause::Text);
        let expected = tokens(50, 100);
        assert!(
            matches!(given, Some(LoadEvent::Recompute { range, cause: RecomputeCause::Text }) if range == expected)
        );
        assert!(progress.recompute(tokens(60, 90), RecomputeCause::Failed).is_none());
        assert!(progress.is_recomputed(tokens(60, 100)) && !progress.is_recomputed(tokens(40, 60)));
        assert_eq!(ready(&mut progress, tokens(0, 50), 0.0).layers_complete, 2);
        // What is withdrawn is waited for, and may be given back once more.
        progress.withdraw(tokens(50, 100));
        assert_eq!(ready(&mut progress, tokens(50, 80), 0.0).layers_complete, 0);
        assert!(progress.recompute(tokens(80, 100), RecomputeCause::Failed).is_some());
        assert_eq!(ready(&mut progress, tokens(50, 80), 0.0).layers_complete, 2);
        assert_eq!(progress.into_ranges(), (vec![tokens(80, 100)], vec![]));
    }

    #[test]
    fn tokens_above_the_bound_are_flagged() {
        let mut progress = LoadProgress::new(vec![0..2, 0..2], 2, 100, 0.5);
        let flagged = [(0, 0.5), (20, 0.6), (40, 0.7)].map(|(start, kl)| {
            let event = ready(&mut progress, tokens(start, start + 20), kl);
            (event.predicted_kl, event.flagged)
        });
        assert_eq!(flagged, [(0.5, false), (0.6, true), (0.7, true)]);
        assert_eq!(progress.into_ranges().1, [tokens(20, 60)]);
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
