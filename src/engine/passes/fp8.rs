//! Lets products read 8-bit floats: the products of the weights that the state holds as such, and of their
//! gradients.
//!
//! A matrix is rounded right before the first product that reads it, into all layouts that products read, and
//! keeps one scale through forward, recomputation and backward. A weight is rounded in the first micro-step
//! of a step, at its first product, into the memory of its compute copy.

use super::fp8_head::split_heads;
use crate::device::DType;
use crate::error::{Error, Result};
use crate::ir::{
    Builder, Destination, Fp8Param, Fp8Slot, Fp8State, Home, Mode, Node, Op, Param, Phase, Program, SiteKind,
    SlotId, Spec, TensorId,
};
use crate::ops::copy::Copy;
use crate::ops::head_loss::{HeadLoss, LOGITS};
use crate::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};
use crate::ops::linear_add::LinearAdd;
use crate::ops::observe::Observe;
use crate::ops::quantize::{Layouts, Quantize, SIDE};
use crate::ops::scaled_product::ScaledProduct;
use crate::policy::Fp8Scaling;
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Replaces the products of the weights that the program's state holds as 8-bit floats. Returns the program
/// unchanged if there are none.
///
/// With `first`, the program also rounds these weights, from their compute copies. `scaling` is that of all
/// other matrices.
///
/// # Errors
/// If another op reads such a weight, or a matrix does not have the sides of a product.
pub fn quantize_products(program: Program, first: bool, scaling: Fp8Scaling) -> Result<Program> {
    let Some(fp8) = program.state.fp8.clone() else { return Ok(program) };
    let program = split_heads(program)?;
    let uses = uses(&program)?;
    let mut builder = Builder::resume(program);
    let nodes = builder.take_nodes();
    let mut pass = Pass { builder, fp8, scaling, uses, matrices: HashMap::new(), rounded: HashSet::new() };
    for node in nodes {
        pass.node(node, first)?;
    }
    Ok(pass.builder.finish())
}

/// Lets a program measure the maxima of the matrices that products of 8-bit floats would read, except
/// weights, and leaves the products as they are. So maxima do not depend on how a batch is divided.
///
/// # Errors
/// If another op reads a weight that the state holds as 8-bit floats.
pub fn observe_products(program: Program) -> Result<Program> {
    let Some(fp8) = program.state.fp8.clone() else { return Ok(program) };
    let program = split_heads(program)?;
    let uses = uses(&program)?;
    let mut builder = Builder::resume(program);
    let nodes = builder.take_nodes();
    let mut observed = HashSet::new();
    for node in nodes {
        if let Some(product) = product_of(&builder.program, &node)? {
            builder.set_scope_of(&node);
            builder.phase = node.phase;
            for factor in product.factors.into_iter().filter(|factor| factor.kind != SiteKind::Weight) {
                let tensor = node.inputs[factor.input];
                let site = fp8.site(uses[&(tensor, factor.kind)].weight, factor.kind);
                if observed.insert((tensor, factor.kind)) {
                    let table = builder.state(Fp8Slot::Maxima)?;
                    let to = Destination::Into(builder.rows(table, site, 1)?, Mode::Add);
                    builder.emit_into("maximum", Arc::new(Observe), &[tensor], &[to])?;
                }
            }
        }
        builder.push(node);
    }
    Ok(builder.finish())
}

/// Returns the parameters that a program reads in products, all of which can read them as 8-bit floats.
pub fn fp8_params(program: &Program) -> Vec<Fp8Param> {
    let is_product_of = |node: &Node, slot: SlotId| {
        let weight = program.tensors.iter().position(|tensor| tensor.home == Home::State(slot));
        let is_weight = |input: &TensorId| Some(input.0) == weight;
        product_output(node).is_some() && node.inputs.iter().position(is_weight) == Some(1)
    };
    let fits = |node: &Node| {
        let sides = |id: TensorId| {
            let spec = program.spec(id);
            let rows = spec.alloc.first().copied().unwrap_or(0);
            [rows, spec.elements() / rows.max(1)]
        };
        let output = product_output(node).map(|output| node.outputs[output]);
        let mut sides = [Some(node.inputs[0]), output].into_iter().flatten().flat_map(sides);
        sides.all(|side| side.is_multiple_of(SIDE))
    };
    let read_at = |node: &Node, slot: SlotId| {
        node.inputs.iter().any(|&input| program.tensor(program.base(input)).home == Home::State(slot))
    };
    let params = program.state.params.iter().enumerate();
    let eligible = params.filter_map(|(index, Param { read, .. })| {
        let readers = program.nodes.iter().filter(|node| read_at(node, *read));
        let (products, others): (Vec<&Node>, Vec<&Node>) =
            readers.partition(|node| is_product_of(node, *read));
        let all_fit = !products.is_empty() && products.into_iter().all(fits);
        all_fit.then_some(Fp8Param { index, keeps_copy: !others.is_empty() })
    });
    eligible.collect()
}

/// Returns which output of a node holds its product, if the node can be a product of 8-bit floats.
fn product_output(node: &Node) -> Option<usize> {
    let is_linear = downcast::<Linear>(&node.op).is_some() || downcast::<LinearAdd>(&node.op).is_some();
    let is_head = || downcast::<HeadLoss>(&node.op).is_some();
    if is_linear { Some(0) } else { is_head().then_some(LOGITS) }
}

/// A product of a weight, or of its gradients.
struct WeightProduct {
    /// Index of the weight among those of the state.
    weight: usize,
    /// Left and right factor.
    factors: [Factor; 2],
    /// Index of the input that is added; `None` if there is none.
    addend: Option<usize>,
}

/// A factor of a product.
#[derive(Clone, Copy)]
struct Factor {
    /// Index among the node's inputs.
    input: usize,
    kind: SiteKind,
    /// True if the product reads the transpose.
    transposed: bool,
}

/// How products read a matrix.
struct Use {
    /// The first weight that they belong to.
    weight: usize,
    layouts: Layouts,
}

/// The matrices that products read, except weights.
type Uses = HashMap<(TensorId, SiteKind), Use>;

/// Returns how the products of a program read matrices.
fn uses(program: &Program) -> Result<Uses> {
    let mut uses: Uses = HashMap::new();
    for node in &program.nodes {
        let Some(product) = product_of(program, node)? else { continue };
        for factor in product.factors.into_iter().filter(|factor| factor.kind != SiteKind::Weight) {
            let tensor = node.inputs[factor.input];
            let layouts = Layouts { rows: false, transposed: false };
            let found = uses.entry((tensor, factor.kind)).or_insert(Use { weight: product.weight, layouts });
            found.weight = found.weight.min(product.weight);
            found.layouts.rows |= !factor.transposed;
            found.layouts.transposed |= factor.transposed;
        }
    }
    Ok(uses)
}

/// Returns the op as a `T`, if it is one.
fn downcast<T: Op>(op: &Arc<dyn Op>) -> Option<&T> {
    let op: &dyn Any = op.as_ref();
    op.downcast_ref()
}

/// Returns what a node multiplies, if it is a product of an 8-bit weight or of its gradients.
fn product_of(program: &Program, node: &Node) -> Result<Option<WeightProduct>> {
    let factor = |input, kind, transposed| Factor { input, kind, transposed };
    let weight_at = |id: TensorId| match program.tensor(program.base(id)).home {
        Home::State(slot) => program.state.fp8_weight_read_at(slot),
        _ => None,
    };
    let Some((input, weight)) =
        node.inputs.iter().enumerate().find_map(|(at, &id)| Some((at, weight_at(id)?)))
    else {
        return Ok(None);
    };
    use SiteKind::{Gradient, Input, Weight};
    let (factors, addend) = if downcast::<Linear>(&node.op).is_some() && input == 1 {
        ([factor(0, Input, false), factor(1, Weight, false)], None)
    } else if downcast::<LinearAdd>(&node.op).is_some() && input == 1 {
        ([factor(0, Input, false), factor(1, Weight, false)], Some(2))
    } else if let Some(grad) = downcast::<LinearInputGrad>(&node.op).filter(|_| input == 1) {
        ([factor(0, Gradient, false), factor(1, Weight, true)], grad.adds.then_some(2))
    } else if downcast::<LinearWeightGrad>(&node.op).is_some() && input == 2 {
        ([factor(1, Gradient, true), factor(0, Input, true)], None)
    } else if program.state.fp8.as_ref().is_some_and(|fp8| fp8.weights[weight].param.keeps_copy) {
        return Ok(None);
    } else {
        let name = &program.tensor(node.inputs[input]).name;
        return Err(Error::failed(format!("{} reads {name}, which is held as 8-bit floats", node.op.name())));
    };
    Ok(Some(WeightProduct { weight, factors, addend }))
}

/// A matrix of 8-bit floats, in the layouts that products read, and the row of its site.
#[derive(Clone, Copy)]
struct Matrix {
    rows: Option<TensorId>,
    transposed: Option<TensorId>,
    site: usize,
}

struct Pass {
    builder: Builder,
    fp8: Fp8State,
    scaling: Fp8Scaling,
    uses: Uses,
    matrices: HashMap<(TensorId, SiteKind), Matrix>,
    /// The weights that the program has rounded.
    rounded: HashSet<usize>,
}

impl Pass {
    /// Records a node, or the product of 8-bit floats that takes its place.
    fn node(&mut self, node: Node, first: bool) -> Result<()> {
        let Some(product) = product_of(&self.builder.program, &node)? else {
            self.builder.push(node);
            return Ok(());
        };
        self.builder.set_scope_of(&node);
        self.builder.phase = node.phase;
        if first && self.rounded.insert(product.weight) {
            self.round_weight(product.weight)?;
        }
        let mut inputs = Vec::new();
        let mut scales = Vec::new();
        for factor in product.factors {
            let matrix = match factor.kind {
                SiteKind::Weight => self.weight(product.weight),
                kind => self.activation(node.inputs[factor.input], kind, node.phase)?,
            };
            let layout = if factor.transposed { matrix.transposed } else { matrix.rows };
            inputs.push(layout.ok_or_else(|| Error::failed("a factor lacks the layout of its product"))?);
            scales.push(self.row(Fp8Slot::Scales, matrix.site)?);
        }
        inputs.extend(scales);
        inputs.extend(product.addend.map(|input| node.inputs[input]));
        let output = self.builder.spec(node.outputs[0]).clone();
        let op = ScaledProduct { output, adds: product.addend.is_some() };
        let specs: Vec<Spec> = inputs.iter().map(|&id| self.builder.spec(id).clone()).collect();
        op.infer(&specs).map_err(|why| Error::failed(format!("{} in {}: {why}", op.name(), node.scope)))?;
        self.builder.push(Node { op: Arc::new(op), inputs, ..node });
        Ok(())
    }

    /// Returns the weight's matrices in the state.
    fn weight(&mut self, weight: usize) -> Matrix {
        let slots = self.fp8.weights[weight];
        let [rows, transposed] =
            [slots.rows, slots.transposed].map(|slot| Some(self.builder.state_slot(slot)));
        Matrix { rows, transposed, site: self.fp8.site(weight, SiteKind::Weight) }
    }

    /// Records the rounding of a weight from its compute copy, in whose memory the result lies unless the
    /// copy is kept.
    fn round_weight(&mut self, weight: usize) -> Result<()> {
        let Fp8Param { index, keeps_copy } = self.fp8.weights[weight].param;
        let param = self.builder.program.state.params[index].clone();
        let copy = self.builder.state_slot(param.read);
        let staged = if keeps_copy { copy } else { self.builder.emit1("weight", Copy, &[copy])? };
        let matrix = self.weight(weight);
        let to = [matrix.rows, matrix.transposed].into_iter().flatten();
        let mut outs: Vec<Destination> = to.map(|id| Destination::Into(id, Mode::Write)).collect();
        outs.push(Destination::Into(self.row(Fp8Slot::Scales, matrix.site)?, Mode::Write));
        outs.extend(self.site_outputs(matrix.site)?);
        let op = Quantize {
            format: self.fp8.format(SiteKind::Weight),
            layouts: Layouts { rows: true, transposed: true },
            scaling: Fp8Scaling::Current,
            columns: param.spec.width(),
            observes: true,
        };
        self.builder.emit_into("weight", Arc::new(op), &[staged], &outs).map(drop)
    }

    /// Returns the matrix of an activation or a gradient. Rounds it if no product has read it yet.
    fn activation(&mut self, tensor: TensorId, kind: SiteKind, phase: Phase) -> Result<Matrix> {
        if let Some(matrix) = self.matrices.get(&(tensor, kind)) {
            return Ok(*matrix);
        }
        let Use { weight, layouts } = self.uses[&(tensor, kind)];
        let site = self.fp8.site(weight, kind);
        let scales = self.row(Fp8Slot::Scales, site)?;
        let spec = self.builder.spec(tensor);
        let columns = spec.elements() / spec.alloc.first().copied().unwrap_or(1).max(1);
        // The forward has seen the inputs that the backward reads again.
        let observes = kind == SiteKind::Gradient || phase == Phase::Forward;
        let op =
            Quantize { format: self.fp8.format(kind), layouts, scaling: self.scaling, columns, observes };
        let count = usize::from(layouts.rows) + usize::from(layouts.transposed);
        let mut outs = vec![Destination::New; count];
        let mut inputs = vec![tensor];
        match self.scaling {
            Fp8Scaling::Delayed => inputs.push(scales),
            Fp8Scaling::Current => outs.push(Destination::Into(scales, Mode::Write)),
        }
        if observes {
            outs.extend(self.site_outputs(site)?);
        }
        let name = self.builder.program.tensor(tensor).name.clone();
        let name = name.rsplit('.').next().unwrap_or_default();
        let suffix = if self.fp8.format(kind) == DType::E4m3 { "e4m3" } else { "e5m2" };
        let outputs = self.builder.emit_into(&format!("{name}.{suffix}"), Arc::new(op), &inputs, &outs)?;
        let matrix = Matrix {
            rows: layouts.rows.then(|| outputs[0]),
            transposed: layouts.transposed.then(|| outputs[count - 1]),
            site,
        };
        self.matrices.insert((tensor, kind), matrix);
        Ok(matrix)
    }

    /// Returns the destinations of a site's maximum and counts.
    fn site_outputs(&mut self, site: usize) -> Result<[Destination; 2]> {
        let [maximum, counts] = [self.row(Fp8Slot::Maxima, site)?, self.row(Fp8Slot::Counts, site)?];
        Ok([maximum, counts].map(|id| Destination::Into(id, Mode::Add)))
    }

    /// Returns the row of a site in a table.
    fn row(&mut self, table: Fp8Slot, site: usize) -> Result<TensorId> {
        let table = self.builder.state(table)?;
        self.builder.rows(table, site, 1)
    }
}
