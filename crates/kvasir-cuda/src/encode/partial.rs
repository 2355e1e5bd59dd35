//! Ranks of a tensor- or pipeline-parallel engine: each sums over the heads and layers it holds, the sums are added in
//! rank order, and one of them finishes (`partial(shard) → f32[T, r]`, `finish → pieces`).

use kvasir_codec::EncodeReport;

use super::{
    EncodePhase, EncodeRequest, KernelEncoder,
    collect::SiteRows,
    run::{EncodeBuffers, EncodeRunner, floats},
};
use crate::{CudaError, Device, DeviceReadback, PagedKv};

/// A rank's share of some chunks: coefficients summed over its elements, and its rows of exact tokens. Both
/// are zero for data of other ranks, so shares can be added.
#[derive(Debug, Clone, PartialEq)]
pub struct Partial {
    /// Coefficients of all scopes and spans, in finest steps.
    pub sums: Vec<f32>,
    exact: SiteRows,
    whole: SiteRows,
}

/// Rows of spans that are stored exactly, of one rank.
#[derive(Debug, Clone, PartialEq)]
pub struct ExactSpanRows(SiteRows);

fn add_rows(into: &mut SiteRows, from: SiteRows) -> Result<(), CudaError> {
    for (site, rows) in from {
        match into.get_mut(&site) {
            None => {
                into.insert(site, rows);
            }
            Some(own) if own.len() == rows.len() => {
                // Only one rank has a row, so its bits are kept, including NaN and -0.
                own.iter_mut()
                    .zip(rows)
                    .filter(|(_, other)| other.to_bits() != 0)
                    .for_each(|(own, other)| *own = other);
            }
            Some(_) => return Err(CudaError::Partial { what: "their rows differ in length" }),
        }
    }
    Ok(())
}

impl Partial {
    /// Adds the share of the next rank. The order of ranks is that of the additions.
    ///
    /// # Errors
    /// [`CudaError::Partial`] if the shares belong to other chunks or another profile.
    pub fn add(&mut self, next: Self) -> Result<(), CudaError> {
        if self.sums.len() != next.sums.len() || !self.exact.keys().eq(next.exact.keys()) {
            return Err(CudaError::Partial { what: "they belong to other chunks or another profile" });
        }
        self.sums.iter_mut().zip(next.sums).for_each(|(own, other)| *own += other);
        add_rows(&mut self.exact, next.exact)
    }

    /// Adds the rows that [`finish`](KernelEncoder::finish) requested.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_rows(&mut self, rows: ExactSpanRows) -> Result<(), CudaError> {
        add_rows(&mut self.whole, rows.0)
    }
}

impl<D: Device> KernelEncoder<D> {
    /// This rank's share of some chunks. All ranks must pass the same requests, except for block tables.
    ///
    /// # Safety
    /// As [`encode_from`](Self::encode_from).
    ///
    /// # Errors
    /// See [`CudaError`].
    pub unsafe fn partial(
        &self,
        requests: &[EncodeRequest<'_>],
        pages: &PagedKv,
    ) -> Result<Partial, CudaError> {
        let batch = self.build(requests, Some(pages), EncodePhase::Partial)?;
        let buffers = EncodeBuffers::new(&self.device, &batch, Some(pages), self.cpu.spec(), None)?;
        let runner =
            EncodeRunner { device: &self.device, resident: &self.resident, batch: &batch, buffers: &buffers };
        // SAFETY: the caller's promise.
        unsafe { runner.gather()? };
        let sums = floats(&self.device.read_back(&buffers.coefficients, 0, batch.coefficients * 4)?.bytes()?);
        Ok(Partial { sums, exact: self.exact_rows(&batch, &buffers)?, whole: SiteRows::new() })
    }

    /// Spans (request, scope, span) whose rows [`finish`](Self::finish) needs, in order: their sums are not
    /// finite or out of range.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub fn exact_spans(
        &self,
        requests: &[EncodeRequest<'_>],
        sums: &Partial,
    ) -> Result<Vec<(usize, usize, usize)>, CudaError> {
        let flagged = self.finish_or_flags(requests, sums)?;
        let batch = self.build(requests, None, EncodePhase::Finish)?;
        let name = |index: usize| {
            let site = &batch.sites[index];
            (site.request, site.scope, site.span)
        };
        Ok(flagged.err().unwrap_or_default().into_iter().map(name).collect())
    }

    /// This rank's rows of spans that [`exact_spans`](Self::exact_spans) named.
    ///
    /// # Safety
    /// As [`encode_from`](Self::encode_from).
    ///
    /// # Errors
    /// See [`CudaError`].
    pub unsafe fn rows(
        &self,
        requests: &[EncodeRequest<'_>],
        pages: &PagedKv,
        spans: &[(usize, usize, usize)],
    ) -> Result<ExactSpanRows, CudaError> {
        let batch = self.build(requests, None, EncodePhase::Finish)?;
        let is_named =
            |site: &super::batch::EncodeSite| spans.contains(&(site.request, site.scope, site.span));
        let wanted: Vec<usize> =
            (0..batch.sites.len()).filter(|index| is_named(&batch.sites[*index])).collect();
        // SAFETY: the caller's promise.
        unsafe { self.whole_rows(requests, pages, &wanted) }.map(ExactSpanRows)
    }

    /// Objects from the sums of all ranks.
    ///
    /// # Errors
    /// [`CudaError::RowsMissing`] where spans have to be stored exactly and their rows are not there yet; else as
    /// [`encode_from`](Self::encode_from).
    pub fn finish(
        &self,
        requests: &[EncodeRequest<'_>],
        sums: &Partial,
    ) -> Result<Vec<(Vec<u8>, EncodeReport)>, CudaError> {
        self.finish_or_flags(requests, sums)?
            .map_err(|flagged| CudaError::RowsMissing { spans: flagged.len() })
    }

    /// The objects, or the sites whose rows are missing.
    #[allow(clippy::type_complexity, reason = "two outcomes that are not errors")]
    fn finish_or_flags(
        &self,
        requests: &[EncodeRequest<'_>],
        sums: &Partial,
    ) -> Result<Result<Vec<(Vec<u8>, EncodeReport)>, Vec<usize>>, CudaError> {
        let batch = self.build(requests, None, EncodePhase::Finish)?;
        if batch.coefficients != sums.sums.len() {
            return Err(CudaError::Partial { what: "they belong to other chunks or another profile" });
        }
        let buffers = EncodeBuffers::new(&self.device, &batch, None, self.cpu.spec(), Some(&sums.sums))?;
        let runner =
            EncodeRunner { device: &self.device, resident: &self.resident, batch: &batch, buffers: &buffers };
        // SAFETY: no pages are read in this stage.
        let results = unsafe { runner.encode(self.tables())? };
        let flagged =
            results.flags.iter().enumerate().filter(|(_, flag)| **flag != 0).map(|(index, _)| index);
        let missing: Vec<usize> = flagged.filter(|index| !sums.whole.contains_key(index)).collect();
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        self.objects(requests, &batch, &buffers, &results, &sums.exact, &sums.whole).map(Ok)
    }
}
