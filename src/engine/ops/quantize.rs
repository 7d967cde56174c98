//! Rounds matrices to 8-bit floats, from which products of fp8 programs read.
//!
//! A matrix has one scale. GPUs multiply 8-bit floats only along rows of both factors, so the op also writes
//! the transpose where a product sums over the rows.

use super::lanes::rows_per_task;
use super::observe::{largest, launch_largest};
use crate::device::cpu::ViewMut;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::error::Result;
use crate::ir::{
    Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, INVERSE, Mode, Op, Precision, SCALES_ROW, Scales, Spec,
};
use crate::policy::Fp8Scaling;
use crate::{dispatch_float, dispatch_fp8};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The layouts in which a matrix is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layouts {
    /// Its rows.
    pub rows: bool,
    /// The rows of its transpose.
    pub transposed: bool,
}

/// `q = round(scale·x)` for a matrix `x[N, …]` of `columns` columns, to the nearest number, ties to even.
/// Numbers beyond the largest of the format become the largest; NaN stays NaN.
///
/// Inputs: x, and with delayed scaling scales `[8]`. Outputs, in this order: the rows `[N, columns]` and the
/// transpose `[columns, N]`, as far as they are asked for; with current scaling scales `[8]`; if it observes,
/// the site's maximum `[1]`, which becomes the largest magnitude of `x` if that is larger, and the site's
/// counts `[2]`, f64, to which it adds how many numbers were beyond the largest and how many others than zero
/// became zero; with current scaling a scratch. `scales` are as in [`Scales`]. Maximum and counts have
/// `Mode::Add`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantize {
    /// The 8-bit format.
    pub format: DType,
    /// What is written.
    pub layouts: Layouts,
    /// Where the scale comes from.
    pub scaling: Fp8Scaling,
    /// Elements per row.
    pub columns: usize,
    /// True if the matrix counts towards its site's maximum and counts. False where it is recomputed.
    pub observes: bool,
}

/// Sides of the matrices that GPUs multiply are multiples of this.
pub const SIDE: usize = 16;

/// The smallest maximum that a scale is made for, as in PyTorch's recipes: a matrix of zeros has one too.
const SMALLEST: f64 = 1e-12;

/// Returns the scale that puts a maximum at the largest number of a format, and the scale's inverse. The
/// quotient is computed in f64, so that every device has the same. An infinite or missing maximum gives a
/// scale that makes numbers NaN.
pub fn scales(format: DType, maximum: f32) -> Scales {
    let largest = dispatch_fp8!(format, F => F::LARGEST);
    let size = f64::from(maximum);
    let scale = (f64::from(largest) / if size < SMALLEST { SMALLEST } else { size }) as f32;
    [scale, 0.0, 0.0, 0.0, (1.0 / f64::from(scale)) as f32, 0.0, 0.0, 0.0]
}

/// What tasks have seen of a matrix. Maxima and counts are exact in any order.
#[derive(Debug, Default)]
struct Seen {
    /// The bits of the largest magnitude, which order like the magnitudes, with NaN above infinity.
    largest: AtomicU32,
    saturated: AtomicU64,
    flushed: AtomicU64,
}

/// Returns true for the spec of [`Scales`].
pub(super) fn is_scales(spec: &Spec) -> bool {
    spec.dtype == DType::F32 && spec.bytes() == size_of::<Scales>()
}

impl Quantize {
    /// Returns the index of the first output after the matrices.
    fn matrices(&self) -> usize {
        usize::from(self.layouts.rows) + usize::from(self.layouts.transposed)
    }

    /// Returns the index of the first output after the matrices and the scales.
    fn after_scales(&self) -> usize {
        self.matrices() + usize::from(self.scaling == Fp8Scaling::Current)
    }

    /// Returns the indices of the outputs with the maximum and the counts, if it observes.
    pub(super) fn site_outputs(&self) -> Option<[usize; 2]> {
        self.observes.then(|| [self.after_scales(), self.after_scales() + 1])
    }

    /// Rounds the matrix on the CPU.
    fn round<E: Elem, F: Elem<Acc = f32>>(&self, cx: &CpuNode<'_>, scale: f32, largest: f32) -> Seen {
        let (x, columns) = (cx.input::<E>(0), self.columns);
        let rows = x.len() / columns.max(1);
        let by_rows: Option<ViewMut<'_, F>> = self.layouts.rows.then(|| cx.output(0));
        let transposed = self.layouts.transposed.then(|| cx.output::<F>(self.matrices() - 1));
        let seen = Seen::default();
        cx.pool.chunks(rows, rows_per_task(columns), |start, len| {
            let mut numbers = vec![E::Acc::ZERO; columns];
            let (mut most, mut saturated, mut flushed) = (0, 0, 0);
            for row in start..start + len {
                x.load(row * columns, &mut numbers);
                for (column, number) in numbers.iter().enumerate() {
                    let number = number.to_f64() as f32;
                    let scaled = number * scale;
                    let rounded = F::down(scaled);
                    most = most.max(number.abs().to_bits());
                    saturated += u64::from(scaled.abs() > largest);
                    flushed += u64::from(scaled != 0.0 && rounded.up() == 0.0);
                    if let Some(by_rows) = by_rows {
                        by_rows.slice(row * columns + column, 1)[0] = rounded;
                    }
                    if let Some(transposed) = transposed {
                        transposed.slice(column * rows + row, 1)[0] = rounded;
                    }
                }
            }
            seen.largest.fetch_max(most, Ordering::Relaxed);
            seen.saturated.fetch_add(saturated, Ordering::Relaxed);
            seen.flushed.fetch_add(flushed, Ordering::Relaxed);
        });
        seen
    }
}

impl Op for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn attributes(&self) -> String {
        let Layouts { rows, transposed } = self.layouts;
        let layouts = [rows.then_some("rows"), transposed.then_some("transposed")];
        let layouts: Vec<&str> = layouts.into_iter().flatten().collect();
        let current = if self.scaling == Fp8Scaling::Current { " scaling=current" } else { "" };
        format!("to={} layouts={}{current}", self.format, layouts.join("+"))
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let (x, scales) = match (inputs, self.scaling) {
            ([x, scales], Fp8Scaling::Delayed) => (x, Some(scales)),
            ([x], Fp8Scaling::Current) => (x, None),
            _ => return Err("takes x, and scales unless it computes them".into()),
        };
        let rows = x.elements() / self.columns.max(1);
        if !x.dtype.is_float() || !self.format.is_fp8() || rows * self.columns != x.elements() {
            return Err(format!("x must be a matrix of {} columns in a format of ops", self.columns));
        }
        if !rows.is_multiple_of(SIDE) || !self.columns.is_multiple_of(SIDE) {
            return Err(format!("{rows} rows and {} columns must be multiples of {SIDE}", self.columns));
        }
        if scales.is_some_and(|scales| !is_scales(scales)) {
            return Err("scales must be a row of 8 f32 numbers".into());
        }
        let mut outputs = Vec::new();
        outputs.extend(self.layouts.rows.then(|| Spec::new([rows, self.columns], self.format)));
        outputs.extend(self.layouts.transposed.then(|| Spec::new([self.columns, rows], self.format)));
        if outputs.is_empty() {
            return Err("writes neither rows nor the transpose".into());
        }
        outputs.extend((self.scaling == Fp8Scaling::Current).then(|| Spec::new([SCALES_ROW], DType::F32)));
        if self.observes {
            outputs.extend([Spec::new([1], DType::F32), Spec::new([2], DType::F64)]);
        }
        outputs.extend((self.scaling == Fp8Scaling::Current).then(|| Spec::new([1], DType::F32)));
        Ok(outputs)
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let once = Cost::streaming(inputs, outputs);
        let again = if self.scaling == Fp8Scaling::Current { inputs[0].bytes() as f64 } else { 0.0 };
        Cost { bytes: once.bytes + again, ..once }
    }

    fn accumulates(&self, output: usize) -> bool {
        self.site_outputs().is_some_and(|site| site.contains(&output))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let scale = match self.scaling {
            Fp8Scaling::Delayed => cx.input::<f32>(1).get(0),
            Fp8Scaling::Current => {
                let largest =
                    dispatch_float!(cx.input_spec(0).dtype, E => largest(cx.pool, cx.input::<E>(0)));
                let scales = scales(self.format, largest);
                cx.output::<f32>(self.matrices()).store(0, &scales);
                scales[0]
            }
        };
        let seen = dispatch_float!(cx.input_spec(0).dtype, E => dispatch_fp8!(self.format, F => {
            self.round::<E, F>(cx, scale, F::LARGEST)
        }));
        let Some([maximum, counts]) = self.site_outputs() else { return Ok(()) };
        let maximum = &mut cx.output::<f32>(maximum).slice(0, 1)[0];
        *maximum = f32::from_bits(maximum.to_bits().max(seen.largest.into_inner()));
        let found = [seen.saturated, seen.flushed].map(|count| count.into_inner() as f64);
        cx.output::<f64>(counts).put(0, &found, true);
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        /// Threads per block, and rows and columns of the tile of a block (kernels/quantize.cu).
        const THREADS: u32 = 256;
        const TILE: usize = 128;
        let (x, elements) = (cx.input(0), cx.input_spec(0).elements());
        let rows = elements / self.columns;
        let kernel = |entry| {
            Kernel::new("quantize", entry)
                .with("T", cx.input_spec(0).dtype)
                .with("FORMAT", self.format)
                .with("ROWS", u8::from(self.layouts.rows))
                .with("TRANSPOSED", u8::from(self.layouts.transposed))
                .with("OBSERVES", u8::from(self.observes))
        };
        let [maximum, counts] = self.site_outputs().map_or([0; 2], |site| site.map(|at| cx.output(at)));
        let by_rows = if self.layouts.rows { cx.output(0) } else { 0 };
        let transposed = if self.layouts.transposed { cx.output(self.matrices() - 1) } else { 0 };
        let blocks = [self.columns.div_ceil(TILE) as u32, rows.div_ceil(TILE) as u32, 1];
        let grid = Grid { blocks, threads: THREADS, shared: 0 };
        let before = [x, by_rows, transposed].map(Arg::from);
        let site = [maximum.into(), counts.into(), rows.into(), self.columns.into()];
        if self.scaling == Fp8Scaling::Delayed {
            let args = [&before[..], &[cx.input(1).into()], &site].concat();
            return cx.queue.launch(kernel("quantize"), grid, &args);
        }
        let scratch = self.after_scales() + 2 * usize::from(self.observes);
        let (scales, scratch) = (cx.output(self.matrices()), cx.output(scratch));
        cx.queue.fill(scratch, 0, DType::F32.size())?;
        launch_largest(cx, scratch)?;
        let args = [&before[..], &[scales.into(), scratch.into()], &site].concat();
        cx.queue.launch(kernel("quantize_current"), grid, &args)
    }

    fn cases(precision: Precision) -> Cases {
        let mut cases = Vec::new();
        let shapes = [[16, 16], [32, 48], [144, 272], [272, 144], [128, 1024]];
        for (k, [rows, columns]) in shapes.into_iter().enumerate() {
            for (format, scaling) in [
                (DType::E4m3, Fp8Scaling::Delayed),
                (DType::E5m2, Fp8Scaling::Delayed),
                (DType::E4m3, Fp8Scaling::Current),
                (DType::E5m2, Fp8Scaling::Current),
            ] {
                let both = Layouts { rows: true, transposed: true };
                let layouts = [both, Layouts { transposed: false, ..both }, Layouts { rows: false, ..both }];
                let observes = k != 2;
                let op = Quantize { format, layouts: layouts[k % 3], scaling, columns, observes };
                cases.push(case(op, rows, precision.act_dtype));
            }
        }
        Cases::Own(cases)
    }
}

/// Returns a given scale of a case, which saturates some normal numbers and flushes others.
pub(super) fn case_scales(format: DType) -> (Spec, Fill) {
    let scale: f32 = if format == DType::E4m3 { 200.0 } else { 30_000.0 };
    let mut row = vec![0.0; SCALES_ROW];
    (row[0], row[INVERSE]) = (f64::from(scale), f64::from(1.0 / scale));
    (Spec::new([SCALES_ROW], DType::F32), Fill::Values(row))
}

/// Returns the modes of a case's outputs, up to those of the site.
pub(super) fn case_outputs(op: Quantize) -> Vec<(Mode, Fill)> {
    let matrices = vec![(Mode::Write, Fill::Normal(0.0, 1.0)); op.after_scales()];
    // A maximum that normal numbers do not reach in the small shapes, and do in the others.
    let site = [(Mode::Add, Fill::Values(vec![3.0])), (Mode::Add, Fill::Values(vec![5.0, 7.0]))];
    matrices.into_iter().chain(site.into_iter().filter(|_| op.observes)).collect()
}

/// Returns the case of an op on normal numbers.
fn case(op: Quantize, rows: usize, from: DType) -> Case {
    let mut inputs = vec![(Spec::new([rows, op.columns], from), Fill::Normal(0.0, 1.0))];
    inputs.extend((op.scaling == Fp8Scaling::Delayed).then(|| case_scales(op.format)));
    let name = format!("n{rows} d{} to {} {:?}", op.columns, op.format, op.scaling);
    Case::new(name, op, inputs, move |inputs| reference(op, inputs))
        .without_gradient()
        .outputs(case_outputs(op))
}

/// Rounds by comparing with the numbers of the format, which are those that its bytes stand for.
pub(super) fn reference(op: Quantize, inputs: &[Array]) -> Vec<Array> {
    let x = &inputs[0].data;
    let most = x.iter().fold(0f32, |most, x| most.max((*x as f32).abs()));
    let numbers = dispatch_fp8!(op.format, F => {
        (0..0x7f).map(|byte| f64::from(F::from_bits(byte).up())).filter(|n| n.is_finite()).collect::<Vec<_>>()
    });
    let largest = numbers.iter().copied().fold(0.0, f64::max);
    let current = scales(op.format, most);
    let scale = if op.scaling == Fp8Scaling::Delayed { inputs[1].data[0] as f32 } else { current[0] };
    let round = |x: f64| {
        let scaled = f64::from(x as f32 * scale);
        let (size, above) = (scaled.abs().min(largest), numbers.partition_point(|&n| n < scaled.abs()));
        let above = above.min(numbers.len() - 1);
        let (low, high) = (numbers[above.saturating_sub(1)], numbers[above]);
        // Positions in the list alternate between even and odd mantissas.
        let up = match (high - size).total_cmp(&(size - low)) {
            std::cmp::Ordering::Equal => above.is_multiple_of(2),
            order => order.is_lt(),
        };
        (scaled, if up { high } else { low }.copysign(scaled))
    };
    let rounded: Vec<(f64, f64)> = x.iter().map(|&x| round(x)).collect();
    let (columns, rows) = (op.columns, x.len() / op.columns);
    let mut outputs = Vec::new();
    let array = |shape: [usize; 2], data| Array { shape: shape.to_vec(), data };
    if op.layouts.rows {
        outputs.push(array([rows, columns], rounded.iter().map(|(_, q)| *q).collect()));
    }
    if op.layouts.transposed {
        let at = |i: usize| rounded[i % rows * columns + i / rows].1;
        outputs.push(array([columns, rows], (0..x.len()).map(at).collect()));
    }
    if op.scaling == Fp8Scaling::Current {
        outputs.push(Array { shape: vec![8], data: current.map(f64::from).to_vec() });
    }
    let scratch = (op.scaling == Fp8Scaling::Current).then(|| Array { shape: vec![0], data: Vec::new() });
    if !op.observes {
        return outputs.into_iter().chain(scratch).collect();
    }
    let initial = &inputs[inputs.len() - 2..];
    let count = |of: &dyn Fn(&(f64, f64)) -> bool| rounded.iter().filter(|pair| of(pair)).count() as f64;
    let saturated = initial[1].data[0] + count(&|(scaled, _)| scaled.abs() > largest);
    let flushed = initial[1].data[1] + count(&|(scaled, q)| *scaled != 0.0 && *q == 0.0);
    outputs.push(Array { shape: vec![1], data: vec![initial[0].data[0].max(f64::from(most))] });
    outputs.push(Array { shape: vec![2], data: vec![saturated, flushed] });
    outputs.extend(scratch);
    outputs
}
