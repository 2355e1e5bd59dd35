//! Running decodes: groups of layers become ready in sequence.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use kvasir_codec::DecodeError;
use kvasir_kernels::{STATUS_PATTERN, Status};

use crate::{
    CudaError, Device, DeviceEvent, DeviceMemory, DeviceReadback, batch::DecodeBatch, buffers::DecodeBuffers,
    lower::piece_error,
};

/// Requests that failed, by index; the error is the device's.
type Verdict = Result<BTreeMap<usize, CudaError>, CudaError>;

/// Points in a device's queues around a group, whose last kernel is before its event.
#[derive(Debug)]
pub(crate) struct Marks<E> {
    /// Before and after all that was copied for it.
    pub(crate) copies: [E; 2],
    /// Before its first kernel, and behind the copies that it waits for.
    pub(crate) first_kernel: E,
}

/// A decode that was submitted. Waits when dropped. It looks into the objects' bytes to say what is damaged.
#[derive(Debug)]
pub struct PendingDecode<'a, D: Device> {
    pub(crate) groups: Vec<PendingGroup<'a, D>>,
}

/// Layers that were decoded by the same launches.
#[derive(Debug)]
pub(crate) struct PendingGroup<'a, D: Device> {
    pub(crate) layers: Range<usize>,
    pub(crate) batch: DecodeBatch<'a>,
    /// `None` if nobody asks for its times.
    pub(crate) marks: Option<Marks<D::Event>>,
    pub(crate) event: D::Event,
    /// `None` once read.
    pub(crate) statuses: Option<D::Readback>,
    pub(crate) verdict: Verdict,
    /// Lives until the kernels are done.
    pub(crate) memory: (DecodeBuffers<D::Memory>, Vec<D::Memory>),
}

impl<D: Device> PendingGroup<'_, D> {
    /// Bytes of the device that it takes, without its profile.
    pub(crate) fn scratch_bytes(&self) -> usize {
        let (buffers, tasks) = &self.memory;
        buffers.size() + tasks.iter().map(DeviceMemory::bytes).sum::<usize>()
    }

    /// Time from the first of its copies to the last, and from its first kernel to the last. Zeros without marks, or if the
    /// device does not say: the rows are in place all the same.
    pub(crate) fn times(&self) -> [Duration; 2] {
        let Some(Marks { copies: [from, to], first_kernel }) = &self.marks else {
            return [Duration::ZERO; 2];
        };
        [from.milliseconds_to(to), first_kernel.milliseconds_to(&self.event)].map(|milliseconds| {
            let seconds = milliseconds.map_or(0.0, |milliseconds| f64::from(milliseconds) / 1e3);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        })
    }

    fn look(&self, statuses: D::Readback) -> Verdict {
        self.event.wait()?;
        Ok(failed_requests(&self.batch, &statuses.bytes()?))
    }

    /// Waits for the kernels, and returns the requests that failed. The rows of all others are in place.
    ///
    /// # Errors
    /// The device's, for all requests.
    pub(crate) fn failed_requests(&mut self) -> Verdict {
        if let Some(statuses) = self.statuses.take() {
            self.verdict = self.look(statuses);
        }
        self.verdict.clone()
    }

    fn wait(&mut self) -> Result<(), CudaError> {
        self.failed_requests()?.into_values().next().map_or(Ok(()), Err)
    }
}

impl<D: Device> PendingDecode<'_, D> {
    /// The layers that become ready together, in the order in which they do. Layers in none of them have no rows in the
    /// request.
    pub fn layer_groups(&self) -> impl Iterator<Item = Range<usize>> {
        self.groups.iter().map(|group| group.layers.clone())
    }

    /// The event after the rows of `layer`, on which an engine's stream can wait without the host. It does
    /// not report damaged bytes: rows for which [`wait_layer`](Self::wait_layer) would return an error are
    /// written too, with wrong values, inside their pages.
    pub fn layer_event(&self, layer: usize) -> Option<&D::Event> {
        self.groups.iter().find(|group| group.layers.contains(&layer)).map(|group| &group.event)
    }

    /// Waits until the rows of `layer` are complete and correct.
    ///
    /// # Errors
    /// As [`decode_into`](crate::KernelDecoder::decode_into), for this layer's group.
    pub fn wait_layer(&mut self, layer: usize) -> Result<(), CudaError> {
        let group = self.groups.iter_mut().find(|group| group.layers.contains(&layer));
        group.map_or(Ok(()), PendingGroup::wait)
    }

    /// Waits for all of it.
    ///
    /// # Errors
    /// The first in the order of layers.
    pub fn wait(mut self) -> Result<(), CudaError> {
        let verdicts: Vec<_> = self.groups.iter_mut().map(PendingGroup::wait).collect();
        verdicts.into_iter().collect()
    }
}

impl<D: Device> Drop for PendingDecode<'_, D> {
    fn drop(&mut self) {
        for group in &mut self.groups {
            // No caller is left to receive the error.
            let _ = group.wait();
        }
    }
}

/// The first error of each request, in the order of section, span and stream.
fn failed_requests(batch: &DecodeBatch<'_>, statuses: &[u8]) -> BTreeMap<usize, CudaError> {
    let words = |bytes: &[u8; 8]| {
        let [a, b, c, d, e, f, g, h] = *bytes;
        Status { code: u32::from_le_bytes([a, b, c, d]), detail: u32::from_le_bytes([e, f, g, h]) }
    };
    let failed = batch.names.iter().zip(&batch.streams).zip(statuses.as_chunks().0).filter_map(
        |((name, stream), bytes)| {
            let (request, scope, name) = (*name)?;
            let (section, span, status) = (name.section, name.span, words(bytes));
            let error = match piece_error(status, *stream, name, || batch.bytes.at(name.piece)) {
                Some(Ok(())) => return None,
                Some(Err(source)) => CudaError::from(DecodeError::Piece { section, span, source }),
                None if status.code == STATUS_PATTERN => DecodeError::Exact { scope, span }.into(),
                None => CudaError::NoStatus { section, span },
            };
            Some((request, name, error))
        },
    );
    let mut failed: Vec<_> = failed.collect();
    failed.sort_by_key(|(request, name, _)| (*request, name.section, name.span, name.stream));
    let mut first = BTreeMap::new();
    for (request, _, error) in failed {
        first.entry(request).or_insert(error);
    }
    first
}
