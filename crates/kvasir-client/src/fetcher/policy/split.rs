//! The split of chunks between the GPU, which computes, and the link, which loads.

use std::time::Duration;

use kvasir_types::Level;

use super::forecast::{CAUTION_SHARES, Forecast, heeded};

/// Up to this many open chunks, every split is tried; above it, those that compute a stretch from the front
/// and the chunks that the link cannot bring.
const EXHAUSTIVE: usize = 8;

/// The price of the GPU's waiting for the link: for each missing base before a text chunk, in shares of the
/// loss that the bases alone would leave.
const GATE_PRICE: f64 = 0.05;

/// Factors by which link and GPU are assumed to exceed the expected time.
#[derive(Debug)]
pub(super) struct Caution {
    pub(super) link: f64,
    /// One for each open chunk.
    pub(super) gpu: Vec<f64>,
}

impl Caution {
    pub(super) fn of(plan: &Forecast<'_>, open: &[usize]) -> Self {
        let gpu = open.iter().map(|&i| plan.compute_caution(i)).collect();
        Self { link: plan.view.caution, gpu }
    }

    /// A `share` of it.
    fn heeded(&self, share: f64) -> Self {
        let gpu = self.gpu.iter().map(|&factor| heeded(factor, share)).collect();
        Self { link: heeded(self.link, share), gpu }
    }
}

/// A split of the open chunks between GPU and link.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Split {
    /// Chunks to compute, in context order.
    pub(super) texts: Vec<usize>,
    /// Predicted time until the link's chunks are in place.
    pub(super) link: Duration,
    /// Predicted time until the GPU has computed the others.
    pub(super) gpu: Duration,
    /// Predicted loss, as a share of the loss at level 0, plus the price of the GPU's time.
    cost: f64,
}

impl Split {
    /// A split taken without comparison: exactly these chunks.
    pub(super) const fn given(texts: Vec<usize>) -> Self {
        Self { texts, link: Duration::ZERO, gpu: Duration::ZERO, cost: 0.0 }
    }

    /// The cheapest split that meets the stop by the cautious forecast. If none does, less caution is tried
    /// before the stop is given up; then the fastest.
    pub(super) fn best(plan: &Forecast<'_>, gpu_price: f64) -> Self {
        let open: Vec<usize> = plan.view.open().map(|(i, ..)| i).collect();
        let candidates = candidates(plan, &open);
        let split = |caution: Caution| {
            let open = &open;
            candidates.iter().map(move |texts| Self::of(plan, open, texts, &caution, gpu_price))
        };
        let full = Caution::of(plan, &open);
        for share in CAUTION_SHARES {
            let in_time = split(full.heeded(share)).filter(|s| s.is_in_time(plan));
            if let Some(best) = in_time.min_by(|a, b| a.cost.total_cmp(&b.cost)) {
                return best;
            }
        }
        split(full.heeded(0.0)).min_by_key(|s| s.link.max(s.gpu)).unwrap_or_default()
    }

    /// Whether the link ends in time for the decoder, and the GPU for the deadline.
    pub(super) fn is_in_time(&self, plan: &Forecast<'_>) -> bool {
        self.link <= plan.left_time() && self.gpu <= plan.left_gpu_time()
    }

    /// Whether the GPU computes a chunk whose base would be late even with the link to itself.
    pub(super) fn is_hopeless(&self, plan: &Forecast<'_>, chunk: usize) -> bool {
        self.texts.contains(&chunk) && !plan.arrives(chunk)
    }

    /// GPU and link in parallel: a text chunk waits for every chunk before it, and those come first on the
    /// link.
    pub(super) fn of(
        plan: &Forecast<'_>,
        open: &[usize],
        texts: &[usize],
        caution: &Caution,
        gpu_price: f64,
    ) -> Self {
        let last_text = texts.last().copied();
        let (mut link, mut gpu, mut computing) = (Duration::ZERO, plan.view.text_backlog, Duration::ZERO);
        let mut last_link = None;
        let mut gates = 0;
        let (mut base_loss, mut frozen_loss, mut base_only, mut refined) = (0.0, 0.0, 0.0, 0.0);
        let mut refine_time = Duration::ZERO;
        let mut next_text = texts.iter().copied().peekable();
        for (&i, &gpu_caution) in open.iter().zip(&caution.gpu) {
            let chunk = &plan.view.plan.chunks[i];
            let weight = chunk.tokens.len() as f64;
            base_loss += chunk.loss_at(Level::BASE) * weight;
            if next_text.peek() == Some(&i) {
                next_text.next();
                let compute = plan.compute_time(i);
                let ready = last_link.map_or(link, |i| link + plan.decode_time(i));
                gpu = gpu.max(ready) + compute.mul_f64(gpu_caution);
                computing += compute;
                continue;
            }
            let held = plan.held(i);
            if held.is_none() {
                if last_link.is_none() {
                    let read = |i: &usize| plan.held(*i).is_none() && !texts.contains(i);
                    link = plan.wait_for(open.iter().copied().filter(read));
                }
                link += plan.base_time(i, caution.link);
                last_link = Some(i);
                gates += usize::from(last_text.is_some_and(|text| i < text));
            }
            let level = held.unwrap_or(Level::BASE);
            if last_text.is_some_and(|text| i < text) {
                frozen_loss += chunk.loss_at(level) * weight;
            } else {
                base_only += chunk.loss_at(level) * weight;
                refined += chunk.loss_at(chunk.top_level()) * weight;
                refine_time += plan.refine_time(i);
            }
        }
        let link_done = last_link.map_or(Duration::ZERO, |i| link + plan.decode_time(i));
        // Refinements are new requests.
        let busy = if last_link.is_none() { plan.wait() } else { link };
        let spare = plan.left_time().saturating_sub(busy).as_secs_f64();
        let share = if refine_time.is_zero() { 1.0 } else { (spare / refine_time.as_secs_f64()).min(1.0) };
        let loss = frozen_loss + base_only * (1.0 - share) + refined * share;
        let whole: Duration = open.iter().map(|&i| plan.compute_time(i)).sum();
        let gpu_share = computing.as_secs_f64() / whole.as_secs_f64().max(1e-9);
        Self {
            texts: texts.to_vec(),
            link: link_done,
            gpu,
            cost: loss / base_loss.max(1e-12) + gpu_price * gpu_share + GATE_PRICE * gates as f64,
        }
    }
}

fn candidates(plan: &Forecast<'_>, open: &[usize]) -> Vec<Vec<usize>> {
    let pick = |set: u32| {
        open.iter().enumerate().filter(move |(bit, _)| set >> bit & 1 == 1).map(|(_, &i)| i).collect()
    };
    if open.len() <= EXHAUSTIVE {
        return (0..1u32 << open.len()).map(pick).collect();
    }
    let late = |i: &usize| plan.held(*i).is_none() && !plan.arrives(*i);
    let front = |k: usize| open.iter().take(k).copied();
    let stretches = (0..=open.len()).map(|k| front(k).collect());
    let with_late =
        (0..open.len()).map(|k| front(k).chain(open.iter().skip(k).copied().filter(late)).collect());
    stretches.chain(with_late).collect()
}
