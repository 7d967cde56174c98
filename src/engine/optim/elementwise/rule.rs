//! The rule of an optimizer that treats every element alike.

use super::super::optimizer::Rates;
use crate::device::Real;
use crate::ir::Fill;
use std::fmt::Debug;

/// The numbers that a row of the schedule has at most, and the constants that a rule has.
pub const MAX_SCALARS: usize = 4;

/// What a rule computes with besides the element, in the accumulator type.
#[derive(Clone, Copy, Debug)]
pub struct Scalars<A> {
    /// The step's row of the schedule, then zeros.
    pub row: [A; MAX_SCALARS],
    /// [`Rule::constants`].
    pub constants: [A; MAX_SCALARS],
}

/// A number that an optimizer keeps for every element.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Name of its buffer in the state.
    pub buffer: &'static str,
    /// Its tensors in checkpoints are called this and the parameter's name.
    pub checkpoint_prefix: &'static str,
}

/// How an optimizer with `N` slots updates an element, whatever its neighbours are: its arithmetic for the CPU, and
/// in `kernels/NAME.cu` the same roundings for a GPU.
pub trait Rule<const N: usize>: Clone + Debug + PartialEq + Send + Sync + 'static {
    /// What programs, the kernel and the kernel's file call it.
    const NAME: &'static str;
    /// The slots, all zero before the first step.
    const SLOTS: [Slot; N];
    /// The slots in plain words, such as `two moments`; empty without any.
    const SLOTS_IN_WORDS: &'static str;
    /// Columns of the schedule: 1, 2 or 4, so that a kernel loads a row at once.
    const COLUMNS: usize;

    /// Returns its constants in prints, such as `momentum=0.9`.
    fn attributes(&self) -> String;

    /// Returns the schedule's row of a step (from 1): [`COLUMNS`](Self::COLUMNS) numbers.
    fn schedule_row(&self, rates: Rates, step: u64) -> Vec<f64>;

    /// Returns the numbers that every step needs, then zeros. A kernel gets them in fp32.
    fn constants(&self) -> [f64; MAX_SCALARS];

    /// Updates one element: returns the new parameter and slots from the parameter `p`, its slots and its clipped
    /// gradient `g`. Implementations are `#[inline(always)]`, because the loop around them is vectorized.
    fn update<A: Real>(s: &Scalars<A>, decays: bool, p: A, slots: [A; N], g: A) -> (A, [A; N]);

    /// Returns hyperparameters that cases prove it with, and what the slots hold before the step.
    fn example() -> (Self, [Fill; N]);

    /// Computes [`update`](Self::update) in f64 as a textbook writes it, to compare with.
    fn reference(&self, row: &[f64], decays: bool, p: f64, slots: [f64; N], g: f64) -> (f64, [f64; N]);
}
