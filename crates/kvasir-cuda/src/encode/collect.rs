//! Builds objects from the output of kernels.

use std::collections::BTreeMap;

use kvasir_codec::{
    CodedSpan, EncodeReport,
    rans::{Coding, PiecePlan, coarsen, encode_piece},
};
use kvasir_kernels::{STATUS_OK, STATUS_RAW, STATUS_SPACE};

use super::{
    EncodeRequest, KernelEncoder,
    batch::{EncodeBatch, EncodeSite, SectionKind},
    run::{EncodeBuffers, EncodeResults, EncodeRunner, floats, words},
};
use crate::{CudaError, Device, DeviceReadback, PagedKv};

/// Rows that are stored exactly, `[member][token][element]`, by site.
pub(super) type SiteRows = BTreeMap<usize, Vec<f32>>;

impl<D: Device> KernelEncoder<D> {
    /// Rows of the exact tokens of every site that has some.
    pub(super) fn exact_rows(
        &self,
        batch: &EncodeBatch,
        buffers: &EncodeBuffers<D::Memory>,
    ) -> Result<SiteRows, CudaError> {
        let all = floats(&self.device.read_back(&buffers.rows, 0, batch.rows * 4)?.bytes()?);
        let masked = batch.sites.iter().enumerate().filter(|(_, site)| site.masked > 0);
        let rows = masked.map(|(index, site)| {
            let first = site.rows as usize;
            (index, all[first..first + self.elements(site) * site.masked].to_vec())
        });
        Ok(rows.collect())
    }

    fn elements(&self, site: &EncodeSite) -> usize {
        self.cpu.scope_view(site.scope).map_or(0, |view| view.mean.len())
    }

    /// Whole rows of some sites; zeros if another rank has them.
    ///
    /// # Safety
    /// As [`encode_from`](Self::encode_from).
    pub(super) unsafe fn whole_rows(
        &self,
        requests: &[EncodeRequest<'_>],
        pages: &PagedKv,
        wanted: &[usize],
    ) -> Result<SiteRows, CudaError> {
        if wanted.is_empty() {
            return Ok(SiteRows::new());
        }
        let mut batch = self.build(requests, Some(pages), super::EncodePhase::Partial)?;
        batch.gather.iter_mut().for_each(Vec::clear);
        batch.analyse.clear();
        (batch.rows, batch.steps, batch.coefficients) = (0, 0, 0);
        let mut firsts = Vec::with_capacity(wanted.len());
        for &index in wanted {
            let Some(site) = batch.sites.get(index).cloned() else {
                return Err(CudaError::Partial { what: "rows of a missing span were requested" });
            };
            let Some(view) = self.cpu.scope_view(site.scope) else { continue };
            let first = batch.rows_of(&view, &site, index as u32)?;
            firsts.push((index, first as usize, view.mean.len() * site.tokens));
        }
        let buffers = EncodeBuffers::new(&self.device, &batch, Some(pages), self.cpu.spec(), None)?;
        let runner =
            EncodeRunner { device: &self.device, resident: &self.resident, batch: &batch, buffers: &buffers };
        // SAFETY: the caller's promise.
        unsafe { runner.gather()? };
        let all = floats(&self.device.read_back(&buffers.rows, 0, batch.rows * 4)?.bytes()?);
        Ok(firsts
            .into_iter()
            .map(|(index, first, count)| (index, all[first..first + count].to_vec()))
            .collect())
    }

    /// Objects of all requests. `exact` are the rows of exact tokens, `whole` those of spans whose flag is
    /// set.
    pub(super) fn objects(
        &self,
        requests: &[EncodeRequest<'_>],
        batch: &EncodeBatch,
        buffers: &EncodeBuffers<D::Memory>,
        results: &EncodeResults,
        exact: &SiteRows,
        whole: &SiteRows,
    ) -> Result<Vec<(Vec<u8>, EncodeReport)>, CudaError> {
        let levels = self.cpu.profile().lossy_levels();
        let mut coded =
            vec![CodedSpan { levels: vec![None; levels], ..CodedSpan::default() }; batch.sites.len()];
        for (index, (site, span)) in batch.sites.iter().zip(&mut coded).enumerate() {
            if results.flags[index] != 0 {
                let rows = whole.get(&index).ok_or(CudaError::RowsMissing { spans: 1 })?;
                span.exact = Some(self.cpu.exact_piece(site.tokens, rows)?);
                span.forced_exact = true;
            } else if let Some(rows) = exact.get(&index) {
                span.exact = Some(self.cpu.exact_piece(site.masked, rows)?);
            }
        }
        for (piece, (index, section)) in batch.names.iter().enumerate() {
            let (site, span) = (&batch.sites[*index], &mut coded[*index]);
            if span.forced_exact {
                continue;
            }
            let bytes = self.piece(batch, buffers, results, piece, site, *section)?;
            match section {
                SectionKind::Level(level) => span.levels[*level] = bytes,
                SectionKind::Anchors => span.anchors = bytes,
            }
        }
        let mut objects = Vec::with_capacity(requests.len());
        let (mut sites, mut rest) = (batch.sites.iter().peekable(), coded.into_iter());
        for (index, request) in requests.iter().enumerate() {
            let mut count = 0;
            while sites.next_if(|site| site.request == index).is_some() {
                count += 1;
            }
            let own = rest.by_ref().take(count).collect();
            objects.push(self.cpu.assemble_spans(&request.input(), own)?);
        }
        Ok(objects)
    }

    /// The bytes of a piece; `None` if it is absent.
    fn piece(
        &self,
        batch: &EncodeBatch,
        buffers: &EncodeBuffers<D::Memory>,
        results: &EncodeResults,
        piece: usize,
        site: &EncodeSite,
        section: SectionKind,
    ) -> Result<Option<Vec<u8>>, CudaError> {
        let state = &results.pieces[piece];
        let no_status = CudaError::NoEncodeStatus { scope: site.scope, span: site.span };
        match state.code {
            STATUS_OK if state.active == 0 => Ok(None),
            STATUS_OK | STATUS_RAW => {
                let range = state.offset as usize..state.offset as usize + state.bytes as usize;
                results.output.get(range).map(|bytes| Some(bytes.to_vec())).ok_or(no_status)
            }
            STATUS_SPACE => self.piece_on_host(batch, buffers, piece, site, section),
            _ => Err(no_status),
        }
    }

    /// A piece whose streams did not fit the reserved space, built from the values that kernels made.
    fn piece_on_host(
        &self,
        batch: &EncodeBatch,
        buffers: &EncodeBuffers<D::Memory>,
        piece: usize,
        site: &EncodeSite,
        section: SectionKind,
    ) -> Result<Option<Vec<u8>>, CudaError> {
        let record = &batch.pieces[piece];
        let Some(view) = self.cpu.scope_view(site.scope) else { return Ok(None) };
        let (coefficients, codings): (&[usize], &[Coding]) = match (section, view.predictor) {
            (SectionKind::Level(level), _) => view.levels[level],
            (SectionKind::Anchors, kvasir_codec::PredictorView::Anchors { plan, .. }) => plan,
            (SectionKind::Anchors, _) => return Ok(None),
        };
        let tokens = record.tokens as usize;
        let bytes = self
            .device
            .read_back(&buffers.values, record.values as usize * 4, view.rank * tokens * 4)?
            .bytes()?;
        let fine: Vec<i32> = words(&bytes).into_iter().map(u32::cast_signed).collect();
        let level = |q: &i32| (0..record.up).fold(*q, |q, _| coarsen(q));
        let rows = coefficients.iter().flat_map(|c| &fine[c * tokens..(c + 1) * tokens]);
        let values: Vec<i32> = rows.map(level).collect();
        let mut out = Vec::new();
        let plan = PiecePlan { coefficients: codings, tokens };
        encode_piece(self.cpu.profile().bank(), &plan, &values, &mut out)
            .map_err(kvasir_codec::EncodeError::from)?;
        Ok((!out.is_empty()).then_some(out))
    }
}
