//! Lays out the state of a plan.

use super::adapters::ModelTensors;
use super::fp8_weights::fp8_weights;
use super::purpose::PromptShape;
use super::recording::{head_of, packed_heads};
use crate::device::DType;
use crate::device::gpu::{MAX_RANKS, STAGING_STEP, area_words};
use crate::error::{Error, Result};
use crate::ir::{
    BatchSlot, ControlSlot, ExchangeSlot, FP8_HEALTH, FlatBuffer, GenerationSlot, GroupRequest, OwnedRange,
    Param, Part, PromptSlot, Role, ScoringSlot, Shards, SlotName, Spec, State, StateBuilder,
};
use crate::model_text::{Operation, Parameter, ParameterKind};
use crate::ops::attention::Mask;
use crate::ops::grad_norm;
use crate::ops::quantize::SIDE;
use crate::ops::sort_tokens::{RankInterleaved, scratch_words};
use crate::passes::DividedRows;
use crate::passes::buckets::{Bucket, buckets};
use crate::passes::exchange::sends_less;
use crate::plan::{Objective, Plan};
use crate::policy::Reduction;
use std::collections::BTreeSet;
use std::ops::Range;

/// Lays out the parameters of a plan with everything that their updates keep, and returns the gradient
/// buckets.
fn trained_params(plan: &Plan) -> (StateBuilder, Vec<Bucket>) {
    let precision = plan.precision;
    let ModelTensors { trained: params, frozen } = ModelTensors::new(plan);
    let block = grad_norm::block_len(plan.execution.gpu.is_some());
    let mut groups: Vec<GroupRequest> =
        plan.update_groups.iter().map(|group| group.request(precision, &params, block)).collect();
    // Comes after the updated groups, whose order must match the plan's.
    groups.extend(plan.ema.map(|ema| ema.request(precision, params.len())));
    let mut builder = StateBuilder::for_training(precision, &params, &groups, None);
    let buckets = gradient_buckets(plan, &builder.state);
    if plan.shards_optimizer() {
        let flat_len = builder.state.flat_len;
        let parts = owned_parts(plan, &builder.state, &buckets);
        let shards = Shards::from_parts(&parts, plan.batch.world_size, block);
        let partials = Spec::new([flat_len.div_ceil(block)], precision.master);
        builder = StateBuilder::for_training(precision, &params, &groups, Some(shards));
        lay_out_gathered(plan, &mut builder);
        builder.lay_out([(SlotName::NormPartials, partials)]);
    }
    builder.lay_out_frozen(&frozen);
    (builder, buckets)
}

/// Returns the state of a plan and its gradient buckets.
///
/// # Errors
/// If an op rejects the plan's numbers.
pub fn state(plan: &Plan) -> Result<(State, Vec<Bucket>)> {
    let precision = plan.precision;
    let (batch, seq_len) = (plan.batch.micro, plan.batch.seq_len);
    let (mut builder, buckets) = trained_params(plan);
    let mut batch_slots = vec![
        (BatchSlot::Tokens, u32s(batch * seq_len)),
        (BatchSlot::Targets, u32s(batch * seq_len)),
        (BatchSlot::Positions, u32s(batch * seq_len)),
        (BatchSlot::Spans, u32s(2 * batch * seq_len)),
        (BatchSlot::Sequences, u32s(batch)),
    ];
    batch_slots.extend(plan.counts_targets().then(|| (BatchSlot::StepTokens, u32s(1))));
    let reference = Spec::new([2 * batch], DType::F64);
    batch_slots.extend(plan.preference.map(|_| (BatchSlot::Reference, reference)));
    batch_slots.extend((plan.source_count() > 0).then(|| (BatchSlot::Sources, u32s(batch))));
    builder.lay_out(batch_slots);
    builder.lay_out(control(plan, &builder.state));
    generation(plan, &[prompt_shape(plan)], &mut builder);
    let measured: Vec<_> =
        plan.tasks.iter().flat_map(|task| task.slots(plan.batch.rows(), precision)).collect();
    if !measured.is_empty() {
        builder.lay_out(measured);
    }
    if let Some(shards) = builder.state.shards.clone() {
        exchange(plan, &shards, &buckets, &mut builder);
    }
    if plan.exchanges_gradients() {
        let count = builder.state.params.len();
        builder.lay_out([(SlotName::Fingerprints, Spec::new([count, 4], DType::U32))]);
    }
    for bucket in &buckets {
        builder.range(FlatBuffer::Grads, bucket.slot.clone(), bucket.start, bucket.len);
    }
    if let Some(fp8) = &plan.fp8 {
        let weights = fp8_weights(plan, &builder.state)?;
        if weights.is_empty() {
            return Err(Error::usage(format!(
                "training.dtype = \"fp8\": no product can read 8-bit floats. The widths of its input and its \
                 output and the tokens of a micro-step ({}) must be multiples of {SIDE}",
                plan.batch.rows()
            )));
        }
        let ranks = if plan.exchanges_gradients() { plan.batch.world_size } else { 1 };
        builder.lay_out_fp8(&weights, fp8.gradients, ranks);
    }
    Ok((builder.finish(), buckets))
}

fn u32s(n: usize) -> Spec {
    Spec::new([n], DType::U32)
}

/// Returns the slots of values that change from step to step. Schedules come last.
fn control(plan: &Plan, state: &State) -> Vec<(SlotName, Spec)> {
    let master = plan.precision.master;
    let mut slots = vec![(ControlSlot::Step, u32s(1)), (ControlSlot::Bad, u32s(1))];
    let last = [ControlSlot::GradNorm, ControlSlot::Clip, ControlSlot::EvalLoss];
    let numbers = std::iter::once(ControlSlot::Loss).chain(loss_terms(&plan.objective)).chain(last);
    slots.extend(numbers.map(|slot| (slot, Spec::new([1], master))));
    slots.extend(plan.fp8.as_ref().map(|_| (ControlSlot::Fp8Health, Spec::new([FP8_HEALTH], DType::F32))));
    let sources = plan.source_count();
    slots.extend(plan.preference.map(|_| (ControlSlot::Pairs, Spec::new([3], master))));
    slots.extend((sources > 0).then(|| (ControlSlot::SourceLosses, Spec::new([sources], master))));
    let mut slots: Vec<_> = slots.into_iter().map(|(slot, spec)| (slot.into(), spec)).collect();
    // Tables for the groups that have parameters.
    for (group, rule) in state.groups.iter().zip(&plan.update_groups) {
        if !group.params.is_empty() {
            let table = Spec::new([plan.steps + 1, rule.optimizer.schedule_width()], master);
            slots.push((group.schedule(), table));
        }
    }
    slots.extend(plan.ema.map(|_| (ControlSlot::EmaWeights.into(), Spec::new([plan.steps + 1], master))));
    slots
}

/// Returns the slots of an objective's terms other than cross-entropy.
pub(super) fn loss_terms(objective: &Objective) -> impl Iterator<Item = ControlSlot> + use<> {
    let terms =
        [(ControlSlot::ZLoss, objective.z_loss), (ControlSlot::SmoothingLoss, objective.label_smoothing)];
    terms.into_iter().filter(|(_, factor)| *factor != 0.0).map(|(slot, _)| slot)
}

/// Maximum number of bytes that one rank stages at another. Parts of larger buckets are exchanged in rounds.
const MAX_STAGED_BYTES: usize = 32 << 20;

/// Maximum number of values that ranks sum in one single-block kernel: losses, and partial sums of the
/// gradient norm.
const MAX_SUMMED_AT_ONCE: usize = 1 << 16;

/// The sorted order of all ranks' tokens.
const TOKEN_ORDER: [ExchangeSlot; 4] =
    [ExchangeSlot::Order, ExchangeSlot::Sorted, ExchangeSlot::Count, ExchangeSlot::Scratch];

/// Lays out the buffers through which ranks that shard the optimizer exchange data. If they exchange rows of
/// the embedding's gradient, these are the tokens of all ranks and their order. For copies between GPUs, they
/// are flags, staging for the gradient parts that others add up, the area of single-kernel sums, and the
/// exchanged rows, of which each rank writes its own.
fn exchange(plan: &Plan, shards: &Shards, buckets: &[Bucket], builder: &mut StateBuilder) {
    let exchanges_rows = rank_interleaving(plan).is_some();
    let rows = shards.ranks * plan.batch.rows();
    let mut tensors = Vec::new();
    if exchanges_rows {
        tensors.push((ExchangeSlot::Tokens, u32s(rows)));
        let lengths = [rows, rows, 1, scratch_words(rows)];
        tensors.extend(TOKEN_ORDER.into_iter().zip(lengths.map(u32s)));
    }
    if plan.copies_between_gpus() {
        let others = shards.ranks - 1;
        let most = MAX_STAGED_BYTES / plan.precision.master.size();
        let staged_per_bucket = buckets.iter().map(|bucket| staged_elements(bucket, shards));
        let staged = staged_per_bucket.max().unwrap_or(0).clamp(1, most).next_multiple_of(shards.block);
        tensors.push((ExchangeSlot::Sums, Spec::new([others * staged], plan.precision.master)));
        let partials = builder.state.flat_len.div_ceil(shards.block);
        let numbers = (partials + MAX_RANKS).min(MAX_SUMMED_AT_ONCE);
        tensors.push((ExchangeSlot::ModelArea, u32s(area_words(shards.ranks, numbers))));
        tensors.push((ExchangeSlot::CollectivesArea, u32s(area_words(shards.ranks, 0))));
        if exchanges_rows {
            let width = exchanged_table(plan).map_or(0, |table| table.shape[1]);
            tensors.push((ExchangeSlot::Rows, Spec::new([rows, width], plan.precision.act_dtype)));
        }
    }
    builder.lay_out(tensors);
}

/// Returns how many staging elements each other rank needs at the rank that owns most of a bucket.
fn staged_elements(bucket: &Bucket, shards: &Shards) -> usize {
    let mut owned = vec![0; shards.ranks];
    for range in shards.within(bucket.start..bucket.start + bucket.len) {
        owned[range.rank] += range.len.next_multiple_of(STAGING_STEP);
    }
    owned.into_iter().max().unwrap_or(0)
}

/// Returns the buckets in which ranks reduce gradients; empty if they do not reduce, or reduce in one group.
fn gradient_buckets(plan: &Plan, state: &State) -> Vec<Bucket> {
    if !plan.exchanges_gradients() || plan.execution.reduction == Reduction::Grouped {
        return Vec::new();
    }
    let mut starts: Vec<(usize, usize)> = state.params.iter().map(|p| (p.start, p.spec.elements())).collect();
    let mut end = state.flat_len;
    // The embedding lies last, if it is trained. If its rows are exchanged, it is in no bucket.
    if let Some((start, _)) = starts.pop_if(|_| rank_interleaving(plan).is_some()) {
        end = start;
    }
    // The head's gradient is complete before the backward of the blocks starts, unless the embedding shares
    // it.
    let head_first = state.params.first().is_some_and(|param| param.role == Role::Head);
    let most = if plan.copies_between_gpus() { MAX_COPY_BUCKET_BYTES } else { usize::MAX };
    let bytes = plan.execution.bucket_bytes.min(most);
    buckets(&starts, end, plan.precision.master.size(), bytes, head_first)
}

/// Maximum bucket size in bytes for copies between GPUs. It never changes results. With 16 instead of 25 MiB,
/// less is left to exchange after the backward, and a step is 0.2 to 1.2 % shorter on four GPUs
/// (`results/measured/nvidia-h200-x4-2026-11-26b/table.md`).
const MAX_COPY_BUCKET_BYTES: usize = 16 << 20;

/// Returns the ends of the parts of the flat buffers that ranks divide: every bucket, and the rest.
fn part_ends(buckets: &[Bucket], flat_len: usize) -> Vec<usize> {
    let mut ends: Vec<usize> = buckets.iter().map(|b| b.start + b.len).collect();
    ends.extend((ends.last() != Some(&flat_len)).then_some(flat_len));
    ends
}

/// A part of the flat buffers that programs read and ranks gather in one operation.
#[derive(Clone, Debug)]
pub(super) struct GatheredPart {
    /// Slot of the compute copy or, if products read masters, of the masters.
    pub slot: SlotName,
    /// First element in the flat buffers.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// The vectors in the part, if ops read copies of their masters.
    pub vectors: Option<GatheredVectors>,
}

/// The vectors of a part, which are adjacent among all vectors.
#[derive(Clone, Debug)]
pub(super) struct GatheredVectors {
    /// Slot of the vectors.
    pub slot: SlotName,
    /// First element among all vectors.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// For each vector, its elements in the flat buffers and its first element in the slot.
    pub params: Vec<(Range<usize>, usize)>,
}

/// Returns the ends of the parts by which ranks gather parameters. In the order of the forward, they combine
/// one, one, one, two, four, eight, … of the elementary parts. The first parts are small so that the forward
/// can start early; it takes longer for a part than the gather of the part. Later parts are large because a
/// graph makes a branch for each node that the forward waits for, and every branch adds time at its beginning
/// and end.
fn gathered_ends(buckets: &[Bucket], flat_len: usize) -> Vec<usize> {
    let ends = part_ends(buckets, flat_len);
    let mut sizes = [1, 1].into_iter().chain((0..).map(|doubled| 1 << doubled));
    let (mut gathered, mut left) = (Vec::new(), ends.len());
    while let Some(&end) = ends[..left].last() {
        gathered.push(end);
        left = left.saturating_sub(sizes.next().unwrap_or(left));
    }
    gathered.reverse();
    gathered
}

/// Returns the buffer from which programs read parameters.
fn gathered_buffer(state: &State) -> FlatBuffer {
    if state.masters_are_sharded() { FlatBuffer::ComputeCopy } else { FlatBuffer::Params }
}

/// Returns the parts by which ranks gather parameters, in the order of the flat buffers.
pub(super) fn gathered_parts(plan: &Plan, state: &State) -> Vec<GatheredPart> {
    let buckets = gradient_buckets(plan, state);
    let read = gathered_buffer(state);
    let mut parts = Vec::new();
    let mut start = 0;
    for (k, end) in gathered_ends(&buckets, state.flat_len).into_iter().enumerate() {
        let vectors = gathered_vectors(state, start..end, SlotName::Part(FlatBuffer::Vectors, k));
        let slot = SlotName::Part(read.clone(), k);
        parts.push(GatheredPart { slot, start, len: end - start, vectors });
        start = end;
    }
    parts
}

/// Returns the element ranges that are updated first and gathered while the rest is updated: the parameters
/// that the forward reads first, in its order. The ranges start at blocks of the flat buffers. They cover the
/// last two gathered parts, or only the last, if these are at most half of all elements and no optimizer
/// needs whole parameters among them. Otherwise there are none.
pub(super) fn updated_first(plan: &Plan, state: &State) -> Vec<Range<usize>> {
    let end = state.flat_len;
    let Some(shards) = &state.shards else { return Vec::new() };
    let owns_whole = |at: usize| plan.update_groups[at].optimizer.owns_whole_parameters();
    let groups = state.groups.iter().take(plan.update_groups.len()).enumerate();
    let whole = groups.filter(|(at, _)| owns_whole(*at)).flat_map(|(_, group)| &group.params);
    let least = whole.map(|&param| state.extent(param).end).fold(end.div_ceil(2), usize::max);
    let parts = gathered_parts(plan, state);
    let starts = parts.iter().rev().take(2).map(|part| part.start / shards.block * shards.block);
    let mut next = end;
    let up_to_next = |start| start..std::mem::replace(&mut next, start);
    starts.filter(|&start| start >= least).map(up_to_next).filter(|range| !range.is_empty()).collect()
}

/// Returns the first element that is updated before the rest.
pub(super) fn updated_first_from(plan: &Plan, state: &State) -> usize {
    updated_first(plan, state).last().map_or(state.flat_len, |range| range.start)
}

/// Returns the vectors in a part, if ops read copies of their masters.
fn gathered_vectors(state: &State, part: Range<usize>, slot: SlotName) -> Option<GatheredVectors> {
    if !state.masters_are_sharded() {
        return None;
    }
    let vectors = state.params.iter().filter(|p| !p.role.is_matrix() && part.contains(&p.start));
    let place = |param: &Param| {
        let slot = state.get(param.read);
        (param.flat(), slot.offset / slot.spec.dtype.size())
    };
    let mut params: Vec<_> = vectors.map(place).collect();
    let start = params.first()?.1;
    params.iter_mut().for_each(|(_, at)| *at -= start);
    let len = params.last().map_or(0, |(flat, at)| at + flat.len());
    Some(GatheredVectors { slot, start, len, params })
}

/// Adds the slots of the parts that ranks gather.
fn lay_out_gathered(plan: &Plan, builder: &mut StateBuilder) {
    for part in gathered_parts(plan, &builder.state) {
        builder.range(gathered_buffer(&builder.state), part.slot, part.start, part.len);
        if let Some(vectors) = part.vectors {
            builder.range(FlatBuffer::Vectors, vectors.slot, vectors.start, vectors.len);
        }
    }
}

/// Returns the parts of the flat buffers that ranks divide equally, and the parts with a single owner:
/// parameters of optimizers that need whole ones. A part ends where a bucket ends, and between parameters of
/// two groups, so that ranks have similar amounts of each. Small vectors between matrices join the part of
/// the matrices.
fn owned_parts(plan: &Plan, state: &State, buckets: &[Bucket]) -> Vec<Part> {
    let mut group_by_param = vec![0; state.params.len()];
    for (at, group) in state.groups.iter().take(plan.update_groups.len()).enumerate() {
        group.params.iter().for_each(|&param| group_by_param[param] = at);
    }
    let is_whole = |param: usize| plan.update_groups[group_by_param[param]].optimizer.owns_whole_parameters();
    let mut ends: BTreeSet<usize> = part_ends(buckets, state.flat_len).into_iter().collect();
    let mut whole_until = BTreeSet::new();
    let mut last_matrix = None;
    for (index, param) in state.params.iter().enumerate() {
        let extent = state.extent(index);
        if is_whole(index) {
            ends.extend([extent.start, extent.end]);
            whole_until.insert(extent.end);
        } else if param.role.is_matrix() {
            let before = last_matrix.replace(group_by_param[index]);
            ends.extend(before.is_some_and(|before| before != group_by_param[index]).then_some(extent.start));
        }
    }
    ends.remove(&0);
    ends.into_iter().map(|end| Part { end, whole: whole_until.contains(&end) }).collect()
}

/// Returns the interleaving of the rows by which ranks exchange the gradient of the embedding. `None` if they
/// all-reduce it instead, which is the case
/// - with `parallelism.embedding_exchange = false`;
/// - with `reduction = "grouped"`, which is the baseline;
/// - with several micro-steps, because all their rows would have to be kept;
/// - with adapters, because the embedding is not trained;
/// - with tied embeddings, because the head's gradient fills every row;
/// - with several tables of token vectors;
/// - if more ranks divide the gradient than a kernel can read from;
/// - if an all-reduce sends fewer bytes.
pub(super) fn rank_interleaving(plan: &Plan) -> Option<RankInterleaved> {
    let table = exchanged_table(plan)?;
    let table = Spec::new([plan.model.padded_vocab(), table.shape[1]], plan.precision.master);
    let exchanges_rows = plan.execution.embedding_exchange
        && plan.adapter.is_none()
        && plan.exchanges_gradients()
        && plan.execution.reduction == Reduction::Bucketed
        && plan.batch.micro_steps == 1
        && plan.batch.stages(plan.steps).all(|stage| stage.micro_steps == 1)
        && (!plan.shards_optimizer() || plan.batch.world_size <= MAX_RANKS)
        && sends_less(plan.batch.world_size, plan.batch.rows(), plan.precision.act_dtype, &table);
    exchanges_rows.then_some(RankInterleaved { ranks: plan.batch.world_size, sequence: plan.batch.seq_len })
}

/// Returns the table of token vectors whose gradient's rows ranks may exchange: the only one, if nothing but
/// a lookup reads it. It comes first in the text, so it lies last in the buffers.
fn exchanged_table(plan: &Plan) -> Option<&Parameter> {
    let graph = &plan.graph;
    let is_table = |parameter: &Parameter| parameter.kind == ParameterKind::Tokens;
    let readers =
        graph.nodes.iter().filter(|node| node.operation.parameters().any(|parameter| parameter == 0));
    let only = graph.parameters.iter().filter(|parameter| is_table(parameter)).count() == 1;
    graph.parameters.first().filter(|first| only && is_table(first) && readers.count() == 1)
}

/// Returns the slots and ranges that ranks with a divided embedding gradient need to exchange its rows;
/// `None` if each rank sums all rows.
///
/// # Errors
/// If the state lacks the embedding or a slot of the exchange.
pub(super) fn divided_rows(plan: &Plan, state: &State) -> Result<Option<DividedRows>> {
    let Some(shards) = &state.shards else { return Ok(None) };
    let missing = || Error::failed("the state lacks the embedding or a slot for exchanging its rows");
    let table = state.params.iter().find(|param| param.role == Role::Embedding).ok_or_else(missing)?;
    let within = |range: OwnedRange| OwnedRange { start: range.start - table.start, ..range };
    let slot = |name: ExchangeSlot| state.slot(name).ok_or_else(missing);
    let [order, sorted, count, scratch] = TOKEN_ORDER;
    Ok(Some(DividedRows {
        owners: shards.within(table.flat()).map(within).collect(),
        tokens: slot(ExchangeSlot::Tokens)?,
        order: [slot(order)?, slot(sorted)?, slot(count)?, slot(scratch)?],
        rows: state.slot(ExchangeSlot::Rows),
        overlap: plan.execution.overlap,
    }))
}

/// Returns the state of a program that only generates: parameters and the buffers of generation.
pub fn generation_state(plan: &Plan, prompts: &[PromptShape]) -> State {
    let ModelTensors { trained, frozen } = ModelTensors::new(plan);
    let mut builder = StateBuilder::for_inference(plan.precision, &trained);
    builder.lay_out_frozen(&frozen);
    generation(plan, prompts, &mut builder);
    builder.finish()
}

/// Returns the state of programs that only score tokens: parameters where training has them, a batch, and the
/// scores of its rows. The values that are read after every batch come first in their buffer. If texts are
/// generated too, the state has the buffers of generation for their plan and prompts.
pub fn scoring_state(plan: &Plan, mask: Mask, texts: Option<(&Plan, &[PromptShape])>) -> State {
    // Tokens are also scored with the weights of a training state, which lends the memory.
    let mut builder = StateBuilder::for_weights_of(&trained_params(plan).0.finish());
    let (rows, act_dtype) = (plan.batch.rows(), plan.precision.act_dtype);
    builder.lay_out([
        (BatchSlot::Tokens, u32s(rows)),
        (BatchSlot::Positions, u32s(rows)),
        (BatchSlot::Spans, u32s(mask.numbers() * rows)),
        (BatchSlot::Targets, u32s(rows)),
        (BatchSlot::Scored, u32s(rows)),
    ]);
    builder.lay_out([
        (ScoringSlot::LogProbs, Spec::new([rows], act_dtype.accumulator())),
        (ScoringSlot::Likeliest, u32s(rows)),
        (ScoringSlot::Hidden, Spec::new([rows, hidden_width(plan)], act_dtype)),
    ]);
    if let Some((plan, prompts)) = texts {
        generation(plan, prompts, &mut builder);
    }
    builder.finish()
}

/// Minimum rows of the prompt program. Programs for fewer rows would hardly be faster.
const MIN_PROMPT_ROWS: usize = 64;

/// Returns the rows of the program for prompts of up to `tokens` tokens: a power of two, so that there are
/// few programs, or the whole context.
pub fn prompt_rows(tokens: usize, seq_len: usize) -> usize {
    tokens.next_power_of_two().max(MIN_PROMPT_ROWS).min(seq_len)
}

/// Returns the shapes of programs that together process `prompts` prompts of any length in the context, the
/// shortest first.
pub fn prompt_shapes(prompts: usize, seq_len: usize) -> Vec<PromptShape> {
    let mut shapes: Vec<PromptShape> = Vec::new();
    let mut tokens = 1;
    while shapes.last().is_none_or(|shape| shape.rows < seq_len) {
        let rows = prompt_rows(tokens, seq_len);
        shapes.push(PromptShape { prompts, rows });
        tokens = rows + 1;
    }
    shapes
}

/// Returns the shape of a run's sample prompt before its tokenizer is known. A prompt has at most one token
/// per byte, plus the end token and one that the tokenizer may add.
pub fn prompt_shape(plan: &Plan) -> PromptShape {
    PromptShape { prompts: 1, rows: prompt_rows(plan.generation.prompt.len() + 2, plan.batch.seq_len) }
}

/// Returns the width of the rows that the head reads.
fn hidden_width(plan: &Plan) -> usize {
    // Recording reports a head that no op computes.
    head_of(&plan.graph).map_or(plan.model.dim, |head| plan.graph.nodes[head.rows].shape.elements())
}

/// Lays out the buffers of generation: the current tokens, flags of samples without a valid token, positions,
/// logits, a cache of keys and values per block, and prompts. The values that are read after every token come
/// first.
fn generation(plan: &Plan, prompts: &[PromptShape], builder: &mut StateBuilder) {
    let (m, samples) = (&plan.model, plan.generation.samples);
    if samples == 0 {
        return;
    }
    let act_dtype = plan.precision.act_dtype;
    let attentions =
        || plan.graph.nodes.iter().filter(|node| matches!(node.operation, Operation::Attention { .. }));
    let caches = attentions().enumerate().map(|(i, node)| {
        let [query, key, value] = [0, 1, 2].map(|input| plan.graph.nodes[node.inputs[input]].shape);
        let heads = packed_heads([query.heads, key.heads], [query.width, value.width]);
        let width = 2 * heads.kv * heads.dim;
        (SlotName::Cache(i), Spec::new([samples, plan.batch.seq_len, width], act_dtype))
    });
    let shifts = plan.graph.nodes.iter().filter_map(|node| match node.operation {
        Operation::Shift(by) => Some(Spec::new([samples, by, node.shape.elements()], act_dtype)),
        _ => None,
    });
    let shifts = shifts.enumerate().map(|(i, spec)| (SlotName::ShiftCache(i), spec));
    let heads: BTreeSet<usize> = attentions().map(|node| node.shape.heads).collect();
    let arrivals =
        heads.into_iter().map(|heads| (SlotName::Arrivals(heads), Spec::new([samples, heads], DType::U32)));
    let logits = Spec::padded([samples, m.vocab_size], [samples, m.padded_vocab()], act_dtype);
    let tensors = [
        (GenerationSlot::Tokens, u32s(samples)),
        (GenerationSlot::Bad, u32s(samples)),
        (GenerationSlot::Positions, u32s(samples)),
        (GenerationSlot::Logits, logits),
    ];
    let tensors = tensors.into_iter().map(|(slot, spec)| (slot.into(), spec));
    builder.lay_out(tensors.chain(arrivals).chain(caches).chain(shifts));
    let rows = |shape: &PromptShape| shape.prompts * shape.rows;
    let most = prompts.iter().map(rows).max().unwrap_or(0);
    let inputs = [PromptSlot::Tokens, PromptSlot::Positions];
    builder.lay_out(inputs.map(|input| (input, u32s(most))));
    for shape in prompts {
        for input in inputs {
            builder.range(input, shape.slot(input), 0, rows(shape));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::prompt_shapes;

    #[test]
    fn a_program_exists_for_prompts_of_every_length() {
        let rows =
            |seq_len| prompt_shapes(3, seq_len).iter().map(|shape| (shape.prompts, shape.rows)).collect();
        let of = |rows: &[usize]| rows.iter().map(|&rows| (3, rows)).collect::<Vec<_>>();
        let found: [Vec<_>; 4] = [rows(1000), rows(64), rows(7), rows(65)];
        assert_eq!(found, [of(&[64, 128, 256, 512, 1000]), of(&[64]), of(&[7]), of(&[64, 65])]);
    }
}
