//! The types of rows that the decoder makes.

use half::{bf16, f16, slice::HalfFloatSliceExt as _};

use super::{
    CpuDecoder, MemberView,
    direct::{DirectScratch, RowDestination},
    sections::PartialObject,
    task::DecodeTask,
};
use crate::{
    DecodeError, HeadRows, KvSink, Rows,
    arch::RowKernel,
    direct_rows::bf16_tiles::{RowScratch, RowsMut},
    e4m3,
    span_ropes::SpanRopes,
    synthesis::{MemberTile, TileRows},
};

/// A type of a cache's values. Values of f16 and fp8 are rounded from f32 rows of one tile, or of one member of a
/// direct scope, while these are in the CPU's cache.
pub(super) trait RowValue: Copy + Default + Send + Sync + 'static {
    /// Whether a scope that is decoded alone goes to the sink member by member.
    const BY_MEMBER: bool = true;

    /// Rounds values to this type.
    fn round(from: &[f32], to: &mut [Self]);

    /// Rows for a sink.
    fn typed(rows: HeadRows<'_, Self>) -> Rows<'_>;

    /// Values in this type.
    fn rounded(values: Vec<f32>) -> Vec<Self> {
        let mut to = vec![Self::default(); values.len()];
        Self::round(&values, &mut to);
        to
    }

    /// The sink's own memory for a member's rows of `tokens` tokens from `first` on, if there is any.
    fn place<'a>(
        _sink: &'a mut dyn KvSink,
        _member: &MemberView,
        _first: usize,
        _tokens: usize,
    ) -> Option<&'a mut [Self]> {
        None
    }

    /// The rows `[member][token][element]` of a scope at a lossy level.
    fn lossy_rows(
        decoder: &CpuDecoder,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
    ) -> Result<Vec<Self>, DecodeError> {
        decoder.appended_rows(object, task, ropes)
    }

    /// Makes the rows of every member of a direct scope in turn.
    fn direct_members(
        decoder: &CpuDecoder,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        scratch: &mut DirectScratch,
        place: &mut dyn RowDestination<Self>,
    ) -> Result<(), DecodeError> {
        decoder.scaled_members(object, task, ropes, scratch, place)
    }

    /// Makes a member's rows of one tile of tokens.
    fn tile(
        kernel: RowKernel,
        tile: &MemberTile<'_>,
        to: RowsMut<'_, Self>,
        lanes: &mut RowScratch,
        floats: &mut Vec<f32>,
    ) {
        floats.resize(to.rows.len(), 0.0);
        kernel.member_tile(tile, TileRows::Full(floats.as_mut_slice()), lanes);
        Self::round(floats, to.rows);
    }
}

impl RowValue for bf16 {
    fn round(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    fn typed(rows: HeadRows<'_, Self>) -> Rows<'_> {
        Rows::Bf16(rows)
    }

    fn place<'a>(
        sink: &'a mut dyn KvSink,
        m: &MemberView,
        first: usize,
        tokens: usize,
    ) -> Option<&'a mut [Self]> {
        sink.place_bf16(m.layer, m.plane, m.head, first, tokens)
    }

    fn direct_members(
        decoder: &CpuDecoder,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
        scratch: &mut DirectScratch,
        place: &mut dyn RowDestination<Self>,
    ) -> Result<(), DecodeError> {
        decoder.bf16_members(object, task, ropes, scratch, place)
    }

    fn tile(
        kernel: RowKernel,
        tile: &MemberTile<'_>,
        to: RowsMut<'_, Self>,
        lanes: &mut RowScratch,
        _: &mut Vec<f32>,
    ) {
        kernel.member_tile(tile, TileRows::Half(to), lanes);
    }
}

impl RowValue for f16 {
    fn round(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    fn typed(rows: HeadRows<'_, Self>) -> Rows<'_> {
        Rows::F16(rows)
    }
}

/// FP8 E4M3, as bit patterns.
impl RowValue for u8 {
    fn round(from: &[f32], to: &mut [Self]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = e4m3::encode(*from));
    }

    fn typed(rows: HeadRows<'_, Self>) -> Rows<'_> {
        Rows::Fp8E4m3(rows)
    }
}

impl RowValue for f32 {
    const BY_MEMBER: bool = false;

    fn round(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    fn typed(rows: HeadRows<'_, Self>) -> Rows<'_> {
        Rows::F32(rows)
    }

    fn rounded(values: Vec<f32>) -> Vec<Self> {
        values
    }

    fn lossy_rows(
        decoder: &CpuDecoder,
        object: &PartialObject<'_, '_>,
        task: DecodeTask,
        ropes: &SpanRopes<'_>,
    ) -> Result<Vec<Self>, DecodeError> {
        match decoder.is_direct(task) {
            true => decoder.direct_rows(object, task, ropes),
            false => decoder.appended_rows(object, task, ropes),
        }
    }

    fn tile(
        kernel: RowKernel,
        tile: &MemberTile<'_>,
        to: RowsMut<'_, Self>,
        lanes: &mut RowScratch,
        _: &mut Vec<f32>,
    ) {
        kernel.member_tile(tile, TileRows::Full(to.rows), lanes);
    }
}
