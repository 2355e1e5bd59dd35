//! The data of a profile that encoders keep on the device: symbols, inverted tables, plans, elements,
//! analysis matrices.

use kvasir_codec::{
    CpuEncoder, PredictorView, ScopeView,
    rans::{ALPHABET, ESCAPE, PROBABILITY_ONE, TableBank, TritTable},
};
use kvasir_kernels::{Element, SYMBOL_ESCAPE, Symbol, record_bytes};

use crate::{
    CudaError, Device,
    lower::coding_word,
    resident::{Frequencies, index_u32, push_predictor},
};

/// One section's plan: the positions of its coefficients and coding words, and their number.
#[derive(Debug, Clone, Copy)]
pub(super) struct SectionPlan {
    pub(super) first: u32,
    pub(super) count: usize,
}

/// A scope's places in the resident arrays.
#[derive(Debug)]
pub(super) struct EncodeScopeOffsets {
    /// One plan a level.
    pub(super) levels: Vec<SectionPlan>,
    pub(super) anchors: Option<SectionPlan>,
    pub(super) elements: u32,
    /// First value of the analysis matrix, `[element][coefficient]`.
    pub(super) analysis: Option<u32>,
    /// First byte of the token predictor's matrix, and of its shifts.
    pub(super) matrix: [u32; 2],
}

/// A profile on a device.
#[derive(Debug)]
pub(super) struct EncodeProfile<M> {
    pub(super) symbols: M,
    pub(super) inverted: M,
    pub(super) plans: M,
    pub(super) codings: M,
    pub(super) elements: M,
    pub(super) analysis: M,
    pub(super) matrices: M,
    pub(super) frequencies: Frequencies<M>,
    pub(super) scopes: Vec<EncodeScopeOffsets>,
}

#[derive(Default)]
struct EncodeProfileArrays {
    plans: Vec<u32>,
    codings: Vec<u32>,
    elements: Vec<Element>,
    analysis: Vec<f32>,
    matrices: Vec<u8>,
}

impl<M> EncodeProfile<M> {
    pub(super) fn new<D: Device<Memory = M>>(device: &D, cpu: &CpuEncoder) -> Result<Self, CudaError> {
        let (mut arrays, mut scopes) = (EncodeProfileArrays::default(), Vec::new());
        for (index, view) in (0..cpu.scope_count()).filter_map(|i| Some((i, cpu.scope_view(i)?))) {
            scopes.push(arrays.scope(&view, cpu.analysis_matrix(index))?);
        }
        let bank = cpu.profile().bank();
        let inverted: Vec<u8> = (0..bank.stage_tables().len())
            .filter_map(|table| bank.inverted_stage(table))
            .flat_map(|(_, slots)| slots.iter().flat_map(|slot| slot.to_le_bytes()))
            .collect();
        let upload = |label, bytes: Vec<u8>| device.upload(label, &bytes);
        Ok(Self {
            symbols: upload("symbols", record_bytes(&symbols(bank)))?,
            inverted: upload("inverted", inverted)?,
            plans: upload("plans", record_bytes(&arrays.plans))?,
            codings: upload("codings", record_bytes(&arrays.codings))?,
            elements: upload("elements", record_bytes(&arrays.elements))?,
            analysis: upload("analysis", record_bytes(&arrays.analysis))?,
            matrices: upload("matrices", arrays.matrices)?,
            frequencies: Frequencies::new(device, cpu.spec())?,
            scopes,
        })
    }
}

impl EncodeProfileArrays {
    fn plan(
        &mut self,
        (coefficients, codings): kvasir_codec::PlanView<'_>,
    ) -> Result<SectionPlan, CudaError> {
        let first = index_u32(self.plans.len())?;
        self.plans.extend(coefficients.iter().map(|c| *c as u32));
        self.codings.extend(codings.iter().map(|coding| coding_word(*coding)));
        Ok(SectionPlan { first, count: coefficients.len() })
    }

    fn scope(
        &mut self,
        view: &ScopeView<'_>,
        analysis: Option<&[f32]>,
    ) -> Result<EncodeScopeOffsets, CudaError> {
        let levels = view.levels.iter().map(|plan| self.plan(*plan)).collect::<Result<_, _>>()?;
        let anchors = match view.predictor {
            PredictorView::Anchors { plan, .. } => Some(self.plan(plan)?),
            PredictorView::Mean | PredictorView::Token { .. } => None,
        };
        let elements = index_u32(self.elements.len())?;
        for member in &view.members {
            let means = &view.mean[member.start..member.start + member.dim];
            let gain = 1.0 / member.gain;
            self.elements.extend(means.iter().map(|&mean| Element { gain, mean }));
        }
        let mut offsets = EncodeScopeOffsets { levels, anchors, elements, analysis: None, matrix: [0; 2] };
        if let Some(matrix) = analysis {
            offsets.analysis = Some(index_u32(self.analysis.len())?);
            let width = view.mean.len();
            let column = |element: usize| matrix.iter().skip(element).step_by(width.max(1)).take(view.rank);
            self.analysis.extend((0..width).flat_map(column));
            index_u32(self.analysis.len())?;
        }
        offsets.matrix = push_predictor(&mut self.matrices, &view.predictor)?;
        Ok(offsets)
    }
}

/// Symbols of all stage tables, then of all trit tables.
pub(super) fn symbols(bank: &TableBank) -> Vec<Symbol> {
    let mut all = Vec::new();
    for (index, table) in bank.stage_tables().iter().enumerate() {
        let Some((starts, _)) = bank.inverted_stage(index) else { continue };
        let own = |s: usize| symbol(starts[s], table.frequencies()[s].into());
        let escape = Symbol { shift: own(ESCAPE).shift | SYMBOL_ESCAPE, ..own(ESCAPE) };
        let coded = |s: usize| if s == ESCAPE || table.frequencies()[s] == 0 { escape } else { own(s) };
        all.extend((0..ALPHABET).map(coded));
    }
    for table in bank.trit_tables() {
        all.extend((0..8usize).map(|index| match index % 4 {
            3 => Symbol::default(),
            digit => {
                let (start, frequency) = TritTable::range(table, index / 4, digit as i32 - 1);
                symbol(start, frequency)
            }
        }));
    }
    all
}

/// Division by `frequency` as a multiplication: `x / f = (x · ceil(2^(31 + l) / f)) >> (31 + l)` for
/// `x < 2^31`, with `l = ceil(log2 f)` (Granlund and Montgomery 1994, theorem 4.2). A frequency of 1 has no
/// such factor in 32 bits.
fn symbol(start: u32, frequency: u32) -> Symbol {
    debug_assert!(frequency <= PROBABILITY_ONE);
    if frequency < 2 {
        return Symbol { start, frequency, reciprocal: 0, shift: 0 };
    }
    let log = u32::BITS - (frequency - 1).leading_zeros();
    let reciprocal = (1u64 << (31 + log)).div_ceil(u64::from(frequency)) as u32;
    Symbol { start, frequency, reciprocal, shift: log - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_by_multiplication_is_exact_where_states_are() {
        for frequency in 2..=PROBABILITY_ONE {
            let symbol = symbol(0, frequency);
            let divide =
                |x: u32| ((u64::from(x) * u64::from(symbol.reciprocal)) >> 32) as u32 >> symbol.shift;
            // Quotients change at multiples; the largest states have the least room for error.
            let last = (1u32 << 31) - 1;
            let top = last / frequency * frequency;
            let multiples = (0..40u32)
                .map(|i| (1 << 15) / frequency * frequency + i * 53_687_091 / frequency * frequency);
            for x in multiples.chain([top, 1 << 15, frequency]) {
                for x in [x.saturating_sub(1), x, x + 1, last] {
                    assert_eq!(divide(x.min(last)), x.min(last) / frequency, "{x} / {frequency}");
                }
            }
        }
    }
}
