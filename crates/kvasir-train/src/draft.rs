//! A profile in the making: transforms are fitted, the finest step and all tables are still open.

use std::collections::BTreeMap;

use kvasir_types::{LEVELS_MAX, ModelSpec};
use rayon::prelude::*;

use super::{
    cluster::{cluster, half_more, with_tails},
    data::{Block, Corpus},
    rates::{CoefficientStats, measure},
    tokens::TokenModel,
};
use kvasir_codec::{
    ProfileError,
    authoring::{
        Basis, CoefficientCoding, Matrix, Predictor, ProfileParts, Scope, TextPredictor, analysis,
        anchor_prediction, split_anchors,
    },
    rans::{ALPHABET, AliasTable, PROBABILITY_ONE, TRIT_TABLES_MAX, TableBank, TritTable},
};

/// Most held-out coefficients kept for statistics, per scope: 256 MB.
const RESIDUALS_MAX: usize = 1 << 26;

/// A scope with the gains of step 1.
#[derive(Debug)]
pub(super) struct ScopeDraft {
    pub(super) scope: Scope,
    pub(super) tokens: Option<TokenModel>,
}

/// All scopes of a profile.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) scopes: Vec<ScopeDraft>,
    pub(super) level_count: usize,
    /// Most stage tables.
    pub(super) tables: usize,
    /// Whether coefficients enter at the level that suits them, not all at level 0.
    pub(super) entry_levels: bool,
    /// Whether values are read at the centroids of their cells.
    pub(super) centroids: bool,
}

/// Held-out residuals of one scope in finest steps: blocks of `[coefficient][token]`.
#[derive(Debug, Default)]
struct Residuals {
    main: Vec<(usize, Vec<f32>)>,
    anchors: Vec<(usize, Vec<f32>)>,
    /// Whether any prediction of a coefficient was not zero.
    predicted: Vec<bool>,
}

/// Statistics of all coefficients of one scope.
struct ScopeStats {
    scope: Scope,
    main: Vec<Option<CoefficientStats>>,
    anchors: Vec<Option<CoefficientStats>>,
}

impl Draft {
    /// The step at which the error's power is `nmse` times the signal's, if every coefficient wider than the
    /// step has an error of step²/12 and the others are lost: reverse water-filling on held-out variances.
    pub(super) fn step_for_nmse(&self, corpus: &Corpus<'_>, nmse: f64) -> f32 {
        let (mut variances, mut lost, mut elements) = (Vec::new(), 0.0, 0usize);
        for draft in &self.scopes {
            let (coefficients, outside) = draft.variances(corpus);
            variances.extend(coefficients);
            lost += outside;
            elements += draft.scope.elements();
        }
        // No step reaches an error below the truncated basis' loss; a little above it, the step is about the
        // loss.
        let target = (nmse * elements as f64).max(1.25 * lost);
        let error = |step: f64| variances.iter().map(|v| v.min(step * step / 12.0)).sum::<f64>() + lost;
        let (mut low, mut high) = (1e-4f64, 1e2f64);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            if error(middle) < target { low = middle } else { high = middle }
        }
        low as f32
    }

    /// Chooses entry levels and tables for a finest step.
    pub(super) fn finish(
        &self,
        spec: &ModelSpec,
        corpus: &Corpus<'_>,
        step: f32,
    ) -> Result<ProfileParts, ProfileError> {
        let levels = self.level_count;
        let mut stats: Vec<ScopeStats> = self
            .scopes
            .iter()
            .map(|draft| draft.statistics(corpus, step, levels, self.entry_levels))
            .collect();
        let all = || stats.iter().flat_map(|s| s.main.iter().chain(&s.anchors).flatten());
        let (stage_ids, stage_tables) =
            cluster(&all().map(|s| s.stage).collect::<Vec<_>>(), self.tables, with_tails);
        let trit_counts: Vec<[f64; 6]> = all().flat_map(trit_sets).map(|(_, counts)| counts).collect();
        let (trit_ids, trit_tables) = cluster_trits(&trit_counts);
        let mut shifts = centroid_shifts(&all().collect::<Vec<_>>(), &stage_ids, stage_tables.len());
        if !self.centroids {
            shifts.fill([0; LEVELS_MAX]);
        }
        let stage = stage_tables.iter().map(stage_table).collect();
        let trit = trit_tables.iter().map(trit_table).collect();
        let bank = TableBank::new(stage, trit)
            .map_err(|e| ProfileError::Invalid { field: "table bank", found: e.to_string() })?;
        let (mut stage_ids, mut trit_ids) = (stage_ids.into_iter(), trit_ids.into_iter());
        let scopes = stats.iter_mut().map(|s| {
            s.scope.loss = vec![0.0; levels];
            s.scope.coding = codings(&s.main, &mut stage_ids, &mut trit_ids);
            if let Predictor::AnchorFirst { anchors, .. } = &mut s.scope.predictor {
                *anchors = codings(&s.anchors, &mut stage_ids, &mut trit_ids);
            }
            s.scope.clone()
        });
        Ok(ProfileParts {
            model_id: spec.model_id(),
            exact_tokens: 0,
            scopes: scopes.collect(),
            bank,
            shifts,
            levels: vec![Default::default(); levels],
            training: Default::default(),
        })
    }
}

impl Draft {
    /// A profile that quantises nothing and has no levels: predictions are rounded to a step.
    pub(super) fn without_levels(&self, spec: &ModelSpec, step: f32) -> Result<ProfileParts, ProfileError> {
        let bank = TableBank::new(Vec::new(), Vec::new())
            .map_err(|e| ProfileError::Invalid { field: "table bank", found: e.to_string() })?;
        Ok(ProfileParts {
            model_id: spec.model_id(),
            exact_tokens: 0,
            scopes: self.scopes.iter().map(|draft| draft.at_step(step)).collect(),
            bank,
            shifts: Vec::new(),
            levels: Vec::new(),
            training: Default::default(),
        })
    }
}

impl ScopeDraft {
    /// The scope with gains of a step and its predictor bound; all coefficients absent.
    pub(super) fn at_step(&self, step: f32) -> Scope {
        let mut scope = self.scope.clone();
        scope.members.iter_mut().for_each(|m| m.gain = (m.gain * step).max(f32::MIN_POSITIVE));
        let rank = match &scope.basis {
            Basis::Identity => scope.elements(),
            Basis::Trained { synthesis, .. } => synthesis.len() / scope.elements(),
        };
        scope.coding = vec![CoefficientCoding::ABSENT; rank];
        if let Some(tokens) = &self.tokens {
            let matrix = analysis(&scope.basis, scope.elements());
            scope.predictor = Predictor::Token(tokens.bind(matrix.as_deref(), scope.elements(), step));
        }
        scope
    }

    /// Held-out variances of the residual coefficients at step 1, and the power outside the basis.
    fn variances(&self, corpus: &Corpus<'_>) -> (Vec<f64>, f64) {
        // A fine step, so that the integer predictor's rounding is invisible.
        const STEP: f32 = 1.0 / 64.0;
        let scope = self.at_step(STEP);
        let residuals = residuals(corpus, &scope);
        let tokens: usize = residuals.main.iter().map(|(tokens, _)| tokens).sum();
        let mut power = vec![0f64; scope.rank()];
        for (tokens, values) in &residuals.main {
            for (power, row) in power.iter_mut().zip(values.chunks_exact(*tokens)) {
                *power += row.iter().map(|v| f64::from(v * STEP).powi(2)).sum::<f64>();
            }
        }
        let count = tokens.max(1) as f64;
        let lost = self.power_outside(corpus);
        (power.into_iter().map(|p| p / count).collect(), lost)
    }

    fn power_outside(&self, corpus: &Corpus<'_>) -> f64 {
        let Basis::Trained { synthesis, .. } = &self.scope.basis else { return 0.0 };
        let (elements, analysis) = (self.scope.elements(), Matrix::analysis(&self.scope));
        let (rank, back) = (synthesis.len() / elements, Matrix::synthesis(&self.scope));
        let (mut lost, mut tokens) = (0f64, 0usize);
        corpus.stream(&self.scope, &corpus.held_out, |block| {
            let count = block.current.len();
            let (mut inside, mut kept) = (vec![0.0; rank * count], vec![0.0; elements * count]);
            analysis.analyse(count, &block.elements, &mut inside);
            back.synthesise(count, &inside, &mut kept);
            let differences = block.elements.iter().zip(&kept).map(|(x, y)| f64::from(x - y).powi(2));
            lost += differences.sum::<f64>();
            tokens += count;
        });
        lost.max(0.0) / tokens.max(1) as f64
    }

    fn statistics(&self, corpus: &Corpus<'_>, step: f32, levels: usize, entry_levels: bool) -> ScopeStats {
        let mut scope = self.at_step(step);
        let residuals = residuals(corpus, &scope);
        let measured = |c| measure(&row(&residuals.main, c), levels, entry_levels);
        let main: Vec<_> = (0..scope.rank()).into_par_iter().map(measured).collect();
        let anchors: Vec<_> = match scope.predictor {
            Predictor::AnchorFirst { .. } => (0..scope.rank())
                .into_par_iter()
                .map(|c| measure(&row(&residuals.anchors, c), 1, true))
                .collect(),
            Predictor::Mean | Predictor::Token(_) => Vec::new(),
        };
        let used = |c: &usize| main[*c].is_some() || residuals.predicted[*c];
        let rank = (0..main.len()).rev().find(used).map_or(1, |last| last + 1);
        let mut main = main;
        if matches!(scope.basis, Basis::Trained { .. }) {
            truncate(&mut scope, rank);
            main.truncate(rank);
        }
        ScopeStats { scope, main, anchors }
    }
}

/// Residuals of held-out text, exactly as the encoder will see them.
fn residuals(corpus: &Corpus<'_>, scope: &Scope) -> Residuals {
    let (analysis, text) = (Matrix::analysis(scope), TextPredictor::new(scope));
    let rank = scope.rank();
    let mut out = Residuals { predicted: vec![false; rank], ..Residuals::default() };
    let stride = (rank * corpus.held_out_tokens()).div_ceil(RESIDUALS_MAX).max(1);
    let kept: Vec<_> = corpus.held_out.iter().step_by(stride).cloned().collect();
    corpus.stream(scope, &kept, |block| {
        let tokens = block.current.len();
        let mut coefficients = vec![0.0; rank * tokens];
        analysis.analyse(tokens, &block.elements, &mut coefficients);
        match &scope.predictor {
            Predictor::AnchorFirst { group, anchor_ratio, .. } => {
                out.add_anchored(scope, tokens, &coefficients, *group, *anchor_ratio);
            }
            Predictor::Mean | Predictor::Token(_) => out.add_predicted(scope, &text, &block, coefficients),
        }
    });
    out
}

impl Residuals {
    fn add_predicted(
        &mut self,
        scope: &Scope,
        text: &TextPredictor,
        block: &Block,
        mut coefficients: Vec<f32>,
    ) {
        let tokens = block.current.len();
        let predictions = text.predict(scope, &block.current, block.previous[0], &(0..tokens));
        for (value, predicted) in coefficients.iter_mut().zip(&predictions) {
            *value -= *predicted as f32;
        }
        for (used, row) in self.predicted.iter_mut().zip(predictions.chunks_exact(tokens)) {
            *used |= row.iter().any(|p| *p != 0);
        }
        self.main.push((tokens, coefficients));
    }

    fn add_anchored(&mut self, scope: &Scope, tokens: usize, coefficients: &[f32], group: usize, ratio: i32) {
        let (anchor_list, main_list) = split_anchors(&scope.predictor, tokens);
        let (mut anchors, mut main) = (Vec::new(), Vec::new());
        for row in coefficients.chunks_exact(tokens) {
            let anchor_of = |token: usize| row[token / group * group] * ratio as f32;
            anchors.extend(anchor_list.iter().map(|token| anchor_of(*token)));
            main.extend(main_list.iter().map(|token| {
                let anchor = anchor_of(*token).round_ties_even() as i32;
                row[*token] - anchor_prediction(anchor, ratio) as f32
            }));
        }
        self.anchors.push((anchor_list.len(), anchors));
        if !main_list.is_empty() {
            self.main.push((main_list.len(), main));
        }
    }
}

/// One coefficient over all blocks.
fn row(blocks: &[(usize, Vec<f32>)], coefficient: usize) -> Vec<f32> {
    let part = |(tokens, values): &(usize, Vec<f32>)| {
        values[coefficient * tokens..(coefficient + 1) * tokens].to_vec()
    };
    blocks.iter().flat_map(part).collect()
}

/// Keeps the first `rank` coefficients of a trained basis.
pub(super) fn truncate(scope: &mut Scope, rank: usize) {
    let (elements, before) = (scope.elements(), scope.rank());
    scope.coding.truncate(rank);
    if let Basis::Trained { synthesis, analysis, packed } = &mut scope.basis {
        synthesis.truncate(rank * elements);
        if let Some(packed) = packed {
            packed.truncate(rank, elements);
        }
        if let Some(analysis) = analysis {
            analysis.truncate(rank * elements);
        }
    }
    if let Predictor::Token(token) = &mut scope.predictor {
        token.matrix = token.matrix.chunks_exact(before).flat_map(|row| &row[..rank]).copied().collect();
        token.shifts.truncate(rank);
        token.matrix_bits.truncate(rank);
    }
}

/// A coefficient's trit statistics: `None` for the trits inside level 0, else the level.
fn trit_sets(stats: &CoefficientStats) -> impl Iterator<Item = (Option<usize>, [f64; 6])> {
    let inner = (stats.entry < 0).then_some((None, stats.inner));
    let first = stats.entry.max(0) as usize + 1;
    let outer = stats.trits.iter().enumerate().skip(first).map(|(level, counts)| (Some(level), *counts));
    inner.into_iter().chain(outer)
}

/// Clusters the two contexts jointly: they share an id.
fn cluster_trits(counts: &[[f64; 6]]) -> (Vec<usize>, Vec<[f64; 6]>) {
    // One distribution of six symbols orders and compares as the pair does: both sides know the context, and
    // its share differs little between coefficients that share a table.
    cluster(counts, TRIT_TABLES_MAX, half_more)
}

/// Less of a slot is not worth a whole one: an escape has eight bits more than a slot.
const SLOT_SHARE_MIN: f64 = 0.18;

fn stage_table(expected: &[f64; ALPHABET]) -> AliasTable {
    let least = SLOT_SHARE_MIN / f64::from(PROBABILITY_ONE) * expected.iter().sum::<f64>();
    // in 64ths, which hold halves of halves of halves
    AliasTable::from_counts(&expected.map(|n| if n < least { 0 } else { (64.0 * n) as u64 }))
}

fn trit_table(counts: &[f64; 6]) -> TritTable {
    // Folding signs produces halves; twice the counts are integers.
    let [a, b, c, d, e, f] = counts.map(|n| (2.0 * n) as u64);
    TritTable::from_counts(&[[a, b, c], [d, e, f]])
}

/// Takes the ids of every coefficient's tables in the order they were clustered in.
fn codings(
    stats: &[Option<CoefficientStats>],
    stage_ids: &mut impl Iterator<Item = usize>,
    trit_ids: &mut impl Iterator<Item = usize>,
) -> Vec<CoefficientCoding> {
    let coding = |stats: &Option<CoefficientStats>| {
        let Some(stats) = stats else { return CoefficientCoding::ABSENT };
        let (mut inner, mut trits) = (0u8, [0u8; LEVELS_MAX]);
        // Ids are below 128 and 256.
        let stage = stage_ids.next().unwrap_or(0) as u8;
        for (level, _) in trit_sets(stats) {
            let id = trit_ids.next().unwrap_or(0) as u8;
            match level {
                None => inner = id,
                Some(level) => trits[level] = id,
            }
        }
        stats.coding(stage, inner, &trits)
    };
    stats.iter().map(coding).collect()
}

/// Centroid shifts by stage table and depth below it.
fn centroid_shifts(stats: &[&CoefficientStats], stage_ids: &[usize], tables: usize) -> Vec<[u8; LEVELS_MAX]> {
    let mut sums = BTreeMap::<(usize, usize), (f64, f64)>::new();
    for (stats, table) in stats.iter().zip(stage_ids) {
        for (level, pull) in stats.pull.iter().enumerate() {
            let Ok(depth) = usize::try_from(level as i32 - i32::from(stats.entry)) else { continue };
            let sum = sums.entry((*table, depth.min(LEVELS_MAX - 1))).or_default();
            sum.0 += pull.0;
            sum.1 += pull.1;
        }
    }
    let mut shifts = vec![[0; LEVELS_MAX]; tables];
    for ((table, depth), (pull, count)) in sums {
        if count > 0.0 {
            shifts[table][depth] = (256.0 * pull / count).round().clamp(0.0, 127.0) as u8;
        }
    }
    shifts
}
