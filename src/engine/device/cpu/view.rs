//! Typed windows onto tensor memory for the CPU implementations of ops.
//!
//! An op may get the same memory for an input and an output if it declared that alias harmless
//! (`Op::may_alias`), and its tasks write disjoint parts of one output from several threads. Rust references
//! can express neither, so views hold raw pointers and check every range. They rely on the contract of
//! `Op::cpu`: no two tasks of a node touch the same output element, and an op that declared an alias reads an
//! element of the input only in the task that writes the same element.

use crate::device::{Elem, Real};
use std::marker::PhantomData;

/// The address of a tensor while its node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub *mut u8);

// SAFETY: only views created from an address follow it, under the module's contract.
unsafe impl Send for Address {}
// SAFETY: see `Send`.
unsafe impl Sync for Address {}

/// Returns a copy of the bytes of a tensor that no node is writing.
pub fn copy_tensor_bytes(address: Address, bytes: usize) -> Vec<u8> {
    // SAFETY: the executor asks for outputs of the node that just ran, which are alive and initialized
    // (memory is zeroed on allocation).
    unsafe { std::slice::from_raw_parts(address.0, bytes) }.to_vec()
}

/// A tensor to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, E> {
    start: *const E,
    len: usize,
    lifetime: PhantomData<&'a [E]>,
}

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct ViewMut<'a, E> {
    start: *mut E,
    len: usize,
    lifetime: PhantomData<&'a [E]>,
}

// SAFETY: the module's contract keeps concurrent accesses disjoint; elements are plain numbers.
unsafe impl<E: Sync> Sync for View<'_, E> {}
// SAFETY: see above.
unsafe impl<E: Send> Send for View<'_, E> {}
// SAFETY: see above.
unsafe impl<E: Sync> Sync for ViewMut<'_, E> {}
// SAFETY: see above.
unsafe impl<E: Send> Send for ViewMut<'_, E> {}

impl<'a, E> View<'a, E> {
    /// Creates a view of `len` elements at `start`.
    ///
    /// # Safety
    /// The range must be allocated, aligned for `E`, initialized, and outlive `'a`. Writers follow the
    /// module's contract.
    pub unsafe fn new(start: *const E, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Creates a view of a slice, for callers outside a program (tests, matrix products on scratch).
    pub fn from_slice(slice: &'a [E]) -> Self {
        Self { start: slice.as_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `len` elements from `at` on.
    #[inline(always)]
    pub fn slice(&self, at: usize, len: usize) -> &'a [E] {
        assert!(at <= self.len && len <= self.len - at, "read of {at}+{len} in {}", self.len);
        // SAFETY: in range by the assertion; see the module's contract.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }
}

/// How many rows ahead tasks prefetch when they walk down some columns of a tensor.
pub const ROWS_AHEAD: usize = 16;

/// Prefetches the memory at an address, which need not be valid.
#[inline(always)]
pub(super) fn prefetch<A>(at: *const A) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl<E> View<'_, E> {
    /// Prefetches `len` elements from `at` on, which need not exist. For walks down the rows of a tensor,
    /// which hardware prefetchers do not detect.
    #[inline(always)]
    pub fn prefetch(&self, at: usize, len: usize) {
        /// Bytes in a cache line.
        const LINE: usize = 64;
        let start = self.start.wrapping_add(at).cast::<u8>();
        for line in (0..len * size_of::<E>()).step_by(LINE) {
            prefetch(start.wrapping_add(line));
        }
    }
}

impl<E: Elem> View<'_, E> {
    /// Widens `into.len()` elements from `at` on. Allowed even if an output aliases this input.
    #[inline(always)]
    pub fn load(&self, at: usize, into: &mut [E::Acc]) {
        let from = self.slice(at, into.len());
        for (to, from) in into.iter_mut().zip(from) {
            *to = from.up();
        }
    }

    /// Returns the element at `at`, widened.
    #[inline(always)]
    pub fn get(&self, at: usize) -> E::Acc {
        self.slice(at, 1)[0].up()
    }
}

impl<'a, E> ViewMut<'a, E> {
    /// Creates a writable view of `len` elements at `start`.
    ///
    /// # Safety
    /// The requirements of [`View::new`] hold, and tasks that run at the same time write disjoint ranges.
    pub unsafe fn new(start: *mut E, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Creates a view of a slice, for callers outside a program.
    pub fn from_slice(slice: &'a mut [E]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view for reading elements that no task is writing.
    pub fn as_view(&self) -> View<'a, E> {
        View { start: self.start, len: self.len, lifetime: PhantomData }
    }

    /// Returns `len` elements from `at` on for writing. The range belongs to the caller's task while it holds
    /// the slice.
    #[inline(always)]
    pub fn slice(&self, at: usize, len: usize) -> &'a mut [E] {
        assert!(at <= self.len && len <= self.len - at, "write of {at}+{len} in {}", self.len);
        // SAFETY: in range by the assertion; disjoint by the module's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

impl<E: Elem> ViewMut<'_, E> {
    /// Rounds `from` into the elements from `at` on.
    #[inline(always)]
    pub fn store(&self, at: usize, from: &[E::Acc]) {
        for (to, from) in self.slice(at, from.len()).iter_mut().zip(from) {
            *to = E::down(*from);
        }
    }
}

impl<A: Real> ViewMut<'_, A> {
    /// Adds `from` to the elements from `at` on, or overwrites them.
    #[inline(always)]
    pub fn put(&self, at: usize, from: &[A], add: bool) {
        let to = self.slice(at, from.len());
        if add {
            to.iter_mut().zip(from).for_each(|(t, f)| *t += *f);
        } else {
            to.copy_from_slice(from);
        }
    }
}
