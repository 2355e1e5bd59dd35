//! Buffers kept between tasks: fresh pages cost as much as the work done in them.

use std::sync::Mutex;

/// Buffers of as many tasks as ran at the same time.
#[derive(Debug, Default)]
pub(crate) struct BufferPool<T>(Mutex<Vec<T>>);

impl<T: Default> BufferPool<T> {
    /// One that was given back, or a new one.
    pub(crate) fn take(&self) -> T {
        self.0.lock().ok().and_then(|mut pool| pool.pop()).unwrap_or_default()
    }

    /// Keeps one for the next.
    pub(crate) fn give(&self, buffer: T) {
        if let Ok(mut pool) = self.0.lock() {
            pool.push(buffer);
        }
    }
}
