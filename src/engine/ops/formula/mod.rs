//! Formulas as ops compute them: on the CPU step by step over blocks of elements, in kernels as code
//! generated from the steps.

mod code;
pub(super) mod registers;

use super::activation::{Activation, Names};
use super::lanes::{BLOCK, TASK, rows_per_task};
use crate::device::cpu::ViewMut;
use crate::device::gpu::Kernel;
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::expression::{Formula, Scope};
use crate::ir::CpuNode;
use registers::Registers;
use std::fmt;
use std::sync::Arc;

/// The function that an activation computes for every element.
#[derive(Clone, Debug, PartialEq)]
pub enum Function {
    /// A built-in function.
    BuiltIn(Activation),
    /// A formula.
    Formula(Arc<Elementwise>),
}

impl From<Activation> for Function {
    fn from(activation: Activation) -> Self {
        Self::BuiltIn(activation)
    }
}

impl From<&Formula> for Function {
    fn from(formula: &Formula) -> Self {
        Self::Formula(Arc::new(Elementwise::new(formula)))
    }
}

impl Function {
    /// Parses a formula, for test cases.
    ///
    /// Panics if the text is not a formula, which is a programming error.
    pub(super) fn from_text(text: &str) -> Self {
        (&Formula::parse(text, Scope::Activation).expect("a formula")).into()
    }

    /// Returns the names of the ops that apply the function, and of its functor in kernels.
    pub(super) fn names(&self) -> Names {
        match self {
            Self::BuiltIn(activation) => activation.names(),
            Self::Formula(_) => Names {
                functor: "Formula",
                activate: "formula",
                activate_grad: "formula_grad",
                gated: "gated_formula",
                gated_grad: "gated_formula_grad",
            },
        }
    }

    /// Returns the formula for printing; empty for a built-in function, which the op's name identifies.
    pub(super) fn attributes(&self) -> String {
        match self {
            Self::BuiltIn(_) => String::new(),
            Self::Formula(f) => f.formula.to_string(),
        }
    }

    /// Returns the number of variables.
    pub(super) fn variables(&self) -> usize {
        match self {
            Self::BuiltIn(_) => 1,
            Self::Formula(f) => f.formula.variables().len(),
        }
    }

    /// Adds the definitions by which kernels apply the function.
    pub(super) fn define(&self, kernel: Kernel) -> Kernel {
        let kernel = kernel.with("ACTIVATION", self.names().functor);
        match self {
            Self::BuiltIn(_) => kernel,
            Self::Formula(f) => {
                kernel.with("VARIABLES", f.formula.variables().len()).with("FORMULA", code::body(&f.formula))
            }
        }
    }
}

/// A formula with the registers of its steps, which follow from the formula.
pub struct Elementwise {
    /// The formula.
    pub formula: Formula,
    pub(super) value: Registers,
    pub(super) with_slopes: Registers,
}

impl fmt::Debug for Elementwise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.formula, f)
    }
}

impl PartialEq for Elementwise {
    fn eq(&self, other: &Self) -> bool {
        self.formula == other.formula
    }
}

impl Elementwise {
    /// Assigns registers to the steps of a formula.
    pub fn new(formula: &Formula) -> Self {
        let variables = formula.variables().len();
        Self {
            formula: formula.clone(),
            value: Registers::new(formula.steps(), variables),
            with_slopes: Registers::new(&formula.steps_with_slopes(), variables),
        }
    }

    /// Returns the body of a C++ function of the formula's variables, which returns its value and slopes.
    pub(super) fn code(&self) -> String {
        code::body(&self.formula)
    }

    /// Computes output 0, in rows of `width` elements, from input 0. For every row of the output, input 0 has
    /// one row per variable, one after another.
    ///
    /// # Errors
    /// Never: arithmetic does not fail.
    pub(super) fn values(&self, cx: &CpuNode<'_>, width: usize) -> Result<()> {
        let variables = self.formula.variables().len();
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            let rows = Rows { total: y.len(), width };
            cx.pool.chunks(rows.count(), rows_per_task(width), #[inline(always)] |start, len| {
                let mut blocks = self.value.blocks::<<E as Elem>::Acc>();
                for (row, at, count) in rows.blocks(start, len) {
                    for (v, block) in blocks[..variables].iter_mut().enumerate() {
                        x.load((variables * row + v) * width + at, &mut block[..count]);
                    }
                    self.value.run(&mut blocks, count);
                    y.store(row * width + at, &blocks[self.value.results[0]][..count]);
                }
            });
        });
        Ok(())
    }

    /// Computes the gradient of input 0 into output 0, given the gradient of the values in input 1. Output 0
    /// has the layout of input 0 in [`values`](Self::values). With `emits`, also writes the values to output
    /// 1.
    ///
    /// # Errors
    /// Never: arithmetic does not fail.
    pub(super) fn gradients(&self, cx: &CpuNode<'_>, width: usize, emits: bool) -> Result<()> {
        let variables = self.formula.variables().len();
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            let y: Option<ViewMut<'_, E>> = emits.then(|| cx.output::<E>(1));
            let rows = Rows { total: dy.len(), width };
            cx.pool.chunks(rows.count(), rows_per_task(variables * width), #[inline(always)] |start, len| {
                let mut blocks = self.with_slopes.blocks::<<E as Elem>::Acc>();
                let mut upstream = [<E as Elem>::Acc::ZERO; BLOCK];
                let results = &self.with_slopes.results;
                for (row, at, count) in rows.blocks(start, len) {
                    for (v, block) in blocks[..variables].iter_mut().enumerate() {
                        x.load((variables * row + v) * width + at, &mut block[..count]);
                    }
                    let upstream = &mut upstream[..count];
                    dy.load(row * width + at, upstream);
                    self.with_slopes.run(&mut blocks, count);
                    for (v, slope) in results[1..].iter().enumerate() {
                        let to = dx.slice((variables * row + v) * width + at, count);
                        for ((d, dy), slope) in to.iter_mut().zip(&*upstream).zip(&blocks[*slope][..count]) {
                            *d = E::down(*dy * *slope);
                        }
                    }
                    if let Some(y) = y {
                        y.store(row * width + at, &blocks[results[0]][..count]);
                    }
                }
            });
        });
        Ok(())
    }
}

/// The row width for a function of one variable, whose tensor is computed in rows of this width, whatever its
/// shape.
pub(super) const UNARY_ROW_WIDTH: usize = TASK;

/// Elements in rows of equal width; the last row may be shorter.
#[derive(Clone, Copy)]
struct Rows {
    total: usize,
    width: usize,
}

impl Rows {
    fn count(self) -> usize {
        self.total.div_ceil(self.width.max(1))
    }

    /// Returns the blocks of `len` rows from `start` on, as (row, first column, number of columns).
    #[inline(always)]
    fn blocks(self, start: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (start..start + len).flat_map(move |row| {
            let width = self.width.min(self.total - row * self.width);
            (0..width).step_by(BLOCK).map(move |at| (row, at, BLOCK.min(width - at)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_every_element_once() {
        for (total, width) in [(0, 5), (5, 5), (1000, 300), (700, 700), (10, UNARY_ROW_WIDTH)] {
            let rows = Rows { total, width };
            let mut next = 0;
            for (row, at, count) in rows.blocks(0, rows.count()) {
                assert_eq!(row * width + at, next);
                next += count;
            }
            assert_eq!(next, total);
        }
    }
}
