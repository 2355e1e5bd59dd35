//! Requests for many objects at once. They are polled in the task of the pass, so that their order depends on the store's
//! answers alone: one seed of the simulation, one trace.

use futures::{StreamExt, stream::FuturesUnordered};
use kvasir_store::StoreError;

use crate::limits;

/// Begins `work` for the items in their order, [`limits::GC_PARALLEL`] at a time. After an error it begins no more, and
/// waits for those under way. Returns what the others returned, as they ended, and the first error.
pub(super) async fn concurrently<T, R, F>(
    items: Vec<T>,
    work: impl Fn(T) -> F,
) -> (Vec<R>, Result<(), StoreError>)
where
    F: Future<Output = Result<R, StoreError>>,
{
    let mut items = items.into_iter();
    let mut under_way = FuturesUnordered::new();
    let (mut results, mut outcome) = (Vec::new(), Ok(()));
    loop {
        while outcome.is_ok() && under_way.len() < limits::GC_PARALLEL {
            let Some(item) = items.next() else { break };
            under_way.push(work(item));
        }
        match under_way.next().await {
            Some(Ok(result)) => results.push(result),
            Some(Err(error)) => outcome = outcome.and(Err(error)),
            None => return (results, outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_is_limited_and_an_error_ends_no_work_under_way() {
        for fails in [None, Some(3)] {
            let (now, most, begun) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
            let work = |n: usize| {
                let (now, most, begun) = (&now, &most, &begun);
                begun.fetch_add(1, Ordering::Relaxed);
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    let is_wrong = fails == Some(n);
                    let takes = if is_wrong { 1 } else { 500 - n as u64 };
                    tokio::time::sleep(Duration::from_millis(takes)).await;
                    now.fetch_sub(1, Ordering::Relaxed);
                    if is_wrong { Err(StoreError::own("working", "it fails")) } else { Ok(n) }
                }
            };
            let count = 3 * limits::GC_PARALLEL;
            let (mut results, outcome) = concurrently((0..count).collect(), work).await;
            results.sort_unstable();
            assert_eq!(most.into_inner(), limits::GC_PARALLEL);
            let done = if fails.is_some() { limits::GC_PARALLEL } else { count };
            assert_eq!((begun.into_inner(), outcome.is_err()), (done, fails.is_some()));
            assert_eq!(results, (0..done).filter(|n| Some(*n) != fails).collect::<Vec<_>>());
        }
    }
}
