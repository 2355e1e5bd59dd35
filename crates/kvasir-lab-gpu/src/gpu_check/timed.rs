//! A device that brackets every launch with events.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use kvasir_cuda::{
    CudaDevice, CudaEvent, CudaMemory, CudaReadback, Device, DeviceError, DeviceEvent, ExternalKernel, Work,
};
use kvasir_kernels::Kernel;

/// Launches since [`Timed::milliseconds`] was last called.
#[derive(Debug, Clone)]
pub(crate) struct Timed {
    device: Arc<CudaDevice>,
    marks: Arc<Mutex<Vec<(CudaEvent, CudaEvent)>>>,
}

impl Timed {
    /// Over a device.
    pub(crate) fn new(device: &Arc<CudaDevice>) -> Self {
        Self { device: Arc::clone(device), marks: Arc::default() }
    }

    /// Queues a kernel that is not the product's.
    ///
    /// # Safety
    /// As [`Device::launch`].
    pub(crate) unsafe fn launch_external(
        &self,
        kernel: &ExternalKernel,
        work: Work,
        shared: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        self.bracket(|device| unsafe { device.launch_external(kernel, work, shared, params) })
    }

    fn bracket(
        &self,
        launch: impl FnOnce(&CudaDevice) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let start = self.device.record()?;
        launch(&self.device)?;
        let end = self.device.record()?;
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).push((start, end));
        Ok(())
    }

    /// Time of all kernels since the last call, without the gaps between them.
    pub(crate) fn milliseconds(&self) -> Result<f64, DeviceError> {
        let marks = std::mem::take(&mut *self.marks.lock().unwrap_or_else(PoisonError::into_inner));
        let mut sum = 0.0;
        for (start, end) in marks {
            end.wait()?;
            sum += f64::from(start.milliseconds_to(&end)?);
        }
        Ok(sum)
    }
}

impl Device for Timed {
    type Memory = CudaMemory;
    type Event = CudaEvent;
    type Readback = CudaReadback;

    fn prepare(&self) -> Result<(), DeviceError> {
        self.device.prepare()
    }

    fn shared_bytes_max(&self) -> usize {
        self.device.shared_bytes_max()
    }

    fn allocate(&self, label: &'static str, bytes: usize) -> Result<CudaMemory, DeviceError> {
        self.device.allocate(label, bytes)
    }

    fn upload_parts(
        &self,
        label: &'static str,
        bytes: usize,
        parts: &[(usize, &[u8])],
    ) -> Result<CudaMemory, DeviceError> {
        self.device.upload_parts(label, bytes, parts)
    }

    fn read_back(
        &self,
        memory: &CudaMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<CudaReadback, DeviceError> {
        self.device.read_back(memory, offset, bytes)
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        work: Work,
        shared: usize,
        params: &[u8],
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        self.bracket(|device| unsafe { device.launch(kernel, work, shared, params) })
    }

    unsafe fn write(&self, bytes: &[u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.write(bytes, places) }
    }

    unsafe fn read(&self, out: &mut [u8], places: &[(u64, Range<usize>)]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise.
        unsafe { self.device.read(out, places) }
    }

    fn record(&self) -> Result<CudaEvent, DeviceError> {
        self.device.record()
    }

    fn record_copies(&self) -> Result<CudaEvent, DeviceError> {
        self.device.record_copies()
    }

    fn pinned_bytes(&self) -> usize {
        self.device.pinned_bytes()
    }

    fn drain(&self) {
        self.device.drain();
    }
}

#[cfg(test)]
mod tests {
    use kvasir_lab_gpu::FAKE_DRIVER;

    use super::*;

    #[test]
    fn the_limits_are_the_devices() {
        let folder = tempfile::tempdir().expect("a folder");
        let Ok(device) = CudaDevice::new(0, folder.path().join("kernels")) else {
            kvasir_kernels_emulator::test_again("timed::tests::the_limits_are_the_devices", FAKE_DRIVER);
            return;
        };
        let device = Arc::new(device);
        let timed = Timed::new(&device);
        let _copied = timed.upload("bytes", &[7; 64]).expect("copies");
        assert_eq!(timed.shared_bytes_max(), device.shared_bytes_max());
        assert_eq!((timed.pinned_bytes(), timed.pinned_bytes() > 0), (device.pinned_bytes(), true));
    }
}
