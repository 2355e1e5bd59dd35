//! Threads that may wait for a disk.
//!
//! Handing a request over to such a thread, and its result back, often costs more than the request itself. So work that
//! makes several requests one after another is handed over as a whole, while there are threads for it.

use std::sync::Arc;

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinError, spawn, spawn_blocking},
};

use crate::{
    error::StoreError,
    limits,
    request_executor::{RequestExecutor, RequestSide},
};

tokio::task_local! {
    /// Set for work that has a thread to itself. Tasks that it spawns run elsewhere, and do not have it.
    static MAY_WAIT: ();
}

/// Executes a request that waits for a disk: here, if this thread may wait, otherwise on one that may.
pub(crate) async fn blocking<T: Send + 'static>(
    request: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if MAY_WAIT.try_get().is_ok() {
        return Ok(request());
    }
    spawn_blocking(request).await
}

/// The threads that one store may keep for work as a whole.
#[derive(Debug, Clone)]
pub(crate) struct FileThreads {
    free: Arc<Semaphore>,
    executor: Arc<RequestExecutor>,
}

impl FileThreads {
    /// At most `count` threads at once; none for a store that is no directory.
    pub(crate) fn new(count: usize, executor: Arc<RequestExecutor>) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), executor }
    }

    /// Runs work that writes `bytes` to its end, whether or not the caller waits for it: on a thread of its own if it is
    /// short and one is free, else as a task. Where a disk hangs, a task's request ends at its deadline. On a thread it
    /// cannot, so the caller's wait ends instead.
    ///
    /// # Errors
    /// [`StoreError::Request`] if the caller has waited for as long as a call may take; the work goes on.
    /// [`StoreError::Task`] if it panics.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        bytes: u64,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let thread = if bytes > limits::STORE_FILE_THREAD_BYTES_MAX { None } else { self.thread() };
        let (running, has_deadlines) = match thread {
            Some((runtime, permit)) => {
                let running = spawn_blocking(move || {
                    let _permit = permit;
                    runtime.block_on(MAY_WAIT.scope((), work))
                });
                (running, false)
            }
            None => (spawn(work), true),
        };
        let executor = Arc::clone(&self.executor);
        async move {
            if has_deadlines {
                return Ok(running.await?);
            }
            let ended = executor.patiently(RequestSide::Write, running).await;
            Ok(ended.map_err(StoreError::request(operation))??)
        }
    }

    /// A thread, if one is free. None on a runtime of one thread: the order of its tasks must not depend on another.
    fn thread(&self) -> Option<(Handle, OwnedSemaphorePermit)> {
        let runtime = Handle::current();
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return None;
        }
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some((runtime, permit))
    }

    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.free.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicU32, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        config::StoreConfig,
        observe::{RequestOutcome, StoreEvent, StoreObserver, StoreOp},
    };

    /// How often a breaker opened.
    #[derive(Debug, Default)]
    struct Opened(AtomicU32);

    impl StoreObserver for Opened {
        fn request(&self, _: StoreOp, _: RequestOutcome, _: u64, _: Duration) {}

        fn event(&self, event: StoreEvent) {
            self.0.fetch_add(u32::from(event == StoreEvent::BreakerOpened), Ordering::Relaxed);
        }
    }

    fn threads(count: usize, change: impl FnOnce(&mut StoreConfig)) -> (FileThreads, Arc<Opened>) {
        let mut config = StoreConfig::new("file:///store".parse().expect("a url"));
        change(&mut config);
        let opened = Arc::new(Opened::default());
        let observer: Arc<dyn StoreObserver> = Arc::<Opened>::clone(&opened);
        (FileThreads::new(count, Arc::new(RequestExecutor::new(&config, observer))), opened)
    }

    /// Whether a request is executed by the thread that makes it.
    async fn stays() -> bool {
        let here = thread::current().id();
        blocking(move || thread::current().id() == here).await.expect("no panic")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn short_work_keeps_a_thread_while_one_is_free_and_what_it_spawns_has_none() {
        let (one, _) = threads(1, |_| {});
        assert!(!stays().await);
        let work = async { (stays().await, spawn(stays()).await.expect("no panic")) };
        assert_eq!(one.run("testing", 0, work).await.expect("ends"), (true, false));
        let taken = Arc::clone(&one.free).try_acquire_owned().expect("it was given back");
        assert!(!one.run("testing", 0, stays()).await.expect("ends"));
        drop(taken);
        let longest = limits::STORE_FILE_THREAD_BYTES_MAX;
        assert!(one.run("testing", longest, stays()).await.expect("ends"));
        assert!(!one.run("testing", longest + 1, stays()).await.expect("ends"));
        assert!(!threads(0, |_| {}).0.run("testing", 0, stays()).await.expect("ends"));
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_has_no_other() {
        assert!(!threads(1, |_| {}).0.run("testing", 0, stays()).await.expect("ends"));
    }

    /// It ends the wait, opens the breaker like requests that fail, and does not end the work.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_disk_that_hangs_counts_as_failing() {
        let (hanging, opened) = threads(limits::BREAKER_FAULTS as usize, |config| {
            (config.request_timeout, config.retry_timeout) = (Duration::ZERO, Duration::ZERO);
        });
        let mut works = Vec::new();
        for _ in 0..limits::BREAKER_FAULTS {
            assert_eq!(opened.0.load(Ordering::Relaxed), 0);
            let (respond, responded) = mpsc::channel();
            let (end, ended) = oneshot::channel();
            let work = async move {
                let response = blocking(move || responded.recv()).await;
                let _ = end.send(response.expect("no panic"));
            };
            let late = hanging.run("testing", 0, work).await.expect_err("it hangs");
            assert!(late.to_string().contains("did not respond"), "{late}");
            works.push((respond, ended));
        }
        assert_eq!(opened.0.load(Ordering::Relaxed), 1);
        for (respond, ended) in works {
            respond.send(7).expect("the work goes on");
            assert_eq!(ended.await.expect("it ends"), Ok(7));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_panic_is_an_error_and_gives_the_thread_back() {
        let (one, _) = threads(1, |_| {});
        let failed = one.run::<()>("testing", 0, async { panic!("as a bug would") }).await;
        assert!(matches!(failed, Err(StoreError::Task(_))), "{failed:?}");
        assert!(one.run("testing", 0, stays()).await.expect("ends"));
    }
}
