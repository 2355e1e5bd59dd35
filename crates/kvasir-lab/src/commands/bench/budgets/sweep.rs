//! SqueezeAttention's figures: quality over budgets with and without it, and over its p.

use crate::budget::TokenPolicy;
use kvasir_engine::Model;

use super::case::{BudgetRow, Case, SQUEEZE_P, Tally, policies};
use kvasir_cli::{error::CliResult, shipped::engine_error};

/// Shares of the tokens at which p is swept: one where tokens are scarce, one where important layers can have
/// all of them.
pub(super) const P_SHARES: [f64; 2] = [0.3, 0.5];

fn tenths(quick: bool) -> Vec<f64> {
    if quick { vec![0.3, 1.0] } else { (1..=10).map(|tenth| f64::from(tenth) / 10.0).collect() }
}

/// Every policy at every budget, plain and squeezed. FastGen finds its own budget: one row each.
pub(super) fn budgets(
    model: &Model,
    cases: &[Case<'_>],
    quick: bool,
    progress: &mut dyn FnMut(f32),
) -> CliResult<Vec<BudgetRow>> {
    let mut rows = Vec::new();
    let policies = policies(model).map_err(engine_error)?;
    let budgeted: Vec<_> = policies.iter().filter(|policy| policy.name() != "fastgen").collect();
    let shares = tenths(quick);
    for (index, policy) in budgeted.iter().enumerate() {
        for (number, share) in shares.iter().enumerate() {
            for p in [None, Some(SQUEEZE_P)] {
                rows.push(row(model, cases, &***policy, *share, p)?);
            }
            progress((index * shares.len() + number) as f32 / (budgeted.len() * shares.len()) as f32);
        }
    }
    for policy in policies.iter().filter(|policy| policy.name() == "fastgen") {
        rows.push(row(model, cases, &**policy, 1.0, None)?);
    }
    Ok(rows)
}

/// p from 0.1 to 1 over the policies of the paper, at [`P_SHARES`].
pub(super) fn over_p(model: &Model, cases: &[Case<'_>], quick: bool) -> CliResult<Vec<BudgetRow>> {
    let mut rows = Vec::new();
    let papers = ["sliding_window", "streaming_llm", "h2o"];
    for policy in policies(model).map_err(engine_error)?.iter().filter(|p| papers.contains(&p.name())) {
        for (share, p) in
            P_SHARES.into_iter().flat_map(|share| tenths(quick).into_iter().map(move |p| (share, p)))
        {
            rows.push(row(model, cases, &**policy, share, Some(p))?);
        }
    }
    Ok(rows)
}

fn row(
    model: &Model,
    cases: &[Case<'_>],
    policy: &dyn TokenPolicy,
    share: f64,
    p: Option<f64>,
) -> CliResult<BudgetRow> {
    let mut tally = Tally::default();
    for case in cases {
        let keep = case.keep(policy, share, p);
        let lossy = case.logits(model, &case.kv, Some(&keep)).map_err(engine_error)?;
        tally.add(case, &lossy, keep.share(), 2.0 * keep.elements(model.spec()) as f64);
    }
    Ok(tally.row(policy.name(), "fp16", share, p))
}
