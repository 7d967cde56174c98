//! Every key under every choice that could make it idle: the key changes what runs or what is written, or it
//! is refused, or a remark says that it has no effect. And a remark is true.

use crate::engine::harness::TINY;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use xrun::machine::Machine;
use xrun::model::{ModelTensors, Programs, schedule_tables};
use xrun::plan::{CorpusFacts, Period, Plan, data_spec, is_due};
use xrun::policy::{CorpusSource, PathList, TextFormat, Validation};
use xrun::recipe::{self, KEYS, Key, Recipe, Type};

/// Settings below every case: short runs of one block that generate samples.
const BASE: [&str; 4] = ["model.n_layers=1", "training.steps=12", "generation.samples=2", "sweep.samples=4"];

/// Choices that could make other keys idle, besides every word of every key with words and both values of
/// every flag.
const CHOICES: [&[&str]; 59] = [
    &[],
    &["checkpoint.interval=5"],
    &["validation.interval=4"],
    &["parallelism.world_size=2"],
    &["parallelism.world_size=2", "parallelism.reduction=grouped"],
    &["parallelism.world_size=2", "parallelism.shard=optimizer"],
    &["parallelism.world_size=2", "engine.communication=off"],
    &["parallelism.world_size=2", "model.tie_embeddings=true"],
    &["parallelism.world_size=2", "training.accumulation=2"],
    &["training.accumulation=2"],
    &["training.local_batch_size=1"],
    &["training.global_batch_size=32", "training.batch_ramp=[[2, 16]]"],
    &["training.steps=1", "lr_scheduler.warmup_steps=0"],
    &["training.steps=2", "validation.interval=1"],
    &["training.steps=100000"],
    &["lr_scheduler.warmup_steps=12"],
    &["lr_scheduler.warmup_steps=11"],
    &["lr_scheduler.min_lr_ratio=1.0"],
    &["lr_scheduler.min_lr_ratio=0.0"],
    &["lr_scheduler.decay=wsd", "lr_scheduler.decay_steps=1"],
    &["lr_scheduler.decay=wsd", "lr_scheduler.decay_steps=6"],
    &["lr_scheduler.decay=wsd", "lr_scheduler.min_lr_ratio=1.0"],
    &["lr_scheduler.decay=1 - t * t"],
    &["data.corpus=/nosuch/text"],
    &["data.corpus=/nosuch/text", "data.validation=/nosuch/held"],
    &["data.corpus=README.md"],
    &["data.corpus=mixture", "data.sources.NAME.path=/nosuch/text"],
    &["data.corpus=mixture", "data.sources.code.path=README.md"],
    &[
        "data.corpus=mixture",
        "data.sources.NAME.path=/nosuch/text",
        "data.sources.NAME.weight=1.0",
        "data.sources.code.path=/nosuch/code",
        "data.sources.code.weight=1.0",
    ],
    &[
        "data.corpus=/nosuch/text",
        "data.format=preference",
        "data.packing=document",
        "model.init_from=/nosuch/model",
    ],
    &["checkpoint.keep=0"],
    &["checkpoint.interval=0"],
    &["checkpoint.interval=0", "checkpoint.log_spacing=2.0"],
    &["generation.samples=0"],
    &["generation.temperature=0"],
    &["generation.top_k=1"],
    &["model.dropout=0.5"],
    &["training.dtype=fp8"],
    &["model.window=4"],
    &["model.window=4", "model.global_interval=1"],
    &["model.window=64"],
    &["model.rope_fraction=0.125"],
    &["model.definition=llama"],
    &["model.init_from=/nosuch/model"],
    &["model.init_from=/nosuch/model", "model.init_optimizer=true"],
    &["model.init_from=/nosuch/model", "adapter.kind=lora"],
    &["model.init_from=/nosuch/model", "adapter.kind=lora", "adapter.init_from=/nosuch/adapter"],
    &["seeds.init=1", "seeds.order=1"],
    &["seeds.init=1", "seeds.order=1", "compare.on=val_loss"],
    &["ema.decay=0.9"],
    &["optimizer.name=sgd", "optimizer.momentum=0.0"],
    &["optimizer.name=muon", "optimizer.momentum=0.0"],
    &["optimizer.weight_decay=0.0"],
    &[
        "optimizer.groups.embedding.name=lion",
        "optimizer.groups.embedding.lr=1e-4",
        "optimizer.groups.embedding.betas=[0.8, 0.9]",
        "optimizer.groups.embedding.weight_decay=0.2",
        "optimizer.groups.head.name=lion",
        "optimizer.groups.head.lr=1e-4",
        "optimizer.groups.head.betas=[0.8, 0.9]",
        "optimizer.groups.head.weight_decay=0.2",
        "optimizer.groups.matrix.name=lion",
        "optimizer.groups.matrix.lr=1e-4",
        "optimizer.groups.matrix.betas=[0.8, 0.9]",
        "optimizer.groups.matrix.weight_decay=0.2",
        "optimizer.groups.vector.name=lion",
        "optimizer.groups.vector.lr=1e-4",
        "optimizer.groups.vector.betas=[0.8, 0.9]",
        "optimizer.groups.vector.weight_decay=0.2",
    ],
    &["optimizer.name=muon", "optimizer.groups.matrix.name=lion"],
    &["training.global_batch_size=32"],
    &["sweep.rungs=[4, 8]", "compare.on=val_loss"],
    &["sweep.samples=0"],
    &["evaluation.tasks=[\"hellaswag\"]", "evaluation.data=/nosuch/tasks", "evaluation.interval=3"],
];

/// Values that say what holds without them, so they change nothing and need no word.
const SAME: [(&str, &str); 7] = [
    ("model.norm_bias", "false"),
    ("model.norm_bias", "true"),
    ("activation_checkpoint.mode", "\"none\""),
    ("parallelism.shard", "\"none\""),
    // What muon leaves to AdamW.
    ("optimizer.groups.embedding.name", "\"adamw\""),
    ("optimizer.groups.head.name", "\"adamw\""),
    ("optimizer.groups.vector.name", "\"adamw\""),
];

/// Settings that programs list, although nothing depends on them, each with the choice that makes them idle.
const LISTED: [(&str, &str); 9] = [
    ("generation.temperature", "generation.top_k=1"),
    ("generation.top_p", "generation.top_k=1"),
    ("generation.seed", "generation.top_k=1"),
    ("model.rope_theta", "model.rope_fraction=0.125"),
    ("optimizer.nesterov", "optimizer.momentum=0.0"),
    ("optimizer.groups.matrix.nesterov", "optimizer.momentum=0.0"),
    // Tokens are counted in the state; `engine::ramp` proves that the bits are the same.
    ("training.batch_ramp", ""),
    // A group of its own, with the same arithmetic.
    ("optimizer.groups", "optimizer.weight_decay=0.0"),
    ("optimizer.groups.vector.decay", ""),
];

/// Keys whose effect is outside of what the signature covers, each with the reason.
const OUTSIDE: [&str; 4] = [
    // What texts and prompts begin with: the signature has no tokens.
    "data.begin_token",
    // How products round: the device has the mode, and the CPU refuses it.
    "training.dtype",
    // Where the run happens.
    "engine.device",
    "engine.devices",
];

/// This machine, which is examined once because thousands of recipes are read for it.
fn here() -> &'static Machine {
    static HERE: std::sync::LazyLock<Machine> = std::sync::LazyLock::new(Machine::here);
    &HERE
}

fn load(settings: &BTreeMap<String, String>) -> Option<Recipe> {
    let overrides: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
    recipe::load_str("idle.toml".as_ref(), TINY, &overrides, std::iter::empty(), here()).ok()
}

fn with(base: &BTreeMap<String, String>, settings: &[&str]) -> BTreeMap<String, String> {
    let mut all = base.clone();
    all.extend(settings.iter().map(|setting| {
        let (key, value) = setting.split_once('=').expect("key=value");
        (key.to_owned(), value.to_owned())
    }));
    all
}

/// Returns another value for a key, as TOML: the example, or one that the recipe does not have.
fn values_of(key: &Key, now: Option<&str>) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>();
    let candidates = match key.kind {
        Type::Word(list) => words(list),
        Type::WordOrFormula(list, _) => words(list),
        Type::Bool => vec!["true".to_owned(), "false".to_owned()],
        _ if key.path == "training.batch_ramp" => vec!["[[2, 16]]".to_owned(), "[[2, 32]]".to_owned()],
        // The example is the default of one of the optimizers.
        _ if key.name() == "momentum" => vec!["0.5".to_owned()],
        // The example is larger than the tiny model, like the default.
        _ if key.path == "parallelism.bucket_mib" => vec!["0.001".to_owned()],
        _ => vec![key.example.replace('_', "")],
    };
    candidates.into_iter().filter(|value| Some(value.as_str()) != now).collect()
}

/// Everything that a run and its files depend on, besides programs.
fn signature(recipe: &Recipe, plan: &Plan) -> String {
    let values = recipe.values();
    let mut text = String::new();
    let steps = values.training.steps as u64;
    let checkpoint = &values.checkpoint;
    // What the corpus is made of.
    let spec = data_spec(recipe, &Machine::none());
    let _ = write!(text, "{:?} {} {:?}", spec.corpus, spec.tokenizer, spec.shuffle);
    let mut read = vec![];
    match &spec.corpus {
        CorpusSource::Stories | CorpusSource::Random => {
            let _ = write!(text, "{} {} {}", spec.train_tokens, spec.validation_tokens, spec.seed);
        }
        CorpusSource::Paths(paths) => {
            read.extend(paths.iter().map(Path::to_owned));
            let _ = write!(text, "{:?}", spec.split);
        }
        CorpusSource::Mixture => {
            let sources = &values.data.sources;
            for (name, source) in sources {
                read.extend(source.path.iter().flat_map(PathList::iter).map(Path::to_owned));
                let _ = write!(text, "{name} {:?} {:?} {:?}", source.path, source.split, source.epochs);
                let _ = write!(text, "{:?} {:?}", source.card, spec.sources[name].reading);
            }
            if sources.len() > 1 {
                let weights: Vec<_> = sources.values().map(|source| source.weight).collect();
                let _ = write!(text, "{weights:?} {:?}", values.data.phases);
            }
        }
    }
    if !read.is_empty() {
        let _ = write!(text, "{:?} {:?} {:?}", spec.document_separator, spec.validation_split, spec.drop);
        match &spec.validation {
            Validation::Paths(paths) => {
                let _ = write!(text, "{paths}");
                read.extend(paths.iter().map(Path::to_owned));
            }
            Validation::Fraction(_) if spec.validation_split.is_some() => {}
            Validation::Fraction(share) => _ = write!(text, "{share} {}", spec.seed),
        }
    }
    read.extend(values.validation.sets.values().flat_map(PathList::iter).map(Path::to_owned));
    if !read.is_empty() {
        let _ = write!(text, "{:?} {:?} {:?}", spec.field, spec.missing, spec.format);
    }
    let formats = values.data.sources.values().filter_map(|source| source.format).chain([spec.format]);
    let renders = |format| matches!(format, TextFormat::Chat | TextFormat::Preference);
    if !read.is_empty() && formats.into_iter().any(renders) {
        let _ = write!(text, "{:?}", spec.chat_template);
    }
    if read.iter().any(|path| !path.exists() || path.is_dir()) {
        let _ = write!(text, "{:?}", spec.extensions);
    }
    if spec.corpus != CorpusSource::Random {
        let _ = write!(text, "{}", plan.cross_documents);
    }
    // Seeds and initial values.
    let _ = write!(text, "order {}", plan.seeds.order);
    if plan.drops_elements() {
        let _ = write!(text, "dropout {}", plan.seeds.dropout);
    }
    let _ = write!(text, "from {:?} {}", values.model.init_from, values.model.init_optimizer);
    let from = if plan.adapter.is_some() { &values.adapter.init_from } else { &values.model.init_from };
    match from {
        Some(from) => _ = write!(text, "from {from}"),
        None => {
            let _ = write!(text, "{:?}", (plan.seeds.init, plan.seeds.scheme));
            for parameter in ModelTensors::new(plan).trained {
                let _ = write!(text, "{:?}", parameter.init);
            }
        }
    }
    // Events.
    let few = steps.min(500);
    for step in (1..=few).chain([steps]) {
        let is_due = |interval| is_due(interval, step, steps);
        let _ = write!(text, "{}", u8::from(is_due(values.validation.interval)));
        if values.generation.samples > 0 {
            let _ = write!(text, "{}", u8::from(is_due(values.generation.interval)));
        }
        if let Some(interval) = plan.intervals.tasks {
            let _ = write!(text, "t{}", u8::from(is_due(interval)));
        }
        if plan.batch.world_size > 1 && values.engine.communication.word() == "on" {
            let _ = write!(text, "{}", u8::from(is_due(values.parallelism.check_interval)));
        }
        if checkpoint.keep > 0 && plan.intervals.saves_after(step, steps) {
            let _ = write!(text, "s{}", u8::from(plan.intervals.saves_state_after(step, steps, false)));
        }
    }
    if checkpoint.keep > 0 {
        let by_time = matches!(plan.intervals.save_period, Period::Time(_));
        let _ = write!(text, "{} {}", checkpoint.keep, checkpoint.keep_best);
        let staying: Vec<u64> = plan.intervals.staying(steps).filter(|step| *step < steps).collect();
        let _ = write!(text, "{staying:?}");
        if by_time || plan.intervals.saves_before_end(steps) {
            let _ = write!(text, "{:?}", checkpoint.background);
        }
        if by_time {
            let _ = write!(text, "{:?} {:?}", plan.intervals.save_period, checkpoint.weights_only);
        }
    }
    let generation = &values.generation;
    if generation.samples > 0 {
        let _ = write!(text, "{} {} {}", generation.samples, generation.tokens, generation.prompt);
        if generation.temperature == 0.0 || generation.top_k == 1 {
            text += "greedy";
        } else {
            let _ = write!(text, "{} {}", generation.temperature, generation.top_k);
            let _ = write!(text, "{} {}", generation.top_p, generation.seed);
        }
    }
    // Single facts that are read as they are.
    let _ = write!(
        text,
        "{:?}",
        (checkpoint.resume, values.parallelism.launcher, &values.job, &values.data.card)
    );
    let _ = write!(text, "{:?}", (values.parallelism.timeout_s.to_bits(), &values.metrics, &plan.tasks));
    let validation = &values.validation;
    let _ =
        write!(text, "{:?}", (validation.steps, &validation.sets, &validation.tasks, validation.documents));
    let evaluation = &values.evaluation;
    if !evaluation.tasks.is_empty() {
        let _ = write!(
            text,
            "{:?} {:?}",
            evaluation.tasks,
            (&evaluation.data, evaluation.limit, evaluation.shots)
        );
    }
    let execution = &plan.execution;
    let _ = write!(text, "{:?}", (execution.threads, execution.memory_limit, execution.poison));
    let _ = write!(text, "{:?} {}", execution.placement, plan.batch.world_size);
    // What sweeps and comparisons read.
    let sweep = &values.sweep;
    let _ = write!(text, "{:?}", (&sweep.grid, &sweep.pairs, &sweep.exclude, &sweep.range, &sweep.log_range));
    let _ =
        write!(text, "{:?}", (sweep.samples, &sweep.on, sweep.confidence, &sweep.rungs, &sweep.cooldowns));
    let _ = write!(text, "{:?}", (sweep.confirm, sweep.seeds));
    if sweep.samples > 0 {
        let _ = write!(text, "{:?} {}", sweep.sampler, sweep.seed);
    }
    if sweep.rungs.is_some() {
        let _ = write!(text, "{}", sweep.eta);
    }
    let compare = &values.compare;
    let _ = write!(text, "{:?}", (&compare.change, &compare.hypothesis, &compare.predicts, &compare.on));
    let _ = write!(text, "{}", compare.min_effect);
    match compare.on {
        Some(_) => _ = write!(text, "{} {}", compare.seeds, compare.confidence),
        None => _ = write!(text, "{}", compare.repeats),
    }
    text
}

/// What the device runs: programs, the layout of the state, and every rate of every step.
fn programs(plan: &Plan) -> String {
    let programs = match Programs::new(plan) {
        Ok(programs) => programs,
        Err(e) => return format!("refused: {e}"),
    };
    let mut text = String::new();
    for slot in &programs.state.slots {
        let _ = writeln!(text, "{} {} {}+{}", slot.name, slot.spec, slot.buffer, slot.offset);
    }
    for section in programs.sections() {
        let _ = writeln!(text, "{}", section.program);
    }
    for (slot, table) in schedule_tables(plan, &programs.state, 0) {
        let few: Vec<u32> = table.iter().take(2000).map(|x| (*x as f32).to_bits()).collect();
        let _ = writeln!(text, "{slot} {few:?}");
    }
    text
}

/// A recipe with what it does.
struct Seen {
    recipe: Recipe,
    plan: Plan,
    signature: String,
    programs: Option<String>,
}

impl Seen {
    fn new(settings: &BTreeMap<String, String>, facts: &CorpusFacts) -> Option<Self> {
        let recipe = load(settings)?;
        let plan = Plan::new(&recipe, facts, here()).ok()?;
        let signature = signature(&recipe, &plan);
        Some(Self { recipe, plan, signature, programs: None })
    }

    fn programs(&mut self) -> &str {
        self.programs.get_or_insert_with(|| programs(&self.plan))
    }
}

#[test]
fn no_key_is_idle_without_a_word() {
    let base = with(&BTreeMap::new(), &BASE);
    let own = load(&base).expect("the base loads");
    let facts = xrun::plan::corpus_facts(&own).expect("random tokens");
    let own: BTreeMap<&str, String> =
        own.explain().into_iter().filter_map(|(key, value, _)| Some((key.path, value?))).collect();
    let mut choices: Vec<Vec<String>> =
        CHOICES.iter().map(|choice| choice.iter().map(ToString::to_string).collect()).collect();
    for key in KEYS.iter().filter(|key| !key.is_nested()) {
        if matches!(key.kind, Type::Word(_) | Type::WordOrFormula(..) | Type::Bool) {
            // What the base has is the first choice.
            let words = values_of(key, own.get(key.path).map(String::as_str));
            choices.extend(words.into_iter().map(|value| vec![format!("{}={value}", key.path)]));
        }
    }
    let choices = std::sync::Mutex::new(choices.into_iter());
    let (wrong, said) = (std::sync::Mutex::new(Vec::new()), std::sync::Mutex::new(BTreeSet::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(choice) = { choices.lock().unwrap().next() } {
                    let choice: Vec<&str> = choice.iter().map(String::as_str).collect();
                    let settings = with(&base, &choice);
                    let Some(mut seen) = Seen::new(&settings, &facts) else { continue };
                    let is_word = choice.len() == 1 && !CHOICES.contains(&choice.as_slice());
                    // A group has the keys of its section, which are tried under every word.
                    let keys = KEYS.iter().filter(|key| !(is_word && key.is_nested()));
                    let values = seen
                        .recipe
                        .explain()
                        .into_iter()
                        .filter_map(|(key, value, _)| Some((key.path, value?)));
                    let values: BTreeMap<&str, String> = values.collect();
                    for key in keys.filter(|key| !choice.iter().any(|c| c.starts_with(key.path))) {
                        let (faults, idle) = faults(key, &values, &settings, &mut seen, &facts);
                        wrong.lock().unwrap().extend(faults);
                        said.lock().unwrap().extend(idle);
                    }
                }
            });
        }
    });
    // One case per fault and key says enough.
    let mut cases: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (fault, case) in wrong.into_inner().unwrap() {
        cases.entry(fault).or_insert((0, case)).0 += 1;
    }
    let list: Vec<String> =
        cases.iter().map(|(fault, (count, case))| format!("{fault} ({count}): {case}")).collect();
    assert!(list.is_empty(), "{} wrong\n{}", list.len(), list.join("\n"));
    let said = said.into_inner().unwrap();
    let silent: Vec<&str> = KEYS
        .iter()
        .filter(|key| !key.path.starts_with("optimizer.groups.") && !key.idle.is_empty())
        .map(|key| key.path)
        .collect();
    // The other test has these: a CPU refuses them, and TINY sets a warm-up.
    let elsewhere = ["parallelism.transport", "parallelism.channels", "lr_scheduler.warmup_ratio"];
    let untried: Vec<&&str> =
        silent.iter().filter(|path| !said.contains(**path) && !elsewhere.contains(path)).collect();
    assert!(untried.is_empty(), "no case makes these idle: {untried:?}");
}

/// Returns what is wrong with a key under a choice, and the key if a remark says that it is idle. `values`
/// are those of the choice, by path.
fn faults(
    key: &'static Key,
    values: &BTreeMap<&str, String>,
    settings: &BTreeMap<String, String>,
    seen: &mut Seen,
    facts: &CorpusFacts,
) -> (Vec<(String, String)>, Option<&'static str>) {
    if OUTSIDE.contains(&key.path) {
        return (Vec::new(), None);
    }
    let (mut wrong, mut idle) = (Vec::new(), None);
    let find = |path: &str| values.get(path).cloned();
    let inherited = key.path.strip_prefix("optimizer.groups.").and_then(|path| path.split_once('.'));
    let inherited = inherited.and_then(|(_, name)| find(&format!("optimizer.{name}")));
    let accumulation = seen.recipe.batch().ok().map(|batch| batch.accumulation.to_string());
    let now = match key.path {
        "training.accumulation" => accumulation,
        path => find(path).or(inherited),
    };
    for value in values_of(key, now.as_deref()).into_iter().filter(|v| !SAME.contains(&(key.path, v))) {
        let changed = with(settings, &[&format!("{}={value}", key.path)]);
        let Some(mut other) = Seen::new(&changed, facts) else { continue };
        if other.recipe.written() == seen.recipe.written() {
            continue;
        }
        let remark = format!("`{}` has no effect", key.path);
        let said = other.recipe.remarks(other.plan.execution.gpu.is_none());
        let said = said.into_iter().find(|said| said.starts_with(&remark));
        let is_listed = LISTED.iter().any(|(path, choice)| {
            let (choice, value) = choice.split_once('=').unwrap_or_default();
            key.path.starts_with(path)
                && (choice.is_empty() || settings.get(choice).is_some_and(|v| v == value))
        });
        if said.is_some() && is_listed {
            idle = Some(key.path);
            continue;
        }
        let differs = seen.signature != other.signature || seen.programs() != other.programs();
        let case = || format!("{value} on {settings:?}");
        match (&said, differs) {
            (None, false) => wrong.push((format!("{} changes nothing, silently", key.path), case())),
            (Some(said), true) => {
                wrong.push((format!("{} is said to change nothing", key.path), format!("{said}: {}", case())))
            }
            (Some(_), false) => {
                idle = Some(key.path);
                let toml = other.recipe.to_toml();
                let lines = toml.lines().skip_while(|line| *line != format!("[{}]", key.section()));
                let line = lines.skip(1).take_while(|line| !line.starts_with('['));
                let line = line.filter(|line| line.starts_with(&format!("{} = ", key.name()))).last();
                let marked = line.is_none_or(|line| line.contains("# no effect"));
                // The resolved warm-up is in steps, and a recipe does not know the machine.
                let is_derived = ["lr_scheduler.warmup_ratio", "engine.cuda_graphs"].contains(&key.path);
                if !marked && !is_derived {
                    wrong.push((format!("the resolved recipe claims {}", key.path), case()));
                }
            }
            (None, true) => {}
        }
    }
    (wrong, idle)
}

/// Returns what is said about settings on an empty recipe for a machine of which nothing is known.
fn said(settings: &[&str]) -> Vec<String> {
    let overrides: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let recipe =
        recipe::load_str("r.toml".as_ref(), "", &overrides, std::iter::empty(), &Machine::none()).unwrap();
    recipe.remarks(false)
}

#[test]
fn remarks_name_the_key_and_what_makes_it_idle() {
    for (settings, sentence) in [
        (
            ["data.validation=/nosuch/file", "data.seed=0"],
            "`data.validation` has no effect with `data.corpus = \"stories\"`",
        ),
        (
            ["data.train_tokens=5", "data.corpus=text.txt"],
            "`data.train_tokens` has no effect with `data.corpus = ",
        ),
        (
            ["lr_scheduler.cooldown=cosine", "data.seed=0"],
            "`lr_scheduler.cooldown` has no effect with `lr_scheduler.decay = \"cosine\"`",
        ),
        (
            ["validation.interval=50", "training.steps=20"],
            "`validation.interval` has no effect with `training.steps = 20`",
        ),
        (["sweep.eta=4", "data.seed=0"], "`sweep.eta` has no effect with `sweep.rungs` unset"),
        (
            ["lr_scheduler.warmup_ratio=1e-4", "data.seed=0"],
            "`lr_scheduler.warmup_ratio` has no effect because it is less than half of one of `training.steps`",
        ),
        (
            ["parallelism.transport=nccl", "data.seed=0"],
            "`parallelism.transport` has no effect with `parallelism.world_size = 1`",
        ),
        (
            ["parallelism.channels=4", "data.seed=0"],
            "`parallelism.channels` has no effect with `parallelism.world_size = 1`",
        ),
        (
            ["optimizer.weight_decay=1e-6", "optimizer.lr=1e-3"],
            "`optimizer.weight_decay` has no effect because `1 - lr * weight_decay` rounds to 1 in fp32",
        ),
    ] {
        let found = said(&settings);
        assert!(found.len() == 1 && found[0].starts_with(sentence), "{settings:?}: {found:?}");
    }
    assert_eq!(said(&["training.steps=20", "data.seed=1"]), [] as [&str; 0]);
}

/// A recipe inside the binary may set what a user's choice makes idle; its user did not.
#[test]
fn recipes_in_the_binary_are_not_remarked_on() {
    for (name, _) in recipe::builtin::RECIPES {
        let recipe = recipe::load(name.as_ref(), &[], std::iter::empty(), &Machine::none()).unwrap();
        assert_eq!(recipe.remarks(false), [] as [&str; 0], "{name}");
        assert_eq!(recipe.idle_keys(false), [], "{name}");
    }
}

/// Pairs or cells of different seeds would be copies of one run, so they are refused.
#[test]
fn seeds_that_change_nothing_are_refused() {
    for settings in [
        ["seeds.init=1", "seeds.order=1", "sweep.seeds=3", "data.seed=0"],
        ["seeds.init=1", "seeds.order=1", "compare.on=val_loss", "compare.seeds=4"],
    ] {
        let overrides = settings.map(str::to_owned);
        let error = recipe::load_str("r.toml".as_ref(), "", &overrides, std::iter::empty(), &Machine::none());
        let message = error.expect_err("copies of a run").message().to_owned();
        assert!(message.contains("because `[seeds]` sets the seed of every part"), "{message}");
    }
}
