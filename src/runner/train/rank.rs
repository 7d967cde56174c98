//! One rank of a run: its engine, its part of the data, and a training step.

mod evaluate;
mod fp8;
mod non_finite;
mod preference;
mod share;
mod state;
mod task_share;
mod tasks;
mod timed;

use super::agreement::{Agreement, StepRequest, StepVote, agree};
use super::generate::Prompt;
use super::initial::InitialValues;
use super::preference::{ReferenceLogProbs, for_batch};
use crate::data::{Batch, Dataset, IGNORED, Loader, LoaderSpec, OpenedSource};
use crate::device::Device;
use crate::device::communicator::{Communicator, RankPhase, SingleRank};
use crate::device::cpu::Pool;
use crate::device::cuda::MemoryCause;
use crate::device::gpu::Queue;
use crate::error::{Error, Result};
use crate::exec::{CommunicationTime, Engine, NonFiniteTensor, Snapshot};
use crate::generation::Generating;
use crate::ir::{BatchSlot, ControlSlot};
use crate::metrics::{Fp8Health, PairMeans};
use crate::model::Programs;
use crate::plan::{Plan, fp8_fault};
use crate::ranks::{TimedCommunicator, fault};
pub use evaluate::{Evaluated, Evaluation};
pub(super) use fp8::views_of_table;
pub(super) use preference::ReferenceCheck;
pub(super) use share::print_timing_notice;
use share::{allocate_state, connect_gpus, prepare_with_shared_algorithms};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use task_share::Scoring;
pub use tasks::ScoredWeights;

/// Measurements of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss over the global batch, in nats per token.
    pub loss: f32,
    /// Mean of the z-loss over the global batch, in nats per token; `None` if the objective has none.
    pub z_loss: Option<f32>,
    /// Mean loss added by label smoothing over the global batch, in nats per token; `None` if there is none.
    pub smoothing_loss: Option<f32>,
    /// Mean loss over the targets of the global batch from each source of a mixture, in nats per token, by
    /// name. A source without a sequence in the batch is left out.
    pub source_losses: BTreeMap<String, f32>,
    /// Means over the pairs of answers of the global batch; `None` if the corpus has none.
    pub pairs: Option<PairMeans>,
    /// How 8-bit floats served the step; `None` without any.
    pub fp8: Option<Fp8Health>,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Learning rate.
    pub lr: f64,
    /// Time spent waiting for the loader.
    pub data_wait: Duration,
    /// Times of the collectives; `None` for a single rank, or if the times were overwritten.
    pub communicated: Option<CommunicationTime>,
    /// The first tensor that was not finite. If it is set, nothing was updated.
    pub bad: Option<NonFiniteTensor>,
    /// What the ranks told each other at the end of the step.
    pub agreed: Agreement,
}

/// One rank. A run of one rank uses the same code with a communicator that has no peers.
#[derive(Debug)]
pub struct Rank {
    plan: Arc<Plan>,
    programs: Arc<Programs>,
    dataset: Arc<Dataset>,
    engine: Engine,
    /// The communicator, which also measures how long this rank waits for others.
    comm: Arc<TimedCommunicator>,
    /// The end of the last step, when all ranks agreed.
    agreed: Instant,
    loader: Option<Loader>,
    done: u64,
    /// Time until kernels were ready; `None` on the CPU.
    kernels_took: Option<Duration>,
    /// False if parameters owned by other ranks were updated but not gathered since.
    gathered: bool,
    /// Steps queued on the device whose results were not read yet, oldest first.
    queued_steps: VecDeque<QueuedStep>,
    /// What scores tasks; `None` without tasks.
    scoring: Option<Scoring>,
    /// The reference of a run on pairs of answers, once it is known.
    reference: Option<Arc<ReferenceLogProbs>>,
    /// True if the scales of 8-bit floats follow from the maxima of earlier steps.
    scales_known: bool,
}

/// A step that was launched but not reported.
#[derive(Debug)]
struct QueuedStep {
    batches: Vec<Batch>,
    data_wait: Duration,
    snapshot: Snapshot,
}

/// Returns the mean loss of each source by name, given their shares in the loss of a step and their targets
/// in it. The shares add up to the loss, which is the mean over all targets.
fn source_losses(dataset: &Dataset, shares: &[f64], targets: &[u64]) -> BTreeMap<String, f32> {
    let all = targets.iter().sum::<u64>() as f64;
    let sources = dataset.sources.iter().zip(shares).zip(targets).filter(|(_, targets)| **targets > 0);
    let mean = |((source, share), &targets): ((&OpenedSource, &f64), &u64)| {
        (source.name.clone(), (share * (all / targets as f64)) as f32)
    };
    sources.map(mean).collect()
}

/// Returns what the answers of a step's micro-batches on this rank contribute to the mean number of tokens
/// that are trained on, of the chosen and of the rejected answers.
fn tokens_per_answer(batches: &[Batch]) -> [f64; 2] {
    let mut tokens = [0u64; 2];
    for batch in batches {
        for (&target, span) in batch.targets.iter().zip(batch.spans.chunks(2)) {
            tokens[usize::from(span[0] != 0)] += u64::from(target != IGNORED);
        }
    }
    let pairs = batches.first().map_or(1, |batch| batch.step_sequences.max(1));
    tokens.map(|tokens| tokens as f64 / pairs as f64)
}

/// Returns the means over the pairs of a step from the last numbers that ranks added up.
fn pair_means(sums: &[f64]) -> Option<PairMeans> {
    let numbers: &[f64; 5] = sums.last_chunk()?;
    let [chosen_reward, rejected_reward, accuracy, chosen_tokens, rejected_tokens] =
        numbers.map(|number| number as f32);
    Some(PairMeans { chosen_reward, rejected_reward, accuracy, chosen_tokens, rejected_tokens })
}

/// Status of a rank that queues a step on its device or computes one.
const COMPUTES: RankPhase = RankPhase::working("computes");

/// Maximum number of steps queued on a GPU, so that it never waits for the CPU to read a loss.
pub(super) const STEPS_AHEAD: usize = 3;

impl Rank {
    /// Creates a rank: allocates its memory and initializes its parameters.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn new(
        plan: Arc<Plan>,
        programs: Arc<Programs>,
        dataset: Arc<Dataset>,
        device: impl Into<Device>,
        comm: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let mut rank = Self::for_measurements(plan, programs, dataset, device, comm)?;
        if rank.plan.preference.is_some() {
            let reference = rank.compute_reference()?;
            rank.set_reference(reference);
        }
        Ok(rank)
    }

    /// Creates a rank with initial values whose losses of pairs nobody reads: they are compared with zeros.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub(super) fn for_measurements(
        plan: Arc<Plan>,
        programs: Arc<Programs>,
        dataset: Arc<Dataset>,
        device: impl Into<Device>,
        comm: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let mut rank = Self::with_zeros(plan, programs, dataset, device, comm)?;
        rank.initialize(&InitialValues::new(1))?;
        rank.set_reference(ReferenceLogProbs::default());
        Ok(rank)
    }

    /// Creates the only rank of a run, on the device of its plan, for measurements.
    ///
    /// # Errors
    /// If the device cannot be opened, or memory cannot be allocated.
    pub fn alone(plan: Arc<Plan>, programs: Programs, dataset: Dataset) -> Result<Self> {
        let device = Device::open(plan.execution.gpu, Arc::new(Pool::new(plan.execution.threads)?))?;
        Self::for_measurements(plan, Arc::new(programs), Arc::new(dataset), device, Arc::new(SingleRank))
    }

    /// Creates a rank with zero parameters, for [`Rank::initialize`] or [`Rank::restore`].
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub(super) fn with_zeros(
        plan: Arc<Plan>,
        programs: Arc<Programs>,
        dataset: Arc<Dataset>,
        device: impl Into<Device>,
        comm: Arc<dyn Communicator>,
    ) -> Result<Self> {
        let (device, execution) = (device.into(), plan.execution.clone());
        let mut kernels_took = None;
        if let Some(gpu) = device.gpu() {
            let fault = plan.fp8.as_ref().and_then(|_| fp8_fault(gpu.properties()));
            if let Some(fault) = fault {
                return Err(Error::usage(format!(
                    "training.dtype = \"fp8\": {fault}. Set training.dtype = \"bf16\""
                )));
            }
            let began = Instant::now();
            prepare_with_shared_algorithms(&device, &programs, &*comm)?;
            kernels_took = Some(began.elapsed());
            gpu.attribute_memory(MemoryCause::Kernels);
            gpu.limit_memory(execution.memory_limit);
        }
        let comm = Arc::new(TimedCommunicator::new(comm));
        let others: Arc<dyn Communicator> = Arc::<TimedCommunicator>::clone(&comm);
        let state = allocate_state(&device, &programs.state, &*others)?;
        let (placement, poison) = (execution.placement, execution.poison);
        let mut engine =
            Engine::with_state(device, state, others, placement, programs.arena_bytes(), poison)?;
        if let Some(gpu) = engine.gpu() {
            gpu.attribute_memory(MemoryCause::Rounding);
            connect_gpus(&engine, &*engine.comm, &execution)?;
            gpu.attribute_memory(MemoryCause::Other);
        }
        engine.use_graphs(execution.cuda_graphs);
        if let Some(ema) = plan.ema {
            let weights = engine.state.slot(ControlSlot::EmaWeights)?;
            engine.state.set_values(weights, &ema.weights(plan.steps))?;
        }
        let mut rank = Self {
            plan,
            programs,
            dataset,
            engine,
            comm,
            agreed: Instant::now(),
            loader: None,
            done: 0,
            kernels_took,
            gathered: true,
            queued_steps: VecDeque::new(),
            scoring: None,
            reference: None,
            scales_known: false,
        };
        rank.count_updates_before(0)?;
        rank.go_to(0)?;
        Ok(rank)
    }

    /// Returns the number of finished steps.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Returns the time needed to compile or load kernels and to choose algorithms; `None` on the CPU.
    pub fn kernels_took(&self) -> Option<Duration> {
        self.kernels_took
    }

    /// Returns the number of steps that are queued on the device and were not reported yet.
    pub fn queued_steps(&self) -> usize {
        self.queued_steps.len()
    }

    /// Returns the maximum number of steps in the queue.
    pub fn steps_ahead(&self) -> usize {
        if self.engine.gpu().is_some() { STEPS_AHEAD } else { 1 }
    }

    /// Returns the engine, for measurements.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine, for tests that change its state.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Returns the communicator.
    pub fn comm(&self) -> Arc<dyn Communicator> {
        Arc::<TimedCommunicator>::clone(&self.comm)
    }

    fn go_to(&mut self, done: u64) -> Result<()> {
        self.done = done;
        let step = self.engine.state.slot(ControlSlot::Step)?;
        let next = u32::try_from(done + 1)
            .map_err(|_| Error::failed("more steps than the step counter can hold"))?;
        self.engine.state.write(step, &[next])?;
        self.loader = None;
        self.queued_steps.clear();
        Ok(())
    }

    fn spec(&self) -> LoaderSpec {
        self.plan.loader(self.engine.comm.rank(), self.done)
    }

    /// Queues one more step on the device. [`Rank::finish_step`] reads the results in order.
    ///
    /// # Errors
    /// If data or a rank is lost.
    pub fn launch_step(&mut self) -> Result<()> {
        if self.plan.preference.is_some() && self.reference.is_none() {
            return Err(Error::failed("the log-probabilities of the reference model are not known"));
        }
        let step = self.done + self.queued_steps() as u64 + 1;
        let micro_steps = self.plan.batch.micro_steps_in_step(step);
        if self.queued_steps.is_empty() {
            // Time between steps does not count towards this step.
            self.agreed = Instant::now();
            self.comm.take();
        }
        self.comm.set_status(step, COMPUTES);
        fault::inject_fault(self.comm.rank(), step)?;
        let timing_slot = self.timing_slot(step);
        let mut batches = Vec::with_capacity(micro_steps);
        let mut data_wait = Duration::ZERO;
        let programs = Arc::clone(&self.programs);
        if self.needs_scales(step) {
            let waiting = Instant::now();
            batches = (0..micro_steps).map(|_| self.next_batch()).collect::<Result<_>>()?;
            data_wait += waiting.elapsed();
            self.find_scales(&batches)?;
        }
        for micro in 0..micro_steps {
            if micro == batches.len() {
                let waiting = Instant::now();
                batches.push(self.next_batch()?);
                data_wait += waiting.elapsed();
            }
            self.upload(&batches[micro])?;
            let mut sections = Vec::with_capacity(3);
            sections.extend(programs.gather.iter().filter(|_| !self.gathered));
            sections.push(programs.micro_step(micro, micro_steps));
            self.gathered = true;
            if micro + 1 == micro_steps {
                sections.push(&programs.step_end);
                self.gathered = programs.gather.is_none();
            }
            self.engine.run_all(&sections, timing_slot)?;
        }
        let layout = self.engine.state.layout();
        // The snapshot leaves out the schedules, which are the last control tensors.
        let schedules = layout.groups.iter().filter_map(|group| layout.slot(group.schedule()));
        let bytes = schedules.map(|slot| layout.get(slot).offset).min().unwrap_or(0);
        let snapshot = self.engine.snapshot(self.engine.state.slot(ControlSlot::Step)?, bytes)?;
        self.queued_steps.push_back(QueuedStep { batches, data_wait, snapshot });
        Ok(())
    }

    /// Waits for the oldest queued step and returns its results. `request` is this rank's; the report
    /// combines the requests of all ranks.
    ///
    /// If the loss or a gradient was not finite, neither that step nor any step queued after it updated
    /// anything. The step is then replayed with a check after every node to name the first bad tensor. Ranks
    /// that do not exchange gradients decide separately whether to update, but stop together.
    ///
    /// # Errors
    /// If no step is queued, or a rank is lost.
    pub fn finish_step(&mut self, request: StepRequest) -> Result<StepReport> {
        let oldest = self.queued_steps.pop_front();
        let mut oldest = oldest.ok_or_else(|| Error::failed("no step is queued"))?;
        if self.engine.gpu().is_some() {
            self.comm.set_status(self.done + 1, RankPhase::WaitingForDevice);
        }
        self.engine.open(&mut oldest.snapshot)?;
        let layout = Arc::clone(self.engine.state.layout());
        let number = |slot: ControlSlot| oldest.snapshot.number(&layout, slot);
        let term = |slot| {
            layout.slot(slot).map(|_| number(slot)).transpose().map(|term| term.map(|term| term as f32))
        };
        let step = self.done + 1;
        let mut report = StepReport {
            step,
            loss: number(ControlSlot::Loss)? as f32,
            z_loss: term(ControlSlot::ZLoss)?,
            smoothing_loss: term(ControlSlot::SmoothingLoss)?,
            source_losses: BTreeMap::new(),
            pairs: None,
            fp8: None,
            grad_norm: number(ControlSlot::GradNorm)? as f32,
            lr: self.plan.schedule.at(step as usize),
            data_wait: oldest.data_wait,
            communicated: self.communicated(step),
            bad: None,
            agreed: Agreement::default(),
        };
        let bad = number(ControlSlot::Bad)? != 0.0;
        let waited = report.communicated.map_or(Duration::ZERO, |communicated| communicated.exposed);
        // Ranks that do not exchange gradients may disagree about `bad`, but must stop together.
        let vote = StepVote::new(bad, request, self.agreed.elapsed(), waited);
        let mut mine = Vec::new();
        let numbers = |slot: ControlSlot| {
            layout.slot(slot).map_or(Ok(Vec::new()), |_| oldest.snapshot.numbers(&layout, slot))
        };
        mine.extend(numbers(ControlSlot::SourceLosses)?);
        let health = numbers(ControlSlot::Fp8Health)?;
        let counts = self.fp8_counts(&health, oldest.batches.len());
        let counted = mine.len()..mine.len() + counts.len();
        mine.extend(counts);
        mine.extend(numbers(ControlSlot::Pairs)?);
        if self.plan.preference.is_some() {
            mine.extend(tokens_per_answer(&oldest.batches));
        }
        let shares;
        (report.agreed, shares) = agree(&*self.comm, step, vote, &mine)?;
        self.agreed = Instant::now();
        self.comm.take();
        if report.agreed.bad {
            self.queued_steps.clear();
            report.bad = Some(self.find_bad(&oldest.batches)?);
        } else {
            self.done = step;
            let targets = oldest.batches.first().map_or(&[][..], |batch| &batch.step_targets);
            report.source_losses = source_losses(&self.dataset, &shares, targets);
            report.pairs = self.plan.preference.and_then(|_| pair_means(&shares));
            report.fp8 = self.fp8_health(&shares[counted], &health);
        }
        Ok(report)
    }

    /// Returns which of the timing slots for queued steps a step uses. A single rank measures no collectives,
    /// so one slot is enough.
    fn timing_slot(&self, step: u64) -> usize {
        if self.comm.world_size() > 1 { (step % STEPS_AHEAD as u64) as usize } else { 0 }
    }

    /// Returns the times of a step's collectives. On the CPU nothing overlaps with them, so all of their time
    /// is exposed.
    fn communicated(&self, step: u64) -> Option<CommunicationTime> {
        let waited = self.comm.take();
        match self.engine.gpu() {
            Some(_) => self.engine.communication(self.timing_slot(step)),
            None if self.comm.world_size() > 1 => Some(CommunicationTime { total: waited, exposed: waited }),
            None => None,
        }
    }

    /// Trains one step: queues it and waits for it.
    ///
    /// # Errors
    /// Fails like [`Rank::launch_step`] and [`Rank::finish_step`].
    pub fn train_step(&mut self) -> Result<StepReport> {
        self.launch_step()?;
        self.finish_step(StepRequest::default())
    }

    fn next_batch(&mut self) -> Result<Batch> {
        if self.loader.is_none() {
            self.loader = Some(Loader::new(Arc::clone(&self.dataset), self.spec())?);
        }
        let loader = self.loader.as_mut().ok_or_else(|| Error::failed("this rank has no data loader"))?;
        let mut batch = loader.next()?;
        if let Some(reference) = &self.reference {
            batch.reference = for_batch(&batch.pairs, &reference.train);
        }
        Ok(batch)
    }

    /// Sends the next micro-batch to the device.
    fn upload_next(&mut self) -> Result<Batch> {
        let batch = self.next_batch()?;
        self.upload(&batch)?;
        Ok(batch)
    }

    /// Sends a micro-batch to the device.
    fn upload(&mut self, batch: &Batch) -> Result<()> {
        // With a batch ramp, early steps have fewer targets, and padding has none.
        let counted = match self.plan.preference {
            Some(_) => batch.step_sequences,
            None => batch.all_step_targets(),
        };
        let step_tokens = [u32::try_from(counted).unwrap_or(u32::MAX)];
        // Whatever computes or shows other tensors than losses has no reference.
        let zeros = vec![0.0; 2 * batch.sequences.len()];
        let reference = if batch.reference.is_empty() { &zeros } else { &batch.reference };
        let mut tensors: Vec<(BatchSlot, &[u32])> = vec![
            (BatchSlot::Tokens, &batch.tokens),
            (BatchSlot::Targets, &batch.targets),
            (BatchSlot::Positions, &batch.positions),
            (BatchSlot::Spans, &batch.spans),
            (BatchSlot::Sequences, &batch.sequences),
        ];
        if self.plan.counts_targets() {
            tensors.push((BatchSlot::StepTokens, &step_tokens));
        }
        if self.plan.preference.is_some() {
            tensors.push((BatchSlot::Reference, bytemuck::cast_slice(reference)));
        }
        // Evaluations do not read it.
        if !batch.sources.is_empty() {
            tensors.push((BatchSlot::Sources, &batch.sources));
        }
        self.engine.send(&tensors)
    }

    fn number(&self, slot: ControlSlot) -> Result<f64> {
        let slot = self.engine.state.slot(slot)?;
        Ok(self.engine.state.values(slot)?[0])
    }

    /// Checks that the corpus files are unchanged since the start of the run.
    ///
    /// # Errors
    /// If a file was changed or is gone.
    pub fn check_corpus(&self) -> Result<()> {
        self.dataset.check_unchanged()
    }

    /// Generates texts with the parameters last gathered. Returns none if the plan has no samples.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn generate(&mut self) -> Result<Vec<String>> {
        let programs = Arc::clone(&self.programs);
        let (Some(prefill), Some(decode)) = (&programs.prefill, &programs.generate) else {
            return Ok(Vec::new());
        };
        let (tokenizer, generation) = (Arc::clone(&self.dataset.tokenizer), &self.plan.generation);
        let seq_len = self.plan.batch.seq_len;
        let prompt = Prompt::new(&generation.prompt, &tokenizer, seq_len)?;
        let ends = [tokenizer.end_token()];
        let generating = Generating { prefill, decode, ends: &ends, tokens: generation.tokens, seq_len };
        let texts = generating.run(&mut self.engine, std::slice::from_ref(&prompt.tokens), |_, _| {
            Ok(ControlFlow::Continue(()))
        })?;
        texts.iter().map(|tokens| prompt.decode(&tokenizer, tokens)).collect()
    }

    /// Runs forward and backward of the first micro-step of the next step, and returns its batch. Updates
    /// nothing.
    pub(super) fn run_gradients(&mut self) -> Result<Batch> {
        let step = self.done + 1;
        let batch = self.next_batch()?;
        if self.needs_scales(step) {
            self.find_scales(std::slice::from_ref(&batch))?;
        }
        self.upload(&batch)?;
        let programs = Arc::clone(&self.programs);
        self.engine.run(programs.micro_step(0, self.plan.batch.micro_steps_in_step(step)))?;
        self.restore_compute_copy()?;
        Ok(batch)
    }

    /// Returns the first batch of the next step without consuming it.
    ///
    /// # Errors
    /// If a step is queued, or data cannot be read.
    pub fn coming_batch(&mut self) -> Result<Batch> {
        if !self.queued_steps.is_empty() {
            return Err(Error::failed("cannot read the next batch ahead while steps are queued"));
        }
        let batch = self.next_batch()?;
        self.go_to(self.done)?;
        Ok(batch)
    }

    /// Evaluates a batch and calls `on_tensor` with the first `rows` rows of the named tensors of that
    /// program, each with its index in `names`. Updates nothing.
    ///
    /// # Errors
    /// If the program writes no tensor of a given name, or the engine fails.
    pub fn inspect_batch(
        &mut self,
        batch: &Batch,
        names: &[&str],
        rows: usize,
        on_tensor: impl FnMut(usize, Vec<f64>),
    ) -> Result<()> {
        self.gather_parameters()?;
        self.upload(batch)?;
        let programs = Arc::clone(&self.programs);
        self.engine.inspect_each(&programs.evaluate, names, rows, on_tensor)
    }

    /// Returns a tensor as the evaluation program computes it for the current batch.
    pub(super) fn inspect_evaluation(&mut self, tensor: &str) -> Result<Vec<f64>> {
        let programs = Arc::clone(&self.programs);
        self.engine.inspect(&programs.evaluate, tensor)
    }

    /// Returns the loss over the micro-steps that this step has run so far.
    pub(super) fn loss(&self) -> Result<f64> {
        self.number(ControlSlot::Loss)
    }

    /// Ends a successful run. Every rank calls it after all ranks have finished. Waits for the device and
    /// destroys the communicators of GPUs in order. Dropping a rank on a GPU without this call aborts the
    /// collectives that other ranks wait in.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn shutdown(&self) -> Result<()> {
        self.engine.gpu().map_or(Ok(()), |gpu| gpu.shutdown())
    }
}
