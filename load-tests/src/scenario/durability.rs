//! Whether what was acknowledged is there at the end of a run.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};

use crate::{calls::Tenant, outcome::Truth};

/// Most acknowledged objects that are read again, and how many at once.
const CHECKED_MAX: usize = 2_000;
const CHECKED_AT_ONCE: usize = 4;
/// Attempts to read one of them, and the pause between two.
const CHECK_ATTEMPTS: usize = 40;
const CHECK_PAUSE: Duration = Duration::from_millis(500);

/// Finds and reads what was acknowledged, all of it or an even sample, from lookup to the last byte.
pub(crate) async fn of(tenants: &[Arc<Tenant>]) -> Truth {
    let mut truth = Truth::default();
    for tenant in tenants {
        let count = tenant.count();
        truth.acknowledged += count as u64;
        let checked = count.min(CHECKED_MAX / tenants.len().max(1));
        let check = |i: usize| async move {
            let known = tenant.known(i as f64 / checked as f64)?;
            let mut last = None;
            // A tenant over its quota, or a breaker that has not closed yet, is no loss.
            for _ in 0..CHECK_ATTEMPTS {
                let found = tenant.lookup(i % tenant.replicas.len(), &known, true).await;
                let read = tenant.read(&known, None, None).await;
                let over = found.is_ok() && read.is_ok() || read.as_ref().is_err_and(|failure| failure.wrong);
                last = Some((found, read));
                if over {
                    break;
                }
                tokio::time::sleep(CHECK_PAUSE).await;
            }
            last
        };
        let mut results = stream::iter(0..checked).map(check).buffer_unordered(CHECKED_AT_ONCE);
        while let Some(result) = results.next().await {
            let Some((found, read)) = result else { continue };
            truth.checked += 1;
            match (found, read) {
                (Ok(_), Ok(done)) => truth.bytes += done.bytes,
                (_, Err(failure)) if failure.wrong => truth.wrong += 1,
                _ => truth.lost += 1,
            }
        }
    }
    truth
}
