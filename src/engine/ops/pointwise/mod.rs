//! A function of rows and trained vectors, element by element. A number per head or per row, or a vector, is
//! broadcast to the elements that it belongs to.

mod cases;
mod gradient;
mod operand;

pub use gradient::PointwiseGrad;
pub use operand::Operand;

use super::arrange::{Arrange, Piece};
use super::formula::Elementwise;
use super::lanes::{BLOCK, MAX_ADDRESSES, addresses, rows_per_task, vector_width};
use crate::device::Elem;
use crate::device::cpu::View;
use crate::device::gpu::{Grid, Kernel};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::expression::{Formula, MAX_VARIABLES, Tree};
use crate::ir::{Builder, Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp};
use std::sync::Arc;

/// `y[N, heads·width] = f(variables)`. Inputs of more than one dimension are rows, `[N, …]`; those of one
/// dimension are trained vectors in the accumulator format.
///
/// The variables that are read from rows cover each of them exactly once, so that the gradient of a row is
/// written as a whole. With several heads, such variables have numbers of their own for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Pointwise {
    /// The function.
    pub function: Arc<Elementwise>,
    /// How each of its variables is read.
    pub operands: Vec<Operand>,
    /// Heads of a row of the output.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
}

impl Operand {
    /// Returns the number of elements of the variable in a row or vector.
    fn elements(&self, layout: &Layout) -> usize {
        let heads = if self.per_head { layout.heads } else { 1 };
        heads * self.head_elements(layout)
    }

    /// Returns the number of elements of the variable in a head.
    fn head_elements(&self, layout: &Layout) -> usize {
        if self.per_element { layout.width } else { 1 }
    }

    /// Returns the index of the variable's first element for a head, in a row or vector.
    fn at(&self, layout: &Layout, head: usize) -> usize {
        self.from + if self.per_head { head * self.head_elements(layout) } else { 0 }
    }
}

/// The sizes of an op in memory.
struct Layout {
    rows: usize,
    heads: usize,
    /// Elements of a head, including padding.
    width: usize,
    output: Spec,
}

fn is_vector(input: &Spec) -> bool {
    input.shape.len() == 1
}

/// Returns the number of elements that a row of a tensor has in memory; 0 for a vector, which has no rows.
fn stride(input: &Spec) -> usize {
    if is_vector(input) { 0 } else { input.elements() / input.alloc[0].max(1) }
}

impl Pointwise {
    /// Creates the op of a formula.
    pub fn new(formula: &Formula, operands: Vec<Operand>, heads: usize, width: usize) -> Self {
        Self { function: Arc::new(Elementwise::new(formula)), operands, heads, width }
    }

    /// Returns the sizes, given the specs of the inputs.
    ///
    /// # Errors
    /// If the inputs do not fit.
    fn layout(&self, inputs: &[Spec]) -> Result<Layout, String> {
        let variables = self.function.formula.variables().len();
        if self.operands.len() != variables || inputs.is_empty() || inputs.len() > MAX_VARIABLES {
            return Err(format!("takes one operand for each of {variables} variables"));
        }
        let Some(first) = inputs.iter().find(|input| !is_vector(input)) else {
            return Err("takes at least one tensor of rows".into());
        };
        let fits = |input: &Spec| match is_vector(input) {
            true => input.dtype == first.dtype.accumulator() && input.alloc == input.shape,
            false => input.dtype == first.dtype && input.alloc[0] == first.alloc[0],
        };
        if !first.dtype.is_float() || !inputs.iter().all(fits) {
            return Err("rows must be floats of one format and number, and vectors accumulators".into());
        }
        // The function of padding is padding.
        let is_padded = inputs.iter().any(|input| input.alloc != input.shape);
        let output = if is_padded {
            let row = [first.shape[0], self.width];
            if first.shape != row || self.heads != 1 || inputs.iter().any(|input| input != first) {
                return Err("padded rows must be alike".into());
            }
            first.clone()
        } else {
            Spec::new([first.shape[0], self.heads * self.width], first.dtype)
        };
        let width = output.width() / self.heads.max(1);
        let layout = Layout { rows: output.alloc[0], heads: self.heads, width, output };
        for (index, input) in inputs.iter().enumerate() {
            self.check_input(index, input, &layout)?;
        }
        Ok(layout)
    }

    /// Checks that variables lie in a vector, or cover a row.
    fn check_input(&self, index: usize, input: &Spec, layout: &Layout) -> Result<(), String> {
        let own = self.operands.iter().filter(|operand| operand.input == index);
        let mut parts: Vec<[usize; 2]> =
            own.clone().map(|o| [o.from, o.from.saturating_add(o.elements(layout))]).collect();
        parts.sort_unstable();
        if is_vector(input) {
            let inside = parts.iter().all(|[_, end]| *end <= input.shape[0]);
            return if inside && !parts.is_empty() { Ok(()) } else { Err("reads beyond a vector".into()) };
        }
        let covered = parts.iter().try_fold(0, |next, &[from, end]| (from == next).then_some(end));
        let apart = layout.heads == 1 || own.clone().all(|operand| operand.per_head);
        if covered == Some(stride(input)) && apart {
            return Ok(());
        }
        Err(format!("variables must cover the rows {input} once"))
    }

    /// Returns, for every variable, its first column in a row of partial sums, and their number.
    fn partials(&self, inputs: &[Spec], layout: &Layout) -> (Vec<usize>, usize) {
        let mut next = 0;
        let columns = self.operands.iter().map(|operand| {
            let column = next;
            let own = layout.heads * operand.head_elements(layout);
            next += if is_vector(&inputs[operand.input]) { own } else { 0 };
            column
        });
        (columns.collect(), next)
    }

    /// Adds the definitions of kernels/pointwise.cu, apart from those of the gradient. `vec` is the number of
    /// elements that a thread handles.
    fn kernel(&self, entry: &'static str, inputs: &[Spec], layout: &Layout, vec: usize) -> Kernel {
        let (columns, partials) = self.partials(inputs, layout);
        let operands = self.operands.iter().zip(columns).map(|(operand, column)| {
            let [per_head, per_element] = [operand.per_head, operand.per_element].map(u8::from);
            let (input, from, stride) = (operand.input, operand.from, stride(&inputs[operand.input]));
            format!("{{{input},{from},{stride},{per_head},{per_element},{column}}}")
        });
        let operands = operands.collect::<Vec<_>>().join(",");
        let names = self.function.formula.variables().iter().enumerate();
        let variables: String = names.map(|(i, name)| format!("const float {name} = all[{i}]; ")).collect();
        Kernel::new("pointwise", entry)
            .with("T", layout.output.dtype)
            .with("HEADS", layout.heads)
            .with("WIDTH", layout.width)
            .with("VEC", vec)
            .with("VARIABLES", self.operands.len())
            .with("OPERANDS", operands)
            .with("PARTIALS", partials)
            .with("FUNCTION", variables + &self.function.code())
    }

    /// Returns the number of elements that a thread can move at once, for all variables with a number per
    /// element.
    fn vector_width(&self, inputs: &[Spec], layout: &Layout) -> usize {
        let vec = vector_width(layout.width, layout.output.dtype);
        let aligned = |operand: &Operand| {
            !operand.per_element
                || operand.from.is_multiple_of(vec) && stride(&inputs[operand.input]).is_multiple_of(vec)
        };
        if self.operands.iter().all(aligned) { vec } else { 1 }
    }
}

const _: () = assert!(MAX_VARIABLES <= MAX_ADDRESSES, "the addresses of all inputs fit in an argument");

/// The memory of a variable on the CPU.
enum Values<'a, E: Elem> {
    Rows(View<'a, E>, usize),
    Vector(&'a [E::Acc]),
}

impl<'a, E: Elem> Values<'a, E> {
    fn new(cx: &CpuNode<'a>, operand: &Operand) -> Self {
        let spec = cx.input_spec(operand.input);
        match is_vector(spec) {
            true => Self::Vector(cx.input::<E::Acc>(operand.input).slice(0, spec.elements())),
            false => Self::Rows(cx.input::<E>(operand.input), stride(spec)),
        }
    }

    /// Loads the elements of a head from `column` on.
    #[inline(always)]
    fn load(&self, operand: &Operand, row: usize, at: usize, column: usize, into: &mut [E::Acc]) {
        match (self, operand.per_element) {
            (Self::Rows(x, stride), true) => x.load(row * stride + at + column, into),
            (Self::Rows(x, stride), false) => into.fill(x.get(row * stride + at)),
            (Self::Vector(x), true) => into.copy_from_slice(&x[at + column..][..into.len()]),
            (Self::Vector(x), false) => into.fill(x[at]),
        }
    }
}

impl Op for Pointwise {
    fn name(&self) -> &'static str {
        "pointwise"
    }

    fn attributes(&self) -> String {
        let heads = if self.heads == 1 { String::new() } else { format!(" heads={}", self.heads) };
        format!("{}{heads}", self.function.formula)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        Ok(vec![self.layout(inputs)?.output])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs: Vec<TensorId> = (0..v.input_count()).map(|i| v.input(i)).collect();
        let wrt: Vec<usize> = (0..inputs.len()).collect();
        inputs.push(v.output_grad(0)?);
        let rows = |i: &usize| !is_vector(v.spec(v.input(*i)));
        let (adds_to, sums): (Vec<usize>, Vec<TensorId>) =
            wrt.iter().filter(|i| rows(i)).filter_map(|&i| Some((i, v.sum_to_add_to(i)?))).unzip();
        inputs.extend(sums);
        v.backward(PointwiseGrad { of: self.clone(), adds_to: adds_to.clone() }, &inputs, &wrt)?;
        adds_to.into_iter().for_each(|i| v.includes_sum(i));
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        // A thread reads elsewhere unless a variable is a whole row.
        let whole = |operand: &&Operand| {
            let readers = self.operands.iter().filter(|other| other.input == operand.input).count();
            readers == 1 && operand.per_element && operand.per_head | (self.heads == 1)
        };
        let whole = self.operands.iter().filter(whole);
        whole.map(|operand| MayAlias { output: 0, input: operand.input }).collect()
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        // Operations on vectors and numbers alone have no rows of their own.
        let is_of_rows = |part: &Tree| {
            let reads_rows = |i: usize| !is_vector(b.spec(inputs[self.operands[i].input]));
            part.operations() > 0 && part.any(&mut |part| matches!(part, Tree::Variable(i) if reads_rows(*i)))
        };
        let operands = self.function.formula.tree().operands();
        if !operands.into_iter().any(|operand| operand.any(&mut |part| is_of_rows(part))) {
            return Ok(None);
        }
        Ok(Some(vec![self.one_by_one(b, inputs)?]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let layout = layout_of(self, cx);
        let (heads, width) = (layout.heads, layout.width);
        dispatch_float!(layout.output.dtype, E => {
            let y = cx.output::<E>(0);
            let values: Vec<Values<'_, E>> = self.operands.iter().map(|operand| Values::new(cx, operand)).collect();
            cx.pool.chunks(layout.rows, rows_per_task(heads * width), #[inline(always)] |start, len| {
                let registers = &self.function.value;
                let mut blocks = registers.blocks::<<E as Elem>::Acc>();
                for (row, head) in (start..start + len).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                    for column in (0..width).step_by(BLOCK) {
                        let count = BLOCK.min(width - column);
                        for ((operand, values), block) in self.operands.iter().zip(&values).zip(&mut blocks) {
                            values.load(operand, row, operand.at(&layout, head), column, &mut block[..count]);
                        }
                        registers.run(&mut blocks, count);
                        let at = (row * heads + head) * width + column;
                        y.store(at, &blocks[registers.results[0]][..count]);
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const THREADS: u32 = 256;
        let inputs: Vec<Spec> = (0..cx.inputs.len()).map(|i| cx.input_spec(i).clone()).collect();
        let layout = self.layout(&inputs).map_err(Error::failed)?;
        let elements = layout.output.elements();
        if elements == 0 {
            return Ok(());
        }
        let vec = self.vector_width(&inputs, &layout);
        let kernel = self.kernel("pointwise", &inputs, &layout, vec);
        let args = [addresses(cx.inputs), cx.output(0).into(), elements.into()];
        cx.queue.launch(kernel, Grid::covering(elements / vec, THREADS), &args)
    }

    fn cases(precision: Precision) -> Cases {
        Cases::Own(cases::cases(precision, Self::new))
    }
}

/// Returns the sizes of an op that is about to run, whose inputs were checked when it was recorded.
fn layout_of(op: &Pointwise, cx: &CpuNode<'_>) -> Layout {
    let inputs = (0..cx.node.inputs.len()).map(|i| cx.input_spec(i).clone());
    let inputs: Vec<Spec> = inputs.take(1 + op.operands.iter().map(|o| o.input).max().unwrap_or(0)).collect();
    op.layout(&inputs).expect("the inputs fit")
}

impl Pointwise {
    /// Records the function operation by operation, from copies of the variables that are parts of rows.
    fn one_by_one(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<TensorId> {
        let specs: Vec<Spec> = inputs.iter().map(|&input| b.spec(input).clone()).collect();
        let layout = self.layout(&specs).map_err(Error::failed)?;
        let mut variables = Vec::with_capacity(self.operands.len());
        for &operand in &self.operands {
            let (of, elements) = (inputs[operand.input], operand.elements(&layout));
            let is_whole = is_vector(b.spec(of)) || elements == stride(b.spec(of));
            variables.push(if is_whole {
                (of, operand)
            } else {
                let piece = Piece { input: Some(0), from: operand.from, stride: 0, width: elements };
                let op = Arrange { heads: 1, pieces: vec![piece] };
                (b.emit1("part", op, &[of])?, Operand { from: 0, ..operand })
            });
        }
        self.operation(b, &variables, self.function.formula.tree())
    }

    /// Records the last operation of a tree, after those that give its operands.
    fn operation(&self, b: &mut Builder, variables: &[(TensorId, Operand)], tree: &Tree) -> Result<TensorId> {
        let mut inputs: Vec<TensorId> = Vec::new();
        let mut operands: Vec<Operand> = Vec::new();
        let is_of_rows = |tree: &Tree, b: &Builder| {
            tree.any(&mut |part| matches!(part, Tree::Variable(i) if !is_vector(b.spec(variables[*i].0))))
        };
        let mut variable = |(tensor, operand): (TensorId, Operand)| {
            let input = inputs.iter().position(|&input| input == tensor).unwrap_or_else(|| {
                inputs.push(tensor);
                inputs.len() - 1
            });
            let operand = Operand { input, ..operand };
            let index = operands.iter().position(|&known| known == operand).unwrap_or_else(|| {
                operands.push(operand);
                operands.len() - 1
            });
            Tree::Variable(index)
        };
        let whole = Operand { input: 0, from: 0, per_head: true, per_element: true };
        let tree = tree.with_operands(&mut |part: &Tree| match part {
            Tree::Variable(index) => Ok(Some(variable(variables[*index]))),
            Tree::Number(_) | Tree::Constant(_) => Ok(None),
            part if is_of_rows(part, b) => {
                let tensor = self.operation(b, variables, part)?;
                Ok(Some(variable((tensor, whole))))
            }
            _ => Ok(None),
        })?;
        let formula = Formula::from_tree(tree, operands.len());
        b.emit1("part", Self::new(&formula, operands, self.heads, self.width), &inputs)
    }
}
