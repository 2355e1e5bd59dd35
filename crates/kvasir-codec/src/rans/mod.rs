//! The entropy stage: integer coefficients ⇄ the bytes of a *piece* (one section, one span).
//!
//! A bijection on its domain: the same values with the same plan and bank give the same bytes on every path,
//! and every decoder restores the values bit for bit. FORMAT.md §5 is normative; this is its scalar
//! implementation.
//!
//! * rANS with 32 interleaved lanes (lane = token, step = coefficient), `u32` states in `[2^15, 2^31)`, 16-bit
//!   renormalisation words in lane order, 12-bit probabilities;
//! * a *stage* symbol is `-7..=7` or an escape, decoded through a 16-bucket alias table of 128 bytes;
//! * a *trit* refines a value to the next level, `q -> 3 q + d`, in one of two contexts.
//!
//! ```
//! use kvasir_codec::rans::{AliasTable, Coding, PiecePlan, TableBank, TritTable, decode_piece, encode_piece};
//!
//! let stage = AliasTable::from_counts(&[0, 0, 0, 0, 0, 1, 8, 60, 8, 1, 0, 0, 0, 0, 0, 0]);
//! let trit = TritTable::from_counts(&[[30, 40, 30], [45, 33, 22]]);
//! let bank = TableBank::new(vec![stage], vec![trit])?;
//! let plan = PiecePlan { coefficients: &[Coding::Stage { table: 0, trits: 0, trit_table: 0 }], tokens: 5 };
//! let mut bytes = Vec::new();
//! encode_piece(&bank, &plan, &[0, 1, -1, 300, 0], &mut bytes)?;
//! let mut values = [0; 5];
//! decode_piece(&bank, &plan, &bytes, &mut values)?;
//! assert_eq!(values, [0, 1, -1, 300, 0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod alias;
pub(crate) mod bank;
pub(crate) mod blocks;
pub(crate) mod buckets;
pub(crate) mod coding;
pub(crate) mod constants;
mod error;
mod frequencies;
mod level_rows;
mod nested_index;
mod parts;
mod piece_decoder;
mod piece_encoder;
pub(crate) mod plan;
mod raw;
mod scalar_lookup;
pub(crate) mod stream;
pub(crate) mod trit;
#[cfg(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))]
pub(crate) mod u16_lanes;

#[cfg(test)]
mod prefix_tests;

pub use alias::{AliasTable, StageSymbol};
pub use bank::TableBank;
pub use coding::Coding;
pub(crate) use constants::LONG_ESCAPE;
pub use constants::{
    ALPHABET, COEFFICIENTS_MAX, ESCAPE, ESCAPE_MAX, LANES, PROBABILITY_BITS, PROBABILITY_ONE,
    STAGE_TABLES_MAX, STATE_MIN, STREAM_COEFFICIENTS_MAX, STREAM_WORDS_MAX, TRIT_TABLES_MAX, TRITS_MAX,
    VALUE_MAX,
};
pub use error::{PieceError, TableError};
pub use frequencies::normalise;
pub(crate) use level_rows::{FinestValues, LevelRows, RowBits};
pub use nested_index::{coarsen, digit, refine};
pub use parts::{PieceParts, StreamParts, piece_parts};
pub(crate) use piece_decoder::{DecodeTarget, PieceSteps};
pub use piece_decoder::{PieceDecoder, decode_piece};
pub use piece_encoder::{PieceEncoder, encode_piece};
pub use plan::PiecePlan;
pub(crate) use stream::cell::{Cell, Fit, narrow_most};
pub use trit::TritTable;
