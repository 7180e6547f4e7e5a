//! A global allocator that counts what each thread asks for, and what the process holds.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that are allocated, of all threads.
static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
#[derive(Debug)]
pub(crate) struct Counting;

/// Allocations and growths that the calling thread has made so far.
pub(crate) fn count() -> u64 {
    COUNT.get()
}

/// Bytes that the process has asked for and not given back; what the allocator adds to each piece
/// is not among them.
pub(crate) fn held_bytes() -> usize {
    HELD_BYTES.load(Ordering::Relaxed)
}

fn take(bytes: usize) {
    HELD_BYTES.fetch_add(bytes, Ordering::Relaxed);
    add_one();
}

fn give_back(bytes: usize) {
    HELD_BYTES.fetch_sub(bytes, Ordering::Relaxed);
}

fn add_one() {
    // Not reachable once the thread's locals are gone; a thread that ends is not measured.
    COUNT.try_with(|count| count.set(count.get() + 1)).unwrap_or_default();
}

// SAFETY: each method passes its arguments on to the system's allocator, whose contract is the
// same; the counts are a plain cell of the calling thread and an atomic, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        give_back(layout.size());
        take(size);
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
