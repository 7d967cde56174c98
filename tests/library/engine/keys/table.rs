//! For every key: a recipe on which it matters, a change of the key, and where the change shows.

use super::runs::{self, Run};
use std::path::PathBuf;
use xrun::error::ErrorKind;
use xrun::optim::{Entry, OPTIMIZERS};
use xrun::recipe::find_path;
use xrun::results::Phase;

/// Where a change shows.
#[derive(Clone, Copy, Debug)]
pub enum Shows {
    /// Losses, parameters or moments differ.
    Curve,
    /// The printed programs, or the layout of state or arena, differ; the curve does not, or only by
    /// rounding.
    Program { same_bits: bool },
    /// Reserved bytes or the number of allocations differ, but no bit of the curve.
    Memory,
    /// Nowhere, because a single rank exchanges nothing: programs without a collective do not change.
    SingleRank,
    /// In an error of this kind that names the key.
    Refused(ErrorKind),
    /// In the resolved recipe, which every run folder has; no command of this version acts on it.
    Recorded,
    /// In what a run writes.
    Written(fn(&Run, &Run) -> bool),
    /// In what this function checks.
    Special(fn(&[String], &[String]) -> Result<(), String>),
}

/// How a key is shown to matter.
pub struct Case {
    /// Settings on top of the tiny recipe.
    pub base: Vec<String>,
    /// Settings on top of `base`: the key with another value.
    pub change: Vec<String>,
    one: Shows,
    several: Shows,
}

impl Case {
    /// Returns where the change shows with `world` ranks.
    pub fn shows(&self, world: usize) -> Shows {
        if world == 1 { self.one } else { self.several }
    }
}

/// A chat template.
const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% else %} \
                        {% endif %}{% endfor %}";

/// A task that asks how likely the second half of a story is.
const TASK: &str = r#"
name = "words"
title = "how a story goes on"
citation = "made for this test"
follows = "no other implementation"
[source]
repository = "words"
split = "test"
fields = ["story"]
[prompt]
kind = "choices"
context = "{{ story }}"
choices = ["yes", "no"]
gold = "0"
[examples]
split = "test"
take = "first"
[scoring]
metric = "bits_per_byte"
"#;

/// Returns items of the task, as JSON lines.
fn items(stories: [&str; 3]) -> String {
    stories.map(|story| format!("{{\"story\": \"{story}\"}}\n")).concat()
}

/// Files that cases read.
pub struct Files {
    folder: tempfile::TempDir,
    /// Guards the export of a model, which several cases begin with.
    exported: std::sync::Once,
}

impl Files {
    /// Makes a text of short documents, a folder with a text and a program, one with two splits, and JSON
    /// lines with two fields, one of which is missing once. Cases run in parallel, so nothing is written
    /// later.
    pub fn new() -> Self {
        let folder = runs::scratch();
        let line = |i: u32| format!("{{\"text\": \"{i} and {}\", \"other\": \"not {i}\"}}\n", i * i % 97);
        for (name, text) in [
            ("text.txt", (0..400).map(|i| format!("{i} and {} --- ", i * i % 97)).collect()),
            ("texts/a.txt", "some words and more ".repeat(300)),
            ("texts/b.py", "def f(x): return x ** 2; ".repeat(300)),
            ("splits/train.txt", "to be trained on, ".repeat(300)),
            ("splits/test.txt", "and held out of it; ".repeat(300)),
            ("words.toml", TASK.to_owned()),
            ("first/words/test.jsonl", items(["a b", "c d e", "f g"])),
            ("second/words/test.jsonl", items(["zz y", "x", "ww v u"])),
            (
                "chat.jsonl",
                (0..400)
                    .map(|i| format!("{{\"prompt\": \"{i}\", \"completion\": \"{}\"}}\n", i * i % 97))
                    .collect(),
            ),
            (
                "pairs.jsonl",
                (0..400)
                    .map(|i| {
                        format!("{{\"prompt\": \"{i}\", \"chosen\": \"{}\", \"rejected\": \"no\"}}\n", i % 97)
                    })
                    .collect(),
            ),
            ("short.jinja", TEMPLATE.to_owned()),
            ("long.jinja", TEMPLATE.replace("{{ m.content }}", "{{ m.content }}.")),
            ("lines.jsonl", (0..400).map(line).chain(["{\"text\": \"the last\"}\n".to_owned()]).collect()),
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder"))
                .expect("a temporary folder takes a folder");
            std::fs::write(path, text).expect("a temporary folder takes a file");
        }
        Self { folder, exported: std::sync::Once::new() }
    }

    fn folder(&self) -> PathBuf {
        self.folder.path().join("texts")
    }

    /// Names a task in a list, as `evaluation.tasks` takes it.
    fn task(&self) -> String {
        format!("[\"{}\"]", self.folder.path().join("words.toml").display())
    }

    /// Returns a folder with items of the task.
    fn items(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn splits(&self) -> PathBuf {
        self.folder.path().join("splits")
    }

    /// Returns settings of a corpus of conversations.
    fn conversations(&self) -> Vec<String> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        vec![
            format!("data.corpus={}", path("chat.jsonl")),
            format!("data.chat_template={}", path("short.jinja")),
            "data.format=chat".to_owned(),
            "data.packing=best_fit".to_owned(),
            "data.tokenizer=byte".to_owned(),
            "data.validation=0.3".to_owned(),
        ]
    }

    /// Returns settings of a corpus of pairs of answers.
    fn pairs(&self) -> Vec<String> {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        vec![
            format!("data.corpus={}", path("pairs.jsonl")),
            format!("data.chat_template={}", path("short.jinja")),
            "data.format=preference".to_owned(),
            "data.packing=document".to_owned(),
            // Named and not read: the initial values are the reference.
            "model.init_from=model".to_owned(),
            "data.tokenizer=byte".to_owned(),
            "data.validation=0.3".to_owned(),
        ]
    }

    fn lines(&self) -> PathBuf {
        self.folder.path().join("lines.jsonl")
    }

    /// Makes a Hugging Face folder of the tiny recipe's model.
    fn model(&self) -> PathBuf {
        let to = self.folder.path().join("model");
        self.exported.call_once(|| runs::export(&to).expect("a tiny run is exported"));
        to
    }

    /// Trains a run of the tiny recipe, which keeps a checkpoint.
    fn run(&self) -> PathBuf {
        runs::keep(&self.folder.path().join("results")).expect("a tiny run is trained")
    }

    /// Exports the adapters of another run on the model.
    fn adapter(&self) -> PathBuf {
        let to = self.folder.path().join("adapter");
        runs::export_adapter(&self.model(), &to).expect("the adapters of a tiny run are exported");
        to
    }

    /// Lists the first half of the text's documents.
    fn drop_list(&self) -> PathBuf {
        let path = self.folder.path().join("drop.txt");
        let mut list = "# xrun drop list 1: BLAKE3 of each document's text\n".to_owned();
        for i in 1..200 {
            let document = format!(" {i} and {} ", i * i % 97);
            list += &format!("{}\n", blake3::hash(document.as_bytes()).to_hex());
        }
        std::fs::write(&path, list).expect("a temporary folder takes a file");
        path
    }

    fn text(&self) -> PathBuf {
        self.folder.path().join("text.txt")
    }
}

/// Returns the case of a key.
pub fn case(key: &str, files: &Files) -> Option<Case> {
    use Shows::{Curve, Memory, Program, Recorded, SingleRank, Special};
    let text = format!("data.corpus={}", files.text().display());
    let text = text.as_str();
    let folder = format!("data.corpus={}", files.folder().display());
    let folder = folder.as_str();
    let splits = format!("data.corpus={}", files.splits().display());
    let lines = format!("data.corpus={}", files.lines().display());
    let lines = [lines.as_str(), "data.validation=0.3", "data.missing=skip"];
    let source = |name: &str, path: PathBuf| format!("data.sources.{name}.path={}", path.display());
    let (any, code) = (source("NAME", files.text()), source("code", files.folder()));
    let weights = ["data.sources.NAME.weight=1", "data.sources.code.weight=1"];
    let mixture =
        [&[any.as_str(), code.as_str(), "data.corpus=mixture", "data.validation=0.3"], &weights[..]].concat();
    let on = |base: &[&str], value: &str, [one, several]: [Shows; 2]| {
        let owned = |settings: &[&str]| settings.iter().map(ToString::to_string).collect();
        Some(Case { base: owned(base), change: vec![format!("{key}={value}")], one, several })
    };
    let curve = |value| on(&[], value, [Curve, Curve]);
    let curve_of = |base: &[&str], value| on(base, value, [Curve, Curve]);
    let program = |value, same_bits| on(&[], value, [Program { same_bits }; 2]);
    let talk = |value, same_bits| on(&[], value, [SingleRank, Program { same_bits }]);
    let refused = |value| on(&[], value, [Shows::Refused(ErrorKind::Usage); 2]);
    let written = |base: &[&str], value, differ| on(base, value, [Shows::Written(differ); 2]);
    let adapted = |base: &[&str], value: &str| {
        let model = format!("model.init_from={}", files.model().display());
        on(&[&[model.as_str()], base].concat(), value, [Special(runs::trains_otherwise); 2])
    };
    let task = format!("evaluation.tasks={}", files.task());
    let first_items = format!("evaluation.data={}", files.items("first").display());
    let on_task = [task.as_str(), first_items.as_str()];
    let scored = |value, differ| written(&on_task, value, differ);
    let recorded = |value| on(&[], value, [Recorded, Recorded]);
    let writes = ["generation.samples=2", "generation.tokens=8", "generation.prompt=ab"];
    let scaled = |word: &'static str| [word, "model.rope_factor=4.0", "model.rope_original_context=1024"];
    let (yarn, llama3) = (scaled("model.rope_scaling=yarn"), scaled("model.rope_scaling=llama3"));
    let texts = |value| written(&writes, value, |a, b| a.texts() != b.texts() && !a.texts().is_empty());
    match key {
        "data.card" | "data.sources.NAME.card" => {
            let base: &[&str] = if key == "data.card" { &[] } else { &mixture };
            written(base, "public domain", |a, b| {
                let said = |cards: Vec<Option<String>>| cards.into_iter().flatten().collect::<Vec<_>>();
                said(a.cards()).is_empty() && said(b.cards()) == ["public domain"]
            })
        }
        "job.description" | "job.label" => written(&[], "another", |a, b| a.recipe_toml() != b.recipe_toml()),

        "model.dim" => curve("48"),
        "model.vocab_size" => curve("300"),
        "model.n_layers" => curve("1"),
        "model.n_heads" => curve("8"),
        "model.n_kv_heads" => curve("4"),
        "model.head_dim" => curve("8"),
        "model.ffn_dim" => curve("48"),
        "model.dropout" => curve("0.2"),
        "model.norm" => curve("layer_norm"),
        "model.position" => curve("learned"),
        "model.logit_cap" => curve("1.0"),
        "model.logit_scale" => curve("0.5"),
        "model.embedding_scale" => curve("4.0"),
        "model.norm_weight" => curve("false"),
        "model.norm_bias" => curve_of(&["model.norm=layer_norm"], "false"),
        "model.norm_placement" => curve("sandwich"),
        "model.activation" => curve("geglu"),
        "model.bias" => curve("true"),
        "model.embedding_norm" => curve("true"),
        "model.parallel_blocks" => curve("true"),
        "model.window" => curve("5"),
        "model.global_interval" => curve_of(&["model.window=5"], "2"),
        "model.score_cap" => curve("0.5"),
        "model.residual_init" => curve("zero"),
        "model.qk_norm" => curve("false"),
        "model.qk_norm_place" => curve("after_rope"),
        "model.qk_norm_weight" => curve("false"),
        "model.rope_theta" => curve("1e6"),
        "model.rope_fraction" => curve("0.5"),
        "model.rope_direction" => curve("negative"),
        "model.rope_scaling" => curve_of(&yarn, "llama3"),
        "model.rope_factor" => curve_of(&yarn, "2.0"),
        "model.rope_original_context" => curve_of(&yarn, "4096"),
        "model.rope_beta_fast" => curve_of(&yarn, "4.0"),
        "model.rope_beta_slow" => curve_of(&yarn, "0.5"),
        "model.rope_attention_factor" => curve_of(&yarn, "2.0"),
        "model.rope_low_freq_factor" => curve_of(&llama3, "0.5"),
        "model.rope_high_freq_factor" => curve_of(&llama3, "2.0"),
        "model.norm_eps" => curve("1e-4"),
        "model.init_std" => curve("0.02"),
        "model.head_init" => curve("zero"),
        "model.parametrization" => curve_of(&["model.base_dim=16"], "mup"),
        "model.base_dim" => curve_of(&["model.parametrization=mup", "model.base_dim=16"], "8"),
        "model.tie_embeddings" => curve("true"),
        "model.definition" => curve("llama"),
        "model.init_from" => {
            on(&[], &files.model().display().to_string(), [Special(runs::begins_with_weights); 2])
        }

        "model.init_optimizer" => {
            let run = format!("model.init_from={}", files.run().display());
            on(&[run.as_str()], "true", [Special(runs::trains_otherwise); 2])
        }

        "adapter.kind" => adapted(&[], "lora"),
        "adapter.rank" => adapted(&["adapter.kind=lora"], "2"),
        "adapter.alpha" => adapted(&["adapter.kind=lora"], "64.0"),
        "adapter.rslora" => adapted(&["adapter.kind=lora"], "true"),
        "adapter.targets" => adapted(&["adapter.kind=lora"], "[\"attention\"]"),
        "adapter.dropout" => adapted(&["adapter.kind=lora"], "0.5"),
        "adapter.init_from" => adapted(&["adapter.kind=lora"], &files.adapter().display().to_string()),

        "fp8.products" => curve_of(&["training.dtype=fp8"], "[\"attention\"]"),
        "fp8.gradients" => curve_of(&["training.dtype=fp8"], "e4m3"),
        "fp8.scaling" => curve_of(&["training.dtype=fp8"], "current"),
        "fp8.bf16_first" | "fp8.bf16_last" => curve_of(&["training.dtype=fp8", "model.n_layers=2"], "1"),
        "preference.loss" | "preference.beta" => {
            let settings = files.pairs();
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            curve_of(&settings, if key == "preference.loss" { "ipo" } else { "0.5" })
        }

        "training.seq_len" => curve("8"),
        "training.local_batch_size" => curve("4"),
        "training.global_batch_size" => curve("32"),
        "training.accumulation" => curve("2"),
        "training.batch_ramp" => curve_of(&["training.global_batch_size=32"], "[[2, 16]]"),
        "training.steps" => curve("40"),
        "training.until" => curve("9000tokens"),
        "training.dtype" => curve("bf16"),
        "training.z_loss" => curve("0.1"),
        "training.label_smoothing" => curve("0.2"),
        "training.max_norm" => curve("0.01"),
        "training.seed" => curve("4"),

        "seeds.init" | "seeds.order" => curve("4"),
        "seeds.dropout" => curve_of(&["model.dropout=0.2"], "4"),
        "seeds.scheme" => curve("index"),

        "optimizer.lr" => curve("5e-3"),
        "optimizer.decay" => curve("independent"),
        "optimizer.betas" => curve("[0.8, 0.9]"),
        "optimizer.eps" => curve("1e-3"),
        "optimizer.weight_decay" => curve("0.5"),

        "lr_scheduler.warmup_steps" => curve("1"),
        "lr_scheduler.warmup_ratio" => curve("0.5"),
        "lr_scheduler.min_lr_ratio" => curve("0.5"),
        "lr_scheduler.decay" => curve("linear"),
        "lr_scheduler.decay_ratio" => curve_of(&["lr_scheduler.decay=wsd"], "0.9"),
        "lr_scheduler.decay_steps" => curve_of(&["lr_scheduler.decay=wsd"], "18"),
        "lr_scheduler.cooldown" => {
            curve_of(&["lr_scheduler.decay=wsd", "lr_scheduler.decay_ratio=0.9"], "one_minus_sqrt")
        }

        "activation_checkpoint.mode" => program("full", true),

        "parallelism.world_size" => program("4", false),
        "parallelism.launcher" => on(&[], "process", [Special(runs::launches); 2]),
        "parallelism.reduction" => on(
            &["parallelism.embedding_exchange=false"],
            "grouped",
            [SingleRank, Program { same_bits: true }],
        ),
        "parallelism.bucket_mib" => talk("0.001", true),
        "parallelism.overlap" => talk("false", true),
        "parallelism.embedding_exchange" => talk("false", false),
        "parallelism.shard" => talk("optimizer", true),
        "parallelism.transport" => refused("nccl"),
        "parallelism.channels" => refused("4"),
        "parallelism.check_interval" => on(&[], "3", [Special(runs::compares); 2]),
        "parallelism.timeout_s" => recorded("60.0"),

        "data.corpus" => curve("stories"),
        "data.split" => curve_of(&[splits.as_str(), "data.validation=0.3"], "train"),
        "data.validation_split" => curve_of(&[splits.as_str(), "data.split=train"], "test"),
        "data.tokenizer" => curve("stories"),
        // An entry that the text does not hold.
        "data.begin_token" => curve_of(&[text, "data.document_separator=---", "data.validation=0.3"], "z"),
        "data.document_separator" => curve_of(&[text, "data.validation=0.3"], "---"),
        "data.field" => curve_of(&lines, "other"),
        "data.missing" => {
            let other = [&lines[..], &["data.field=other"]].concat();
            on(&other, "error", [Shows::Refused(ErrorKind::Usage); 2])
        }
        "data.format" => curve_of(&lines, "text"),
        "data.chat_template" => {
            let settings = files.conversations();
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            curve_of(&settings, &files.folder.path().join("long.jinja").display().to_string())
        }
        "data.extensions" => curve_of(&[folder, "data.validation=0.3"], "[\".py\"]"),
        "data.drop" => curve_of(
            &[text, "data.document_separator=---", "data.validation=0.3"],
            &files.drop_list().display().to_string(),
        ),
        "data.cross_documents" => {
            curve_of(&[text, "data.document_separator=---", "data.validation=0.3"], "false")
        }
        "data.packing" => curve_of(&[text, "data.document_separator=---", "data.validation=0.3"], "best_fit"),
        "data.shuffle" => curve_of(&[text], "blocks"),
        "data.validation" => curve_of(&[text], "0.4"),
        "data.train_tokens" => curve("5000"),
        "data.validation_tokens" => curve("300"),
        "data.seed" => curve("7"),
        "data.phases" => curve_of(&mixture, "[{ from = 0.05, weights = { code = 1.0 } }]"),
        "data.sources.NAME.path" => curve_of(&mixture, &files.folder().join("b.py").display().to_string()),
        "data.sources.NAME.split" => {
            let path = source("NAME", files.splits());
            curve_of(&[&mixture[1..], &[path.as_str()]].concat(), "train")
        }
        "data.sources.NAME.document_separator" => curve_of(&mixture, "---"),
        "data.sources.NAME.extensions" => {
            let path = source("NAME", files.folder());
            curve_of(&[&mixture[1..], &[path.as_str()]].concat(), "[\".py\"]")
        }
        "data.sources.NAME.format" => {
            let path = source("NAME", files.lines());
            curve_of(&[&mixture[1..], &[path.as_str()]].concat(), "text")
        }
        "data.sources.NAME.field" | "data.sources.NAME.missing" => {
            let path = source("NAME", files.lines());
            let lines = [&mixture[1..], &[path.as_str(), "data.missing=skip"]].concat();
            if key == "data.sources.NAME.field" {
                return curve_of(&lines, "other");
            }
            let other = [&lines[..], &["data.sources.NAME.field=other"]].concat();
            on(&other, "error", [Shows::Refused(ErrorKind::Usage); 2])
        }
        "data.sources.NAME.weight" => curve_of(&mixture, "3.0"),
        "data.sources.NAME.epochs" => on(&mixture, "0.01", [Special(runs::limits_passes); 2]),

        "checkpoint.interval" => {
            written(&["checkpoint.keep=10"], "1", |a, b| (a.checkpoints(), b.checkpoints()) == (1, 4))
        }
        "checkpoint.minutes" => {
            let waits = ["checkpoint.keep=10", "checkpoint.background=never"];
            written(&waits, "1e-9", |a, b| (a.checkpoints(), b.checkpoints()) == (1, 4))
        }
        "checkpoint.keep" => {
            written(&["checkpoint.interval=1"], "3", |a, b| (a.checkpoints(), b.checkpoints()) == (2, 3))
        }
        "checkpoint.steps" => {
            written(&["checkpoint.keep=1"], "[1, 3]", |a, b| (a.checkpoints(), b.checkpoints()) == (1, 3))
        }
        "checkpoint.log_spacing" => {
            written(&["checkpoint.keep=1"], "2.0", |a, b| (a.checkpoints(), b.checkpoints()) == (1, 3))
        }
        "checkpoint.keep_best" => {
            written(&["validation.interval=1"], "true", |a, b| (a.has_best(), b.has_best()) == (false, true))
        }
        "checkpoint.weights_only" => {
            written(&[], "all", |a, b| (a.can_be_resumed(), b.can_be_resumed()) == (true, false))
        }
        "checkpoint.background" => {
            written(&["checkpoint.interval=1"], "never", |a, b| (a.copies(), b.copies()) == (3, 0))
        }
        "checkpoint.resume" => on(&[], "auto", [Special(runs::resumes); 2]),
        "validation.interval" => written(&[], "1", |a, b| (a.evaluations(), b.evaluations()) == (1, 4)),
        "validation.sets" => written(&[], &format!("{{ news = \"{}\" }}", files.text().display()), |a, b| {
            (a.sets(), b.sets()) == (vec![], vec!["news".to_owned()])
        }),
        "validation.tasks" => written(&[], "[\"next_token_accuracy\"]", |a, b| {
            (a.has_figure("val_accuracy"), b.has_figure("val_accuracy")) == (false, true)
        }),
        "validation.documents" => written(&[], "true", |a, b| (a.documents(), b.documents()) == (0, 1)),
        "evaluation.tasks" => {
            written(&on_task[1..], &files.task(), |a, b| (a.scores().len(), b.scores().len()) == (0, 1))
        }
        "evaluation.data" => {
            scored(&files.items("second").display().to_string(), |a, b| a.scores() != b.scores())
        }
        "evaluation.interval" => scored("1", |a, b| (a.scores().len(), b.scores().len()) == (1, 4)),
        "evaluation.limit" => scored("2", |a, b| {
            (a.task_items(), b.task_items()) == (vec![(0, None, 3)], vec![(0, Some(2), 2)])
        }),
        "evaluation.shots" => scored("1", |a, b| {
            (a.task_items(), b.task_items()) == (vec![(0, None, 3)], vec![(1, None, 3)])
                && a.scores() != b.scores()
        }),
        "validation.steps" => written(&[], "1", |a, b| a.val_loss() != b.val_loss()),

        // The curve depends on the weights; the state has the average too.
        "ema.decay" => curve_of(&["ema.decay=0.9"], "0.5"),
        "ema.evaluate" => written(&["ema.decay=0.9"], "true", |a, b| {
            a.ema_val_loss().is_none() && b.ema_val_loss().is_some()
        }),

        "generation.interval" => written(&writes, "2", |a, b| (a.texts().len(), b.texts().len()) == (2, 4)),
        "generation.samples" => written(&writes, "3", |a, b| (a.texts().len(), b.texts().len()) == (2, 3)),
        "generation.tokens" => texts("2"),
        "generation.prompt" => texts("cd"),
        "generation.temperature" => texts("0"),
        "generation.top_k" => texts("1"),
        "generation.top_p" => texts("0.01"),
        "generation.seed" => texts("1"),

        "metrics.interval" => on(&[], "2", [Special(runs::shows_less); 2]),
        "metrics.warmup" => {
            written(&[], "1", |a, b| (a.rows_of(Phase::Warmup), b.rows_of(Phase::Warmup)) == (4, 1))
        }

        "metrics.tensorboard" => on(&[], "true", [Special(runs::writes_events); 2]),
        "metrics.plots" => on(&[], "false", [Special(runs::draws_nothing); 2]),

        // No machine has this GPU, so the change is rejected even on a machine with GPUs.
        "engine.device" => refused("cuda").map(|mut case| {
            case.change.push("engine.devices=[9999]".into());
            case
        }),
        "engine.devices" => refused("[0]"),
        "engine.threads" => written(&[], "3", |a, b| (a.threads(), b.threads()) == (2, 3)),
        "engine.memory_limit_gib" => on(&[], "1e-5", [Shows::Refused(ErrorKind::DoesNotFit); 2]),
        "engine.placement" => on(&[], "caching", [Memory, Memory]),
        "engine.cuda_graphs" => refused("true"),
        "engine.fused" => program("false", false),
        "engine.attention" => program("unfused", false),
        "engine.batching" => program("looped", false),
        "engine.communication" => on(&[], "off", [SingleRank, Curve]),
        "engine.poison" => on(&[], "true", [Special(runs::poisons); 2]),

        "sweep.grid" => recorded("{ \"optimizer.lr\" = [1e-3, 3e-3] }"),
        "sweep.pairs" => recorded("[{ \"model.dim\" = 48, \"model.n_layers\" = 1 }]"),
        "sweep.exclude" => recorded("[{ \"model.n_layers\" = 8 }]"),
        "sweep.cooldowns" => recorded("[8, 12]"),
        "sweep.range" => recorded("{ \"lr_scheduler.warmup_steps\" = [0, 200] }"),
        "sweep.log_range" => recorded("{ \"optimizer.lr\" = [1e-4, 1e-2] }"),
        "sweep.samples" => recorded("27"),
        "sweep.sampler" => recorded("random"),
        "sweep.seed" => recorded("1"),
        "sweep.seeds" => recorded("5"),
        "sweep.on" => recorded("tok_s"),
        "sweep.confidence" => recorded("0.99"),
        "sweep.confirm" => recorded("5"),
        "sweep.rungs" => recorded("[100, 300]"),
        "sweep.eta" => recorded("2"),
        "compare.change" => recorded("{ \"engine.fused\" = false }"),
        "compare.hypothesis" => recorded("fewer passes over memory"),
        "compare.predicts" => recorded("tok_s +30..+60%"),
        "compare.repeats" => recorded("5"),
        "compare.min_effect" => recorded("0.02"),
        "compare.on" => recorded("val_loss"),
        "compare.seeds" => recorded("16"),
        "compare.confidence" => recorded("0.99"),
        _ => {
            let settings = optimizer_key_settings(key)?;
            let base: Vec<&str> = settings.0.iter().map(String::as_str).collect();
            curve_of(&base, settings.1)
        }
    }
}

/// Returns settings that make a key matter, and another value of the key. They choose the optimizer that has
/// the key and, for a group, a model with such parameters.
fn optimizer_key_settings(key: &str) -> Option<(Vec<String>, &'static str)> {
    let (section, name) = key.rsplit_once('.').filter(|(section, _)| section.starts_with("optimizer"))?;
    let has = |entry: &&Entry| entry.hyperparameters.iter().any(|h| h.name == name);
    let choice = OPTIMIZERS.iter().find(has).map(|entry| format!("{section}.name={}", entry.name));
    let positions = section.ends_with("positions").then(|| "model.position=learned".to_owned());
    // Biases are 0 at first, and decay spares them unless a group of vectors says otherwise.
    let decays =
        (section.ends_with("vector") && name == "decay").then(|| format!("{section}.weight_decay=0.1"));
    Some((choice.into_iter().chain(positions).chain(decays).collect(), find_path(key)?.example))
}
