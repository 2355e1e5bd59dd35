//! Checks that everything acknowledged is stored at the end of a run.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};

use super::outcome::Durability;
use crate::traffic::tenant::Tenant;

/// Most acknowledged objects that are read again, and their concurrency.
const CHECKED_MAX: usize = 2_000;
const CHECKED_AT_ONCE: usize = 4;
/// Attempts to read one of them, and the pause between two.
const CHECK_ATTEMPTS: usize = 40;
const CHECK_PAUSE: Duration = Duration::from_millis(500);

/// Finds and reads the acknowledged objects, all of them or an even sample, from lookup to the last byte.
pub(crate) async fn check(tenants: &[Arc<Tenant>]) -> Durability {
    let mut durability = Durability::default();
    for tenant in tenants {
        let count = tenant.count();
        durability.acknowledged += count as u64;
        let checked = count.min(CHECKED_MAX / tenants.len().max(1));
        let check_one = |i: usize| async move {
            let known = tenant.known(i as f64 / checked as f64)?;
            let mut last = None;
            // A tenant over its quota, or a breaker that has not closed yet, is not a loss.
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
        let mut results = stream::iter(0..checked).map(check_one).buffer_unordered(CHECKED_AT_ONCE);
        while let Some(result) = results.next().await {
            let Some((found, read)) = result else { continue };
            durability.checked += 1;
            match (found, read) {
                (Ok(_), Ok(done)) => durability.bytes += done.bytes,
                (_, Err(failure)) if failure.wrong => durability.wrong += 1,
                _ => durability.lost += 1,
            }
        }
    }
    durability
}
