//! Each tenant's usage of the store as this replica knows it: the collector's count, plus the journal's
//! entries since.
//!
//! A count records how far it reaches into each replica's journal, so that every replica adds exactly the
//! later entries that it has seen. Removed objects count until the collector has deleted their bytes and
//! freed the space. Where replicas read counts alone, one of them reads all entries and publishes its accounts as counts.
//!
//! Writers on one replica reserve before they write, so together they never exceed a limit. Other replicas'
//! acknowledgements arrive with the journal's lag, so a tenant may exceed its limit by
//! `replicas × journal.lag × its write rate at one of them`, and by uploads in progress.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use kvasir_types::Name;
use parking_lot::Mutex;
use tokio::time::Instant;

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

    fn plus(self, other: Self) -> Self {
        Self {
            objects: self.objects.saturating_add(other.objects),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Self) -> Self {
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

/// The reach of a count: by replica, the last batch of its journal that is included.
pub(crate) type Reach = Arc<[(Name, u64)]>;

/// The accounts of all tenants.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<LedgerState>);

#[derive(Debug, Default)]
struct LedgerState {
    accounts: HashMap<Name, Account>,
    /// During a count: changes that may or may not be in its listing.
    meanwhile: Option<Vec<(Name, [u8; 32], Stored)>>,
    /// The last batch heard of each replica: an index that was emptied reads them again.
    heard: BTreeMap<Name, u64>,
}

#[derive(Debug, Default)]
struct Account {
    counted: Stored,
    counted_at: Option<Instant>,
    /// How far the count reaches, and the store's time at that in ms; none without a count.
    reach: Option<Reach>,
    as_of_ms: Option<i64>,
    /// What this replica said last to the others.
    published: Option<Stored>,
    /// Later changes, by replica and batch.
    since: VecDeque<(Name, u64, Stored)>,
    reserved: Stored,
}

impl Account {
    fn stored(&self) -> Stored {
        self.since.iter().fold(self.counted, |sum, (.., stored)| sum.plus(*stored))
    }

    fn used(&self) -> Stored {
        self.stored().plus(self.reserved)
    }

    /// Whether the count includes a batch.
    fn includes(&self, replica: &Name, n: u64) -> bool {
        self.reach.iter().flat_map(|reach| reach.iter()).any(|(of, last)| of == replica && n <= *last)
    }

    fn add(&mut self, replica: &Name, n: u64, stored: Stored) {
        match self.since.back_mut() {
            Some((last, batch, sum)) if last == replica && *batch == n => *sum = sum.plus(stored),
            _ => self.since.push_back((replica.clone(), n, stored)),
        }
        if self.since.len() > limits::LEDGER_BATCHES_MAX
            && let Some((.., oldest)) = self.since.pop_front()
        {
            self.counted = self.counted.plus(oldest);
        }
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

impl LedgerState {
    fn note(&mut self, tenant: &Name, digest: [u8; 32], stored: Stored) -> &mut Account {
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.push((tenant.clone(), digest, stored));
        }
        self.accounts.entry(tenant.clone()).or_default()
    }
}

impl Ledger {
    /// Records an object that this replica stored and reports in batch `n` of its journal; `digest` identifies it.
    pub(crate) fn note(&self, tenant: &Name, digest: [u8; 32], stored: Stored, this: &Name, n: u64) {
        self.0.lock().note(tenant, digest, stored).add(this, n, stored);
    }

    /// Records that batch `n` of another replica's journal reports an object as stored. Counts it once, whether the batch is
    /// read again or a count that includes it came first.
    pub(crate) fn note_heard(&self, tenant: &Name, digest: [u8; 32], stored: Stored, replica: &Name, n: u64) {
        let mut state = self.0.lock();
        let is_known = state.heard.get(replica).is_some_and(|last| n <= *last);
        let account = state.note(tenant, digest, stored);
        if !is_known && !account.includes(replica, n) {
            account.add(replica, n, stored);
        }
    }

    /// Batch `n` of another replica's journal is applied.
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
        let changed =
            state.accounts.iter().filter(|(_, account)| account.published != Some(account.stored()));
        changed.map(|(tenant, _)| tenant.clone()).collect()
    }

    /// A tenant's usage, which the caller tells the others; `None` without a count.
    pub(crate) fn publish(&self, tenant: &Name) -> Option<Stored> {
        let mut state = self.0.lock();
        let account = state.accounts.get_mut(tenant).filter(|account| account.reach.is_some())?;
        account.published = Some(account.stored());
        account.published
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

    /// Whether a recent enough count of `tenant` is known.
    pub(crate) fn is_counted(&self, tenant: &Name) -> bool {
        let state = self.0.lock();
        let at = state.accounts.get(tenant).and_then(|account| account.counted_at);
        at.is_some_and(|at| at.elapsed() < limits::LEDGER_AGE_MAX)
    }

    /// Applies a count that reaches as far as `reach`, unless a later one is known: counts are read by replica, not in order.
    pub(crate) fn take_count(&self, tenant: &Name, counted: Stored, reach: &Reach, as_of_ms: Option<i64>) {
        let mut state = self.0.lock();
        let account = state.accounts.entry(tenant.clone()).or_default();
        if as_of_ms.is_some() && as_of_ms < account.as_of_ms {
            return;
        }
        account.as_of_ms = as_of_ms;
        account.counted = counted;
        account.counted_at = Some(Instant::now());
        account.reach = Some(Arc::clone(reach));
        let since = std::mem::take(&mut account.since);
        account.since = since.into_iter().filter(|(replica, n, _)| !account.includes(replica, *n)).collect();
    }

    /// The collector starts listing.
    pub(crate) fn begin_count(&self) {
        self.0.lock().meanwhile = Some(Vec::new());
    }

    /// The collector has finished listing. Returns the tenants' counts as of now: with concurrent changes
    /// that were not listed.
    pub(crate) fn end_count(&self, mut count: Count) -> BTreeMap<Name, Stored> {
        let mut state = self.0.lock();
        for (tenant, digest, stored) in state.meanwhile.take().unwrap_or_default() {
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

/// The collector's count from a listing.
#[derive(Debug, Default)]
pub(crate) struct Count {
    tenants: BTreeMap<Name, Stored>,
    /// Objects young enough to be in the journal during this pass.
    recent: HashSet<[u8; 32]>,
}

impl Count {
    /// Counts a listed object; `digest` identifies it if it is young.
    pub(crate) fn met(&mut self, tenant: &Name, bytes: u64, digest: Option<[u8; 32]>) {
        self.recent.extend(digest);
        let sum = self.tenants.entry(tenant.clone()).or_default();
        *sum = sum.plus(Stored::one(bytes));
    }

    /// A listed object was deleted.
    pub(crate) fn deleted(&mut self, tenant: &Name, bytes: u64) {
        let sum = self.tenants.entry(tenant.clone()).or_default();
        *sum = sum.minus(Stored::one(bytes));
    }
}

#[cfg(test)]
mod tests {
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
        ledger.note(&a, [1; 32], Stored::one(60), &name("r"), 0);
        drop((first, second));
        assert_eq!(used(&ledger, "a"), Stored::one(60));
        ledger.note(&a, [2; 32], Stored { objects: 2, bytes: 0 }, &name("r"), 0);
        assert_eq!(ledger.reserve(&a, quota, Stored::one(1)).expect_err("three").limit, "stored_objects");
    }

    proptest! {
        /// Whenever stores happen around a count, and in whatever order batches and the count arrive, every
        /// replica ends with the true usage; also if its index is emptied, and it reads all batches again.
        #[test]
        fn all_replicas_come_to_the_truth(
            stores in prop::collection::vec((0u8..3, 0u64..4, 1u64..100), 1..40),
            cut in 0usize..40, listed: u64, arrives in 0usize..40, again: bool,
        ) {
            let (counter, other, tenant) = (Ledger::default(), Ledger::default(), name("a"));
            let replica = |r: u8| name(&format!("r{r}"));
            let digest = |i: usize| { let mut d = [0; 32]; d[..8].copy_from_slice(&(i as u64).to_le_bytes()); d };
            let cut = cut.min(stores.len());
            // A replica's batch numbers grow over time.
            let mut numbers = [0u64; 3];
            let batches: Vec<(Name, u64, u64)> = stores.iter().map(|(r, step, bytes)| {
                numbers[usize::from(*r)] += step;
                (replica(*r), numbers[usize::from(*r)], *bytes)
            }).collect();
            counter.begin_count();
            let mut count = Count::default();
            for (i, (replica, n, bytes)) in batches[..cut].iter().enumerate() {
                // Some were listed, some were stored after the listing.
                if listed >> (i % 64) & 1 == 1 {
                    count.met(&tenant, *bytes, Some(digest(i)));
                }
                counter.note(&tenant, digest(i), Stored::one(*bytes), replica, *n);
            }
            let mut reach: Vec<(Name, u64)> = Vec::new();
            for (replica, n, _) in &batches[..cut] {
                reach.retain(|(of, _)| of != replica);
                reach.push((replica.clone(), *n));
            }
            let counted = counter.end_count(count).get(&tenant).copied().unwrap_or_default();
            // A batch arrives whole or not at all: the entries of the count's last batch are in both.
            let whole = |(replica, n, _): &(Name, u64, u64)| !reach.iter().any(|(of, last)| of == replica && n == last);
            let later: Vec<_> = batches[cut..].iter().filter(|batch| whole(batch)).collect();
            let mut heard: BTreeMap<(Name, u64), Vec<u64>> = BTreeMap::new();
            for (replica, n, bytes) in batches[..cut].iter().chain(later.iter().copied()) {
                heard.entry((replica.clone(), *n)).or_default().push(*bytes);
            }
            let (reach, arrives) = (reach.into(), arrives.min(heard.len()));
            for look in 0..=u8::from(again) {
                for (i, ((replica, n), objects)) in heard.iter().enumerate() {
                    if look == 0 && i == arrives {
                        other.take_count(&tenant, counted, &reach, Some(1));
                    }
                    for bytes in objects {
                        other.note_heard(&tenant, digest(i), Stored::one(*bytes), replica, *n);
                    }
                    other.heard(replica, *n);
                }
                if look == 0 && arrives == heard.len() {
                    other.take_count(&tenant, counted, &reach, Some(1));
                }
            }
            let truth = Stored {
                objects: (cut + later.len()) as u64,
                bytes: batches[..cut].iter().map(|b| b.2).sum::<u64>() + later.iter().map(|b| b.2).sum::<u64>(),
            };
            prop_assert_eq!(used(&other, "a"), truth);
        }
    }
}
