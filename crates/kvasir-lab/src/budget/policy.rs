//! Which tokens of one head to keep.

use std::collections::BTreeSet;

use kvasir_types::Reuse;

/// The data about one head that a policy may use, one entry per token.
#[derive(Debug, Clone, Copy)]
pub struct HeadView<'a> {
    /// Token ids.
    pub token_ids: &'a [u32],
    /// Attention received, summed over all queries of all query heads of the group.
    pub received: &'a [f32],
    /// The part of it from queries further away than the statistics' window.
    pub distant: &'a [f32],
    /// How often, among the last queries of the window, the token got less than an average share.
    pub unimportant: &'a [f32],
}

/// A rule that thins one head's cache.
pub trait TokenPolicy: std::fmt::Debug {
    /// Name in tables and in the `thinning` of a model spec.
    fn name(&self) -> &'static str;

    /// Tokens to keep, ascending, at most `budget` (FastGen chooses its own number).
    fn keep(&self, head: &HeadView<'_>, budget: usize) -> Vec<usize>;

    /// Whether heads of one layer may keep different tokens.
    fn per_head(&self) -> bool {
        true
    }

    /// Whether prefixes of the thinned cache still serve, or only the whole.
    fn reuse(&self) -> Reuse {
        Reuse::Whole
    }
}

/// The last tokens.
#[derive(Debug, Clone, Copy)]
pub struct SlidingWindow;

impl TokenPolicy for SlidingWindow {
    fn name(&self) -> &'static str {
        "sliding_window"
    }

    fn per_head(&self) -> bool {
        false
    }

    fn keep(&self, head: &HeadView<'_>, budget: usize) -> Vec<usize> {
        let tokens = head.token_ids.len();
        (tokens - budget.min(tokens)..tokens).collect()
    }
}

/// Attention sinks and the last tokens.
#[derive(Debug, Clone, Copy)]
pub struct StreamingLlm {
    /// Leading tokens that are always kept; the paper's 4.
    pub sinks: usize,
}

impl TokenPolicy for StreamingLlm {
    fn name(&self) -> &'static str {
        "streaming_llm"
    }

    fn per_head(&self) -> bool {
        false
    }

    fn keep(&self, head: &HeadView<'_>, budget: usize) -> Vec<usize> {
        let tokens = head.token_ids.len();
        let budget = budget.min(tokens);
        let sinks = self.sinks.min(budget);
        (0..sinks).chain(tokens - (budget - sinks)..tokens).collect()
    }
}

/// Heavy hitters: the most attended tokens, and recent ones.
#[derive(Debug, Clone, Copy)]
pub struct H2o {
    /// Share of the budget for the last tokens; the paper's half.
    pub recent_share: f64,
}

impl TokenPolicy for H2o {
    fn name(&self) -> &'static str {
        "h2o"
    }

    fn keep(&self, head: &HeadView<'_>, budget: usize) -> Vec<usize> {
        recent_and_best(head.received, budget, self.recent_share)
    }
}

/// Persistence of importance: keeps tokens that were rarely unimportant in the recent past, and recent ones.
#[derive(Debug, Clone, Copy)]
pub struct Scissorhands {
    /// Share of the budget for the last tokens.
    pub recent_share: f64,
}

impl TokenPolicy for Scissorhands {
    fn name(&self) -> &'static str {
        "scissorhands"
    }

    fn keep(&self, head: &HeadView<'_>, budget: usize) -> Vec<usize> {
        let importance: Vec<f32> = head.unimportant.iter().map(|count| -count).collect();
        recent_and_best(&importance, budget, self.recent_share)
    }
}

/// The last `recent_share` of the budget, the rest by score; ties go to the later token.
fn recent_and_best(scores: &[f32], budget: usize, recent_share: f64) -> Vec<usize> {
    let budget = budget.min(scores.len());
    let recent = (budget as f64 * recent_share).round() as usize;
    let older = scores.len() - recent.min(budget);
    let mut kept = best(scores, older, budget - recent.min(budget));
    kept.extend(older..scores.len());
    kept
}

/// The `count` best-scored of the first `among` tokens, ascending.
fn best(scores: &[f32], among: usize, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..among).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(b.cmp(&a)));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// Per head the cheapest of: sinks · + punctuation · + frequent · + local · everything, that keeps at least
/// `recovery` of the head's attention. The budget is not used: the policy finds its own.
#[derive(Debug, Clone)]
pub struct FastGen {
    /// Share of the attention to be kept; the paper's 0.95.
    pub recovery: f64,
    /// Share of the tokens kept as frequent, and as local; the paper's 0.3.
    pub ratio: f64,
    /// Leading tokens, in the place of special ones.
    pub sinks: usize,
    /// Token ids that are punctuation.
    pub punctuation: BTreeSet<u32>,
}

impl TokenPolicy for FastGen {
    fn name(&self) -> &'static str {
        "fastgen"
    }

    fn keep(&self, head: &HeadView<'_>, _budget: usize) -> Vec<usize> {
        let tokens = head.token_ids.len();
        let share = (tokens as f64 * self.ratio).round() as usize;
        let total: f32 = head.received.iter().sum();
        let enough = |columns: &BTreeSet<usize>, local: bool| {
            // A kept column recovers all that it received; a local window also recovers what near queries
            // gave to the others.
            let recovered = |token: usize| match (columns.contains(&token), local) {
                (true, _) => head.received[token],
                (false, true) => head.received[token] - head.distant[token],
                (false, false) => 0.0,
            };
            f64::from((0..tokens).map(recovered).sum::<f32>()) >= self.recovery * f64::from(total)
        };
        let mut columns: BTreeSet<usize> = (0..self.sinks.min(tokens)).collect();
        if enough(&columns, false) {
            return columns.into_iter().collect();
        }
        columns.extend((0..tokens).filter(|&t| self.punctuation.contains(&head.token_ids[t])));
        if enough(&columns, false) {
            return columns.into_iter().collect();
        }
        columns.extend(best(head.received, tokens, share));
        if enough(&columns, false) {
            return columns.into_iter().collect();
        }
        if enough(&columns, true) {
            columns.extend(tokens - share..tokens);
            return columns.into_iter().collect();
        }
        (0..tokens).collect()
    }
}
