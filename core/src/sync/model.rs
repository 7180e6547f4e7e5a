//! What this folder is made of: the language's own atomics and cells, or loom's under `--cfg loom`.

#[cfg(loom)]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence},
    },
};

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::Mutex;

/// A cell with the interface of loom's.
#[cfg(not(loom))]
pub(super) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
