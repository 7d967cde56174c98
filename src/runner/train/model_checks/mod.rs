//! Checks of a model by computing with it, in f64 on the CPU: its gradients, what its rows see, its fused
//! ops, and its generation; and in fp32 on a GPU beside the CPU.

mod report;

pub use report::{ModelChecks, ValueScale};

use super::initial::{InitialValues, initialize};
use crate::data::{Batch, Ramp};
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::exec::{Engine, Section, prepare};
use crate::ir::{BatchSlot, ControlSlot, FlatBuffer, GenerationSlot, Precision, PromptSlot, SlotName};
use crate::model::text::{Tokens, interpret};
use crate::model::{Programs, head_of};
use crate::model_text::{Node, Operation, Parameter};
use crate::plan::Plan;
use crate::policy::{Attention, Packing};
use report::MAX_GRADIENT_ERROR;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most tokens in a sequence of the checks, the fewest that two documents need, and sequences.
const SEQ_LEN: usize = 16;
const MIN_SEQ_LEN: usize = 10;
const SEQUENCES: usize = 2;

/// Tokens of a prompt, and most tokens that are generated after it.
const PROMPT: usize = 8;
const GENERATED: usize = 64;

/// Steps of central differences. A derivative that is right agrees at one of them: rounding errs the less and
/// curvature the more, the longer a step is.
const STEPS: [f64; 4] = [1e-6, 3e-8, 3e-5, LONG_STEP];
const LONG_STEP: f64 = 1e-3;

/// Roundings of a loss that a difference of losses may have.
const ROUNDINGS: f64 = 16.0;

/// Norm of a gradient that is 0 but for rounding, over the largest of all parameters: the bias of keys, for
/// example, changes no probability.
const NO_GRADIENT: f64 = 1e-13;

/// Most trained elements of a model that is checked: each parameter takes two passes.
pub const MAX_CHECKED_PARAMETERS: usize = 1 << 24;

/// Computes with the model of a plan, at its width and depth, on a few short sequences. `on_gpu` is the plan
/// of the same model for a GPU, if there is one to be compared with the CPU.
///
/// # Errors
/// If no op computes a part of the model, memory cannot be allocated, or the GPU reports an error.
pub fn check_model(plan: &Plan, on_gpu: Option<&Plan>) -> Result<ModelChecks> {
    let gpu_error = on_gpu.map(gpu_error).transpose()?;
    let generating = short_plan(plan, PROMPT + GENERATED);
    let plan = short_plan(plan, SEQ_LEN);
    let seq_len = plan.batch.seq_len;
    if seq_len < MIN_SEQ_LEN {
        return Err(Error::usage(format!(
            "models are checked on sequences of at least {MIN_SEQ_LEN} tokens; set training.seq_len={MIN_SEQ_LEN}"
        )));
    }
    let mut model = Model::new(&plan)?;
    let batch = batch(plan.model.vocab_size, seq_len, &DOCUMENTS);
    let gradients = model.gradients(&batch)?;
    let (worst_parameter, gradient_error, without_gradient) = model.gradient_error(gradients, &batch)?;
    let seeing_rows = model.seeing_rows(&batch)?;
    let logits = model.logits(&batch)?;
    let mut unfused = plan.clone();
    unfused.execution.fused = false;
    // Attention with sinks has no unfused form.
    let has_sinks =
        |node: &Node| matches!(node.operation, Operation::Attention { .. }) && node.inputs.len() > 3;
    if !plan.graph.nodes.iter().any(has_sinks) {
        unfused.execution.attention = Attention::Unfused;
    }
    let unfused_error = difference(&Model::new(&unfused)?.logits(&batch)?, &logits);
    let generation_error = Model::new(&generating)?.generation_error()?;
    let text_error = model.text_error(&batch)?;
    let first = scales(&plan, &batch)?;
    let wide = match first.len() {
        0 => Vec::new(),
        _ => wide_plan(&plan)?.map_or(Ok(Vec::new()), |wide| scales(&wide, &batch))?,
    };
    let scales = first.into_iter().enumerate().map(|(i, scale)| {
        let wide = wide.get(i).map(|wide: &ValueScale| wide.first);
        ValueScale { wide, ..scale }
    });
    Ok(ModelChecks {
        text_error,
        scales: scales.collect(),
        worst_parameter,
        gradient_error,
        without_gradient,
        seeing_rows,
        unfused_error,
        generation_error,
        gpu_error,
    })
}

/// Returns the largest difference of logits and gradients in fp32 between the GPU of a plan and the CPU, over
/// the largest of them.
fn gpu_error(plan: &Plan) -> Result<f64> {
    let on_gpu = Plan { precision: Precision::for_act_dtype(DType::F32), ..short_plan(plan, SEQ_LEN) };
    let mut on_cpu = on_gpu.clone();
    on_cpu.execution.gpu = None;
    let batch = batch(plan.model.vocab_size, on_gpu.batch.seq_len, &DOCUMENTS);
    let compute = |plan: &Plan| {
        let mut model = Model::new(plan)?;
        Ok::<_, Error>((model.logits(&batch)?, model.gradients(&batch)?.concat()))
    };
    let (gpu, cpu) = (compute(&on_gpu)?, compute(&on_cpu)?);
    let errors = [difference(&gpu.0, &cpu.0), difference(&gpu.1, &cpu.1)];
    // The maximum of NaN and a number would be the number.
    Ok(if errors.iter().any(|error| error.is_nan()) { f64::NAN } else { errors[0].max(errors[1]) })
}

/// Returns the plan for short sequences in f64 on one rank, with the parts of training left out that do not
/// belong to the model.
fn short_plan(plan: &Plan, most_tokens: usize) -> Plan {
    let mut plan = plan.clone();
    plan.precision = Precision::for_act_dtype(DType::F64);
    plan.batch.seq_len = most_tokens.min(plan.batch.seq_len);
    (plan.batch.micro, plan.batch.micro_steps, plan.batch.world_size) = (SEQUENCES, 1, 1);
    (plan.batch.local, plan.batch.accumulation, plan.batch.global) = (SEQUENCES, 1, SEQUENCES);
    plan.batch.ramp = Ramp::default();
    plan.packing = Packing::Stream;
    plan.cross_documents = false;
    (plan.tasks, plan.ema, plan.mixture) = (Vec::new(), None, Vec::new());
    plan.intervals.tasks = None;
    (plan.generation.samples, plan.generation.temperature) = (1, 0.0);
    plan.corpus.vocab_size = plan.model.vocab_size;
    plan
}

/// Returns the plan of a model that is twice as wide, with twice as many heads, unless it has too many
/// parameters to be checked.
///
/// # Errors
/// If the text describes no model at that width.
fn wide_plan(plan: &Plan) -> Result<Option<Plan>> {
    let mut wide = plan.clone();
    let m = &mut wide.model;
    for size in [&mut m.dim, &mut m.n_heads, &mut m.n_kv_heads, &mut m.ffn_dim] {
        *size *= 2;
    }
    let Ok(graph) = m.graph(wide.batch.seq_len) else { return Ok(None) };
    let elements: usize = graph.parameters.iter().map(Parameter::elements).sum();
    wide.graph = Arc::new(graph);
    Ok((elements <= MAX_CHECKED_PARAMETERS).then_some(wide))
}

/// Returns how large the values of a model's statements are before training.
fn scales(plan: &Plan, batch: &Batch) -> Result<Vec<ValueScale>> {
    let (graph, mut model) = (Arc::clone(&plan.graph), Model::initial(plan)?);
    // The last operation of a statement in a block gives its value.
    let mut values: BTreeMap<(usize, Option<usize>), f64> = BTreeMap::new();
    model.interpret(batch, &mut |index, elements| {
        let node = &graph.nodes[index];
        let square = elements.iter().map(|x| x * x).sum::<f64>() / elements.len().max(1) as f64;
        values.insert((node.statement, node.block), square.sqrt());
    })?;
    let of_statement = |index: usize| values.range((index, None)..=(index, Some(usize::MAX)));
    let scales = graph.statements.iter().enumerate().filter_map(|(index, statement)| {
        let (&(_, block), &first) = of_statement(index).next()?;
        let last = block.and_then(|_| of_statement(index).next_back()).map(|(_, &last)| last);
        let (line, name) = (statement.line, statement.name.to_string());
        Some(ValueScale { line, name, first, last, wide: None })
    });
    Ok(scales.collect())
}

/// First tokens of the documents in a sequence.
const DOCUMENTS: [usize; 2] = [0, 7];

/// Makes arbitrary tokens, in documents that begin at these tokens of every sequence.
fn batch(vocab: usize, seq_len: usize, documents: &[usize]) -> Batch {
    let token = |i: usize| (i * 7919 % vocab) as u32;
    let mut batch = Batch::default();
    for sequence in 0..SEQUENCES {
        for t in 0..seq_len {
            let at = sequence * seq_len + t;
            let start = documents.iter().copied().rfind(|&start| start <= t).unwrap_or(0);
            batch.tokens.push(token(at));
            batch.targets.push(token(at + 1));
            batch.positions.push((t - start) as u32);
            batch.spans.extend([start as u32, t as u32 + 1]);
        }
        batch.sequences.push(sequence as u32);
    }
    batch
}

/// Returns the largest difference of two lists, over the largest number of the second. NaN if any is.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    let largest = |numbers: &mut dyn Iterator<Item = f64>| {
        numbers.fold(0.0, |most: f64, x| if x.is_nan() { f64::NAN } else { most.max(x.abs()) })
    };
    largest(&mut a.iter().zip(b).map(|(a, b)| a - b)) / largest(&mut b.iter().copied())
}

/// A model with parameters that all matter.
struct Model {
    plan: Plan,
    programs: Programs,
    engine: Engine,
}

impl Model {
    /// Makes a model with the values that training begins with.
    fn initial(plan: &Plan) -> Result<Self> {
        let programs = Programs::new(plan)?;
        let execution = &plan.execution;
        let device = Device::open(execution.gpu, Arc::new(Pool::new(execution.threads)?))?;
        let sections = [programs.micro_step(0, 1), &programs.evaluate].into_iter();
        let generating =
            programs.generate.iter().chain(programs.prefill.as_ref().map(|prefill| &prefill.section));
        prepare(&device, 0, sections.chain(generating), &|_| {})?;
        let (placement, arena) = (execution.placement, programs.arena_bytes());
        let mut engine =
            Engine::new(device, &programs.state, Arc::new(SingleRank), placement, arena, execution.poison)?;
        initialize(&mut engine, &plan.seeds, &InitialValues::new(1))?;
        Ok(Self { plan: plan.clone(), programs, engine })
    }

    fn new(plan: &Plan) -> Result<Self> {
        let mut model = Self::initial(plan)?;
        for param in model.programs.state.params.clone() {
            let slot = FlatBuffer::Params.param(&param.name);
            let values = model.values(slot.clone())?;
            let is_zero = values.iter().all(|value| *value == 0.0);
            let moved = values.into_iter().enumerate().map(|(i, value)| {
                let wave = (i as f64 + 1.0).sin();
                match param.role.is_matrix() {
                    true if is_zero => 0.1 * wave,
                    true => value,
                    false => value + 0.3 * wave,
                }
            });
            let moved: Vec<f64> = moved.collect();
            model.set(slot, &moved)?;
        }
        model.set(ControlSlot::Step, &[1.0])?;
        Ok(model)
    }

    fn values(&self, slot: impl Into<SlotName>) -> Result<Vec<f64>> {
        self.engine.state.values(self.engine.state.slot(slot)?)
    }

    fn set(&mut self, slot: impl Into<SlotName>, values: &[f64]) -> Result<()> {
        let slot = self.engine.state.slot(slot)?;
        self.engine.state.set_values(slot, values)
    }

    fn send(&mut self, batch: &Batch) -> Result<()> {
        let state = &mut self.engine.state;
        for (name, values) in [
            (BatchSlot::Tokens, &batch.tokens),
            (BatchSlot::Targets, &batch.targets),
            (BatchSlot::Positions, &batch.positions),
            (BatchSlot::Spans, &batch.spans),
            (BatchSlot::Sequences, &batch.sequences),
        ] {
            let slot = state.slot(name)?;
            state.write(slot, values)?;
        }
        Ok(())
    }

    /// Computes the gradients of a batch, and returns its loss per token, with all terms.
    fn loss(&mut self, batch: &Batch) -> Result<f64> {
        self.send(batch)?;
        let section: &Section = self.programs.micro_step(0, 1);
        self.engine.run(section)?;
        let mut loss = 0.0;
        for term in [ControlSlot::ZLoss, ControlSlot::SmoothingLoss, ControlSlot::Loss] {
            if self.engine.state.layout().slot(term).is_some() {
                loss += self.values(term)?[0];
            }
        }
        Ok(loss)
    }

    /// Returns the gradient of every parameter.
    fn gradients(&mut self, batch: &Batch) -> Result<Vec<Vec<f64>>> {
        self.loss(batch)?;
        let params = self.programs.state.params.iter();
        params.map(|param| self.values(FlatBuffer::Grads.param(&param.name))).collect()
    }

    /// Compares the derivative of the loss along a random direction of every parameter with differences.
    /// Returns the parameter with the largest error and the error, and the parameters without a gradient.
    fn gradient_error(
        &mut self,
        gradients: Vec<Vec<f64>>,
        batch: &Batch,
    ) -> Result<(String, f64, Vec<String>)> {
        let norm_of = |gradient: &[f64]| gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let largest = gradients.iter().map(|gradient| norm_of(gradient)).fold(0.0, f64::max);
        let loss = self.loss(batch)?.abs();
        let (mut worst, mut without) = ((String::new(), 0.0), Vec::new());
        for (param, gradient) in self.programs.state.params.clone().into_iter().zip(gradients) {
            let norm = norm_of(&gradient);
            if norm <= NO_GRADIENT * largest {
                without.push(param.name);
                continue;
            }
            let slot = FlatBuffer::Params.param(&param.name);
            let values = self.values(slot.clone())?;
            // Signs that look random, so that no wrong part cancels another.
            let sign = |i: usize| if (i.wrapping_mul(2_654_435_761) >> 13) & 1 == 0 { 1.0 } else { -1.0 };
            let analytic: f64 = gradient.iter().enumerate().map(|(i, g)| g * sign(i)).sum();
            let mut at = |shift: f64| {
                let moved: Vec<f64> = values.iter().enumerate().map(|(i, v)| v + shift * sign(i)).collect();
                self.set(slot.clone(), &moved)?;
                self.loss(batch)
            };
            let mut change = |step: f64| Ok::<f64, Error>(at(step)? - at(-step)?);
            let mut error = f64::NAN;
            let mut compare = |numeric: f64, noise: f64| {
                let beyond_noise = (analytic - numeric).abs() - noise;
                // The maximum of NaN and 0 would be 0.
                error = error.min(if beyond_noise < 0.0 { 0.0 } else { beyond_noise } / norm);
                error <= MAX_GRADIENT_ERROR
            };
            for step in STEPS {
                if compare(change(step)? / (2.0 * step), 0.0) {
                    break;
                }
                // A gradient that almost vanishes may be lost in rounding at short steps and in curvature at
                // long ones. This difference of the fourth order errs by little but the rounding of losses.
                if step == LONG_STEP {
                    let noise = ROUNDINGS * f64::EPSILON * loss / step;
                    compare((8.0 * change(step)? - change(2.0 * step)?) / (12.0 * step), noise);
                }
            }
            self.set(slot, &values)?;
            if error.is_nan() || error > worst.1 {
                worst = (param.name, error);
            }
        }
        Ok((worst.0, worst.1, without))
    }

    /// Returns the products of the head for every row of a batch.
    fn logits(&mut self, batch: &Batch) -> Result<Vec<f64>> {
        self.send(batch)?;
        self.engine.inspect(&self.programs.evaluate, "head.logits.1")
    }

    /// Computes the values of the model's text for a batch.
    fn interpret(&mut self, batch: &Batch, visit: &mut dyn FnMut(usize, &[f64])) -> Result<()> {
        let (graph, m) = (&self.plan.graph, &self.plan.model);
        let parameters = graph.parameters.iter();
        let parameters = parameters.map(|parameter| self.values(FlatBuffer::Params.param(&parameter.name)));
        let parameters = parameters.collect::<Result<Vec<Vec<f64>>>>()?;
        let tokens = Tokens { batch, seq_len: self.plan.batch.seq_len };
        interpret(m, graph, &parameters, tokens, visit)
    }

    /// Returns the largest difference of the logits from those of the text.
    fn text_error(&mut self, batch: &Batch) -> Result<f64> {
        let (graph, head) = (Arc::clone(&self.plan.graph), head_of(&self.plan.graph)?);
        let logits: Vec<f64> = self.logits(batch)?.into_iter().map(|product| head.logit(product)).collect();
        let mut written = Vec::new();
        self.interpret(batch, &mut |index, values| {
            if index == graph.logits {
                written = values.to_vec();
            }
        })?;
        Ok(difference(&logits, &written))
    }

    /// Counts the rows that change with tokens that they must not see.
    ///
    /// # Errors
    /// Also if no row changes with its own token, which would leave nothing to see.
    fn seeing_rows(&mut self, batch: &Batch) -> Result<usize> {
        let before = self.logits(batch)?;
        let (vocab, seq_len) = (self.plan.model.vocab_size, self.plan.batch.seq_len);
        let mut seeing = 0;
        for changed_at in [DOCUMENTS[1] - 1, seq_len - 2] {
            let mut changed = batch.clone();
            let others = changed.tokens[changed_at..=changed_at].iter_mut();
            others.for_each(|token| *token = (*token + 1) % vocab as u32);
            let after = self.logits(&changed)?;
            let rows = before.chunks(vocab).zip(after.chunks(vocab)).map(|(a, b)| a == b);
            let rows: Vec<bool> = rows.collect();
            if rows[changed_at] {
                return Err(Error::failed("no logit depends on the row's own token"));
            }
            // The end of the document that the token is in.
            let end = DOCUMENTS.iter().copied().find(|&start| start > changed_at).unwrap_or(seq_len);
            let sees = |row: &usize| (changed_at..end).contains(row);
            seeing += (0..rows.len()).filter(|row| !sees(row) && !rows[*row]).count();
        }
        Ok(seeing)
    }

    /// Generates a text greedily with a cache of keys and values, and compares the logits of every step with
    /// those of the whole text at once.
    fn generation_error(&mut self) -> Result<f64> {
        let (vocab, seq_len) = (self.plan.model.vocab_size, self.plan.batch.seq_len);
        let mut whole = batch(vocab, seq_len, &[0]);
        let missing = || Error::failed("the programs generate nothing");
        let (prefill, decode) = (
            self.programs.prefill.clone().ok_or_else(missing)?,
            self.programs.generate.clone().ok_or_else(missing)?,
        );
        let length = PROMPT.min(prefill.shape.rows);
        let mut prompt = whole.tokens[..length].to_vec();
        prompt.resize(prefill.shape.rows, 0);
        let positions: Vec<u32> = (0..prefill.shape.rows as u32).collect();
        let state = &mut self.engine.state;
        state.write(state.slot(prefill.shape.slot(PromptSlot::Tokens))?, &prompt)?;
        state.write(state.slot(prefill.shape.slot(PromptSlot::Positions))?, &positions)?;
        state.write(state.slot(GenerationSlot::Positions)?, &[length as u32 - 1])?;
        state.write(state.slot(GenerationSlot::Bad)?, &[0])?;
        let mut generated = Vec::new();
        for at in length..=seq_len {
            self.engine.run(if at == length { &prefill.section } else { &decode })?;
            generated.extend(self.values(GenerationSlot::Logits)?);
            if let Some(token) = whole.tokens.get_mut(at).filter(|_| at < seq_len) {
                let slot = self.engine.state.slot(GenerationSlot::Tokens)?;
                *token = self.engine.state.read::<u32>(slot)?[0];
            }
        }
        let head = head_of(&self.plan.graph)?;
        let rows = self.logits(&whole)?;
        let of_whole = &rows[(length - 1) * vocab..seq_len * vocab];
        let of_whole: Vec<f64> = of_whole.iter().map(|&product| head.logit(product)).collect();
        Ok(difference(&generated, &of_whole))
    }
}

#[cfg(test)]
mod tests {
    use super::report::MAX_ERROR;
    use super::*;
    use crate::machine::Machine;
    use crate::model_text::Operation;
    use crate::plan::CorpusFacts;
    use crate::recipe;

    fn plan(settings: &[&str]) -> Plan {
        let machine = Machine::none();
        let small = "[model]\ndim = 32\nn_layers = 1\nhead_dim = 16\n";
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let recipe =
            recipe::load_str("r.toml".as_ref(), small, &settings, std::iter::empty(), &machine).unwrap();
        let corpus = CorpusFacts {
            vocab_size: 60,
            train_tokens: 100_000,
            exact: true,
            validation_tokens: 10_000,
            ..CorpusFacts::default()
        };
        Plan::new(&recipe, &corpus, &machine).unwrap()
    }

    #[test]
    fn models_pass_whatever_a_recipe_trains_them_with() {
        for settings in [
            &["model.dropout=0.1", "training.z_loss=1e-3", "training.label_smoothing=0.1"] as &[&str],
            &["training.accumulation=2", "model.residual_init=zero", "model.head_init=zero", "ema.decay=0.9"],
            &["model.window=3", "model.tie_embeddings=true", "model.position=learned", "training.seq_len=12"],
            &["model.norm_placement=post", "model.logit_cap=1.0", "activation_checkpoint.mode=full"],
        ] {
            let checks = check_model(&plan(settings), None).unwrap();
            assert!(checks.passed() && checks.without_gradient.is_empty(), "{settings:?}\n{checks}");
        }
    }

    #[test]
    fn planted_faults_are_seen() {
        let plan = plan(&[]);
        let mut model = Model::new(&short_plan(&plan, SEQ_LEN)).unwrap();
        let batch = batch(60, SEQ_LEN, &DOCUMENTS);
        let right = model.gradients(&batch).unwrap();
        for (at, param) in model.programs.state.params.clone().iter().enumerate() {
            let mut wrong = right.clone();
            wrong[at].iter_mut().for_each(|gradient| *gradient *= 1.01);
            let (worst, error, _) = model.gradient_error(wrong.clone(), &batch).unwrap();
            assert!(worst == param.name && error > MAX_GRADIENT_ERROR, "{}: {error} of {worst}", param.name);
            wrong[at][0] = f64::NAN;
            assert!(model.gradient_error(wrong, &batch).unwrap().1.is_nan(), "{}", param.name);
        }
        // A text that says something else than the programs compute.
        assert!(model.text_error(&batch).unwrap() <= MAX_ERROR);
        for (index, node) in plan.graph.nodes.iter().enumerate() {
            let mut graph = (*plan.graph).clone();
            match &mut graph.nodes[index].operation {
                Operation::Attention { scale, .. } => *scale *= 1.001,
                Operation::Rope { theta, .. } => *theta *= 1.01,
                Operation::Norm(norm) => norm.eps *= 1.1,
                _ => continue,
            }
            model.plan.graph = Arc::new(graph);
            let error = model.text_error(&batch).unwrap();
            assert!(error > MAX_ERROR, "{:?}: {error}", node.operation);
        }
        // Every row sees the documents before its own.
        let crossing = Plan { cross_documents: true, ..short_plan(&plan, SEQ_LEN) };
        assert!(Model::new(&crossing).unwrap().seeing_rows(&batch).unwrap() > 0);
        assert!(difference(&[1.0, f64::NAN], &[1.0, 2.0]).is_nan() && difference(&[1.5], &[-2.0]) == 1.75);
    }
}
