//! Typed windows onto tensor memory, as an op's CPU implementation sees them.
//!
//! An op may be given the same memory for an input and an output when it declared that alias as harmless
//! (`Op::may_alias`), and its tasks write disjoint parts of one output from several threads. Rust references
//! cannot say either, so views hold raw pointers and check every range. What they rely on is the contract of
//! `Op::cpu`: no two tasks of a node touch the same output element, and an op that declared an alias reads an
//! element of the input only in the task that writes the same element.

use crate::device::{Elem, Real};
use std::marker::PhantomData;

/// The address of a tensor while its node runs.
#[derive(Clone, Copy, Debug)]
pub struct Address(pub *mut u8);

// SAFETY: an address is only followed by the views made from it, under the module's contract.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// Returns a copy of the bytes of a tensor that no node is writing.
pub fn copy_of(address: Address, bytes: usize) -> Vec<u8> {
    // SAFETY: the executor asks for the outputs of the node that just ran, which are alive and initialized
    // (memory is zeroed when it is made).
    unsafe { std::slice::from_raw_parts(address.0, bytes) }.to_vec()
}

/// A tensor that is read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, E> {
    start: *const E,
    len: usize,
    lifetime: PhantomData<&'a [E]>,
}

/// A tensor that is written.
#[derive(Clone, Copy, Debug)]
pub struct ViewMut<'a, E> {
    start: *mut E,
    len: usize,
    lifetime: PhantomData<&'a [E]>,
}

// SAFETY: the module's contract keeps concurrent accesses disjoint; elements are plain numbers.
unsafe impl<E: Sync> Sync for View<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Send> Send for View<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Sync> Sync for ViewMut<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Send> Send for ViewMut<'_, E> {}

impl<'a, E> View<'a, E> {
    /// Creates a view of `len` elements at `start`.
    ///
    /// # Safety
    /// The range must be allocated, aligned for `E`, initialized, and outlive `'a`; writers follow the
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

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` elements from `at`.
    #[inline(always)]
    pub fn slice(&self, at: usize, len: usize) -> &'a [E] {
        assert!(at <= self.len && len <= self.len - at, "read of {at}+{len} in {}", self.len);
        // SAFETY: in range by the assertion; see the module's contract.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }
}

/// Rows of a tensor ahead of which tasks ask for memory, where they walk down a part of its columns.
pub const ROWS_AHEAD: usize = 16;

/// Asks for the memory at an address, which need not be one.
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
    /// Asks for `len` elements from `at`, of which none need exist: for walks down the rows of a tensor,
    /// which processors do not foresee.
    #[inline(always)]
    pub fn prefetch(&self, at: usize, len: usize) {
        /// Bytes that a processor fetches at once.
        const LINE: usize = 64;
        let start = self.start.wrapping_add(at).cast::<u8>();
        for line in (0..len * size_of::<E>()).step_by(LINE) {
            prefetch(start.wrapping_add(line));
        }
    }
}

impl<E: Elem> View<'_, E> {
    /// Widens `into.len()` elements from `at`. Safe where an output aliases this input.
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
    /// As for [`View::new`]; tasks that run at the same time write disjoint ranges.
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

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements to read: those that no task writes meanwhile.
    pub fn to_read(&self) -> View<'a, E> {
        View { start: self.start, len: self.len, lifetime: PhantomData }
    }

    /// `len` elements from `at`, to write. The caller's task owns that range while it holds it.
    #[inline(always)]
    pub fn slice(&self, at: usize, len: usize) -> &'a mut [E] {
        assert!(at <= self.len && len <= self.len - at, "write of {at}+{len} in {}", self.len);
        // SAFETY: in range by the assertion; disjoint by the module's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

impl<E: Elem> ViewMut<'_, E> {
    /// Rounds `from` into the elements from `at`.
    #[inline(always)]
    pub fn store(&self, at: usize, from: &[E::Acc]) {
        for (to, from) in self.slice(at, from.len()).iter_mut().zip(from) {
            *to = E::down(*from);
        }
    }
}

impl<A: Real> ViewMut<'_, A> {
    /// Adds `from` to the elements from `at`, or overwrites them.
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
