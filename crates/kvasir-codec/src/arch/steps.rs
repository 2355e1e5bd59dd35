//! Steps of a stream for its decoder, and the properties common to a stream's steps.

use crate::rans::{coding::Coding, u16_lanes::StepTable};

/// The operations for one coefficient in every row.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    /// The stage's table, or the trit's if there is no stage.
    pub(super) table: &'a StepTable,
    /// The table of the trits after a stage.
    refining: &'a StepTable,
    /// Its first value.
    pub(super) at: usize,
    /// Trits after the first table.
    pub(super) trits: u8,
}

impl<'a> Step<'a> {
    /// `None` if the bank lacks a table.
    #[inline(always)]
    pub(super) fn new([stages, trits]: &'a [Vec<StepTable>; 2], coding: Coding, at: usize) -> Option<Self> {
        Some(match coding {
            Coding::Stage { table, trits: 0, .. } => {
                let table = stages.get(usize::from(table))?;
                Self { table, refining: table, at, trits: 0 }
            }
            Coding::Stage { table, trits: behind, trit_table } => {
                let refining = trits.get(usize::from(trit_table))?;
                Self { table: stages.get(usize::from(table))?, refining, at, trits: behind }
            }
            Coding::Trit { table } => {
                let table = trits.get(usize::from(table))?;
                Self { table, refining: table, at, trits: 0 }
            }
        })
    }

    /// Whether a symbol may have all slots, which no kernel is for.
    pub(super) fn certain(&self) -> bool {
        self.table.u16_lanes.certain || self.refining.u16_lanes.certain
    }

    /// The tables of its trits.
    pub(super) fn refinements(&self) -> impl Iterator<Item = &'a StepTable> {
        std::iter::repeat_n(self.refining, self.trits.into())
    }
}

/// A property common to the steps of some streams: a step that must test its kind stalls on every
/// misprediction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mix {
    /// Each is a stage without trits.
    Stages,
    /// Each is a trit.
    Trits,
    /// Each is one of both.
    Either,
    /// Anything.
    Any,
}

impl Mix {
    /// Of a stream's coefficients.
    pub(super) fn of(codings: &[Coding]) -> Self {
        let (mut stages, mut lone) = (0, true);
        for coding in codings {
            let is_stage = matches!(coding, Coding::Stage { .. });
            stages += usize::from(is_stage);
            lone &= !matches!(coding, Coding::Stage { trits: 1.., .. });
        }
        match (stages, codings.len() - stages) {
            _ if !lone => Self::Any,
            (_, 0) => Self::Stages,
            (0, _) => Self::Trits,
            _ => Self::Either,
        }
    }

    /// Combines the properties of several streams.
    pub(super) fn with(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Any, _) | (_, Self::Any) => Self::Any,
            _ => Self::Either,
        }
    }
}

/// A [`Mix`] as a type.
pub(super) trait Mixed {
    const MIX: Mix;
}

macro_rules! mixed {
    ($($name:ident $mix:ident),+) => {
        $(
            pub(super) struct $name;
            impl Mixed for $name {
                const MIX: Mix = Mix::$mix;
            }
        )+
    };
}

mixed!(OfStages Stages, OfTrits Trits, OfEither Either, OfAny Any);
