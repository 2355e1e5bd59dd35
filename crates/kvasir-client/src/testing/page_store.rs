//! Checks that an engine's pages do what loads rely on.

use kvasir_types::{ModelSpec, Plane};

use super::{
    device_checks::check_device,
    page_checks::{PageChecks, planes},
};
use crate::pages::{BlockTable, Shard, check_dtype};

/// An engine's pages for one context, for [`check_page_store`].
pub trait TestedPages: Send + Sync {
    /// The pages of the context that owns them now, in order.
    fn table(&self) -> BlockTable;

    /// The bytes of one row of that context, in the machine's byte order; layer and head are relative to the
    /// device.
    fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8>;

    /// Ends the context and gives all its pages to another: earlier tables no longer write.
    fn reassign(&self);
}

/// A fault of an engine's [`PageStore`](crate::pages::PageStore).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PageStoreFault(pub(super) String);

/// Checks an engine's [`PageStore`](crate::pages::PageStore). Rows of every cut of layers, heads and tokens,
/// for a whole model and for ranks, must be restored bit for bit without changes to other rows. Pages that
/// were reassigned, also during concurrent writes, and pages that do not exist must not be written. If the
/// store reads rows for saves, they must be those that it holds, and none of a page that was reassigned. If it has a
/// [device](crate::pages::PageStore::device), that must decode what the CPU does, for a whole model. `make`
/// returns pages for a number of tokens of a model with the device's layers and heads. All randomness is the
/// same in every run, except for the timing of threads.
///
/// ```
/// # use std::sync::Arc;
/// # use kvasir_types::{KvDtype, KvLayout, LayerKv, ModelSpec, Plane};
/// use kvasir_client::{pages::{BlockTable, HostPages}, testing::{TestedPages, check_page_store}};
///
/// struct Tested(Arc<HostPages>); // your own pages here
///
/// impl TestedPages for Tested {
///     fn table(&self) -> BlockTable { self.0.table() }
///     fn row(&self, layer: usize, plane: Plane, head: usize, token: usize) -> Vec<u8> {
///         self.0.row(layer, plane, head, token)
///     }
///     fn reassign(&self) { self.0.reassign() }
/// }
/// # let layer = LayerKv { layout: KvLayout::Gqa { kv_heads: 4, head_dim: 8 }, rope: None };
/// # let spec = ModelSpec {
/// #     weights: "toy".into(), revision: "1".into(), adapter: None, kv_dtype: KvDtype::Bf16,
/// #     ropes: vec![], layers: vec![layer; 3], thinning: None, reuse: Default::default(),
/// # };
/// check_page_store(&spec, |spec, tokens| Tested(HostPages::new(spec, 16, tokens).unwrap())).unwrap();
/// ```
///
/// # Errors
/// The first fault.
pub fn check_page_store<P: TestedPages>(
    spec: &ModelSpec,
    make: impl Fn(&ModelSpec, usize) -> P,
) -> Result<(), PageStoreFault> {
    check_dtype(spec).map_err(|error| PageStoreFault(error.to_string()))?;
    if planes(spec).is_empty() {
        return Err(PageStoreFault("the spec has no layer with a cache: give one that has".into()));
    }
    let page_tokens = make(spec, 1).table().page_tokens();
    // three pages and a part of one
    let tokens = page_tokens * 3 + page_tokens / 2 + 1;
    let heads = spec.layers.iter().map(|layer| layer.layout.planes()[0].0).max().unwrap_or(0);
    let layers = spec.layers.len();
    let mut shards = vec![Shard::ALL];
    if heads > 1 {
        shards.extend([0, 1].map(|rank| Shard::tensor_parallel(rank, 2, heads)));
    }
    if layers > 1 {
        shards.push(Shard { layers: layers / 2..layers, ..Shard::ALL });
    }
    for shard in shards {
        let device = shard.part_of(spec);
        let pages = make(&device, tokens);
        PageChecks::new(spec, device, shard, tokens, pages).run()?;
    }
    check_device(spec, make)
}
