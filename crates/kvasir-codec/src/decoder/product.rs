//! Rows of a scope whose coefficients are not its elements, or not predicted by their mean, tile by tile of its members.

use super::{
    CpuDecoder, MemberView,
    direct::{RowDestination, placed},
    row_value::RowValue,
    sections::PartialObject,
    task::DecodeTask,
};
use crate::{
    DecodeError,
    direct_rows::{
        TILE,
        bf16_tiles::{RowScratch, RowsMut},
    },
    span_ropes::SpanRopes,
    synthesis::{CoefficientTiles, MemberTile, Synthesis},
};

/// The buffers for decoding a scope, except its output.
#[derive(Debug, Default)]
pub(super) struct ProductScratch {
    main: Vec<i32>,
    tiles: CoefficientTiles,
    lanes: RowScratch,
    /// Rows of one tile.
    floats: Vec<f32>,
}

impl CpuDecoder {
    /// Makes the rows `[token][element]` of every member in turn.
    pub(super) fn product_members<T: RowValue>(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        place: &mut dyn RowDestination<T>,
    ) -> Result<(), DecodeError> {
        let mut scratch = self.products.take();
        let ProductScratch { main, tiles, lanes, floats } = &mut scratch;
        self.fill(object, task, ropes, main, tiles)?;
        let mut rows = Vec::new();
        for (index, member) in self.scopes[task.scope].0.elements.views().enumerate() {
            placed(&member, ropes.tokens(), place, &mut rows, |RowsMut { rows, past_cache }| {
                for (tile, rows) in rows.chunks_mut(TILE * member.dim).enumerate() {
                    let tile = self.member_tile(task.scope, (index, &member), ropes, (tile, tiles));
                    T::tile(self.path.rows, &tile, RowsMut { rows, past_cache }, lanes, floats);
                }
            });
        }
        self.products.give(scratch);
        Ok(())
    }

    fn fill(
        &self,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        main: &mut Vec<i32>,
        tiles: &mut CoefficientTiles,
    ) -> Result<(), DecodeError> {
        tiles.reset(self.profile.scopes[task.scope].rank(), ropes.tokens());
        let push = &mut |coefficient: usize, row: &[f32]| tiles.push(coefficient, row);
        self.each_coefficient(object, task, &ropes.span, main, push)?;
        if let Synthesis::Trained(panels) = &self.scopes[task.scope].1
            && self.path.rows.multiplies_words()
        {
            (0..ropes.tokens().div_ceil(TILE)).for_each(|tile| tiles.pair(tile, panels.most()));
        }
        Ok(())
    }

    fn member_tile<'a>(
        &'a self,
        scope: usize,
        (index, member): (usize, &MemberView),
        ropes: &'a SpanRopes<'_>,
        (tile, tiles): (usize, &'a CoefficientTiles),
    ) -> MemberTile<'a> {
        let (parts, coefficients) = (&self.profile.scopes[scope], tiles.tile(tile));
        MemberTile {
            synthesis: coefficients.synthesis(&self.scopes[scope].1, parts, (index, member.start)),
            coefficients,
            gain: member.gain,
            mean: &parts.mean[member.start..member.start + member.dim],
            rotation: member.rope.and_then(|rope| ropes.rotation_tables().get(rope)),
            tile,
        }
    }
}
