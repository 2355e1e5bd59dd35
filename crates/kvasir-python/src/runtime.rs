//! The runtime of futures: one tokio runtime for the process, for blocking callers and for `asyncio`.

use std::{future::Future, pin::pin, sync::OnceLock, time::Duration};

use pyo3::{IntoPyObjectExt as _, prelude::*};
use pyo3_async_runtimes::tokio::{future_into_py, get_runtime};

use crate::error::Failure;

/// How often a blocking caller checks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The process that owns this module's threads: threads do not survive a fork.
static OWNER: OnceLock<u32> = OnceLock::new();

/// Rejects a process that was forked from one which used the module.
///
/// # Errors
/// [`Failure::Forked`].
pub(crate) fn check_process() -> Result<(), Failure> {
    let here = std::process::id();
    if *OWNER.get_or_init(|| here) == here { Ok(()) } else { Err(Failure::Forked) }
}

/// Runs CPU-bound work with the GIL released.
///
/// # Errors
/// Those of the work; [`Failure::Forked`].
pub(crate) fn compute<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    check_process()?;
    Ok(py.detach(work)?)
}

/// Returns a future's result, or for `asyncio` an awaitable of it.
///
/// # Errors
/// Those of the future; [`Failure::Forked`]; exceptions of a signal handler, which drop the future.
pub(crate) fn run<'py, T, F>(py: Python<'py>, is_async: bool, future: F) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    check_process()?;
    if is_async {
        return future_into_py(py, async move { Ok(future.await?) });
    }
    wait(py, future)??.into_bound_py_any(py)
}

/// Waits with the GIL released.
///
/// # Errors
/// Exceptions of a signal handler.
pub(crate) fn wait<F: Future<Output: Send> + Send>(py: Python<'_>, future: F) -> PyResult<F::Output> {
    let mut future = pin!(future);
    loop {
        let turn = async { tokio::time::timeout(SIGNALS_EVERY, future.as_mut()).await };
        match py.detach(|| get_runtime().block_on(turn)) {
            Ok(output) => return Ok(output),
            Err(_) => py.check_signals()?,
        }
    }
}
