//! A scope: the set of (layer, plane, head) that one basis spans, and how it is coded.

use half::f16;
use kvasir_types::{LEVELS_MAX, Plane};

use super::{PackedRows, TokenPredictor};
use crate::lossless::Lossless;

/// One head of one plane of one layer, as part of a scope.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Member {
    /// The layer.
    pub layer: usize,
    /// Keys or values.
    pub plane: Plane,
    /// The head within the plane.
    pub head: usize,
    /// Elements of the head.
    pub dim: usize,
    /// Value of one finest step in the member's own units: static scale × finest step.
    pub gain: f32,
    /// The reference power for the member's errors: the mean square of its plane's elements about their
    /// means, un-roped, in the plane's units. 0 if unknown; then chunks do not record their errors.
    pub power: f32,
}

/// The transform of a scope's elements into coefficients.
#[derive(Debug, Clone, PartialEq)]
pub enum Basis {
    /// Coefficient = element (*direct* profiles).
    Identity,
    /// A trained synthesis matrix `[coefficient][element]` of unit rows.
    Trained {
        /// The matrix.
        synthesis: Vec<f16>,
        /// Its separate analysis matrix, same shape; `None` if encoders derive it from the synthesis.
        analysis: Option<Vec<f16>>,
        /// The packed form of `synthesis`, if it is stored in few bits.
        packed: Option<PackedRows>,
    },
}

/// The value subtracted before quantisation, in addition to the static mean.
#[derive(Debug, Clone, PartialEq)]
pub enum Predictor {
    /// Nothing.
    Mean,
    /// The first token of every group (CacheGen §5.1).
    AnchorFirst {
        /// Tokens of a group; groups restart at each span.
        group: usize,
        /// Anchor steps in one finest step of the deltas.
        anchor_ratio: i32,
        /// How the anchors are coded, one entry a coefficient: stage table, trits, trit table.
        anchors: Vec<CoefficientCoding>,
    },
    /// The text.
    Token(TokenPredictor),
}

/// How one coefficient is coded over all levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoefficientCoding {
    /// Entry level: below 0, `-entry` trits follow the stage inside level 0; [`Self::NEVER`] is never coded.
    pub entry: i8,
    /// Stage table.
    pub stage: u8,
    /// Trit table of the trits inside level 0.
    pub inner: u8,
    /// Trit table by level, for levels above the entry level; others are 0.
    pub trits: [u8; LEVELS_MAX],
}

impl CoefficientCoding {
    /// Entry level of a coefficient that no level has: it decodes to its prediction.
    pub const NEVER: i8 = i8::MAX;

    /// A coefficient that is never coded.
    pub const ABSENT: Self = Self { entry: Self::NEVER, stage: 0, inner: 0, trits: [0; LEVELS_MAX] };
}

/// The unit of independent decoding across layers and heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    /// Its heads, in the order of elements.
    pub members: Vec<Member>,
    /// Whether keys are un-roped before the transform.
    pub unrope: bool,
    /// Static mean, one per element, members in order.
    pub mean: Vec<f32>,
    /// From elements to coefficients.
    pub basis: Basis,
    /// The predictor subtracted from coefficients.
    pub predictor: Predictor,
    /// One entry a coefficient, by decreasing variance.
    pub coding: Vec<CoefficientCoding>,
    /// Predicted logit KL caused by the scope's error at each level, in nats per token; only ratios matter if
    /// no engine measured it. Encoders order sections by how much of it a byte removes.
    pub loss: Vec<f32>,
    /// The coding of the exact level, if the profile has one.
    pub lossless: Option<Lossless>,
}

impl Scope {
    /// Elements of one token.
    pub fn elements(&self) -> usize {
        self.mean.len()
    }

    /// Coefficients of one token.
    pub fn rank(&self) -> usize {
        self.coding.len()
    }

    /// Whether its members have reference powers for errors.
    pub fn is_measured(&self) -> bool {
        self.members.iter().all(|member| member.power > 0.0)
    }
}
