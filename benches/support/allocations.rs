//! A global allocator that counts what each thread asks for.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
#[derive(Debug)]
pub(crate) struct Counting;

/// Allocations and growths that the calling thread has made so far.
pub(crate) fn count() -> u64 {
    COUNT.get()
}

fn add_one() {
    // Not reachable once the thread's locals are gone; a thread that ends is not measured.
    COUNT.try_with(|count| count.set(count.get() + 1)).unwrap_or_default();
}

// SAFETY: each method passes its arguments on to the system's allocator, whose contract is the
// same; the count is a plain cell of the calling thread that allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add_one();
        // SAFETY: the caller's obligations are those of the call.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
