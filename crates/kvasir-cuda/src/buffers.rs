//! A decode's arrays on the device.

use kvasir_kernels::{Status, record_bytes};
use kvasir_types::ModelSpec;

use crate::{
    CudaError, Device, DeviceMemory, PagedKv, batch::DecodeBatch, paging::PagingBuffers, queue::LAUNCHES_MAX,
};

/// A batch's arrays on the device.
#[derive(Debug)]
pub(crate) struct DecodeBuffers<M> {
    pub(crate) bytes: M,
    pub(crate) streams: M,
    pub(crate) statuses: M,
    pub(crate) paging: PagingBuffers<M>,
    pub(crate) factors: M,
    pub(crate) values: M,
    pub(crate) operands: M,
    pub(crate) wide: M,
    pub(crate) counters: M,
}

impl<M: DeviceMemory> DecodeBuffers<M> {
    pub(crate) fn new<D: Device<Memory = M>>(
        device: &D,
        batch: &DecodeBatch<'_>,
        pages: &PagedKv,
        spec: &ModelSpec,
    ) -> Result<Self, CudaError> {
        Ok(Self {
            bytes: device.upload_parts("bytes", batch.bytes.size(), batch.bytes.parts())?,
            streams: device.upload("streams", &record_bytes(&batch.streams))?,
            statuses: device.allocate("statuses", batch.streams.len() * size_of::<Status>())?,
            paging: PagingBuffers::new(device, &batch.paging, Some(pages), spec)?,
            factors: device.upload("factors", &batch.factors)?,
            values: device.allocate("values", batch.values * 4)?,
            operands: device.allocate("operands", batch.operands * 2)?,
            wide: device.allocate("wide", batch.wide * 4)?,
            counters: device.allocate("counters", LAUNCHES_MAX * 4)?,
        })
    }

    /// Bytes of all arrays.
    pub(crate) fn size(&self) -> usize {
        let Self { bytes, streams, statuses, paging, factors, values, operands, wide, counters } = self;
        let own = [bytes, streams, statuses, factors, values, operands, wide, counters];
        paging.size() + own.into_iter().map(DeviceMemory::bytes).sum::<usize>()
    }
}
