//! Launches of a batch, each with its own queue head.

use kvasir_kernels::{DecodeParams, Kernel, Record, record_bytes};

use crate::{Device, DeviceError, DeviceMemory, Work};

/// Most launches of a batch.
pub(crate) const LAUNCHES_MAX: usize = 32;

/// Launches, each with its own queue head; keeps their task arrays alive.
pub(crate) struct Queue<'d, D: Device> {
    device: &'d D,
    counters: &'d D::Memory,
    used: usize,
    kept: Vec<D::Memory>,
}

impl<'d, D: Device> Queue<'d, D> {
    /// `counters` are [`LAUNCHES_MAX`] zeros.
    ///
    /// # Safety
    /// Every record that is launched through the queue is good in the sense of [`Device::launch`].
    pub(crate) unsafe fn new(device: &'d D, counters: &'d D::Memory) -> Self {
        Self { device, counters, used: 0, kept: Vec::new() }
    }

    /// The memory that the launches read in addition to the batch's arrays; keep it until they are done.
    pub(crate) fn into_kept(self) -> Vec<D::Memory> {
        self.kept
    }

    pub(crate) fn counter(&mut self) -> u64 {
        assert!(self.used < LAUNCHES_MAX, "a batch has fewer launches");
        self.used += 1;
        self.counters.address() + 4 * (self.used as u64 - 1)
    }

    pub(crate) fn upload<R: Record>(&mut self, records: &[R]) -> Result<u64, DeviceError> {
        let memory = self.device.upload("tasks", &record_bytes(records))?;
        let address = memory.address();
        self.kept.push(memory);
        Ok(address)
    }

    pub(crate) fn tasks<R: Record>(
        &mut self,
        kernel: Kernel,
        tasks: &[R],
        shared_bytes: usize,
        base: DecodeParams,
    ) -> Result<(), DeviceError> {
        if tasks.is_empty() {
            return Ok(());
        }
        let (address, counter) = (self.upload(tasks)?, self.counter());
        let params = DecodeParams { tasks: address, counter, task_count: tasks.len() as u32, ..base };
        self.launch(kernel, Work::Warps(tasks.len()), shared_bytes, &params)
    }

    pub(crate) fn launch<R: Record>(
        &self,
        kernel: Kernel,
        work: Work,
        shared_bytes: usize,
        params: &R,
    ) -> Result<(), DeviceError> {
        let mut bytes = Vec::with_capacity(size_of::<R>());
        params.write(&mut bytes);
        // SAFETY: promised to `new`; `bytes` is the record.
        unsafe { self.device.launch(kernel, work, shared_bytes, &bytes) }
    }
}
