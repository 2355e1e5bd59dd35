//! What the targets share: an allocator that refuses what no small input can justify.

use std::alloc::{GlobalAlloc, Layout, System};

/// Largest single allocation. Inputs are a few kilobytes; what a directory or a plan may ask for beyond that is bounded by
/// the container's limits: a head of 10 MiB, and values of one piece.
pub const ALLOCATION_BYTES_MAX: usize = 64 << 20;

/// The system's allocator, aborting above [`ALLOCATION_BYTES_MAX`]: a length was believed before it was checked.
pub struct Bounded;

// SAFETY: every call is handed on as it is.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_BYTES_MAX {
            std::process::abort();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > ALLOCATION_BYTES_MAX {
            std::process::abort();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;
