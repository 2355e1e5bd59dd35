//! Work on files, beside the tasks of the runtime.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::{JoinHandle, spawn, spawn_blocking},
};

/// Runs what blocks on a thread of its own. On a runtime of one thread it is a task like others: how long another thread takes is up to
/// the machine, and a simulation has to give one order for one seed.
///
/// # Panics
/// Outside of a runtime.
pub(crate) fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => spawn(async move { work() }),
        _ => spawn_blocking(work),
    }
}
