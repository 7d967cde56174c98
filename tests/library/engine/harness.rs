//! Shared by the tests: from a recipe to a trained state, on any number of ranks, through the public
//! interface.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use xrun::data::chat::Renderer;
use xrun::data::{self, Dataset, Spec};
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, NonFiniteTensor};
use xrun::machine::Machine;
use xrun::model::{Programs, schedule_tables};
use xrun::plan::{CorpusFacts, Plan, data_spec};
use xrun::ranks::launch;
use xrun::recipe::Recipe;
use xrun::train::{InitialValues, Rank, initialize};
use xrun::{Result, recipe};

/// Two blocks, grouped queries, a padded vocabulary and FFN width, and several documents per window.
pub const TINY: &str = r#"
[model]
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
head_dim = 16
ffn_dim = 40

[training]
seq_len = 16
local_batch_size = 8
steps = 20
seed = 3

[optimizer]
lr = 1e-2

[lr_scheduler]
warmup_steps = 2

[data]
corpus = "random"
tokenizer = "byte"
train_tokens = 20_000
validation_tokens = 500

[engine]
threads = 2
"#;

/// A recipe that is ready to be trained.
#[derive(Clone)]
pub struct Setup {
    pub plan: Arc<Plan>,
    pub programs: Arc<Programs>,
    pub dataset: Arc<Dataset>,
}

/// Loads [`TINY`] with `section.key=value` settings on top.
pub fn recipe(overrides: &[&str]) -> Result<Recipe> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    recipe::load_str("tiny.toml".as_ref(), TINY, &overrides, std::iter::empty(), &Machine::here())
}

impl Setup {
    pub fn new(overrides: &[&str]) -> Self {
        Self::try_new(overrides).unwrap_or_else(|e| panic!("{overrides:?}: {e}"))
    }

    pub fn try_new(overrides: &[&str]) -> Result<Self> {
        let recipe = recipe(overrides)?;
        let dataset = open(&recipe)?;
        let plan = Plan::new(&recipe, &facts(&dataset), &Machine::here())?;
        Self::from_plan(plan, dataset)
    }

    /// Makes a setup with a plan that no recipe can ask for.
    pub fn planned(overrides: &[&str], change: impl FnOnce(&mut Plan)) -> Self {
        let Self { plan, dataset, .. } = Self::new(overrides);
        let mut plan = Plan::clone(&plan);
        change(&mut plan);
        Self::from_plan(plan, dataset).expect("the ops take the changed plan")
    }

    fn from_plan(plan: Plan, dataset: Arc<Dataset>) -> Result<Self> {
        let programs = Programs::new(&plan)?;
        Ok(Self { plan: Arc::new(plan), programs: Arc::new(programs), dataset })
    }

    /// Makes an engine of one rank with initialized parameters, before its first step.
    pub fn engine(&self) -> Engine {
        let execution = &self.plan.execution;
        let pool = Arc::new(Pool::new(execution.threads).unwrap());
        let arena = self.programs.arena_bytes();
        let (placement, poison) = (execution.placement, execution.poison);
        let mut engine =
            Engine::new(pool, &self.programs.state, Arc::new(SingleRank), placement, arena, poison).unwrap();
        initialize(&mut engine, &self.plan.seeds, &InitialValues::new(1)).unwrap();
        for (slot, table) in schedule_tables(&self.plan, &self.programs.state, 0) {
            set(&mut engine, &slot.to_string(), &table);
        }
        set(&mut engine, "control.step", &[1.0]);
        engine
    }

    /// Trains on all ranks and evaluates. Returns what each rank has at the end.
    pub fn train(&self, steps: usize) -> Vec<Trained> {
        self.train_with(steps, |_| Arc::clone(&self.plan))
    }

    /// Like [`Setup::train`], with one rank.
    pub fn train_one(&self, steps: usize) -> Trained {
        assert_eq!(self.plan.batch.world_size, 1);
        self.train(steps).remove(0)
    }

    /// Like [`Setup::train`], with one rank and these vector instructions.
    pub fn train_with_instructions(&self, steps: usize, arch: pulp::Arch) -> Trained {
        let pool = Pool::with_instructions(self.plan.execution.threads, arch).unwrap();
        let body = |rank: &mut Rank| Trained::new(rank, steps);
        self.on_pool(&Arc::new(pool), |_| Arc::clone(&self.plan), body).unwrap().remove(0)
    }

    /// Like [`Setup::train`], with a plan for each rank.
    pub fn train_with(&self, steps: usize, plan: impl Fn(usize) -> Arc<Plan> + Sync) -> Vec<Trained> {
        self.on_ranks(plan, |rank| Trained::new(rank, steps)).unwrap()
    }

    /// Runs `body` on every rank, with a plan for each. Returns the results in rank order.
    pub fn on_ranks<T: Send>(
        &self,
        plan: impl Fn(usize) -> Arc<Plan> + Sync,
        body: impl Fn(&mut Rank) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        self.on_pool(&Arc::new(Pool::new(self.plan.execution.threads).unwrap()), plan, body)
    }

    /// Like [`Setup::on_ranks`], on these threads.
    fn on_pool<T: Send>(
        &self,
        pool: &Arc<Pool>,
        plan: impl Fn(usize) -> Arc<Plan> + Sync,
        body: impl Fn(&mut Rank) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let results = Mutex::new(BTreeMap::new());
        launch(self.plan.batch.world_size, |comm| {
            let number = comm.rank();
            let (programs, dataset) = (Arc::clone(&self.programs), Arc::clone(&self.dataset));
            let mut rank = Rank::new(plan(number), programs, dataset, Arc::clone(pool), comm)?;
            let result = body(&mut rank)?;
            results.lock().unwrap_or_else(PoisonError::into_inner).insert(number, result);
            Ok(())
        })?;
        Ok(results.into_inner().unwrap().into_values().collect())
    }

    /// Returns as text everything that decides what runs and where it lies in memory.
    pub fn listing(&self) -> String {
        let state = &self.programs.state;
        let slots = state.slots.iter().map(|s| format!("{} {} {}+{}\n", s.name, s.spec, s.buffer, s.offset));
        let sections = self.programs.sections().into_iter().map(|s| {
            let blocks = s
                .memory
                .blocks
                .iter()
                .map(|b| format!("{}+{} {}..{}\n", b.offset, b.bytes, b.birth, b.death));
            format!("{}{}", s.program, blocks.collect::<String>())
        });
        slots.chain(sections).collect()
    }
}

/// What a rank has at the end.
#[derive(Clone)]
pub struct Trained {
    /// Loss and gradient norm of every step that was tried.
    pub curve: Vec<(f32, f32)>,
    /// The step that was not finite, and where.
    pub bad: Option<(u64, NonFiniteTensor)>,
    pub val_loss: f64,
    /// Parameters and moments by name, as stored; empty on a rank that has only some of them.
    pub tensors: Vec<(String, Vec<u8>)>,
    /// Bytes per number in `tensors`.
    number_bytes: usize,
    /// Bytes of the state.
    pub state_bytes: usize,
    /// Transient bytes reserved, and the number of allocations.
    pub transient: (usize, usize),
}

impl Trained {
    pub fn new(rank: &mut Rank, steps: usize) -> Result<Self> {
        let (mut curve, mut bad) = (Vec::new(), None);
        for _ in 0..steps {
            let report = rank.train_step()?;
            curve.push((report.loss, report.grad_norm));
            if let Some(tensor) = report.bad {
                bad = Some((report.step, tensor));
                break;
            }
        }
        let val_loss = rank.evaluate(false, |_, _| {})?.sets[0].loss();
        let mut tensors = Vec::new();
        if rank.engine().comm.rank() == 0 || rank.engine().state.layout().shards.is_none() {
            for tensor in rank.snapshot().tensors() {
                tensors.push((tensor.name.clone(), tensor.bytes()?.into_owned()));
            }
            rank.end_snapshot()?;
        } else {
            rank.answer_snapshot()?;
        }
        let engine = rank.engine();
        let (state_bytes, transient) = (engine.state.bytes(), engine.transient());
        let number_bytes = engine.state.layout().precision.master.size();
        Ok(Self { curve, bad, val_loss, tensors, number_bytes, state_bytes, transient })
    }

    pub fn losses(&self) -> Vec<f64> {
        self.curve.iter().map(|&(loss, _)| f64::from(loss)).collect()
    }

    /// Returns where two runs first differ in a bit of losses, norms, parameters or moments; `None` if they
    /// do not.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let bits = |curve: &[(f32, f32)]| -> Vec<_> {
            curve.iter().map(|(loss, norm)| (loss.to_bits(), norm.to_bits())).collect()
        };
        if let Some(step) = (bits(&self.curve).iter().zip(bits(&other.curve))).position(|(a, b)| *a != b) {
            return Some(format!("step {}: {:?}, {:?}", step + 1, self.curve[step], other.curve[step]));
        }
        if self.curve.len() != other.curve.len() || self.val_loss.to_bits() != other.val_loss.to_bits() {
            return Some(format!("validation: {}, {}", self.val_loss, other.val_loss));
        }
        let mut tensors = self.tensors.iter().zip(&other.tensors);
        tensors.find(|(a, b)| a != b).map(|(a, b)| format!("{} or {}", a.0, b.0))
    }

    /// Returns the parameters, without the moments, as numbers.
    pub fn parameters(&self) -> Vec<f64> {
        let number = |bytes: &[u8]| match *bytes {
            [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
            _ => f64::from_le_bytes(bytes.try_into().expect("a number has four or eight bytes")),
        };
        let parameters = self.tensors.iter().filter(|(name, _)| !name.starts_with("adam."));
        parameters.flat_map(|(_, bytes)| bytes.chunks_exact(self.number_bytes)).map(number).collect()
    }

    /// Returns ‖a − b‖ / ‖b‖ over the parameters.
    pub fn distance(&self, other: &Self) -> f64 {
        let (a, b) = (self.parameters(), other.parameters());
        assert_eq!(a.len(), b.len());
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        norm(&mut a.iter().zip(&b).map(|(x, y)| x - y)) / norm(&mut b.iter().copied())
    }
}

/// Returns |a − b| / |b|.
pub fn relative(a: f64, b: f64) -> f64 {
    (a - b).abs() / b.abs()
}

/// Writes a slot, given by its printed name.
pub fn set(engine: &mut Engine, slot: &str, values: &[f64]) {
    let slot = engine.state.layout().slot_by_text(slot).unwrap();
    engine.state.set_values(slot, values).unwrap();
}

/// Reads a slot, given by its printed name.
pub fn get(engine: &Engine, slot: &str) -> Vec<f64> {
    engine.state.values(engine.state.layout().slot_by_text(slot).unwrap()).unwrap()
}

/// Opens each corpus once per process.
fn open(recipe: &Recipe) -> Result<Arc<Dataset>> {
    type Opened = Mutex<BTreeMap<String, Arc<Dataset>>>;
    static OPENED: OnceLock<Opened> = OnceLock::new();
    let seq_len = recipe.values().training.seq_len;
    // The program of a test renders no templates as a process of its own.
    let spec = Spec { renderer: Renderer::Here, ..data_spec(recipe, &Machine::none()) };
    let mut opened = OPENED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{spec:?} {seq_len}");
    if let Some(dataset) = opened.get(&key) {
        return Ok(Arc::clone(dataset));
    }
    let dataset = Arc::new(data::open(&spec, seq_len, None, None)?);
    opened.insert(key, Arc::clone(&dataset));
    Ok(dataset)
}

fn facts(dataset: &Dataset) -> CorpusFacts {
    CorpusFacts {
        vocab_size: dataset.tokenizer.vocab_size(),
        train_tokens: dataset.train().len(),
        exact: true,
        validation_tokens: dataset.validation.tokens.len(),
        floor: dataset.floor,
        sources: CorpusFacts::from_dataset(dataset).sources,
        packed: dataset.packed,
        ..CorpusFacts::default()
    }
}
