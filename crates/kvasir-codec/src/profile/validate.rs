//! The conditions on a profile's values, checked before anything is coded with them.

use std::collections::BTreeSet;

use kvasir_types::{LEVELS_MAX, ModelSpec, SPAN_TOKENS};

use super::{Basis, CoefficientCoding, Predictor, ProfileParts, Scope, TokenPredictor};
use crate::{
    ProfileError,
    limits::{
        ANCHOR_RATIO_MAX, EXACT_TOKENS_MAX, NOTE_BYTES_MAX, SCOPE_ELEMENTS_MAX, SCOPES_MAX,
        TOKEN_FACTORS_MAX, TOKEN_SHIFT_MAX, VOCABULARY_MAX,
    },
    rans::{COEFFICIENTS_MAX, TRITS_MAX, TableBank},
};

fn invalid(field: &'static str, found: impl std::fmt::Display) -> ProfileError {
    ProfileError::Invalid { field, found: format!("{found}") }
}

fn require(holds: bool, field: &'static str, found: impl std::fmt::Display) -> Result<(), ProfileError> {
    if holds { Ok(()) } else { Err(invalid(field, found)) }
}

/// Checks every value of a profile.
pub(super) fn check(parts: &ProfileParts) -> Result<(), ProfileError> {
    require((1..=LEVELS_MAX).contains(&parts.levels.len()), "level count", parts.levels.len())?;
    require((1..=SCOPES_MAX).contains(&parts.scopes.len()), "scope count", parts.scopes.len())?;
    for (field, text) in [("recipe", &parts.training.recipe), ("note", &parts.training.note)] {
        require(text.len() <= NOTE_BYTES_MAX, field, format!("{} bytes of text", text.len()))?;
    }
    require(parts.exact_tokens <= EXACT_TOKENS_MAX, "exact token count", parts.exact_tokens)?;
    for level in &parts.levels {
        let numbers = [level.kl.unwrap_or(0.0), level.bits_per_element, level.nmse];
        require(numbers.iter().all(|v| v.is_finite() && *v >= 0.0), "level note", format!("{numbers:?}"))?;
    }
    for row in &parts.shifts {
        // A shift of half a step or more would leave the quantiser's cell.
        require(row.iter().all(|shift| *shift < 128), "centroid shift", format!("{row:?}"))?;
    }
    check_lossless(parts)?;
    check_powers(parts)?;
    parts.scopes.iter().try_for_each(|scope| check_scope(scope, &parts.bank, parts.levels.len()))
}

/// All scopes have an exact level of the same kind, or none has.
fn check_lossless(parts: &ProfileParts) -> Result<(), ProfileError> {
    let kind = |scope: &Scope| scope.lossless.as_ref().map(|lossless| lossless.residual);
    let first = parts.scopes.first().and_then(kind);
    require(parts.scopes.iter().all(|scope| kind(scope) == first), "exact level", "not of all scopes alike")?;
    let levels = parts.levels.len();
    let enough = match first {
        None => true,
        Some(true) => levels > 1,
        Some(false) => levels == 1,
    };
    require(enough, "exact level", format!("with {levels} levels"))?;
    for (scope, lossless) in parts.scopes.iter().filter_map(|s| Some((s, s.lossless.as_ref()?))) {
        let anchored = matches!(scope.predictor, Predictor::AnchorFirst { .. });
        let is_exact = scope.basis == Basis::Identity && !anchored;
        require(is_exact, "exact level", "of a scope that is not bit-exact")?;
        let tables = parts.bank.stage_tables().len();
        let wrong = lossless.elements.iter().find(|element| usize::from(element.table) >= tables);
        require(wrong.is_none(), "stage table id", format!("{wrong:?}"))?;
        let floor = lossless.elements.iter().all(|element| element.floor > 0);
        require(floor, "exact level", "a cell without a width")?;
    }
    Ok(())
}

/// Checks that all members have reference powers for errors, or none has.
fn check_powers(parts: &ProfileParts) -> Result<(), ProfileError> {
    let powers = || parts.scopes.iter().flat_map(|scope| &scope.members).map(|member| member.power);
    let is_uniform =
        powers().all(|power| power.is_normal() && power > 0.0) || powers().all(|power| power == 0.0);
    require(is_uniform, "power", "not of all members alike, or no positive number")
}

fn check_scope(scope: &Scope, bank: &TableBank, level_count: usize) -> Result<(), ProfileError> {
    let (elements, rank) = (scope.elements(), scope.rank());
    require((1..=SCOPE_ELEMENTS_MAX).contains(&elements), "scope's element count", elements)?;
    require((1..=COEFFICIENTS_MAX).contains(&rank), "rank", rank)?;
    for member in &scope.members {
        require(member.dim > 0, "head size", member.dim)?;
        require(member.gain.is_normal() && member.gain > 0.0, "gain", member.gain)?;
    }
    let lossless = scope.loss.iter().all(|v| v.is_finite() && *v >= 0.0);
    require(lossless && scope.loss.len() == level_count, "loss by level", format!("{:?}", scope.loss))?;
    let finite = scope.mean.iter().all(|v| v.is_finite());
    require(finite, "mean", "a number that is not finite")?;
    for coding in &scope.coding {
        check_coding(coding, bank, level_count)?;
    }
    match &scope.basis {
        Basis::Identity => require(rank == elements, "rank of an identity basis", rank)?,
        Basis::Trained { synthesis, analysis, .. } => {
            let finite = synthesis.iter().chain(analysis.iter().flatten()).all(|v| v.is_finite());
            require(finite, "basis", "a number that is not finite")?;
        }
    }
    match &scope.predictor {
        Predictor::Mean => Ok(()),
        Predictor::AnchorFirst { group, anchor_ratio, anchors } => {
            require(scope.basis == Basis::Identity, "predictor", "anchors with a trained basis")?;
            require((2..=SPAN_TOKENS).contains(group), "anchor group", group)?;
            require((1..=ANCHOR_RATIO_MAX).contains(anchor_ratio), "anchor ratio", anchor_ratio)?;
            anchors.iter().try_for_each(|coding| check_coding(coding, bank, 1))
        }
        Predictor::Token(token) => check_token(token),
    }
}

fn check_coding(
    coding: &CoefficientCoding,
    bank: &TableBank,
    level_count: usize,
) -> Result<(), ProfileError> {
    let entry = coding.entry;
    if entry == CoefficientCoding::NEVER {
        return Ok(());
    }
    let in_range = -i32::from(entry) <= i32::from(TRITS_MAX) && i32::from(entry) < level_count as i32;
    require(in_range, "entry level", entry)?;
    require(usize::from(coding.stage) < bank.stage_tables().len(), "stage table id", coding.stage)?;
    let known = |id: u8| usize::from(id) < bank.trit_tables().len();
    require(entry >= 0 || known(coding.inner), "trit table id", coding.inner)?;
    let first = usize::from(entry.max(0).cast_unsigned()) + 1;
    let refined = coding.trits.get(first..level_count).unwrap_or_default();
    match refined.iter().find(|id| !known(**id)) {
        Some(id) => Err(invalid("trit table id", id)),
        None => Ok(()),
    }
}

fn check_token(token: &TokenPredictor) -> Result<(), ProfileError> {
    require(token.vocabulary <= VOCABULARY_MAX, "vocabulary", token.vocabulary)?;
    let factors = token.factors[0] + token.factors[1];
    require(factors <= TOKEN_FACTORS_MAX, "token factor count", factors)?;
    let bits = token.matrix_bits.iter().find(|bits| **bits == 1 || **bits > 8);
    require(bits.is_none(), "predictor matrix", format!("{bits:?} bits"))?;
    let shift = token.shifts.iter().copied().max().unwrap_or(0);
    require(shift <= TOKEN_SHIFT_MAX, "predictor shift", shift)
}

/// Checks that scopes name every head of the model exactly once, with its size.
pub(super) fn check_coverage(scopes: &[Scope], spec: &ModelSpec) -> Result<(), ProfileError> {
    let mut seen = BTreeSet::new();
    for member in scopes.iter().flat_map(|scope| &scope.members) {
        let (layer, plane, head) = (member.layer, member.plane, member.head);
        let name = format!("layer {layer} {plane:?} head {head}");
        let (heads, dim) = spec.layers.get(layer).map_or((0, 0), |kv| kv.layout.planes()[plane as usize]);
        require(head < heads && member.dim == dim, "member", &name)?;
        require(seen.insert((layer, plane, head)), "member", format!("{name}, twice"))?;
    }
    let heads: usize = spec.layers.iter().flat_map(|kv| kv.layout.planes()).map(|(heads, _)| heads).sum();
    require(seen.len() == heads, "member list", format!("{} of the model's {heads} heads", seen.len()))
}
