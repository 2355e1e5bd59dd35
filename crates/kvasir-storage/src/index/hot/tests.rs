//! Damage to the database, before and under use; walks beside writes.

use std::{
    cell::Cell,
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    sync::{OnceLock, atomic::AtomicBool},
};

use kvasir_types::{BLOCK_TOKENS, ModelId, TokenChain};
use tempfile::TempDir;

use super::*;
use crate::index::hooked::{HookedIndex, Operation};

const ROOT: [u8; 32] = [9; 32];
const CACHE: u64 = 1 << 20;

fn scope() -> Scope {
    Scope::new(&"t".parse().expect("a name"), &ModelId::from([1; 32]))
}

fn chain(seed: u32) -> TokenChain {
    let tokens: Vec<u32> = (0..20 * BLOCK_TOKENS as u32).map(|i| i ^ (seed << 16)).collect();
    TokenChain::new(ROOT.into(), &tokens)
}

fn row(seed: u32) -> IndexEntry {
    let chain = chain(seed);
    let last = *chain.blocks().last().expect("not empty");
    IndexEntry {
        parent_hash: ROOT,
        blocks: IndexEntry::short_blocks(chain.blocks().iter().map(|b| &b.as_bytes()[..])),
        row: Arc::new(IndexRow {
            seq_hash: last,
            object_digest: (*last.as_bytes()).into(),
            profile_hash: [0; 32].into(),
            first_position: 0,
            token_count: chain.token_count() as u32,
            kl_beneath: 0.0,
            head_bytes: 1,
            object_bytes: 2,
            level_bytes: vec![2],
            errors: None,
        }),
    }
}

fn open(directory: &TempDir) -> Index {
    Index::sled(directory.path().into(), [5; 32], CACHE).expect("opens")
}

/// Threads of a database may hold its lock a moment longer than the index.
fn close(index: Index, directory: &TempDir) {
    drop(index);
    let database = File::open(directory.path().join("hot-0.sled/db")).expect("a database");
    database.lock().expect("its lock");
}

/// Rows of 0..count that are found; every one that is found is right.
fn found(index: &Index, count: u32) -> u32 {
    let mut found = 0;
    for seed in 0..count {
        let walk = index.walk(scope(), &ROOT, chain(seed).blocks(), Search::Fast, &|_| true);
        match walk.chunks.first().filter(|chunk| chunk.matched_blocks == 20) {
            Some(chunk) => {
                assert_eq!(chunk.row, *row(seed).row);
                found += 1;
            }
            None => assert_eq!(walk.whole_blocks, 0),
        }
    }
    found
}

#[test]
fn rows_outlive_the_process_and_belong_to_one_store() {
    let directory = TempDir::new().expect("a directory");
    let index = open(&directory);
    (0..50).for_each(|seed| index.insert(scope(), &row(seed)));
    index.remove(scope(), &row(7));
    index.flush();
    close(index, &directory);
    let index = open(&directory);
    assert_eq!((index.len(), found(&index, 50)), (49, 49));
    close(index, &directory);
    let other = Index::sled(directory.path().into(), [6; 32], CACHE).expect("opens");
    assert_eq!((other.len(), found(&other, 50)), (0, 0), "an index of one store is none of another");
}

/// The library does not say which modes its files get.
#[test]
fn no_other_user_may_read_a_file_of_the_database() {
    let directory = TempDir::new().expect("a directory");
    let folder = directory.path().join("hot-0.sled");
    let files = || {
        let entries = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.is_file()).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let index = open(&directory);
        index.insert(scope(), &row(1));
        index.flush();
        let modes = files().into_iter().map(|path| {
            let mode = fs::metadata(&path).expect("is there").permissions().mode() & 0o777;
            (path, mode)
        });
        let others: Vec<_> = modes.filter(|(_, mode)| *mode != 0o600).collect();
        assert!(others.is_empty() && files().len() >= 2, "{others:?}");
        close(index, &directory);
        // As a process with another mask may have left them.
        for path in files() {
            fs::set_permissions(path, Permissions::from_mode(0o644)).expect("changes");
        }
    }
}

#[test]
fn a_locked_database_is_left_alone() {
    let directory = TempDir::new().expect("a directory");
    let first = open(&directory);
    first.insert(scope(), &row(1));
    let second = open(&directory);
    assert_eq!(found(&second, 2), 0);
    second.insert(scope(), &row(0));
    assert_eq!((found(&first, 2), found(&second, 2)), (1, 1));
}

#[test]
fn any_damage_costs_rows_and_never_gives_wrong_ones() {
    for damage in 0..12u64 {
        let directory = TempDir::new().expect("a directory");
        let index = open(&directory);
        (0..200).for_each(|seed| index.insert(scope(), &row(seed)));
        index.flush();
        close(index, &directory);
        hurt(&directory.path().join("hot-0.sled/db"), damage);
        let index = open(&directory);
        let left = found(&index, 200);
        // Whatever is left, the index takes rows again and finds them.
        (0..200).for_each(|seed| index.insert(scope(), &row(seed)));
        let again = found(&index, 200);
        assert!(again == 200 || index.replaced() > 0, "damage {damage}: {left} left, {again} after");
        (0..200).for_each(|seed| index.insert(scope(), &row(seed)));
        assert_eq!(found(&index, 200), 200, "damage {damage}");
    }
}

#[test]
fn an_index_in_memory_stays_within_its_bytes_and_begins_anew() {
    let index = Index::memory_within(100_000);
    (0..1_000).for_each(|seed| index.insert(scope(), &row(seed)));
    assert!(index.replaced() > 0 && (1..500).contains(&index.len()), "{} rows", index.len());
    let enough = Index::memory_within(10_000_000);
    (0..1_000).for_each(|seed| enough.insert(scope(), &row(seed)));
    assert_eq!((enough.replaced(), found(&enough, 1_000)), (0, 1_000));
}

/// Cuts or flips, deterministically.
fn hurt(file: &std::path::Path, damage: u64) {
    let mut bytes = fs::read(file).expect("sled keeps its log here");
    let at = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % bytes.len();
    match damage % 3 {
        0 => bytes.truncate(at(damage + 1)),
        1 => {
            let places: Vec<_> = (0..64).map(|i| at(damage * 1_000 + i)).collect();
            places.into_iter().for_each(|place| bytes[place] ^= 0xff);
        }
        _ => {
            let start = at(damage);
            bytes.iter_mut().skip(start).take(4_096).for_each(|b| *b = 0);
        }
    }
    fs::write(file, bytes).expect("writes");
}

#[test]
fn a_failure_under_use_replaces_the_database_once() {
    for left in 0..40 {
        let steps = AtomicU64::new(0);
        let index = Index::over(Arc::new(HookedIndex::new(move |_| {
            let corrupt = || IndexError::Corrupt { what: "as the test wants it".to_owned() };
            (steps.fetch_add(1, Ordering::Relaxed) < left).then_some(()).ok_or_else(corrupt)
        })));
        std::thread::scope(|scope_| {
            for _ in 0..4 {
                scope_.spawn(|| (0..10).for_each(|seed| index.insert(scope(), &row(seed))));
            }
        });
        found(&index, 10);
        (0..10).for_each(|seed| index.insert(scope(), &row(seed)));
        assert_eq!(found(&index, 10), 10);
        assert_eq!(index.replaced(), 1, "after {left} operations");
    }
}

/// What only this process knows is in no row from which the filter could be filled again.
#[test]
fn what_was_noted_as_gone_stays_noted_when_the_database_is_emptied_or_replaced() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&is_broken);
    let index = Index::over(Arc::new(HookedIndex::new(move |_| {
        let corrupt = || IndexError::Corrupt { what: "as the test wants it".to_owned() };
        (!breaks.load(Ordering::Relaxed)).then_some(()).ok_or_else(corrupt)
    })));
    let (gone, other) = (ObjectDigest::from([1; 32]), ObjectDigest::from([2; 32]));
    index.note_gone(&gone);
    assert!(index.may_be_gone(&other), "no row was read yet");
    let may_be_gone = || {
        // Reads the filter.
        index.clear_removed(scope(), &other);
        [gone, other].map(|object| index.may_be_gone(&object))
    };
    assert_eq!(may_be_gone(), [true, false]);
    index.clear();
    assert_eq!(may_be_gone(), [true, false]);
    is_broken.store(true, Ordering::Relaxed);
    index.flush();
    assert_eq!((index.replaced(), may_be_gone()), (1, [true, false]));
}

/// The one that takes its place may have removals: then nothing is known of those.
#[test]
fn a_database_that_is_replaced_while_its_removals_are_read_says_nothing_of_the_next() {
    let shared: Arc<OnceLock<Index>> = Arc::default();
    let hook = Arc::clone(&shared);
    let database = HookedIndex::new(move |operation| match (operation, hook.get()) {
        (Operation::Seek, Some(index)) => {
            index.flush();
            Ok(())
        }
        (Operation::Whole, _) => Err(IndexError::Corrupt { what: "as the test wants it".to_owned() }),
        _ => Ok(()),
    });
    let index = shared.get_or_init(|| Index::over(Arc::new(database)));
    let object = ObjectDigest::from([1; 32]);
    for may_be_gone in [true, false] {
        // Reads the filter.
        index.clear_removed(scope(), &object);
        assert_eq!((index.replaced(), index.may_be_gone(&object)), (1, may_be_gone));
    }
}

/// Removals would be asked of the next one, which lacks them.
#[test]
fn a_walk_during_which_the_database_is_replaced_finds_nothing() {
    let index = Index::over(Arc::new(HookedIndex::new(|operation| match operation {
        Operation::Whole => Err(IndexError::Corrupt { what: "as the test wants it".to_owned() }),
        _ => Ok(()),
    })));
    index.insert(scope(), &row(0));
    let fails_meanwhile = |_: &IndexRow| {
        index.flush();
        true
    };
    let walk = index.walk(scope(), &ROOT, chain(0).blocks(), Search::Fast, &fails_meanwhile);
    assert_eq!((walk, index.replaced()), (Walk::default(), 1));
}

#[test]
fn a_walk_beside_an_insertion_takes_nothing_of_it() {
    let shared: Arc<OnceLock<Index>> = Arc::default();
    let hook = Arc::clone(&shared);
    // A chunk with a sibling has two rows. Somebody looks it up before and between they are written.
    let database = HookedIndex::new(move |operation| {
        if let Some(index) = hook.get().filter(|_| operation == Operation::Put) {
            index.walk(scope(), &ROOT, chain(1).blocks(), Search::Fast, &|_| true);
        }
        Ok(())
    });
    let index = shared.get_or_init(|| Index::over(Arc::new(database)));
    index.insert(scope(), &row(0));
    index.insert(scope(), &row(1));
    assert_eq!(found(index, 2), 2);
}

#[test]
fn a_walk_takes_no_row_that_came_back_while_it_looked() {
    let index = Index::memory();
    (0..2).for_each(|seed| index.insert(scope(), &row(seed)));
    let has_come_back = Cell::new(false);
    let walk =
        |search| index.walk(scope(), &ROOT, chain(1).blocks(), search, &|_| has_come_back.replace(true));
    assert_eq!(walk(Search::Thorough).whole_blocks, 0);
    assert_eq!(walk(Search::Thorough).whole_blocks, 20);
    assert_eq!((index.len(), found(&index, 2)), (2, 2));
    index.walk(scope(), &ROOT, chain(1).blocks(), Search::Thorough, &|_| false);
    assert_eq!((index.len(), found(&index, 2)), (1, 1), "what stays unusable goes");
}

/// A removal that another replica reported long after this one stored the object: only its row in the index knows the object. When
/// the removal is forgotten, the row must be gone: otherwise the index offers what the store no longer has.
#[test]
fn what_was_removed_leaves_the_index_before_the_removal_is_forgotten() {
    let directory = TempDir::new().expect("a directory");
    let index = open(&directory);
    (0..50).for_each(|seed| index.insert(scope(), &row(seed)));
    // The same blocks and one more: siblings, whose blocks have rows of their own.
    let longer = |seed: u32| {
        let mut entry = row(seed);
        let other: [u8; 32] = *blake3::hash(&seed.to_le_bytes()).as_bytes();
        entry.blocks = IndexEntry::short_blocks(
            chain(seed).blocks().iter().map(|b| &b.as_bytes()[..]).chain([&other[..]]),
        );
        let row = IndexRow {
            seq_hash: other.into(),
            object_digest: other.into(),
            token_count: entry.row.token_count + 16,
            ..(*entry.row).clone()
        };
        entry.row = Arc::new(row);
        entry
    };
    (0..5).for_each(|seed| index.insert(scope(), &longer(seed)));
    let other_tenant = Scope::new(&"u".parse().expect("a name"), &ModelId::from([1; 32]));
    index.insert(other_tenant, &row(3));
    let removal = |expires_ms| RemovedRow { expires_ms, by_request: false };
    for seed in 0..20 {
        index.put_removed(scope(), &row(seed).row.object_digest, removal(1_000 * i64::from(seed)));
    }
    (0..2).for_each(|seed| index.put_removed(scope(), &longer(seed).row.object_digest, removal(1_000)));
    // Of 0 to 9, and the two longer ones.
    assert_eq!((index.expire_removed(9_000), index.len()), (12, 56 - 12));
    assert!((0..10).all(|seed| index.removed(scope(), &row(seed).row.object_digest).is_none()));
    let offered = |scope, seed| {
        let walk = index.walk(scope, &ROOT, chain(seed).blocks(), Search::Thorough, &|_| true);
        walk.chunks.first().map(|chunk| chunk.row.object_digest)
    };
    assert!([0, 1, 5, 6, 7, 8, 9].iter().all(|seed| offered(scope(), *seed).is_none()));
    // A sibling that stays still matches, and so do others' rows.
    assert!((2..5).all(|seed| offered(scope(), seed) == Some(longer(seed).row.object_digest)));
    assert_eq!(offered(other_tenant, 3), Some(row(3).row.object_digest));
    assert_eq!(offered(scope(), 30), Some(row(30).row.object_digest));
    assert_eq!((index.expire_removed(9_000), index.len()), (0, 44));
}
