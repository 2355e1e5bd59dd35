//! Rows from tables of their frequent values, for registers that are wide enough for such tables.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "register intrinsics share one proof: the CPU feature"
)]

use half::bf16;

use super::{
    registers::{Eight, Registers, Sixteen},
    rotated_rows::Bf16Conversion,
    unrotated_rows,
};
use crate::direct_rows::{
    QuantisedRows, Scaling, TILE,
    bf16_tiles::{Lane, RotationTable},
};

/// Registers that can look up frequent values.
///
/// # Safety
/// As [`Registers`].
pub(super) trait LookupRows: Registers {
    /// bf16 rows of tokens that fill registers, for elements whose frequent values are looked up. Returns
    /// their number; 0 if nothing is looked up.
    unsafe fn lookup_rows(
        _scaling: (&Scaling<'_>, &[f32]),
        _rotation: Option<&RotationTable>,
        _values: QuantisedRows<'_, i16>,
        _rows: (&mut [bf16], bool),
        _scratch: (&mut Vec<Lane<u32>>, &mut [Lane<u32>]),
    ) -> usize {
        0
    }
}

impl LookupRows for Eight {}

impl LookupRows for Sixteen {
    #[inline(always)]
    unsafe fn lookup_rows(
        (scaling, offs): (&Scaling<'_>, &[f32]),
        rotation: Option<&RotationTable>,
        values: QuantisedRows<'_, i16>,
        (rows, past_cache): (&mut [bf16], bool),
        (tables, words): (&mut Vec<Lane<u32>>, &mut [Lane<u32>]),
    ) -> usize {
        // tables take as long as a block
        if !scaling.elements().is_multiple_of(2 * TILE) || values.tokens < 3 * unrotated_rows::TOKENS {
            return 0;
        }
        // SAFETY: the caller's promise.
        unsafe {
            match (rotation, Bf16Conversion::new(), past_cache) {
                (None, _, true) => unrotated_rows::rows::<true>(scaling, offs, values, rows, (tables, words)),
                (None, _, false) => {
                    unrotated_rows::rows::<false>(scaling, offs, values, rows, (tables, words))
                }
                (Some(rotation), Some(cpu), true) => {
                    cpu.rows::<true>((scaling, offs), rotation, values, rows, tables)
                }
                (Some(rotation), Some(cpu), false) => {
                    cpu.rows::<false>((scaling, offs), rotation, values, rows, tables)
                }
                (Some(_), None, _) => 0,
            }
        }
    }
}
