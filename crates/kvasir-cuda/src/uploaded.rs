//! A decode's arrays on the device.

use kvasir_kernels::{RopeShape, Status, record_bytes};

use crate::{CudaError, Device, DeviceMemory, PagedKv, batch::Batch, queue::LAUNCHES_MAX};

/// A batch's arrays on the device.
#[derive(Debug)]
pub(crate) struct Uploaded<M> {
    pub(crate) bytes: M,
    pub(crate) streams: M,
    pub(crate) statuses: M,
    pub(crate) placements: M,
    pub(crate) members: M,
    pub(crate) planes: M,
    pub(crate) blocks: M,
    pub(crate) ropes: M,
    pub(crate) positions: M,
    pub(crate) angles: M,
    pub(crate) factors: M,
    pub(crate) values: M,
    pub(crate) operands: M,
    pub(crate) wide: M,
    pub(crate) counters: M,
}

impl<M: DeviceMemory> Uploaded<M> {
    pub(crate) fn new<D: Device<Memory = M>>(
        device: &D,
        batch: &Batch,
        pages: &PagedKv,
        ropes: &[RopeShape],
    ) -> Result<Self, CudaError> {
        let columns: usize = ropes.iter().map(|rope| rope.pairs as usize).sum();
        Ok(Self {
            bytes: device.upload("bytes", &batch.bytes)?,
            streams: device.upload("streams", &record_bytes(&batch.streams))?,
            statuses: device.allocate("statuses", batch.streams.len() * size_of::<Status>())?,
            placements: device.upload("placements", &record_bytes(&batch.placements))?,
            members: device.upload("members", &record_bytes(&batch.members))?,
            planes: device.upload("planes", &record_bytes(&pages.records()?))?,
            blocks: device.upload("blocks", &record_bytes(&batch.blocks))?,
            ropes: device.upload("ropes", &record_bytes(ropes))?,
            positions: device.upload("positions", &record_bytes(&batch.positions))?,
            angles: device.allocate("angles", batch.positions.len() * columns * 8)?,
            factors: device.upload("factors", &batch.factors)?,
            values: device.allocate("values", batch.values * 4)?,
            operands: device.allocate("operands", batch.operands * 2)?,
            wide: device.allocate("wide", batch.wide * 4)?,
            counters: device.allocate("counters", LAUNCHES_MAX * 4)?,
        })
    }
}
