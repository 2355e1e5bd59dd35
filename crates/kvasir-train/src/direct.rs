//! Direct profiles: coefficient = element.

use kvasir_types::Plane;

use super::{
    BasisRecipe,
    data::Corpus,
    draft::{Draft, ScopeDraft},
    moments::set_mean_and_scale,
    tokens::TokenModel,
};
use kvasir_codec::{
    authoring::{Predictor, Scope, scope_of, scopes},
    limits::ANCHOR_RATIO_MAX,
    rans::STAGE_TABLES_MAX,
};

/// Layers of a direct scope.
const SCOPE_LAYERS: usize = 4;
/// Bits of a factor of the token predictor.
const TOKEN_BITS: u8 = 8;
/// CacheGen §5.1: tokens of a group.
const GROUP: usize = 10;
/// CacheGen §5.2: default bins of the first, middle and last third of the layers.
const BINS: [f32; 3] = [0.5, 1.0, 1.5];
/// Largest quantised anchor: 8 bits.
const ANCHOR_MAX: f32 = 127.0;

/// Static mean, un-roped keys, 4 layers × plane per scope; with a token predictor if it has factors.
pub(super) fn draft(
    corpus: &Corpus<'_>,
    token_factors: Option<[usize; 2]>,
    level_count: usize,
    tables: usize,
) -> Draft {
    let scopes = scopes(corpus.spec, SCOPE_LAYERS, false, true);
    let fit = |mut scope: Scope| {
        set_mean_and_scale(corpus, &mut scope);
        let tokens = token_factors.map(|token_factors| {
            let recipe = BasisRecipe { token_factors, table_bits: TOKEN_BITS, ..BasisRecipe::default() };
            TokenModel::fit(corpus, &scope, &recipe, None)
        });
        ScopeDraft { scope, tokens }
    };
    let scopes = scopes.into_iter().map(fit).collect();
    Draft { scopes, level_count, tables, entry_levels: true, centroids: true }
}

/// The CacheGen paper: anchors and deltas of the unmodified cache, one bin per third of the layers and plane.
///
/// The paper does not say what its bins are multiples of. Here they are multiples of a (layer, plane)'s
/// standard deviation of deltas at the level below the finest, so that both a finer and a coarser level exist
/// at 3:1.
pub(super) fn cachegen_draft(corpus: &Corpus<'_>, level_count: usize) -> Draft {
    let layers = corpus.spec.layers.len();
    let mut drafts = Vec::new();
    for (third, bin) in BINS.into_iter().enumerate() {
        for plane in Plane::ALL {
            let range = third * layers / 3..(third + 1) * layers / 3;
            let Some(mut scope) = scope_of(corpus.spec, range, &[plane], false) else { continue };
            let (deltas, largest) = delta_spread(corpus, &scope);
            let mut ratio = ANCHOR_RATIO_MAX as f32;
            for ((member, delta), largest) in scope.members.iter_mut().zip(deltas).zip(largest) {
                member.gain = (bin / 3.0 * delta).clamp(1e-30, 1e30);
                if largest > 0.0 {
                    ratio = ratio.min(ANCHOR_MAX * member.gain / largest);
                }
            }
            let anchor_ratio = (ratio as i32).clamp(1, ANCHOR_RATIO_MAX);
            scope.predictor = Predictor::AnchorFirst { group: GROUP, anchor_ratio, anchors: Vec::new() };
            drafts.push(ScopeDraft { scope, tokens: None });
        }
    }
    let tables = STAGE_TABLES_MAX;
    Draft { scopes: drafts, level_count, tables, entry_levels: true, centroids: true }
}

/// By member: the standard deviation of deltas to the group's first token over its (layer, plane), and its
/// largest magnitude there.
fn delta_spread(corpus: &Corpus<'_>, scope: &Scope) -> (Vec<f32>, Vec<f32>) {
    let elements = scope.elements();
    let (mut power, mut count, mut largest) = (vec![0f64; elements], 0usize, vec![0f32; elements]);
    corpus.stream(scope, &corpus.fit, |block| {
        for group in block.elements.chunks(GROUP * elements) {
            let (anchor, rest) = group.split_at(elements);
            largest.iter_mut().zip(anchor).for_each(|(m, x)| *m = m.max(x.abs()));
            for row in rest.chunks_exact(elements) {
                count += 1;
                for (power, (x, a)) in power.iter_mut().zip(row.iter().zip(anchor)) {
                    *power += f64::from(x - a).powi(2);
                }
            }
        }
    });
    let mut by_layer = std::collections::BTreeMap::<usize, (f64, usize, f32)>::new();
    let mut start = 0;
    for member in &scope.members {
        let entry = by_layer.entry(member.layer).or_default();
        entry.0 += power[start..start + member.dim].iter().sum::<f64>();
        entry.1 += member.dim * count.max(1);
        entry.2 = largest[start..start + member.dim].iter().fold(entry.2, |m, v| m.max(*v));
        start += member.dim;
    }
    let spread = |layer: usize| {
        let (power, count, _) = by_layer[&layer];
        (power / count as f64).sqrt() as f32
    };
    let deltas = scope.members.iter().map(|m| spread(m.layer)).collect();
    (deltas, scope.members.iter().map(|m| by_layer[&m.layer].2).collect())
}
