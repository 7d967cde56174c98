//! Puts parts of rows side by side, head by head: slices, joined rows, copies for every head, zeros.

use super::lanes::{MAX_ADDRESSES, addresses, rows_per_task};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp};
use std::ops::Range;

/// What the next elements of every head are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the tensor among the op's inputs; `None` for zeros.
    pub input: Option<usize>,
    /// The first element in a row of the tensor, for head 0.
    pub from: usize,
    /// The distance to the elements of the next head; 0 if all heads get the same ones.
    pub stride: usize,
    /// Number of elements.
    pub width: usize,
}

/// `y[N, heads·width]`, whose heads consist of these pieces of the inputs, `[N, …]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrange {
    /// Heads of a row of the output.
    pub heads: usize,
    /// The pieces of every head, in order.
    pub pieces: Vec<Piece>,
}

/// `(dy[N, heads·width], sums…) → the gradients of all inputs`: sums over the heads that got the same
/// elements, and zeros where nothing was read; or these are added to the gradients that other ops have
/// recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrangeGrad {
    /// The op whose gradient this is.
    pub of: Arrange,
    /// The dimensions of a row of every input.
    pub rows: Vec<Vec<usize>>,
    /// The inputs with recorded gradients to add to, which follow dy.
    pub adds_to: Vec<usize>,
}

/// Returns the number of elements in a row of a tensor.
fn row_width(spec: &Spec) -> usize {
    spec.shape[1..].iter().product()
}

impl Arrange {
    /// Returns the number of elements of a head.
    fn width(&self) -> usize {
        self.pieces.iter().map(|piece| piece.width).sum()
    }

    /// Returns the pieces with their first elements in a head.
    fn placed(&self) -> impl Iterator<Item = (usize, &Piece)> {
        self.pieces.iter().scan(0, |next, piece| {
            let start = *next;
            *next += piece.width;
            Some((start, piece))
        })
    }

    /// Returns the columns of an input from the first one that the op reads to the last.
    fn columns_read(&self, input: usize) -> Range<usize> {
        let pieces = || self.pieces.iter().filter(|piece| piece.input == Some(input) && piece.width > 0);
        let end = |piece: &Piece| piece.from + piece.stride * (self.heads - 1) + piece.width;
        let first = pieces().map(|piece| piece.from).min().unwrap_or_default();
        first..pieces().map(end).max().unwrap_or(first)
    }

    /// Returns a kernel of kernels/arrange.cu and the number of elements that a thread handles. `rows` has
    /// the widths of the inputs' rows.
    fn kernel(&self, entry: &'static str, rows: &[usize], spec: &Spec) -> (Kernel, usize) {
        let numbers = |(start, p): (usize, &Piece)| match p.input {
            Some(input) => [start, p.from, p.stride, p.width, rows[input]].to_vec(),
            None => [start, p.width].to_vec(),
        };
        let aligned = |vec: usize| {
            let all = self.placed().flat_map(numbers).chain(rows.iter().copied());
            all.chain([self.width()]).all(|n| n.is_multiple_of(vec))
        };
        let wide = 16 / spec.dtype.size();
        let vec = if aligned(wide) { wide } else { 1 };
        let pieces = self.placed().map(|(start, p)| {
            let (input, row) = p.input.map_or((-1, 0), |input| (input as i64, rows[input]));
            format!("{{{input},{start},{},{},{},{row}}}", p.from, p.stride, p.width)
        });
        let kernel = Kernel::new("arrange", entry)
            .with("T", spec.dtype)
            .with("HEADS", self.heads)
            .with("WIDTH", self.width())
            .with("VEC", vec)
            .with("COUNT", self.pieces.len())
            .with("PIECES", pieces.collect::<Vec<_>>().join(","));
        (kernel, vec)
    }
}

/// Threads per block.
const THREADS: u32 = 256;

impl Op for Arrange {
    fn name(&self) -> &'static str {
        "arrange"
    }

    fn attributes(&self) -> String {
        let piece = |p: &Piece| match p.input {
            None => format!("0*{}", p.width),
            Some(input) if self.heads == 1 => format!("{input}[{}..{}]", p.from, p.from + p.width),
            Some(input) => format!("{input}[{}+{}h..+{}]", p.from, p.stride, p.width),
        };
        let heads = if self.heads == 1 { String::new() } else { format!("heads={} ", self.heads) };
        format!("{heads}{}", self.pieces.iter().map(piece).collect::<Vec<_>>().join(" "))
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [first, ..] = inputs else { return Err("takes at least one tensor".into()) };
        let fits = |input: &Spec| {
            let rows = input.shape.len() > 1 && input.shape[0] == first.shape[0];
            rows && input.alloc == input.shape && input.dtype == first.dtype
        };
        if inputs.len() > MAX_ADDRESSES || !first.dtype.is_float() || !inputs.iter().all(fits) {
            return Err("takes float rows of one format and number, without padding".into());
        }
        for piece in &self.pieces {
            let Some(input) = piece.input else { continue };
            let last_head = piece.stride.checked_mul(self.heads.saturating_sub(1));
            let end = last_head.and_then(|last| last.checked_add(piece.from)?.checked_add(piece.width));
            let row = inputs.get(input).map(row_width);
            if end.is_none_or(|end| row.is_none_or(|row| end > row))
                || (1..piece.width).contains(&piece.stride)
            {
                return Err(format!("{piece:?} is no part of the inputs, or its heads overlap"));
            }
        }
        let read = (0..inputs.len()).all(|input| self.pieces.iter().any(|piece| piece.input == Some(input)));
        if !read || self.heads == 0 {
            return Err("every input is read, and there is a head".into());
        }
        Ok(vec![Spec::new([first.shape[0], self.heads * self.width()], first.dtype)])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let wrt: Vec<usize> = (0..v.input_count()).collect();
        let rows = wrt.iter().map(|&i| v.spec(v.input(i)).shape[1..].to_vec()).collect();
        let dy: TensorId = v.output_grad(0)?;
        let (adds_to, sums): (Vec<usize>, Vec<TensorId>) =
            wrt.iter().filter_map(|&i| Some((i, v.sum_to_add_to(i)?))).unzip();
        let op = ArrangeGrad { of: self.clone(), rows, adds_to };
        v.backward(op, &[&[dy], &sums[..]].concat(), &wrt)?;
        wrt.into_iter().for_each(|i| v.includes_sum(i));
        Ok(())
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, heads, width) = (cx.output_spec(0).shape[0], self.heads, self.width());
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let y = cx.output::<E>(0);
            cx.pool.chunks(rows, rows_per_task(heads * width), |start, len| {
                for (row, head) in (start..start + len).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                    for (at, piece) in self.placed() {
                        let to = y.slice((row * heads + head) * width + at, piece.width);
                        let Some(input) = piece.input else {
                            to.fill(E::default());
                            continue;
                        };
                        let from = row * row_width(cx.input_spec(input)) + piece.from + head * piece.stride;
                        to.copy_from_slice(cx.input::<E>(input).slice(from, piece.width));
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let output = cx.output_spec(0);
        if output.elements() == 0 {
            return Ok(());
        }
        let rows: Vec<usize> = (0..cx.inputs.len()).map(|i| row_width(cx.input_spec(i))).collect();
        let (kernel, vec) = self.kernel("arrange", &rows, output);
        let grid = Grid::covering(output.elements() / vec, THREADS);
        cx.queue.launch(kernel, grid, &[addresses(cx.inputs), cx.output(0).into(), output.elements().into()])
    }

    fn cases(precision: Precision) -> Cases {
        let part = |input, from, stride, width| Piece { input: Some(input), from, stride, width };
        let zeros = |width| Piece { input: None, from: 0, stride: 0, width };
        let case = |name: &str, rows: usize, inputs: &[usize], heads: usize, pieces: Vec<Piece>| {
            let spec = |width: &usize| Spec::new([rows, *width], precision.act_dtype);
            let inputs = inputs.iter().map(|width| (spec(width), Fill::Normal(0.0, 1.0))).collect();
            let op = Arrange { heads, pieces };
            let reference = op.clone();
            Case::new(format!("n{rows} {name}"), op, inputs, move |inputs: &[Array]| {
                let mut y = Array { shape: vec![rows, heads * reference.width()], data: Vec::new() };
                for row in 0..rows {
                    for head in 0..heads {
                        for piece in &reference.pieces {
                            y.data.extend((0..piece.width).map(|i| {
                                let Some(input) = piece.input else { return 0.0 };
                                let at = piece.from + head * piece.stride + i;
                                inputs[input].data[row * inputs[input].width() + at]
                            }));
                        }
                    }
                }
                vec![y]
            })
        };
        Cases::Own(vec![
            case("a slice", 17, &[24], 1, vec![part(0, 8, 0, 8)]),
            case("another slice", 17, &[24], 1, vec![part(0, 16, 0, 8)]),
            case("an odd slice", 5, &[13], 1, vec![part(0, 3, 0, 7)]),
            case("slices of heads", 9, &[4 * 16], 4, vec![part(0, 8, 16, 8)]),
            case("two rows", 33, &[8, 5], 1, vec![part(0, 0, 0, 8), part(1, 0, 0, 5)]),
            case(
                "own and common elements",
                9,
                &[3 * 16, 8],
                3,
                vec![part(0, 0, 16, 16), part(1, 0, 0, 8), zeros(8)],
            ),
            case("halves swapped", 255, &[32], 1, vec![part(0, 16, 0, 16), part(0, 0, 0, 16)]),
            case("one part twice", 6, &[6], 2, vec![part(0, 1, 3, 2), part(0, 0, 0, 3)]),
        ])
    }
}

impl ArrangeGrad {
    /// Returns the index of the sum that the gradient of an input of the op is added to.
    fn sum_for(&self, input: usize) -> Option<usize> {
        Some(1 + self.adds_to.iter().position(|&other| other == input)?)
    }
}

impl Op for ArrangeGrad {
    fn name(&self) -> &'static str {
        "arrange_grad"
    }

    fn attributes(&self) -> String {
        let adds =
            if self.adds_to.is_empty() { String::new() } else { format!(" adds_to={:?}", self.adds_to) };
        self.of.attributes() + &adds
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [dy, sums @ ..] = inputs else { return Err("takes dy".into()) };
        let gradient = |row: &Vec<usize>| Spec::new([&dy.shape[..1], row].concat(), dy.dtype);
        let outputs: Vec<Spec> = self.rows.iter().map(gradient).collect();
        match self.of.infer(&outputs)? {
            y if y[0] != *dy => Err("dy must be the op's result".into()),
            _ if sums.len() != self.adds_to.len()
                || !self.adds_to.iter().zip(sums).all(|(&i, sum)| outputs.get(i) == Some(sum)) =>
            {
                Err("the sums to add to must be like the gradients".into())
            }
            _ => Ok(outputs),
        }
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let alias = |(at, &output): (usize, &usize)| MayAlias { output, input: 1 + at };
        self.adds_to.iter().enumerate().map(alias).collect()
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, heads, width) = (cx.input_spec(0).shape[0], self.of.heads, self.of.width());
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let dy = cx.input::<E>(0);
            for (input, row_shape) in self.rows.iter().enumerate() {
                let (dx, own) = (cx.output::<E>(input), row_shape.iter().product::<usize>());
                let before = self.sum_for(input).map(|i| cx.input::<E>(i));
                let pieces: Vec<(usize, &Piece)> =
                    self.of.placed().filter(|(_, piece)| piece.input == Some(input)).collect();
                cx.pool.chunks(rows, rows_per_task(own), |start, len| {
                    let mut sums = vec![A::ZERO; own];
                    for row in start..start + len {
                        match before {
                            Some(before) => before.load(row * own, &mut sums),
                            None => sums.fill(A::ZERO),
                        }
                        for &(at, piece) in &pieces {
                            for head in 0..heads {
                                let from = dy.slice((row * heads + head) * width + at, piece.width);
                                let to = &mut sums[piece.from + head * piece.stride..][..piece.width];
                                to.iter_mut().zip(from).for_each(|(to, from)| *to += from.up());
                            }
                        }
                        dx.store(row * own, &sums);
                    }
                });
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let rows: Vec<usize> = self.rows.iter().map(|row| row.iter().product()).collect();
        for (input, row) in rows.iter().enumerate() {
            let sum = self.sum_for(input).map_or(0, |i| cx.input(i));
            let columns = if sum == cx.output(input) { self.of.columns_read(input) } else { 0..*row };
            let elements = cx.input_spec(0).shape[0] * columns.len();
            if elements == 0 {
                continue;
            }
            let (kernel, vec) = self.of.kernel("arrange_grad", &rows, cx.input_spec(0));
            let grid = Grid::covering(elements / vec, THREADS);
            let sizes = [elements, *row, columns.start, columns.len(), input].map(Arg::Size);
            let addresses = [cx.input(0), sum, cx.output(input)].map(Arg::Ptr);
            cx.queue.launch(kernel, grid, &[&addresses[..], &sizes].concat())?;
        }
        Ok(())
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Arrange>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All cases: the first and the last column of what the pieces say, element by element.
    #[test]
    fn columns_from_the_first_read_to_the_last() {
        let cases = Arrange::cases(Precision::for_act_dtype(crate::device::DType::F32)).own();
        for case in cases {
            let op: &dyn std::any::Any = case.op.as_ref();
            let op = op.downcast_ref::<Arrange>().unwrap();
            for input in 0..case.inputs.len() {
                let pieces = || op.pieces.iter().filter(|piece| piece.input == Some(input));
                let starts = |piece: &Piece| [0, op.heads - 1].map(|head| piece.from + head * piece.stride);
                let read: Vec<usize> = pieces()
                    .flat_map(|piece| starts(piece).map(|start| start..start + piece.width))
                    .flatten()
                    .collect();
                let columns = *read.iter().min().unwrap()..*read.iter().max().unwrap() + 1;
                assert_eq!(op.columns_read(input), columns, "{}", case.name);
            }
        }
    }
}
