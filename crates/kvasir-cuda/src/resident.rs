//! The data of a profile that is kept on the device: tables, coding words, steps, elements, bases,
//! predictors, floors of exact levels.

use kvasir_codec::{
    CpuDecoder, PredictorView, ScopeView,
    authoring::Lossless,
    rans::{Coding, TableBank},
};
use kvasir_kernels::{Element, PRODUCT_DEPTH, RopeShape, Step, record_bytes};
use kvasir_types::{Level, ModelSpec, Pairing};

use crate::{CudaError, Device, lower::ScopeCodings, tiles::widest_rotated};

/// A scope's places in the resident arrays.
#[derive(Debug)]
pub(crate) struct DecodeScopeOffsets {
    pub(crate) main: ScopeCodings,
    pub(crate) anchors: Option<ScopeCodings>,
    /// First coding word of the main band, and of the anchors.
    pub(crate) codings: [u32; 2],
    pub(crate) elements: u32,
    /// First step of level 0; level `l` is `l · rank` further.
    pub(crate) steps: u32,
    pub(crate) basis: Option<u32>,
    /// First byte of the token predictor's matrix, and of its shifts.
    pub(crate) matrix: [u32; 2],
    /// Elements of its widest head that is rotated.
    pub(crate) rotated: usize,
    pub(crate) lossless: Option<LosslessOffsets>,
}

/// The places of a scope's exact level in the resident arrays, and how it is coded.
#[derive(Debug)]
pub(crate) struct LosslessOffsets {
    /// One an element.
    pub(crate) codings: Vec<Coding>,
    pub(crate) plan: ScopeCodings,
    pub(crate) first_coding: u32,
    /// First byte of its floors, among the matrices.
    pub(crate) floors: u32,
}

impl DecodeScopeOffsets {
    /// Coefficients of a padded row of the basis and of the operands.
    pub(crate) fn rank_padded(&self) -> usize {
        self.main.rank.next_multiple_of(PRODUCT_DEPTH as usize)
    }
}

/// A profile on a device.
#[derive(Debug)]
pub(crate) struct DecodeProfile<M> {
    pub(crate) tables: M,
    pub(crate) codings: M,
    pub(crate) steps: M,
    pub(crate) elements: M,
    pub(crate) basis: M,
    pub(crate) matrices: M,
    pub(crate) frequencies: Frequencies<M>,
    pub(crate) scopes: Vec<DecodeScopeOffsets>,
}

#[derive(Default)]
struct DecodeProfileArrays {
    codings: Vec<u32>,
    steps: Vec<Step>,
    elements: Vec<Element>,
    basis: Vec<u16>,
    matrices: Vec<u8>,
}

impl<M> DecodeProfile<M> {
    pub(crate) fn new<D: Device<Memory = M>>(device: &D, cpu: &CpuDecoder) -> Result<Self, CudaError> {
        let (mut arrays, mut scopes) = (DecodeProfileArrays::default(), Vec::new());
        for (index, view) in (0..cpu.scope_count()).filter_map(|i| Some((i, cpu.scope_view(i)?))) {
            scopes.push(arrays.scope(cpu, index, &view)?);
        }
        let upload = |label, bytes: Vec<u8>| device.upload(label, &bytes);
        Ok(Self {
            tables: upload("tables", table_bytes(cpu.profile().bank()))?,
            codings: upload("codings", record_bytes(&arrays.codings))?,
            steps: upload("steps", record_bytes(&arrays.steps))?,
            elements: upload("elements", record_bytes(&arrays.elements))?,
            basis: upload("basis", record_bytes(&arrays.basis))?,
            matrices: upload("matrices", arrays.matrices)?,
            frequencies: Frequencies::new(device, cpu.spec())?,
            scopes,
        })
    }
}

#[cfg(feature = "client")]
impl<M: crate::DeviceMemory> DecodeProfile<M> {
    /// Bytes of all arrays.
    pub(crate) fn bytes(&self) -> usize {
        let Self { tables, codings, steps, elements, basis, matrices, frequencies, scopes: _ } = self;
        let all = [tables, codings, steps, elements, basis, matrices, &frequencies.memory];
        all.into_iter().map(M::bytes).sum()
    }
}

/// Stage tables, then trit tables: a bank without its counts.
fn table_bytes(bank: &TableBank) -> Vec<u8> {
    bank.to_bytes().split_off(4)
}

impl DecodeProfileArrays {
    fn scope(
        &mut self,
        cpu: &CpuDecoder,
        index: usize,
        view: &ScopeView<'_>,
    ) -> Result<DecodeScopeOffsets, CudaError> {
        let main = ScopeCodings::new(view.rank, view.levels.iter().copied());
        let mut codings = [index_u32(self.codings.len())?; 2];
        self.codings.extend_from_slice(&main.words);
        let anchors = match view.predictor {
            PredictorView::Anchors { plan, .. } => Some(ScopeCodings::new(view.rank, std::iter::once(plan))),
            PredictorView::Mean | PredictorView::Token { .. } => None,
        };
        codings[1] = index_u32(self.codings.len())?;
        self.codings.extend(anchors.iter().flat_map(|anchors| &anchors.words));
        let steps = index_u32(self.steps.len())?;
        for level in 0..view.levels.len() {
            let of_level = cpu.steps(index, Level(level as u8)).unwrap_or_default();
            self.steps.extend(of_level.iter().map(|&(ratio, towards_zero)| Step { ratio, towards_zero }));
        }
        let elements = index_u32(self.elements.len())?;
        for member in &view.members {
            let means = &view.mean[member.start..member.start + member.dim];
            self.elements.extend(means.iter().map(|&mean| Element { gain: member.gain, mean }));
        }
        let matrix = push_predictor(&mut self.matrices, &view.predictor)?;
        let lossless = view.lossless.map(|lossless| self.lossless(lossless)).transpose()?;
        let rotated = widest_rotated(view);
        let mut offsets = DecodeScopeOffsets {
            main,
            anchors,
            codings,
            elements,
            steps,
            basis: None,
            matrix,
            rotated,
            lossless,
        };
        if let Some(synthesis) = view.synthesis {
            offsets.basis = Some(index_u32(self.basis.len())?);
            self.transpose(synthesis, view.mean.len(), &offsets);
        }
        Ok(offsets)
    }

    fn lossless(&mut self, lossless: &Lossless) -> Result<LosslessOffsets, CudaError> {
        let codings = lossless.codings();
        let all: Vec<usize> = (0..codings.len()).collect();
        let plan = ScopeCodings::new(codings.len(), std::iter::once((&all[..], &codings[..])));
        let (first_coding, floors) = (index_u32(self.codings.len())?, index_u32(self.matrices.len())?);
        self.codings.extend_from_slice(&plan.words);
        self.matrices.extend(lossless.elements.iter().map(|element| element.floor));
        Ok(LosslessOffsets { codings, plan, first_coding, floors })
    }

    /// `[coefficient][element]` to `[element][coefficient]`, zero-padded: tensor cores take both operands by rows.
    fn transpose(&mut self, synthesis: &[half::f16], elements: usize, offsets: &DecodeScopeOffsets) {
        let (rank, padded) = (offsets.main.rank, offsets.rank_padded());
        let first = self.basis.len();
        self.basis.resize(first + elements * padded, 0);
        for (coefficient, row) in synthesis.chunks_exact(elements).take(rank).enumerate() {
            for (element, value) in row.iter().enumerate() {
                self.basis[first + element * padded + coefficient] = value.to_bits();
            }
        }
    }
}

/// Frequencies of all of a model's ropes.
#[derive(Debug)]
pub(crate) struct Frequencies<M> {
    pub(crate) memory: M,
    /// Pairs of all ropes.
    pub(crate) columns: u32,
}

impl<M> Frequencies<M> {
    pub(crate) fn new<D: Device<Memory = M>>(device: &D, spec: &ModelSpec) -> Result<Self, CudaError> {
        let all: Vec<u64> = spec.ropes.iter().flat_map(|rope| rope.freqs.clone()).collect();
        Ok(Self { memory: device.upload("frequencies", &record_bytes(&all))?, columns: all.len() as u32 })
    }
}

/// Appends a token predictor's matrix and shifts; returns the first byte of each.
pub(crate) fn push_predictor(
    bytes: &mut Vec<u8>,
    predictor: &PredictorView<'_>,
) -> Result<[u32; 2], CudaError> {
    let PredictorView::Token { matrix, shifts, .. } = predictor else { return Ok([0; 2]) };
    let first = index_u32(bytes.len())?;
    bytes.extend(matrix.iter().map(|v| v.cast_unsigned()));
    let second = index_u32(bytes.len())?;
    bytes.extend_from_slice(shifts);
    Ok([first, second])
}

/// A model's ropes as kernels see them; columns of angles are concatenated.
pub(crate) fn rope_shapes(spec: &ModelSpec) -> Vec<RopeShape> {
    let ropes = spec.ropes.iter().scan(0u32, |next, rope| {
        let column = *next;
        *next += rope.freqs.len() as u32;
        Some(RopeShape {
            pairs: rope.freqs.len() as u32,
            offset: rope.offset,
            interleaved: u32::from(rope.pairing == Pairing::Interleaved),
            column,
            factor: rope.attention_factor,
        })
    });
    ropes.collect()
}

/// An index that kernels hold as u32.
pub(crate) fn index_u32(index: usize) -> Result<u32, CudaError> {
    u32::try_from(index).map_err(|_| CudaError::Batch {
        what: "entries of one array",
        found: index as u64,
        max: u32::MAX.into(),
    })
}
