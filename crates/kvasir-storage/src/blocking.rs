//! Blocking file operations, outside the runtime's tasks.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::{JoinHandle, spawn, spawn_blocking},
};

/// Runs blocking work on a separate thread. On a single-threaded runtime it is an ordinary task: the duration
/// on another thread depends on the machine, and a simulation must produce one order per seed.
///
/// # Panics
/// Outside a runtime.
pub(crate) fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => spawn(async move { work() }),
        _ => spawn_blocking(work),
    }
}
