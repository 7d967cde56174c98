//! All programs of a plan, with passes applied and memory planned.

use super::fp8::{ScaleSearch, record_scales, restore_copy, scale_search};
use super::gather::{gather_rest, gather_updated};
use super::generation::{Prefill, decode};
use super::loss_scale::loss_scale;
use super::purpose::{Pairs, Purpose};
use super::scoring::ScoringPrograms;
use super::{layout, recording};
use crate::device::gpu::Collector;
use crate::error::Result;
use crate::exec::{Section, collect};
use crate::ir::{
    BatchSlot, Builder, ControlSlot, Destination, FlatBuffer, Home, Mode, Phase, Program, Role, SlotName,
    State, TensorId, Upstream,
};
use crate::ops::advance::Advance;
use crate::ops::all_reduce::AllReduce;
use crate::ops::fingerprint::Fingerprint;
use crate::ops::grad_norm::{GradNorm, GradNormPartials};
use crate::ops::sum::{Factor, Sum};
use crate::ops::sum_by_group::SumByGroup;
use crate::optim::{UpdateGroup, WeightEma};
use crate::passes::buckets::Bucket;
use crate::passes::{
    append_group, differentiate, exchange_rows, fuse_quantize, insert_all_reduces, observe_products,
    quantize_products, recompute, unfuse,
};
use crate::plan::Plan;
use crate::policy::{Recompute, Reduction};
use std::sync::Arc;

/// The programs of a plan. They share one state and one transient arena.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The state, which outlives the programs.
    pub state: Arc<State>,
    /// Variants of a micro-step, by whether it is the (first, last) one of a step. The first overwrites
    /// gradients, and the others add to them; the last communicates. Variants that do not occur, or equal
    /// another, are absent.
    pub micro: Vec<((bool, bool), Section)>,
    /// Norm, clip, update. With a sharded optimizer, also gathers the parameters that the forward reads
    /// first.
    pub step_end: Section,
    /// Loss of a batch, without gradients.
    pub evaluate: Section,
    /// Swaps the weights and their moving average, and gathers like `step_end`. `None` unless evaluations use
    /// the average.
    pub swap_ema: Option<Section>,
    /// Processes the samples' prompt and generates their first token; `None` without samples.
    pub prefill: Option<Prefill>,
    /// Generates one token of every sample; `None` without samples.
    pub generate: Option<Section>,
    /// Computes a fingerprint of every parameter, which ranks compare; `None` if replicas need not be equal.
    pub replicas: Option<Section>,
    /// Gathers parameters from the ranks that updated them, except for the ones that the updating program
    /// gathers itself. `None` unless the optimizer is sharded.
    pub gather: Option<Section>,
    /// Finds the scales of 8-bit floats for the first steps; `None` if there are none to find.
    pub scale_search: Option<ScaleSearch>,
    /// Puts the rounded masters back into the compute copy; `None` unless 8-bit weights take its memory.
    pub restore_copy: Option<Section>,
    /// Score the items of tasks, with the weights of this state; `None` without tasks.
    pub scoring: Option<ScoringPrograms>,
}

impl Programs {
    /// Records, transforms and plans every program of a plan. Allocates no tensors.
    ///
    /// # Errors
    /// If an op rejects the plan's numbers.
    pub fn new(plan: &Plan) -> Result<Self> {
        let (state, buckets) = layout::state(plan)?;
        let state = Arc::new(state);
        let section = |program: Result<Program>| program.map(Section::new);
        let micro = |variant| Ok((variant, section(micro_step(plan, &state, &buckets, variant))?));
        let micro = variants(plan).into_iter().map(micro).collect::<Result<_>>()?;
        let evaluate = section(evaluation(plan, &state))?;
        let swapped = plan.ema.filter(|ema| ema.evaluates);
        let swap_ema = swapped.map(|ema| section(swap_ema(plan, ema, &state))).transpose()?;
        let samples = plan.generation.samples > 0;
        let prefill = samples.then(|| Prefill::new(plan, &state, layout::prompt_shape(plan))).transpose()?;
        let generate = samples.then(|| decode(plan, &state)).transpose()?;
        let replicas = plan.exchanges_gradients().then(|| section(fingerprints(&state))).transpose()?;
        let gather = state.shards.as_ref().map(|_| section(gather_rest(plan, &state))).transpose()?;
        let step_end = section(step_end(plan, &state))?;
        let scale_search = scale_search(plan, &state, || measured_step(plan, &state))?;
        let restore_copy = restore_copy(plan, &state)?;
        let scoring = Self::scoring(plan)?;
        Ok(Self {
            state,
            micro,
            step_end,
            evaluate,
            swap_ema,
            prefill,
            generate,
            replicas,
            gather,
            scale_search,
            restore_copy,
            scoring,
        })
    }

    /// Records the programs that score tasks; `None` if the plan has no tasks.
    ///
    /// # Errors
    /// If an op rejects the plan's numbers.
    pub fn scoring(plan: &Plan) -> Result<Option<ScoringPrograms>> {
        let generates = plan.corpus.tasks.iter().any(|task| task.generated > 0);
        plan.intervals.tasks.map(|_| ScoringPrograms::new(plan, generates)).transpose()
    }

    /// Returns the variant for micro-step `i` of `of`.
    pub fn micro_step(&self, i: usize, of: usize) -> &Section {
        let wanted = (i == 0, i + 1 == of);
        let exact = self.micro.iter().find(|(variant, _)| *variant == wanted);
        let same_gradient = || self.micro.iter().find(|(variant, _)| variant.0 == wanted.0);
        &exact.or_else(same_gradient).expect("a plan has the variants that its steps need").1
    }

    /// Returns every section.
    pub fn sections(&self) -> Vec<&Section> {
        let mut all: Vec<&Section> = self.micro.iter().map(|(_, section)| section).collect();
        all.extend([&self.step_end, &self.evaluate]);
        all.extend(&self.swap_ema);
        all.extend(self.prefill.as_ref().map(|prefill| &prefill.section));
        all.extend(&self.generate);
        all.extend(&self.replicas);
        all.extend(&self.gather);
        all.extend(&self.restore_copy);
        all.extend(self.scale_search.iter().flat_map(|search| [&search.measure, &search.end]));
        all.extend(self.scoring.iter().flat_map(ScoringPrograms::sections));
        all
    }

    /// Returns the buffers that outlive programs, with the names by which forecasts list them: those of the
    /// state, and what scoring keeps besides the weights.
    pub fn buffers(&self) -> impl Iterator<Item = (String, usize)> + '_ {
        let own = self.state.buffers.iter().map(|buffer| (buffer.name.clone(), buffer.bytes));
        let scoring = self.scoring.iter().flat_map(|scoring| {
            let weights = scoring.state.weight_buffers();
            let others = scoring.state.buffers.iter().enumerate();
            others
                .filter(move |(index, _)| !weights.contains(index))
                .map(|(_, buffer)| (format!("tasks.{}", buffer.name), buffer.bytes))
        });
        own.chain(scoring)
    }

    /// Returns the bytes of these buffers.
    pub fn state_bytes(&self) -> usize {
        self.buffers().map(|(_, bytes)| bytes).sum()
    }

    /// Queues every node of every section on a collector, which runs nothing.
    ///
    /// # Errors
    /// If an op has no GPU implementation.
    pub fn collect(&self, collector: &Collector) -> Result<()> {
        self.sections().into_iter().try_for_each(|section| collect(collector, &section.program))
    }

    /// Queues every node of the training steps on a collector: all sections except evaluation and generation.
    ///
    /// # Errors
    /// If an op has no GPU implementation.
    pub fn collect_steps(&self, collector: &Collector) -> Result<()> {
        let micro = self.micro.iter().map(|(_, section)| section);
        micro
            .chain([&self.step_end])
            .chain(&self.gather)
            .try_for_each(|section| collect(collector, &section.program))
    }

    /// Returns the size of an arena that is large enough for every section.
    pub fn arena_bytes(&self) -> usize {
        self.sections().iter().map(|s| s.memory.arena_bytes).max().unwrap_or(0)
    }
}

/// Returns the variants that occur in the steps of any stage. The last micro-step differs from the others
/// only if it communicates.
fn variants(plan: &Plan) -> Vec<(bool, bool)> {
    let mut counts: Vec<usize> = plan.batch.stages(plan.steps).map(|stage| stage.micro_steps).collect();
    counts.push(plan.batch.micro_steps);
    if !plan.exchanges_gradients() && counts.iter().any(|&count| count > 1) {
        return vec![(true, false), (false, false)];
    }
    let of = |&count: &usize| match count {
        1 => vec![(true, true)],
        2 => vec![(true, false), (false, true)],
        _ => vec![(true, false), (false, false), (false, true)],
    };
    let mut variants: Vec<(bool, bool)> = Vec::new();
    for variant in counts.iter().flat_map(of) {
        if !variants.contains(&variant) {
            variants.push(variant);
        }
    }
    variants
}

/// Records a micro-step and applies all passes in order, except the last one, which [`Section::new`] applies.
fn micro_step(
    plan: &Plan,
    state: &Arc<State>,
    buckets: &[Bucket],
    (first, last): (bool, bool),
) -> Result<Program> {
    let program = differentiated(plan, state, (first, last))?;
    let mut program = recompute(program, plan.execution.recompute)?;
    if let Some(fp8) = &plan.fp8 {
        program = quantize_products(program, first, fp8.scaling)?;
        if plan.execution.fused {
            program = fuse_quantize(program);
        }
    }
    let embedding = state.params.iter().find(|param| param.role == Role::Embedding);
    if let (Some(interleaving), Some(embedding)) = (layout::rank_interleaving(plan), embedding) {
        let divided = layout::divided_rows(plan, state)?;
        program = exchange_rows(program, embedding.grad, interleaving, divided.as_ref())?;
    }
    if !last || !plan.exchanges_gradients() {
        return Ok(program);
    }
    match plan.execution.reduction {
        Reduction::Bucketed => insert_all_reduces(program, buckets, plan.execution.overlap),
        Reduction::Grouped => append_group(program),
    }
}

/// Records forward and backward of a micro-step.
fn differentiated(plan: &Plan, state: &Arc<State>, (first, last): (bool, bool)) -> Result<Program> {
    let (mut program, losses) = record(plan, state, (first, last))?;
    if !plan.execution.fused {
        program = unfuse(program)?;
    }
    let seeds = loss_views(&program, losses);
    differentiate(program, &seeds, first)
}

/// Records a micro-step in bf16 that measures the maxima of what products of 8-bit floats read. It recomputes
/// all that it can, so that it needs no more memory than other micro-steps.
fn measured_step(plan: &Plan, state: &Arc<State>) -> Result<Program> {
    let program = differentiated(plan, state, (true, false))?;
    let program = recompute(program, Recompute::Full)?;
    Ok(Program { name: "measure_maxima".to_owned(), ..observe_products(program)? })
}

/// Records the forward of a micro-step. Returns it with the tensor of its losses.
pub(super) fn record(
    plan: &Plan,
    state: &Arc<State>,
    (first, last): (bool, bool),
) -> Result<(Program, TensorId)> {
    let mut b = Builder::new(format!("micro(first={first}, last={last})"), Arc::clone(state));
    let losses = recording::losses(plan, Purpose::Train { first }, &mut b)?;
    let (scale, count) = loss_scale(plan, &mut b)?;
    let mode = if first { Mode::Write } else { Mode::Add };
    let mut sum = |losses: TensorId, slot: ControlSlot| {
        b.scoped("head", |b| {
            let (inputs, to) = ([&[losses], &count[..]].concat(), b.state(slot)?);
            b.emit_into("loss", Arc::new(Sum { scale }), &inputs, &[Destination::Into(to, mode)])
        })
    };
    sum(losses.pairs.map_or(losses.losses, |pairs| pairs.losses), ControlSlot::Loss)?;
    if let Some(z_losses) = losses.z_losses {
        sum(z_losses, ControlSlot::ZLoss)?;
    }
    if let Some(smoothing_losses) = losses.smoothing_losses {
        sum(smoothing_losses, ControlSlot::SmoothingLoss)?;
    }
    if let Some(pairs) = &losses.pairs {
        sum_pairs(&mut b, pairs, (scale, &count), mode)?;
    }
    if plan.source_count() > 0 {
        let op = SumByGroup { groups: plan.source_count(), scale };
        b.scoped("head", |b| {
            let sources = b.state(BatchSlot::Sources)?;
            let (inputs, to) =
                ([&[losses.losses, sources], &count[..]].concat(), b.state(ControlSlot::SourceLosses)?);
            b.emit_into("source_losses", Arc::new(op), &inputs, &[Destination::Into(to, mode)])
        })?;
    }
    Ok((b.finish(), losses.losses))
}

/// Records what the pairs of a micro-step contribute to the means of the step: the sums times the factor,
/// which is given with the count that it reads.
fn sum_pairs(
    b: &mut Builder,
    pairs: &Pairs,
    (scale, count): (Factor, &[TensorId]),
    mode: Mode,
) -> Result<()> {
    b.scoped("head", |b| {
        let (to, number) = (b.state(ControlSlot::Pairs)?, b.spec(pairs.correct).elements());
        let summed =
            [b.rows(pairs.rewards, 0, number)?, b.rows(pairs.rewards, number, number)?, pairs.correct];
        for (k, numbers) in summed.into_iter().enumerate() {
            let (inputs, to) = ([&[numbers], count].concat(), b.rows(to, k, 1)?);
            b.emit_into("pairs", Arc::new(Sum { scale }), &inputs, &[Destination::Into(to, mode)])?;
        }
        Ok(())
    })
}

/// Returns the tensors that make up the losses. Each receives a gradient of 1.
pub(super) fn loss_views(program: &Program, losses: TensorId) -> Vec<(TensorId, Upstream)> {
    (0..program.tensors.len())
        .map(TensorId)
        .filter(|&id| matches!(program.tensor(id).home, Home::View { of, .. } if of == losses))
        .map(|id| (id, Upstream::One))
        .collect()
}

fn step_end(plan: &Plan, state: &Arc<State>) -> Result<Program> {
    let mut b = Builder::new("step_end", Arc::clone(state));
    let loss = b.state(ControlSlot::Loss)?;
    let mut losses = vec![loss];
    for term in layout::loss_terms(&plan.objective) {
        losses.push(b.state(term)?);
    }
    let (norm, clip) = (b.state(ControlSlot::GradNorm)?, b.state(ControlSlot::Clip)?);
    let (bad, step) = (b.state(ControlSlot::Bad)?, b.state(ControlSlot::Step)?);
    let groups = || state.groups.iter().take(plan.update_groups.len()).enumerate();
    let updated = || groups().filter(|(_, group)| !group.params.is_empty());
    for (_, group) in updated() {
        b.state(group.schedule())?;
    }
    let outs = [
        Destination::Into(norm, Mode::Write),
        Destination::Into(clip, Mode::Write),
        Destination::Into(bad, Mode::Add),
    ];
    let grads = b.state(FlatBuffer::Grads)?;
    let grad_norm = Arc::new(GradNorm { max_norm: plan.max_norm, from_partials: state.shards.is_some() });
    match &state.shards {
        None => {
            if plan.batch.world_size > 1 {
                sum_over_ranks(&mut b, "loss", &losses)?;
            }
            b.phase = Phase::Optimizer;
            b.emit_into("partials", grad_norm, &[grads, loss], &outs)?
        }
        Some(shards) => {
            // Every rank adds zeros to the partial sums of the others.
            let partials = b.state(SlotName::NormPartials)?;
            let op = GradNormPartials { shards: Arc::clone(shards) };
            b.phase = Phase::Optimizer;
            b.emit_into("partials", Arc::new(op), &[grads], &[Destination::Into(partials, Mode::Write)])?;
            losses.push(partials);
            sum_over_ranks(&mut b, "loss_and_partials", &losses)?;
            b.phase = Phase::Optimizer;
            b.emit_into("grad_norm", grad_norm, &[partials, loss], &outs)?
        }
    };
    let update = |b: &mut Builder, range| {
        updated().try_for_each(|(at, _)| plan.update_groups[at].record(b, at, &range))
    };
    record_scales(plan, &mut b)?;
    b.phase = Phase::Optimizer;
    for (at, first) in layout::updated_first(plan, state).into_iter().enumerate() {
        update(&mut b, first.clone())?;
        gather_updated(plan, &mut b, &first, at == 0)?;
        b.phase = Phase::Optimizer;
    }
    update(&mut b, 0..layout::updated_first_from(plan, state))?;
    if let Some(ema) = plan.ema {
        ema.record(&mut b)?;
    }
    b.emit_into("step", Arc::new(Advance), &[bad], &[Destination::Into(step, Mode::Add)])?;
    Ok(b.finish())
}

/// Records the in-place sum of state tensors over ranks.
fn sum_over_ranks(b: &mut Builder, name: &str, tensors: &[TensorId]) -> Result<()> {
    let like = tensors.iter().map(|&tensor| b.spec(tensor).clone()).collect();
    let outs: Vec<_> = tensors.iter().map(|&tensor| Destination::Into(tensor, Mode::Add)).collect();
    b.phase = Phase::Communication;
    b.emit_into(name, Arc::new(AllReduce { like }), &[], &outs)?;
    Ok(())
}

fn evaluation(plan: &Plan, state: &Arc<State>) -> Result<Program> {
    let mut b = Builder::new("evaluate", Arc::clone(state));
    let losses = recording::losses(plan, Purpose::Evaluate, &mut b)?;
    plan.tasks.iter().try_for_each(|task| task.record_losses(&mut b, losses.losses))?;
    if plan.execution.fused { Ok(b.finish()) } else { unfuse(b.finish()) }
}

fn swap_ema(plan: &Plan, ema: WeightEma, state: &Arc<State>) -> Result<Program> {
    let mut b = Builder::new("swap_ema", Arc::clone(state));
    b.phase = Phase::Optimizer;
    ema.record_swap(&mut b)?;
    let first = layout::updated_first_from(plan, state)..state.flat_len;
    gather_updated(plan, &mut b, &first, true)?;
    Ok(b.finish())
}

/// Records the fingerprint of every parameter in order, one row each. Uses the master or, if masters are
/// sharded, the copy that ops read.
fn fingerprints(state: &Arc<State>) -> Result<Program> {
    let mut b = Builder::new("replicas", Arc::clone(state));
    b.phase = Phase::Communication;
    let all = b.state(SlotName::Fingerprints)?;
    for (row, param) in state.params.iter().enumerate() {
        b.scoped(param.name.as_str(), |b| {
            let master = state.slot(FlatBuffer::Params.param(&param.name)).unwrap_or(param.read);
            let (master, to) = (b.state_slot(master), b.rows(all, row, 1)?);
            b.emit_into(
                "fingerprint",
                Arc::new(Fingerprint),
                &[master],
                &[Destination::Into(to, Mode::Write)],
            )
        })?;
    }
    Ok(b.finish())
}

/// Returns the schedule of all steps for each group's optimizer, with the slot that holds it: one row per
/// step, with row 0 unused. `updates_before` is the number of updates that the optimizer's state has seen
/// before the first step.
pub fn schedule_tables(plan: &Plan, state: &State, updates_before: u64) -> Vec<(SlotName, Vec<f64>)> {
    let groups = state.groups.iter().zip(&plan.update_groups).filter(|(group, _)| !group.params.is_empty());
    groups.map(|(group, rule)| (group.schedule(), schedule_table(plan, rule, updates_before))).collect()
}

fn schedule_table(plan: &Plan, group: &UpdateGroup, updates_before: u64) -> Vec<f64> {
    let width = group.optimizer.schedule_width();
    let [rate, share] = [group.lr, 1.0].map(|peak| plan.schedule.clone().with_peak(peak));
    let mut table = Vec::with_capacity((plan.steps + 1) * width);
    table.resize(width, 0.0);
    for t in 1..=plan.steps {
        let rates = group.rates(rate.at(t), share.at(t));
        table.extend(group.optimizer.schedule_row(rates, updates_before + t as u64));
    }
    table
}
