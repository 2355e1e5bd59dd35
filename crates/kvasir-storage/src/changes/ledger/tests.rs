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
    assert!(ledger.reserve(&name("b"), quota, Stored::one(100)).is_ok(), "another tenant's limit is its own");
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
    let unreported = Later {
        replica: own.clone(),
        n: 7,
        is_journaled: false,
        stored_ms: Some(1_000),
        stored: Stored::one(50),
    };
    ledger.note_later(&a, [1; 32], unreported);
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
