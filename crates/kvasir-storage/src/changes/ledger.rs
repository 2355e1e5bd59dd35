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
    /// Chunk objects, profiles, versions of contexts, uploads waiting for their commit.
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
struct Later {
    replica: Name,
    n: u64,
    /// Whether the batch says so. Otherwise only this replica knows of them, until they are listed.
    is_journaled: bool,
    /// The store's time in ms at which the last of them was stored.
    stored_ms: Option<i64>,
    stored: Stored,
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

    /// As [`note`](Self::note), for an object of this replica that no journal reports, while `n` is the number
    /// of its next batch.
    pub(crate) fn note_unjournaled(
        &self,
        tenant: &Name,
        digest: [u8; 32],
        stored: Stored,
        (replica, n): (&Name, u64),
        stored_ms: Option<i64>,
    ) {
        let later = Later { replica: replica.clone(), n, is_journaled: false, stored_ms, stored };
        self.note_later(tenant, digest, later);
    }

    fn note_later(&self, tenant: &Name, digest: [u8; 32], later: Later) {
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
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn used(ledger: &Ledger, tenant: &str) -> Stored {
        ledger.0.lock().accounts.get(&name(tenant)).map(Account::used).unwrap_or_default()
    }

    #[test]
    fn reservations_never_go_beyond_a_limit_together() {
        let (ledger, a) = (Arc::new(Ledger::default()), name("a"));
        let quota = StoredQuota { objects: Some(3), bytes: Some(100) };
        let first = ledger.reserve(&a, quota, Stored::one(60)).expect("within the quota");
        let full = ledger.reserve(&a, quota, Stored::one(60)).expect_err("60 + 60");
        assert_eq!(full, Full { limit: "stored_bytes", max: 100, used: 60 });
        let second = ledger.reserve(&a, quota, Stored::one(40)).expect("just fits");
        assert!(
            ledger.reserve(&name("b"), quota, Stored::one(100)).is_ok(),
            "another tenant's limit is its own"
        );
        ledger.note(&a, [1; 32], Stored::one(60), (&name("r"), 0), None);
        drop((first, second));
        assert_eq!(used(&ledger, "a"), Stored::one(60));
        ledger.note(&a, [2; 32], Stored { objects: 2, bytes: 0 }, (&name("r"), 0), None);
        assert_eq!(ledger.reserve(&a, quota, Stored::one(1)).expect_err("three").limit, "stored_objects");
    }

    #[tokio::test(start_paused = true)]
    async fn a_count_is_valid_for_an_hour_or_until_the_next_one_is_done() {
        let (ledger, a) = (Ledger::default(), name("a"));
        let reach = Reach { batches: Arc::from([]), until_ms: None, listed_ms: None };
        let published = Some((Stored::one(9), i64::MIN));
        let counts = |ledger: &Ledger| ledger.take_count(&a, Stored::one(9), &name("r"), &reach);
        counts(&ledger);
        assert!(ledger.unpublished().contains(&a) && ledger.publish(&a) == published);
        assert!(ledger.unpublished().is_empty() && ledger.is_counted(&a));
        tokio::time::advance(limits::LEDGER_AGE_MAX / 2).await;
        assert!(ledger.unpublished().contains(&a), "the others would forget it");
        tokio::time::advance(limits::LEDGER_AGE_MAX / 2).await;
        assert!(!ledger.is_counted(&a));
        ledger.begin_count(None);
        assert!(ledger.is_counted(&a) && !ledger.is_counted(&name("b")), "a listing may take longer");
        ledger.end_count(Count::default());
        assert!(!ledger.is_counted(&a));
        counts(&ledger);
        // One that hears of all that is stored stands by its figures for hours.
        for _ in 0..limits::LEDGER_LISTED_AGE_MAX.as_secs() / 1800 {
            assert!(ledger.is_counted(&a) && ledger.publish(&a) == published);
            tokio::time::advance(Duration::from_secs(1800)).await;
        }
        assert!(!ledger.was_listed(&a) && ledger.publish(&a).is_none());
    }

    /// A replica announces uploads, and another one, which hears of batches alone, publishes its accounts.
    #[test]
    fn what_no_journal_says_counts_until_a_listing_includes_it() {
        let (ledger, a, own, keeper) = (Ledger::default(), name("a"), name("own"), name("keeper"));
        ledger.note_unjournaled(&a, [1; 32], Stored::one(50), (&own, 7), Some(1_000));
        ledger.note(&a, [2; 32], Stored::one(1), (&own, 7), Some(1_001));
        let take = |stored, until_ms, listed_ms| {
            let reach = Reach { batches: [(own.clone(), 7)].into(), until_ms: Some(until_ms), listed_ms };
            ledger.take_count(&a, stored, &keeper, &reach);
            used(&ledger, "a")
        };
        let both = Stored { objects: 2, bytes: 51 };
        assert_eq!(take(Stored::one(1), 9_000, Some(500)), both, "accounts since an earlier listing");
        assert_eq!(take(both, 10_000, Some(1_001)), both, "accounts since a later one");
        assert_eq!(take(both, 11_000, None), both, "a listing");
    }

    proptest! {
        /// Whenever stores happen around a count, and in whatever order batches and the count arrive, every
        /// replica ends with the true usage. Replica 0 counts. The count names the replicas whose last batch is
        /// young, and some others.
        #[test]
        fn all_replicas_come_to_the_truth(
            stores in prop::collection::vec((0u8..3, 0u64..4, 1u64..100), 1..40),
            cut in 0usize..40, until in 0usize..40, listed: u64, named: [bool; 3], early in [0usize..40, 0..40, 0..40],
        ) {
            let (counter, other, tenant) = (Ledger::default(), Ledger::default(), name("a"));
            let replica = |r: u8| name(&format!("r{r}"));
            let digest = |i: usize| { let mut d = [0; 32]; d[..8].copy_from_slice(&(i as u64).to_le_bytes()); d };
            let cut = cut.min(stores.len());
            let until = until.min(cut);
            // A replica's batch numbers grow over time.
            let mut numbers = [0u64; 3];
            let batches: Vec<(u8, u64, u64)> = stores.iter().map(|(r, step, bytes)| {
                numbers[usize::from(*r)] += step;
                (*r, numbers[usize::from(*r)], *bytes)
            }).collect();
            let note = |ledger: &Ledger, i: usize| {
                let (r, n, bytes) = batches[i];
                ledger.note(&tenant, digest(i), Stored::one(bytes), (&replica(r), n), Some(i as i64));
            };
            counter.begin_count(Some(until as i64));
            let mut count = Count::default();
            for (i, (.., bytes)) in batches[..cut].iter().enumerate() {
                // Some were listed, some were stored after the listing.
                if i < until || listed >> (i % 64) & 1 == 1 {
                    count.met(&tenant, *bytes, (i >= until).then(|| digest(i)));
                }
                note(&counter, i);
            }
            let mut reach: Vec<(Name, u64)> = Vec::new();
            for r in 0..3u8 {
                let of = |(_, (by, ..)): &(usize, &(u8, u64, u64))| *by == r;
                let Some((i, (_, n, _))) = batches[..cut].iter().enumerate().rfind(of) else { continue };
                if r == 0 || named[usize::from(r)] || i >= until {
                    reach.push((replica(r), *n));
                }
            }
            let counted = counter.end_count(count).get(&tenant).copied().unwrap_or_default();
            // Another replica's batch arrives whole or not at all: the entries of the count's last batch are in both.
            let is_later = |i: &usize| {
                let (r, n, _) = batches[*i];
                r == 0 || !reach.iter().any(|(of, last)| *of == replica(r) && n == *last)
            };
            let later: Vec<usize> = (cut..batches.len()).filter(is_later).collect();
            let is_early = |i: &usize| batches[*i].0 == 0 || *i < early[usize::from(batches[*i].0)];
            (0..cut).filter(is_early).for_each(|i| note(&other, i));
            let reach = Reach { batches: reach.into(), until_ms: Some(until as i64), listed_ms: None };
            other.take_count(&tenant, counted, &replica(0), &reach);
            (0..cut).filter(|i| !is_early(i)).chain(later.iter().copied()).for_each(|i| note(&other, i));
            // A count from before, of a replica that has ended, changes nothing.
            let outdated = Reach { until_ms: Some(until as i64 - 1), ..reach };
            other.take_count(&tenant, Stored::one(1 << 40), &name("ended"), &outdated);
            let truth = Stored {
                objects: (cut + later.len()) as u64,
                bytes: (0..cut).chain(later).map(|i| batches[i].2).sum::<u64>(),
            };
            prop_assert_eq!(used(&other, "a"), truth);
        }
    }
}
