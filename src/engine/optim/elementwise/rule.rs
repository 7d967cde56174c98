//! The update rule of an optimizer that treats every element alike.

use super::super::optimizer::Rates;
use crate::device::Real;
use crate::ir::Fill;
use std::fmt::Debug;

/// The most numbers in a row of the schedule, and the number of a rule's constants.
pub const MAX_SCALARS: usize = 4;

/// What a rule computes with besides the element, in the accumulator type.
#[derive(Clone, Copy, Debug)]
pub struct Scalars<A> {
    /// The step's row of the schedule, padded with zeros.
    pub row: [A; MAX_SCALARS],
    /// Values of [`Rule::constants`].
    pub constants: [A; MAX_SCALARS],
}

/// A number that an optimizer keeps for every element.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Name of the buffer in the state.
    pub buffer: &'static str,
    /// Prefix of the tensors' names in checkpoints; the parameter's name follows.
    pub checkpoint_prefix: &'static str,
}

/// How an optimizer with `N` slots updates an element independently of its neighbors: arithmetic for the CPU.
/// For a GPU, `kernels/NAME.cu` does the same operations with the same roundings.
pub trait Rule<const N: usize>: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// Name in programs; also the name of the kernel and its file.
    const NAME: &'static str;
    /// The slots, all zero before the first step.
    const SLOTS: [Slot; N];
    /// The slots in plain words, such as `two moments`; empty if there are none.
    const SLOTS_DESCRIPTION: &'static str;
    /// Columns of the schedule: 1, 2 or 4, so that a kernel loads a row in one access.
    const COLUMNS: usize;

    /// Returns the rule's constants for prints, such as `momentum=0.9`.
    fn attributes(&self) -> String;

    /// Returns the [`COLUMNS`](Self::COLUMNS) numbers of the schedule for a step, counted from 1.
    fn schedule_row(&self, rates: Rates, step: u64) -> Vec<f64>;

    /// Returns the numbers that every step needs, padded with zeros. A kernel gets them in fp32.
    fn constants(&self) -> [f64; MAX_SCALARS];

    /// Updates one element. Returns the new parameter and slots, given the parameter `p`, its slots and its
    /// clipped gradient `g`. Implementations must be `#[inline(always)]`, so that the loop around them is
    /// vectorized.
    fn update<A: Real>(s: &Scalars<A>, decays: bool, p: A, slots: [A; N], g: A) -> (A, [A; N]);

    /// Returns hyperparameters for the test cases, and contents of the slots before the step.
    fn example() -> (Self, [Fill; N]);

    /// Computes [`update`](Self::update) in f64 by the textbook formula, for comparison.
    fn reference(&self, row: &[f64], decays: bool, p: f64, slots: [f64; N], g: f64) -> (f64, [f64; N]);
}
