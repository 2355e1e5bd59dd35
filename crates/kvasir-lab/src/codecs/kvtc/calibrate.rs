//! Principal components and widths from calibration contexts.

use faer::{Accum, Mat, MatRef, Par, Side, linalg::matmul::matmul};
use half::f16;
use kvasir_train::TrainingContext;
use kvasir_types::{ModelSpec, Plane};
use rayon::prelude::*;

use super::{
    KvtcLike, PlaneCodec, RUNGS, SINKS,
    allocate::{Curve, allocate},
    gather,
};
use crate::BenchError;

/// Calibration statistics of a KVTC-like codec; several ranks share them.
#[derive(Debug)]
pub struct Calibration {
    planes: Vec<PlaneStatistics>,
}

#[derive(Debug)]
struct PlaneStatistics {
    plane: Plane,
    elements: usize,
    mean: Vec<f32>,
    /// `[component][element]` by decreasing variance, all of them.
    vectors: Vec<f32>,
    /// Rows that widths are chosen on, `[token][element]`.
    rows: Vec<f32>,
}

/// Most tokens that widths are chosen on.
const SAMPLE_TOKENS: usize = 4096;

impl Calibration {
    /// Covariances of the contexts, sinks left out.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] for a model whose layers are not all of one kind with keys and values,
    /// [`BenchError::Eigen`].
    pub fn new(spec: &ModelSpec, contexts: &[TrainingContext]) -> Result<Self, BenchError> {
        let of_plane = |plane| PlaneStatistics::new(spec, contexts, plane);
        Ok(Self { planes: Plane::ALL.into_iter().map(of_plane).collect::<Result<_, _>>()? })
    }

    /// The codec with the leading `rank` components of each plane; `variant` distinguishes several codecs.
    pub fn codec(&self, rank: usize, variant: impl Into<String>) -> KvtcLike {
        let planes = self.planes.iter().map(|plane| plane.codec(rank)).collect();
        KvtcLike { variant: variant.into(), planes }
    }

    /// The rank whose profile has at most `bytes` bytes.
    pub fn rank_within(&self, bytes: u64) -> usize {
        let elements: usize = self.planes.iter().map(|plane| plane.elements).sum();
        let a_rank = 2 * elements + 4 * self.planes.len();
        let least = self.planes.iter().map(|plane| plane.elements).min().unwrap_or(1);
        ((bytes as usize).saturating_sub(2 * elements) / a_rank).clamp(1, least)
    }
}

impl PlaneStatistics {
    fn new(spec: &ModelSpec, contexts: &[TrainingContext], plane: Plane) -> Result<Self, BenchError> {
        let mut rows = Vec::new();
        for context in contexts {
            let own = gather(spec, &context.kv, 0, plane);
            let elements = own.len() / context.tokens.len();
            rows.extend_from_slice(&own[(SINKS * elements).min(own.len())..]);
        }
        let widths = spec.layers.iter().map(|l| l.layout.planes()[plane as usize]);
        let elements: usize = widths.map(|(heads, dim)| heads * dim).sum();
        if elements == 0 || rows.is_empty() {
            return Err(BenchError::Unsupported { what: "a model without keys or values" });
        }
        let tokens = rows.len() / elements;
        let mut mean = vec![0f32; elements];
        rows.chunks_exact(elements).for_each(|row| mean.iter_mut().zip(row).for_each(|(m, x)| *m += x));
        mean.iter_mut().for_each(|m| *m /= tokens as f32);
        let centred: Vec<f32> =
            rows.chunks_exact(elements).flat_map(|row| row.iter().zip(&mean).map(|(x, m)| x - m)).collect();
        let mut covariance = Mat::<f32>::zeros(elements, elements);
        let matrix = MatRef::from_row_major_slice(&centred, tokens, elements);
        matmul(
            covariance.as_mut(),
            Accum::Replace,
            matrix.transpose(),
            matrix,
            1.0 / tokens as f32,
            Par::rayon(0),
        );
        let eigen = covariance.self_adjoint_eigen(Side::Lower).map_err(|_| BenchError::Eigen)?;
        let vectors = eigen.U();
        let vectors = (0..elements).rev().flat_map(|c| (0..elements).map(move |e| vectors[(e, c)])).collect();
        let stride = tokens.div_ceil(SAMPLE_TOKENS);
        let rows = rows.chunks_exact(elements).step_by(stride).flatten().copied().collect();
        Ok(Self { plane, elements, mean, vectors, rows })
    }

    fn codec(&self, rank: usize) -> PlaneCodec {
        let rank = rank.min(self.elements);
        let basis = &self.vectors[..rank * self.elements];
        let mut codec = PlaneCodec {
            plane: self.plane,
            elements: self.elements,
            mean: self.mean.clone(),
            basis: basis.iter().map(|v| f16::from_f32(*v).to_f32()).collect(),
            rungs: Vec::new(),
        };
        let components = codec.analyse(&self.rows);
        let curve = |c: usize| {
            let samples: Vec<f32> = components.iter().skip(c).step_by(rank).copied().collect();
            Curve::measure(&samples)
        };
        let curves: Vec<Curve> = (0..rank).into_par_iter().map(curve).collect();
        let budget = |bits: &f64| (bits * self.elements as f64).round() as usize;
        codec.rungs = RUNGS.par_iter().map(|bits| allocate(&curves, budget(bits))).collect();
        codec
    }
}
