//! Records the forward of a model as ops, from the operations of its text.
//!
//! ```text
//! Graph ─▶ rewrites ─▶ steps ─▶ ops, with the slots and masks of a purpose
//! ```

mod activations;
mod adapter;
mod attention;
mod attention_forms;
mod elementwise;
mod head;
mod head_function;
mod names;
mod parts;
mod pointwise;
mod readers;
mod rewrites;
mod shift;
mod step;
mod steps;
mod view;

use super::adapters::{ModelTensors, adapts};
use super::purpose::{Losses, Purpose};
use crate::error::{Error, Result};
use crate::ir::{
    BatchSlot, Builder, ControlSlot, GenerationSlot, Op, ParamRequest, PromptSlot, SlotName, TensorId,
};
use crate::model_text::{Graph, Norm, NormKind};
use crate::ops::activate::Activate;
use crate::ops::add::Add;
use crate::ops::add_bias::AddBias;
use crate::ops::affine::Affine;
use crate::ops::attention::{Heads, Mask};
use crate::ops::dropout::{Dropout, Site};
use crate::ops::embedding::Embedding;
use crate::ops::gated::Gated;
use crate::ops::head_sum::HeadSum;
use crate::ops::layer_norm::LayerNorm;
use crate::ops::linear::Linear;
use crate::ops::linear_add::LinearAdd;
use crate::ops::mul::Mul;
use crate::ops::reshape::Reshape;
use crate::ops::rms_norm::RmsNorm;
use crate::ops::row_norm::ResidualNorm;
use crate::ops::scale::Scale;
use crate::plan::{Model, Plan};
pub use activations::activations;
pub(super) use attention::rotary_of;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
pub use step::Head;
pub(super) use step::packed_heads;
use step::{Step, StepKind, WeightedNorm};
pub use steps::head_of;
use steps::{Steps, steps};

/// Records the forward up to the losses of every row. In training, also computes the gradients of the head
/// and of the rows that it reads.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn losses(plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<Losses> {
    let recording = Recording::new(plan, purpose)?;
    let rows = recording.trunk(b)?;
    let losses = recording.head_loss(b, rows);
    b.statement = None;
    losses
}

/// Records the forward of one token per sequence or of whole prompts. Writes the state's logits, and draws
/// the next tokens from them.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn logits(plan: &Plan, purpose: Purpose, b: &mut Builder) -> Result<()> {
    let recording = Recording::new(plan, purpose)?;
    let rows = recording.trunk(b)?;
    recording.logits(b, rows)
}

/// Records the forward up to the rows that the head reads, and writes them into the state.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn hidden_rows(plan: &Plan, mask: Mask, b: &mut Builder) -> Result<()> {
    let recording = Recording::new(plan, Purpose::Score(mask))?;
    let rows = recording.trunk(b)?;
    recording.keep_hidden_rows(b, rows)
}

/// Records the head on a range of the scored rows, which it reads from the state, up to their scores.
///
/// # Errors
/// If the plan's numbers do not fit an op.
pub(super) fn token_scores(plan: &Plan, mask: Mask, scored: Range<usize>, b: &mut Builder) -> Result<()> {
    Recording::new(plan, Purpose::Score(mask))?.token_scores(b, scored)
}

/// Checks that ops compute every part of a model.
///
/// # Errors
/// A usage error that names the line of the text.
pub fn check_recording(m: &Model, graph: &Graph) -> Result<()> {
    steps(graph, elementwise::of_activation(&m.activation)).map(drop)
}

/// Records the forward of a plan for a purpose.
struct Recording<'a> {
    plan: &'a Plan,
    purpose: Purpose,
    steps: Steps,
    /// Names of the operations' results.
    names: Vec<String>,
    /// The weights that have adapters, by name.
    adapted: BTreeMap<String, ParamRequest>,
}

/// The tensors of a recording.
struct Tensors {
    /// For every operation, its result, if it was recorded.
    results: Vec<Option<TensorId>>,
    /// For every operation that was read as rows in one dimension, these.
    rows: Vec<Option<TensorId>>,
    /// The keys that rows see through attention windows, by the size of the window.
    windows: BTreeMap<usize, TensorId>,
    /// Number of recorded steps with attention. Each has its own cache.
    attentions: usize,
    /// Number of recorded shifts. Each has its own cache.
    shifts: usize,
}

impl<'a> Recording<'a> {
    /// Divides the operations of a plan's model into steps.
    ///
    /// # Errors
    /// If no op computes a part of the model.
    fn new(plan: &'a Plan, purpose: Purpose) -> Result<Self> {
        let steps = steps(&plan.graph, elementwise::of_activation(&plan.model.activation))?;
        let frozen = ModelTensors::new(plan).frozen.into_iter();
        let adapts = |weight: &ParamRequest| plan.adapter.as_ref().is_some_and(|of| adapts(of, weight.role));
        let adapted = frozen.filter(adapts).map(|weight| (weight.name.clone(), weight)).collect();
        Ok(Self { plan, purpose, steps, names: names::names(&plan.graph), adapted })
    }

    /// Records everything up to the rows that the head reads, and returns these.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    fn trunk(&self, b: &mut Builder) -> Result<TensorId> {
        let windows = self.window_spans(b)?;
        let none = vec![None; self.plan.graph.nodes.len()];
        let mut tensors = Tensors { results: none.clone(), rows: none, windows, attentions: 0, shifts: 0 };
        for step in &self.steps.trunk {
            let scope = names::scope(&self.plan.graph, step.at);
            // What computes several statements belongs to the last one.
            b.statement = step.outputs.iter().max().map(|&last| self.plan.graph.nodes[last].statement);
            let results = match self.plan.graph.nodes[step.at].block {
                Some(block) => b.in_block(block, scope, |b| self.step(b, step, &mut tensors))?,
                None => b.scoped(scope, |b| self.step(b, step, &mut tensors))?,
            };
            for (&output, &result) in step.outputs.iter().zip(&results) {
                tensors.results[output] = Some(result);
            }
        }
        let scope = names::scope(&self.plan.graph, self.plan.graph.logits);
        b.statement = Some(self.plan.graph.nodes[self.plan.graph.logits].statement);
        b.scoped(scope, |b| self.read(b, &mut tensors, self.steps.head.rows))
    }

    /// Records a step, and returns its results.
    fn step(&self, b: &mut Builder, step: &Step, tensors: &mut Tensors) -> Result<Vec<TensorId>> {
        match &step.kind {
            StepKind::Pointwise(formula) => return self.pointwise(b, step, formula, tensors),
            StepKind::Gated(function) => {
                let product = tensors.result(step.inputs[0])?;
                return self.emit(b, step, Arc::new(Gated(function.clone())), &[product]);
            }
            StepKind::UnpackedAttention(attention, widths) => {
                return self.unpacked_attention(b, step, (attention, *widths), tensors);
            }
            StepKind::Concat(heads) => {
                let (arrange, inputs) = self.concat(b, tensors, (*heads, &step.inputs))?;
                return self.emit(b, step, Arc::new(arrange), &inputs);
            }
            _ => {}
        }
        let read = step.inputs.iter().map(|&input| self.read(b, tensors, input));
        let inputs = read.collect::<Result<Vec<_>>>()?;
        let [_, positions] = self.inputs();
        let op: Arc<dyn Op> = match &step.kind {
            StepKind::Embedding { table, positions: of_positions } => {
                let [tokens, positions] = self.inputs();
                let ids = b.state(if *of_positions { positions } else { tokens })?;
                let table = self.param(b, *table)?;
                return self.emit(b, step, Arc::new(Embedding), &[ids, table]);
            }
            StepKind::Product { weight, bias } => {
                let product = self.product(b, inputs[0], *weight, step.outputs[0])?;
                let Some(bias) = *bias else {
                    b.rename(product, self.names[step.outputs[0]].clone());
                    return Ok(vec![product]);
                };
                let bias = self.param(b, bias)?;
                return self.emit(b, step, Arc::new(AddBias), &[product, bias]);
            }
            &StepKind::ActivatedProduct { function, product, weight, bias } => {
                let line = b.statement.replace(self.plan.graph.nodes[product].statement);
                let mut read = vec![self.product(b, inputs[0], weight, product)?, self.param(b, bias)?];
                let separate = self.has_few_rows();
                if separate {
                    read = vec![b.emit1("biased", AddBias, &read)?];
                    b.rename(read[0], self.names[product].clone());
                }
                b.statement = line;
                let op = Activate { bias: !separate, ..Activate::new(function) };
                return self.emit(b, step, Arc::new(op), &read);
            }
            StepKind::SumWithProduct { weight } => {
                if self.has_few_rows() {
                    let product = self.product(b, inputs[1], *weight, step.outputs[0])?;
                    return self.emit(b, step, Arc::new(Add), &[inputs[0], product]);
                }
                let matrix = self.param(b, *weight)?;
                let op = Arc::new(LinearAdd(self.linear_op()));
                let sum = self.emit(b, step, op, &[inputs[1], matrix, inputs[0]])?[0];
                let adapted = self.adapted(b, inputs[1], *weight, (sum, step.outputs[0]))?;
                if adapted != sum {
                    b.rename(sum, format!("{}:sum", self.names[step.outputs[0]]));
                    b.rename(adapted, self.names[step.outputs[0]].clone());
                }
                return Ok(vec![adapted]);
            }
            StepKind::Norm(norm) => {
                let inputs = self.with_vectors(b, inputs, norm)?;
                return self.emit(b, step, norm_op(norm, false), &inputs);
            }
            StepKind::ResidualNorm(norm) => {
                let inputs = self.with_vectors(b, inputs, norm)?;
                return self.emit(b, step, norm_op(norm, true), &inputs);
            }
            StepKind::Attention(attention) => {
                let name = &self.names[step.outputs[0]];
                let cache = tensors.attentions;
                tensors.attentions += 1;
                let packed = self.changed_heads(b, attention, &inputs[..1], name, positions)?;
                let attended = self.attend(b, attention, packed, cache, &tensors.windows)?;
                b.rename(attended, name.clone());
                return Ok(vec![attended]);
            }
            StepKind::Dropout(p, site) => {
                let Some(site) = self.site(*p, *site) else { return Ok(inputs) };
                let (sequences, step_number) = (b.state(BatchSlot::Sequences)?, b.state(ControlSlot::Step)?);
                return self.emit(b, step, Arc::new(Dropout(site)), &[inputs[0], sequences, step_number]);
            }
            StepKind::Activated(function) => Arc::new(Activate::new(function.clone())),
            StepKind::Scaled(factor) => Arc::new(Scale { factor: *factor }),
            StepKind::Sum => Arc::new(Add),
            StepKind::ProductOfRows => Arc::new(Mul),
            StepKind::HeadSum(heads, factor) => Arc::new(HeadSum { heads: *heads, factor: *factor }),
            StepKind::HeadNorm(norm, heads) => {
                let row = vec![*heads, self.plan.graph.nodes[step.outputs[0]].shape.width];
                let divided = b.emit1("heads", Reshape { row }, &inputs)?;
                b.rename(divided, format!("{}:heads", self.names[step.outputs[0]]));
                let inputs = self.with_vectors(b, vec![divided], norm)?;
                return self.emit(b, step, norm_op(norm, false), &inputs);
            }
            StepKind::Rotate(rotation, heads) => {
                let dim = self.plan.graph.nodes[step.outputs[0]].shape.width;
                let op = self.rotation(*rotation, Heads { query: *heads, kv: 0, dim })?;
                let positions = b.state(positions)?;
                return self.emit(b, step, Arc::new(op), &[inputs[0], positions]);
            }
            StepKind::Shift(by) => return self.shift(b, step, *by, inputs[0], tensors),
            StepKind::Pointwise(_)
            | StepKind::Gated(_)
            | StepKind::Concat(_)
            | StepKind::UnpackedAttention(..) => {
                return Err(Error::failed("these steps read their inputs in place"));
            }
        };
        self.emit(b, step, op, &inputs)
    }

    /// Records the op that gives a step's results, and names these.
    fn emit(
        &self,
        b: &mut Builder,
        step: &Step,
        op: Arc<dyn Op>,
        inputs: &[TensorId],
    ) -> Result<Vec<TensorId>> {
        let results = b.emit_into("", op, inputs, &[])?;
        for (&result, &output) in results.iter().zip(&step.outputs) {
            b.rename(result, self.names[output].clone());
        }
        Ok(results)
    }

    /// Returns the tensor of a parameter.
    fn param(&self, b: &mut Builder, parameter: usize) -> Result<TensorId> {
        b.param(&self.plan.graph.parameters[parameter].name)
    }

    /// Returns tensors, followed by the weight and the bias that a norm has.
    fn with_vectors(
        &self,
        b: &mut Builder,
        mut tensors: Vec<TensorId>,
        norm: &WeightedNorm,
    ) -> Result<Vec<TensorId>> {
        for parameter in [norm.norm.weight, norm.norm.bias].into_iter().flatten() {
            tensors.push(self.param(b, parameter)?);
        }
        Ok(tensors)
    }

    /// Returns the op of a matrix product.
    fn linear_op(&self) -> Linear {
        Linear { products: self.plan.execution.products }
    }

    /// Records the product of rows and a weight, with the weight's adapter, that is a part of an operation.
    fn product(&self, b: &mut Builder, rows: TensorId, weight: usize, of: usize) -> Result<TensorId> {
        let matrix = self.param(b, weight)?;
        let product = b.emit1("product", self.linear_op(), &[rows, matrix])?;
        b.rename(product, format!("{}:product", self.names[of]));
        self.adapted(b, rows, weight, (product, of))
    }

    /// Returns true if products may have few rows. Those have a kernel of their own, which the pass
    /// `fuse_few_rows` finds before separate ops.
    fn has_few_rows(&self) -> bool {
        matches!(self.purpose, Purpose::Generate | Purpose::Prefill(_))
    }

    /// Returns the site of a dropout, if this program uses dropout.
    fn site(&self, p: f64, site: u32) -> Option<Site> {
        let trains = matches!(self.purpose, Purpose::Train { .. });
        trains.then_some(Site { p, seed: self.plan.seeds.dropout, site })
    }

    /// Returns the slots of this program's tokens and positions.
    fn inputs(&self) -> [SlotName; 2] {
        match self.purpose {
            Purpose::Train { .. } | Purpose::Evaluate | Purpose::Score(_) => {
                [BatchSlot::Tokens, BatchSlot::Positions].map(SlotName::Batch)
            }
            Purpose::Generate => {
                [GenerationSlot::Tokens, GenerationSlot::Positions].map(SlotName::Generation)
            }
            Purpose::Prefill(shape) => {
                [PromptSlot::Tokens, PromptSlot::Positions].map(|input| shape.slot(input))
            }
        }
    }
}

impl Tensors {
    /// Returns the result of an operation.
    fn result(&self, node: usize) -> Result<TensorId> {
        self.results[node]
            .ok_or_else(|| Error::failed(format!("operation {node} of a model was not recorded")))
    }
}

/// Returns the op of a norm, or of a sum and its norm.
fn norm_op(&WeightedNorm { norm, weight_offset }: &WeightedNorm, of_sum: bool) -> Arc<dyn Op> {
    let Norm { kind, eps, weight, bias } = norm;
    let affine = match (weight, bias) {
        (None, _) => Affine::None,
        (Some(_), None) => Affine::Weight,
        (Some(_), Some(_)) => Affine::WeightAndBias,
    };
    let rms_norm = RmsNorm { eps, weight: weight.is_some(), weight_offset };
    let layer_norm = LayerNorm { eps, affine };
    match (kind, of_sum) {
        (NormKind::Rms, false) => Arc::new(rms_norm),
        (NormKind::Rms, true) => Arc::new(ResidualNorm(rms_norm)),
        (NormKind::Layer, false) => Arc::new(layer_norm),
        (NormKind::Layer, true) => Arc::new(ResidualNorm(layer_norm)),
    }
}

/// Returns the index of an item in a list, to which it is added if it is new.
fn index_of<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}
