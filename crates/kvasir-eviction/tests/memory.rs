//! What an entry of the default policy costs the heap, its part of everything that grows with the entries included.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering},
};

use kvasir_eviction::{Access, ClassId, EntryKey, Moment, PolicyKind};

/// Entries that one request uses.
const REQUEST_ENTRIES: u64 = 24;

/// Bytes that are allocated now.
static HELD: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: everything is the system's; counting touches no memory of callers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        HELD.fetch_add(size as u64, Ordering::Relaxed);
        HELD.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes of a policy that may keep `entries` and was given twice as many, of values that differ by `levels`.
fn held<K: EntryKey>(entries: u64, levels: u64, key: fn(u64) -> K) -> u64 {
    let before = HELD.load(Ordering::Relaxed);
    let mut policy = PolicyKind::Adaptive.build::<K>();
    let (mut first, mut random) = (0, 1u64);
    while first < 2 * entries {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // One request in four repeats one of the last.
        let back = if random >> 62 == 0 { (random >> 20) % 64 * REQUEST_ENTRIES } else { 0 };
        let start = first.saturating_sub(back);
        let now = Moment::from_millis(first);
        for offset in 0..REQUEST_ENTRIES {
            let parent = (offset > 0).then(|| key(start + offset - 1));
            let worth = 9f32.powi(-((offset % levels) as i32));
            let access = Access::new(now, ClassId::OTHER).at(offset as u32, parent).worth(worth);
            if !policy.touch(&key(start + offset), &access) {
                policy.insert(key(start + offset), &access);
            }
        }
        first = first.max(start + REQUEST_ENTRIES);
        while policy.bytes() > entries {
            assert!(policy.evict(now).is_some());
        }
    }
    assert_eq!(policy.len() as u64, entries);
    HELD.load(Ordering::Relaxed) - before
}

/// Bytes that one more entry takes: between 50,000 and 100,000, where what is bounded has reached its bound.
fn per_entry<K: EntryKey>(levels: u64, key: fn(u64) -> K) -> u64 {
    let few = held(50_000, levels, key);
    (held(100_000, levels, key) - few) / 50_000
}

/// The memory of evicted entries' uses is part of it. Frames have keys of 20 bytes, and four levels of which each waits in a
/// group of its own. One test: the counter is the process's.
#[test]
fn an_entry_takes_at_most_64_bytes_and_a_frame_112() {
    let block = per_entry::<u64>(1, |number| number);
    assert!(block <= 64, "{block} bytes an entry");
    let frame = per_entry::<[u32; 5]>(4, |number| [number as u32; 5]);
    assert!(frame <= 112, "{frame} bytes a frame");
}
