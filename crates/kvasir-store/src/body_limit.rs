//! Limits how many bodies are read at once. Clients may read slowly, so a tenant holds at most as many as it leaves to
//! the others.

use std::{collections::BTreeMap, sync::Arc};

use kvasir_types::Name;
use object_store::GetOptions;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::concurrency_limit::{Busy, ConcurrencyLimit};

/// Marks a read for a client of this tenant.
#[derive(Debug, Clone)]
struct OfTenant(Name);

/// Options of a read for a client of `tenant`: its body counts as one of the tenant's.
pub fn of_tenant(tenant: &Name) -> GetOptions {
    let mut options = GetOptions::default();
    options.extensions.insert(OfTenant(tenant.clone()));
    options
}

/// Permits for bodies. A tenant gets one only while it holds fewer than are free; reads for no tenant, as of a scrub,
/// get any.
#[derive(Debug)]
pub(crate) struct BodyLimit {
    permits: ConcurrencyLimit,
    tenants: Mutex<BTreeMap<Name, Arc<TenantBodies>>>,
    ended: Arc<Notify>,
}

#[derive(Debug, Default)]
struct TenantBodies {
    held: Mutex<usize>,
}

/// The permit for one body; given back when dropped.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    permit: Option<OwnedSemaphorePermit>,
    tenant: Option<Arc<TenantBodies>>,
    ended: Arc<Notify>,
}

impl BodyLimit {
    pub(crate) fn new(permits: ConcurrencyLimit) -> Self {
        Self { permits, tenants: Mutex::default(), ended: Arc::default() }
    }

    /// Acquires a permit for the body of a read with these options, immediately or after a bounded wait.
    pub(crate) async fn acquire(&self, options: &GetOptions) -> Result<BodyPermit, Busy> {
        let Some(OfTenant(name)) = options.extensions.get::<OfTenant>() else {
            // Dropped while it waits, it may give back a permit that it was just given: that is heard as the end of a body.
            let mut body = self.permit(None, None);
            body.permit = Some(self.permits.acquire().await?);
            return Ok(body);
        };
        let tenant = self.tenant(name);
        if let Some(permit) = self.try_acquire(&tenant) {
            return Ok(permit);
        }
        // Nothing is held meanwhile: a client that does not read may stop this read here.
        let freed = async {
            loop {
                let ended = self.ended.notified();
                if let Some(permit) = self.try_acquire(&tenant) {
                    return permit;
                }
                ended.await;
            }
        };
        self.permits.queued(freed).await
    }

    /// A permit, if the tenant holds fewer than are free.
    fn try_acquire(&self, tenant: &Arc<TenantBodies>) -> Option<BodyPermit> {
        let mut held = tenant.held.lock();
        if *held >= self.permits.free() {
            return None;
        }
        let permit = self.permits.try_acquire()?;
        *held += 1;
        Some(self.permit(Some(permit), Some(Arc::clone(tenant))))
    }

    fn permit(&self, permit: Option<OwnedSemaphorePermit>, tenant: Option<Arc<TenantBodies>>) -> BodyPermit {
        BodyPermit { permit, tenant, ended: Arc::clone(&self.ended) }
    }

    fn tenant(&self, name: &Name) -> Arc<TenantBodies> {
        let mut tenants = self.tenants.lock();
        if let Some(tenant) = tenants.get(name) {
            return Arc::clone(tenant);
        }
        // Those that neither hold a permit nor wait for one.
        tenants.retain(|_, tenant| Arc::strong_count(tenant) > 1);
        Arc::clone(tenants.entry(name.clone()).or_default())
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if let Some(tenant) = &self.tenant {
            *tenant.held.lock() -= 1;
        }
        drop(self.permit.take());
        self.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, time::Duration};

    use futures::FutureExt;

    use super::*;

    fn bodies(at_once: usize) -> (BodyLimit, GetOptions) {
        let limit = ConcurrencyLimit::new(at_once, 8, Duration::from_secs(5));
        (BodyLimit::new(limit), of_tenant(&"tenant".parse().expect("a name")))
    }

    /// As that of a client that does not read what comes before.
    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_not_polled_while_it_waits_keeps_nothing_from_others() {
        let (bodies, options) = bodies(4);
        let acquire = async || bodies.acquire(&options).await.expect("is served");
        let (first, second) = (acquire().await, acquire().await);
        let mut stopped = pin!(acquire());
        assert!(stopped.as_mut().now_or_never().is_none(), "the tenant has its half");
        let (third, ()) = tokio::join!(acquire(), async { drop(first) });
        drop(second);
        let fourth = acquire().await;
        drop((third, fourth));
        stopped.await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_dropped_read_had_been_given_goes_to_one_that_waits() {
        let (bodies, options) = bodies(1);
        let of_none = GetOptions::default();
        let held = bodies.acquire(&of_none).await.expect("is served");
        let mut dropped = Box::pin(bodies.acquire(&of_none));
        let mut waiting = pin!(bodies.acquire(&options));
        assert!(dropped.as_mut().now_or_never().is_none() && waiting.as_mut().now_or_never().is_none());
        drop(held);
        assert!(waiting.as_mut().now_or_never().is_none(), "the other one was before it");
        drop(dropped);
        drop(waiting.await.expect("is served"));
    }
}
