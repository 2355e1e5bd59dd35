//! Each tenant's usage of the store as this replica knows it: the collector's count, plus the journal's
//! entries since.
//!
//! A count records how far it reaches: into the journal of each replica that wrote lately, and up to a time
//! for all others, which may be any number that have ended. So every replica adds exactly the later entries
//! that it has seen, in whatever order it reads them and the count. Removed objects count until the
//! collector has deleted their bytes and freed the space. Where replicas read counts alone, one of them reads all entries and
//! publishes its accounts as counts.
//!
//! Writers on one replica reserve before they write, so together they never exceed a limit. Other replicas'
//! acknowledgements arrive with the journal's lag, so a tenant may exceed its limit by
//! `replicas × journal.lag × its write rate at one of them`, and by uploads in progress.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use kvasir_types::Name;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::count::Count;
use crate::limits;

/// Objects and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// Chunk objects, profiles, versions of contexts, uploads waiting for their commit, model specs, records of
    /// namespaces.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Stored {
    /// One object.
    pub fn one(bytes: u64) -> Self {
        Self { objects: 1, bytes }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            objects: self.objects.saturating_add(other.objects),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            objects: self.objects.saturating_sub(other.objects),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// A tenant's limits on stored data; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredQuota {
    /// Objects.
    pub objects: Option<u64>,
    /// Bytes.
    pub bytes: Option<u64>,
}

impl StoredQuota {
    /// Whether there is no limit at all.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }
}

/// A limit that a write would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) limit: &'static str,
    pub(crate) max: u64,
    pub(crate) used: u64,
}

/// How far a count reaches.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reach {
    /// By replica, the last batch of its journal that is included.
    pub(crate) batches: Arc<[(Name, u64)]>,
    /// The store's time in ms before which everything stored is included, whichever replica stored it. `None`
    /// if the counter did not know it.
    pub(crate) until_ms: Option<i64>,
    /// Of accounts, which know what the journal says since a listing: the time before which the listing
    /// includes everything. `None` for a listing.
    pub(crate) listed_ms: Option<i64>,
}

impl Reach {
    fn includes(&self, later: &Later) -> bool {
        let is_before = |until: Option<i64>| later.stored_ms.zip(until).is_some_and(|(at, until)| at < until);
        if self.listed_ms.is_some() && !later.is_journaled {
            return is_before(self.listed_ms);
        }
        // Most entries are of replicas that the count names: their own check is the exact one.
        self.batches.iter().any(|(of, last)| *of == later.replica && later.n <= *last)
            || is_before(self.until_ms)
    }
}

/// The accounts of all tenants.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<LedgerState>);

#[derive(Debug, Default)]
struct LedgerState {
    accounts: HashMap<Name, Account>,
    /// During a count: changes that may or may not be in its listing.
    meanwhile: Option<Meanwhile>,
    /// The last batch heard of each other replica: an index that was emptied reads them again.
    heard: BTreeMap<Name, u64>,
}

#[derive(Debug)]
struct Meanwhile {
    /// The store's time in ms before which whatever was stored is in the listing, or gone.
    until_ms: Option<i64>,
    changes: Vec<(Name, [u8; 32], Stored)>,
}

/// Changes after a count, of one batch.
#[derive(Debug)]
pub(crate) struct Later {
    pub(crate) replica: Name,
    /// The batch; of what no journal reports, the next one of its replica.
    pub(crate) n: u64,
    /// Whether the batch says so. Otherwise only this replica knows of them, until they are listed.
    pub(crate) is_journaled: bool,
    /// The store's time in ms at which the last of them was stored.
    pub(crate) stored_ms: Option<i64>,
    pub(crate) stored: Stored,
}

#[derive(Debug, Default)]
struct Account {
    counted: Stored,
    /// When it was counted, or known to be what the account says.
    counted_at: Option<Instant>,
    listed_at: Option<Instant>,
    /// The replica that counted, and how far its count reaches.
    reach: Option<(Name, Reach)>,
    /// Later changes, by replica and batch.
    since: VecDeque<Later>,
    reserved: Stored,
    /// What this replica said last to the others, and when.
    published: Option<(Stored, Instant)>,
    /// Held by the one who lists the tenant's objects.
    counting: Arc<tokio::sync::Mutex<()>>,
}

impl Account {
    fn stored(&self) -> Stored {
        self.since.iter().fold(self.counted, |sum, later| sum.plus(later.stored))
    }

    fn used(&self) -> Stored {
        self.stored().plus(self.reserved)
    }

    fn add(&mut self, change: Later) {
        let is_included = self.reach.as_ref().is_some_and(|(counter, reach)| {
            // The counter's own entries come in order: those behind its count are not in it, even if they are in
            // the same batch.
            *counter != change.replica && reach.includes(&change)
        });
        if is_included {
            return;
        }
        match self.since.back_mut() {
            Some(last)
                if (&last.replica, last.n, last.is_journaled)
                    == (&change.replica, change.n, change.is_journaled) =>
            {
                last.stored = last.stored.plus(change.stored);
                last.stored_ms = last.stored_ms.max(change.stored_ms);
            }
            _ => self.since.push_back(change),
        }
        if self.since.len() > limits::LEDGER_BATCHES_MAX
            && let Some(oldest) = self.since.pop_front()
        {
            self.counted = self.counted.plus(oldest.stored);
        }
    }

    /// Whether a count that reaches until then is older than the last one. Only while that is recent: the
    /// store's clock may have been set back.
    fn is_outdated(&self, until_ms: Option<i64>) -> bool {
        let last = self.reach.as_ref().and_then(|(_, reach)| reach.until_ms);
        self.is_counted() && until_ms.zip(last).is_some_and(|(until, last)| until < last)
    }

    fn is_counted(&self) -> bool {
        self.counted_at.is_some_and(|at| at.elapsed() < limits::LEDGER_AGE_MAX)
    }

    fn was_listed(&self) -> bool {
        self.listed_at.is_some_and(|at| at.elapsed() < limits::LEDGER_LISTED_AGE_MAX)
    }

    /// Whether the others know its usage: they forget it as this replica would.
    fn is_published(&self) -> bool {
        self.published
            .is_some_and(|(stored, at)| stored == self.stored() && at.elapsed() < limits::LEDGER_AGE_MAX / 2)
    }
}

/// A reservation of storage for a write; released when dropped.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    tenant: Name,
    stored: Stored,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(account) = self.ledger.0.lock().accounts.get_mut(&self.tenant) {
            account.reserved = account.reserved.minus(self.stored);
        }
    }
}

impl Ledger {
    /// Records that batch `n` of a replica's journal reports an object as stored, at `stored_ms` of the store's
    /// time; `digest` identifies it.
    pub(crate) fn note(
        &self,
        tenant: &Name,
        digest: [u8; 32],
        stored: Stored,
        (replica, n): (&Name, u64),
        stored_ms: Option<i64>,
    ) {
        let later = Later { replica: replica.clone(), n, is_journaled: true, stored_ms, stored };
        self.note_later(tenant, digest, later);
    }

    /// Records a stored object; `digest` identifies it.
    pub(crate) fn note_later(&self, tenant: &Name, digest: [u8; 32], later: Later) {
        let (stored, stored_ms) = (later.stored, later.stored_ms);
        let mut state = self.0.lock();
        if state.heard.get(&later.replica).is_none_or(|last| later.n > *last) {
            state.accounts.entry(tenant.clone()).or_default().add(later);
        }
        if let Some(meanwhile) = &mut state.meanwhile
            // A replica that reads an old journal anew meets objects that were collected long ago.
            && stored_ms.zip(meanwhile.until_ms).is_none_or(|(stored, until)| stored >= until)
        {
            meanwhile.changes.push((tenant.clone(), digest, stored));
        }
    }

    /// All entries of batch `n` of another replica's journal are recorded.
    pub(crate) fn heard(&self, replica: &Name, n: u64) {
        let mut state = self.0.lock();
        let last = state.heard.entry(replica.clone()).or_insert(n);
        *last = (*last).max(n);
        // Names begin with their replicas' start time: the first is the one most likely gone.
        if state.heard.len() > limits::LEDGER_HEARD_MAX {
            state.heard.pop_first();
        }
    }

    /// Whether the collector is listing.
    pub(crate) fn is_counting(&self) -> bool {
        self.0.lock().meanwhile.is_some()
    }

    /// The tenants of whose usage this replica has not said the latest.
    pub(crate) fn unpublished(&self) -> Vec<Name> {
        let state = self.0.lock();
        let unpublished = state.accounts.iter().filter(|(_, account)| !account.is_published());
        unpublished.map(|(tenant, _)| tenant.clone()).collect()
    }

    /// A tenant's usage, which the caller tells the others, and [`Reach::listed_ms`] of it; `None` without a count.
    pub(crate) fn publish(&self, tenant: &Name) -> Option<(Stored, i64)> {
        let mut state = self.0.lock();
        let account = state.accounts.get_mut(tenant).filter(|account| account.was_listed())?;
        let stored = account.stored();
        let now = Instant::now();
        (account.published, account.counted_at) = (Some((stored, now)), Some(now));
        let listed_ms = account.reach.as_ref().and_then(|(_, reach)| reach.listed_ms.or(reach.until_ms));
        Some((stored, listed_ms.unwrap_or(i64::MIN)))
    }

    /// Reserves `wanted`, if `quota` allows it.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        tenant: &Name,
        quota: StoredQuota,
        wanted: Stored,
    ) -> Result<Reservation, Full> {
        let mut state = self.0.lock();
        let account = state.accounts.entry(tenant.clone()).or_default();
        let used = account.used();
        let over = |limit, max: Option<u64>, used: u64, wanted: u64| match max {
            Some(max) if used.saturating_add(wanted) > max => Err(Full { limit, max, used }),
            _ => Ok(()),
        };
        over("stored_objects", quota.objects, used.objects, wanted.objects)?;
        over("stored_bytes", quota.bytes, used.bytes, wanted.bytes)?;
        account.reserved = account.reserved.plus(wanted);
        Ok(Reservation { ledger: Arc::clone(self), tenant: tenant.clone(), stored: wanted })
    }

    /// Whether a recent enough count of `tenant` is known, or an older one while the collector counts anew.
    pub(crate) fn is_counted(&self, tenant: &Name) -> bool {
        let state = self.0.lock();
        let is_counting = state.meanwhile.is_some();
        state
            .accounts
            .get(tenant)
            .is_some_and(|account| account.is_counted() || (is_counting && account.counted_at.is_some()))
    }

    /// Whether a tenant was counted within [`limits::LEDGER_LISTED_AGE_MAX`].
    pub(crate) fn was_listed(&self, tenant: &Name) -> bool {
        self.0.lock().accounts.get(tenant).is_some_and(Account::was_listed)
    }

    /// Held while a tenant's objects are listed.
    pub(crate) fn counting(&self, tenant: &Name) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.0.lock().accounts.entry(tenant.clone()).or_default().counting)
    }

    /// Applies a count by the replica `counter`.
    pub(crate) fn take_count(&self, tenant: &Name, counted: Stored, counter: &Name, reach: &Reach) {
        let mut state = self.0.lock();
        let account = state.accounts.entry(tenant.clone()).or_default();
        if account.is_outdated(reach.until_ms) {
            return;
        }
        account.counted = counted;
        let now = Instant::now();
        (account.counted_at, account.listed_at) = (Some(now), Some(now));
        account.since.retain(|later| !reach.includes(later));
        account.reach = Some((counter.clone(), reach.clone()));
    }

    /// The collector starts listing; whatever was stored before `until_ms` of the store's time is in the
    /// listing, or gone. False while another collector of this replica is listing: what is stored meanwhile is remembered for
    /// that one.
    pub(crate) fn begin_count(&self, until_ms: Option<i64>) -> bool {
        let mut state = self.0.lock();
        let begins = state.meanwhile.is_none();
        state.meanwhile.get_or_insert_with(|| Meanwhile { until_ms, changes: Vec::new() });
        begins
    }

    /// The collector has finished listing. Returns the tenants' counts as of now: with concurrent changes
    /// that were not listed.
    pub(crate) fn end_count(&self, mut count: Count) -> BTreeMap<Name, Stored> {
        let mut state = self.0.lock();
        let meanwhile = state.meanwhile.take().map(|meanwhile| meanwhile.changes);
        for (tenant, digest, stored) in meanwhile.unwrap_or_default() {
            if count.recent.insert(digest) {
                let sum = count.tenants.entry(tenant).or_default();
                *sum = sum.plus(stored);
            }
        }
        // Report tenants without any remaining data as well.
        for tenant in state.accounts.keys() {
            count.tenants.entry(tenant.clone()).or_default();
        }
        count.tenants
    }
}

#[cfg(test)]
mod tests;
