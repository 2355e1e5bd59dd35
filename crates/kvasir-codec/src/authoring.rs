//! What a profile is made of, for the programs that make profiles: its parts, and the arithmetic that encoders and decoders
//! apply to them, so that a trainer measures exactly what they will do. Clients and engines need none of this.
//!
//! A trainer fills [`ProfileParts`] and calls [`Profile::assemble`](crate::Profile::assemble). There are:
//!
//! * which heads share a scope: [`scopes`];
//! * parts: [`Scope`] with its [`Member`]s, [`Basis`], [`Predictor`] and one [`CoefficientCoding`] a coefficient;
//! * the transform of a scope: [`Elements`] (rows to normalised elements), [`Matrix`] and [`analysis`] (elements to
//!   coefficients), [`TextPredictor`] and the anchors (what is subtracted);
//! * what decoding loses: [`plane_errors`];
//! * nested levels: [`ratio`], [`coarser_by`], [`reconstruct`];
//! * the lossless level: [`Lossless`], [`ElementCoding`], [`FloatFormat`], and [`rows_beneath`] for what it starts from.

pub use crate::{
    analysis::analysis,
    levels::{coarser_by, ratio, reconstruct},
    lossless::{ElementCoding, FloatFormat, Lossless, float_of},
    matrix::Matrix,
    plane_errors::plane_errors,
    prepared_scope::{TextPredictor, anchor_prediction, rows_beneath, split_anchors},
    profile::{
        Basis, CoefficientCoding, Member, PackedRows, Predictor, ProfileParts, Scope, TokenPredictor,
        packed_bytes,
    },
    scope_layout::{scope_of, scopes},
    span_ropes::SpanRopes,
    transform::{Elements, Rotations},
};
