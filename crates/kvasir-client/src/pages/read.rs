//! What a save reads out of pages.

use std::ops::Range;

use kvasir_types::{ModelSpec, Plane};

use super::{BlockTable, PageRef, Shard};

/// The rows that [`PageStore::read_rows`](super::PageStore::read_rows) copies out of the pages of one rank: one layer, all
/// heads that the rank holds, a run of tokens.
#[derive(Debug)]
pub struct PageRead<'a> {
    table: &'a BlockTable,
    layer: usize,
    /// For each plane, the heads of the model that the rank holds, and the values of a row.
    planes: [(Range<usize>, usize); 2],
    tokens: usize,
    pages: &'a [PageRef],
    first_slot: usize,
}

impl<'a> PageRead<'a> {
    /// Tokens of the table's context. `None` if the model has no such layer, or the table not so many tokens.
    pub(super) fn new(
        table: &'a BlockTable,
        spec: &ModelSpec,
        layer: usize,
        tokens: &Range<usize>,
    ) -> Option<Self> {
        let layout = spec.layers.get(layer)?.layout;
        let planes = layout.planes().map(|(count, elements)| (table.shard().heads_of(count), elements));
        let (pages, first_slot) = table.pages_of(tokens)?;
        Some(Self { table, layer, planes, tokens: tokens.len(), pages, first_slot })
    }

    /// Whether the rank holds nothing of the layer.
    pub(super) fn is_empty(&self) -> bool {
        self.tokens == 0 || self.planes.iter().all(|(heads, _)| heads.is_empty())
    }

    /// The part of the model that the table's rank holds.
    pub const fn shard(&self) -> &'a Shard {
        self.table.shard()
    }

    /// Tokens of a page of the table.
    pub const fn page_tokens(&self) -> usize {
        self.table.page_tokens()
    }

    /// The layer of the model.
    pub const fn layer(&self) -> usize {
        self.layer
    }

    /// The heads of the model that the rank holds of a plane.
    pub const fn heads(&self, plane: Plane) -> Range<usize> {
        let heads = &self.planes[plane as usize].0;
        heads.start..heads.end
    }

    /// Values of a row of a plane.
    pub const fn elements(&self, plane: Plane) -> usize {
        self.planes[plane as usize].1
    }

    /// The pages, in token order.
    pub const fn pages(&self) -> &'a [PageRef] {
        self.pages
    }

    /// Each page with the slots to read, and the token of the first of them, counted from the first token that is read.
    pub fn slots(&self) -> impl Iterator<Item = (PageRef, Range<usize>, usize)> {
        let (page_tokens, first_slot, tokens) = (self.page_tokens(), self.first_slot, self.tokens);
        self.pages.iter().enumerate().map(move |(index, page)| {
            let first = index * page_tokens;
            let start = first.max(first_slot);
            let end = (first + page_tokens).min(first_slot + tokens);
            (*page, start - first..end - first, start - first_slot)
        })
    }
}
