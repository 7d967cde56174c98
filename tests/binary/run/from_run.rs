//! Runs that begin with another run: with the weights of its newest or of a named checkpoint, whatever its
//! ranks and precision were, and with its optimizer's state by choice; what is refused, and what a resume
//! reads again.

use crate::place::{Place, Run};
use std::fs;
use xrun::checkpoint::{self, Loaded};
use xrun::results::rows::{MetricsRow, read};

/// A run whose steps differ in nothing but the weights: every row of the text is the same.
const EVEN: &str = r#"
[model]
dim = 32
n_layers = 1
n_heads = 2
ffn_dim = 64
[training]
seq_len = 32
local_batch_size = 4
seed = 3
[optimizer]
lr = 3e-3
[lr_scheduler]
warmup_steps = 0
min_lr_ratio = 1.0
[data]
corpus = "a.txt"
validation = "b.txt"
tokenizer = "byte"
[checkpoint]
interval = 4
keep = 9
[validation]
interval = 4
steps = 2
[generation]
samples = 0
[engine]
threads = 1
[metrics]
plots = false
"#;

fn place() -> Place {
    let place = Place::new();
    place.write("tiny.toml", EVEN.as_bytes());
    place.write("a.txt", &b"ab".repeat(100_000));
    place.write("b.txt", &b"ab".repeat(1000));
    place
}

/// Trains and returns the new run.
fn made(place: &Place, arguments: &[&[&str]]) -> Run {
    let before: Vec<_> = place.runs().into_iter().map(|run| run.path).collect();
    place.xrun(&arguments.concat()).succeeds();
    let mut new = place.runs();
    new.retain(|run| !before.contains(&run.path));
    assert_eq!(new.len(), 1, "{arguments:?}");
    new.remove(0)
}

fn losses(run: &Run) -> Vec<f32> {
    read::<MetricsRow>(&run.path.join("metrics.csv")).unwrap().iter().map(|row| row.loss).collect()
}

fn tensors(loaded: &Loaded, of_optimizer: bool) -> Vec<(String, Vec<u8>)> {
    let weights: Vec<&str> = loaded.parameter_names().collect();
    let named = loaded.names().into_iter().filter(|name| weights.contains(name) != of_optimizer);
    named.map(|name| (name.to_owned(), loaded.read(name, loaded.shape(name).unwrap()).unwrap())).collect()
}

/// Makes a finished run look as if its process had been killed before its first save.
fn kill_before_saves(run: &Run) {
    fs::remove_dir_all(run.checkpoints()).unwrap();
    let summary = run.text("summary.json").replace("\"status\": \"ok\"", "\"status\": \"running\"");
    fs::write(run.path.join("summary.json"), summary).unwrap();
}

#[test]
fn a_run_begins_with_the_weights_of_another() {
    let place = place();
    let base = made(&place, &[&["tiny.toml"], &["training.steps=8"]]);
    place.xrun(&["export", base.name(), "--to", "hf"]).succeeds();
    let begun =
        |more: &[&str]| made(&place, &[&["tiny.toml"], &["training.steps=4", "training.seed=5"], more]);
    let from_folder = losses(&begun(&["model.init_from=hf"]));
    let newest = base.checkpoints().join(checkpoint::folder_name(8));
    let by_path = format!("model.init_from={}", base.name());
    let by_step = format!("model.init_from={}", newest.display());
    for named in [by_path.as_str(), by_step.as_str()] {
        let run = begun(&[named]);
        assert_eq!(losses(&run), from_folder, "{named}");
        let summary = run.summary();
        assert_eq!(summary.begun_with.unwrap().folder, newest.to_string_lossy());
        assert!(
            run.text("resolved.toml").contains(&format!("init_from = {:?}", newest.display().to_string()))
        );
    }
    // An earlier checkpoint, by its path.
    let early = format!("model.init_from={}", base.checkpoints().join(checkpoint::folder_name(4)).display());
    let run = begun(&[&early]);
    assert_eq!(losses(&run)[0], losses(&base)[4], "the first loss is that of the next step");
    assert_ne!(losses(&run)[0], from_folder[0]);
    // Another number of ranks, a divided optimizer, another precision.
    let whole = begun(&[&by_path, "training.local_batch_size=2", "training.accumulation=2"]);
    for more in [
        &["training.local_batch_size=2", "parallelism.world_size=2"][..],
        &["training.local_batch_size=2", "parallelism.world_size=2", "parallelism.shard=optimizer"],
        &["training.dtype=bf16"],
    ] {
        let run = begun(&[&[by_path.as_str()], more].concat());
        let most = if more[0].ends_with("bf16") { 2e-2 } else { 1e-5 };
        for (mine, other) in losses(&run).into_iter().zip(losses(&whole)) {
            assert!((mine / other - 1.0).abs() < most, "{more:?}: {mine} and not {other}");
        }
    }
    // By name, from a recipe of another name; the newest run counts.
    place.write("other.toml", EVEN.as_bytes());
    let keys = ["other.toml", "training.steps=1", "model.init_from=tiny"];
    let begins = "results/tiny/";
    place.xrun(&[&["plan"], &keys[..]].concat()).succeeds().says(&["begins with the weights of", begins]);
    place.xrun(&keys).succeeds().says(&["begins with the weights of", begins]);
}

#[test]
fn the_optimizer_continues_by_choice() {
    let place = place();
    let whole = made(&place, &[&["tiny.toml"], &["training.steps=8"]]);
    let half = made(&place, &[&["tiny.toml"], &["training.steps=4"]]);
    assert_eq!(losses(&half), losses(&whole)[..4]);
    let from = format!("model.init_from={}", half.name());
    let with_state = ["training.steps=4", from.as_str(), "model.init_optimizer=true"];
    let continued = made(&place, &[&["tiny.toml"], &with_state]);
    assert_eq!(losses(&continued), losses(&whole)[4..], "every step is that of the uninterrupted run");
    assert_eq!(continued.newest().meta().updates_before(), 4);
    for of_optimizer in [false, true] {
        let [mine, other] = [&continued, &whole].map(|run| tensors(&run.newest(), of_optimizer));
        assert!(mine == other, "the optimizer's: {of_optimizer}");
    }
    // Moments begin at zero without it.
    let anew = made(&place, &[&["tiny.toml"], &["training.steps=4", &from]]);
    assert_eq!(losses(&anew)[0], losses(&whole)[4]);
    assert_ne!(losses(&anew)[1], losses(&whole)[5]);
    // A run of these continues, whether it has saved or not, and one can begin with it in turn.
    let rows = continued.text("metrics.csv");
    kill_before_saves(&continued);
    place.xrun(&["resume", continued.name()]).succeeds();
    assert_eq!(continued.text("metrics.csv"), rows);
    let long = made(&place, &[&["tiny.toml"], &with_state, &["checkpoint.interval=2"]]);
    long.forget_after(2);
    place.xrun(&["resume", long.name()]).succeeds().says(&["resuming from step 2"]);
    assert_eq!(losses(&long), losses(&whole)[4..], "the bias is corrected as before the resume");
    // Divided among ranks, and replicated.
    for shard in ["none", "optimizer"] {
        let ranks = ["training.local_batch_size=2", "parallelism.world_size=2"];
        let run =
            made(&place, &[&["tiny.toml"], &with_state, &ranks, &[&format!("parallelism.shard={shard}")]]);
        for (mine, other) in losses(&run).into_iter().zip(&losses(&whole)[4..]) {
            assert!((mine / other - 1.0).abs() < 1e-4, "{shard}: {mine} and not {other}");
        }
    }
    // The moving average is no state of the optimizer and begins anew.
    made(&place, &[&["tiny.toml"], &with_state, &["ema.decay=0.9"]]);
    // Nor are the scales of 8-bit floats, which a run in another format has no use for.
    let fp8 = made(&place, &[&["tiny.toml"], &["training.dtype=fp8", "training.steps=4"]]);
    let from_fp8 = format!("model.init_from={}", fp8.name());
    for dtype in ["bf16", "fp8"] {
        let keys = [from_fp8.as_str(), "model.init_optimizer=true", "training.steps=4"];
        let run = made(&place, &[&["tiny.toml"], &keys, &[&format!("training.dtype={dtype}")]]);
        for (mine, other) in losses(&run).into_iter().zip(&losses(&whole)[4..]) {
            assert!((mine / other - 1.0).abs() < 2e-2, "{dtype}: {mine} and not {other}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_key() {
    let place = place();
    let base = made(&place, &[&["tiny.toml"], &["training.steps=4"]]);
    let from = format!("model.init_from={}", base.name());
    let refused = |more: &[&str], says: &[&str]| {
        for command in [&["plan"][..], &[]] {
            place.xrun(&[command, &["tiny.toml"], &["training.steps=4"], more].concat()).ended(2).says(says);
        }
    };
    refused(
        &[&from, "model.dim=64", "model.norm_eps=1e-5"],
        &[
            "a different model than the run",
            "model.dim is 64, but 32 in the run",
            "model.norm_eps is 1e-5, but 1e-6",
        ],
    );
    refused(
        &[&from, "data.tokenizer=stories"],
        &["model.vocab_size is unset, but 257 in the run", "tokenizer.json"],
    );
    refused(&["model.init_from=nosuch"], &["nosuch: no such folder", "no run `nosuch` in results"]);
    let gone = format!("model.init_from={}", base.checkpoints().join(checkpoint::folder_name(7)).display());
    refused(&[&gone], &["the checkpoint that model.init_from names is gone"]);

    let with = |more: &[&'static str]| [&["model.init_optimizer=true"], more].concat();
    refused(&with(&[]), &["no run is named whose optimizer's state could be taken"]);
    let of_run = |more: &[&'static str]| [&[from.as_str()], &with(more)[..]].concat();
    refused(&of_run(&["adapter.kind=lora"]), &["belongs to its weights"]);
    refused(
        &of_run(&["optimizer.name=lion"]),
        &["the state of another optimizer: there is no lion.momentum."],
    );
    refused(
        &of_run(&["optimizer.name=sgd", "optimizer.momentum=0.0"]),
        &["has no place in this one", "adam."],
    );
    refused(&of_run(&["optimizer.groups.embedding.name=lion"]), &["there is no lion.momentum.embedding"]);
    place.xrun(&["export", base.name(), "--to", "hf"]).succeeds();
    refused(&with(&["model.init_from=hf"]), &["which has no optimizer's state"]);
    let bare = made(&place, &[&["tiny.toml"], &["training.steps=4", "checkpoint.weights_only=all"]]);
    let bare = format!("model.init_from={}", bare.name());
    refused(&[&[bare.as_str()], &with(&[])[..]].concat(), &["has only weights"]);
    // Weights alone are enough to begin with.
    place.xrun(&[&["tiny.toml"][..], &["training.steps=1", &bare]].concat()).succeeds();
}

#[test]
fn adapters_of_a_run_read_the_checkpoint_that_they_began_with() {
    let place = place();
    let base = made(&place, &[&["tiny.toml"], &["training.steps=8", "checkpoint.keep=1"]]);
    let from = format!("model.init_from={}", base.name());
    let lora = ["adapter.kind=lora", "adapter.rank=4", "training.steps=8", from.as_str()];
    let run = made(&place, &[&["tiny.toml"], &lora]);
    let whole = run.text("metrics.csv");
    // The origin is trained further in a fork, and in its own folder: the named checkpoint counts.
    let fork = made(&place, &[&["resume", base.name(), "--fork", "training.steps=9"]]);
    let later = checkpoint::folder_name(9);
    let moved = base.checkpoints().join(&later);
    crate::place::copy(&fork.checkpoints().join(&later), &moved);
    run.forget_after(4);
    place.xrun(&["resume", run.name()]).succeeds();
    assert_eq!(run.text("metrics.csv"), whole);
    let greedy = ["--samples", "1", "--tokens", "4", "--temperature", "0", "--prompt", "ab"];
    place.xrun(&[&["sample", run.name()], &greedy[..]].concat()).succeeds();
    place.xrun(&["export", run.name(), "--to", "merged", "--merge"]).succeeds();
    // No run begins with adapters alone.
    let adapters = format!("model.init_from={}", run.name());
    place.xrun(&[&["tiny.toml"][..], &["training.steps=1", &adapters]].concat()).ended(2).says(&["--merge"]);
    // Another state in its place, or none, is refused by its path.
    let own = base.checkpoints().join(checkpoint::folder_name(8));
    let aside = place.path().join("aside");
    fs::rename(&own, &aside).unwrap();
    run.forget_after(4);
    let gone = ["the checkpoint that model.init_from names is gone", "step-000008"];
    place.xrun(&["resume", run.name()]).ended(2).says(&gone);
    place.xrun(&["sample", run.name()]).ended(2).says(&gone);
    let other = format!("model.init_from={}", moved.display());
    place.xrun(&["resume", run.name(), &other]).ended(2).says(&["its content has changed"]);
    let copied = place.path().join("kept/checkpoint").join(checkpoint::folder_name(8));
    crate::place::copy(&aside, &copied);
    fs::copy(base.path.join("tokenizer.json"), place.path().join("kept/tokenizer.json")).unwrap();
    place.xrun(&["resume", run.name(), &format!("model.init_from={}", copied.display())]).succeeds();
    assert_eq!(run.text("metrics.csv"), whole);
}

/// A run that ended before its first save begins again only with the adapter that it began with.
#[test]
fn a_changed_adapter_is_refused_when_a_run_begins_again() {
    let place = place();
    let base = made(&place, &[&["tiny.toml"], &["training.steps=4"]]);
    place.xrun(&["export", base.name(), "--to", "hf"]).succeeds();
    let lora = ["adapter.kind=lora", "adapter.rank=4", "training.steps=4", "model.init_from=hf"];
    for (seed, to) in [("training.seed=3", "adapter"), ("training.seed=4", "other")] {
        let run = made(&place, &[&["tiny.toml"], &lora, &[seed]]);
        place.xrun(&["export", run.name(), "--to", to]).succeeds();
    }
    let run = made(&place, &[&["tiny.toml"], &lora, &["adapter.init_from=adapter"]]);
    let whole = run.text("metrics.csv");
    kill_before_saves(&run);
    let path = |name: &str| place.path().join(name);
    fs::rename(path("adapter"), path("first")).unwrap();
    fs::rename(path("other"), path("adapter")).unwrap();
    place.xrun(&["resume", run.name()]).ended(2).says(&["the content of adapter.init_from has changed"]);
    // With `auto`, the run is not taken for that of the recipe.
    let auto = [&["tiny.toml"][..], &lora, &["adapter.init_from=adapter", "checkpoint.resume=auto"]].concat();
    made(&place, &[&auto]);
    fs::rename(path("adapter"), path("other")).unwrap();
    fs::rename(path("first"), path("adapter")).unwrap();
    place.xrun(&["resume", run.name()]).succeeds();
    assert_eq!(run.text("metrics.csv"), whole);
}

/// What the model writes before its first step is kept beside what it writes at the end.
#[test]
fn samples_are_taken_before_and_after() {
    let place = place();
    let writes = ["generation.samples=2", "generation.tokens=4", "generation.prompt=ab"];
    let base = made(&place, &[&["tiny.toml", "training.steps=4"], &writes]);
    let steps = |run: &Run| run.summary().samples.iter().map(|sample| sample.step).collect::<Vec<u64>>();
    assert_eq!(steps(&base), [4, 4], "initial values have nothing to say");
    let from = format!("model.init_from={}", base.name());
    let run = made(&place, &[&["tiny.toml", "training.steps=8", &from], &writes]);
    assert_eq!(steps(&run), [0, 0, 8, 8]);
    let texts = |run: &Run| run.summary().samples.into_iter().map(|sample| sample.text).collect::<Vec<_>>();
    assert_eq!(texts(&run)[..2], texts(&base)[..], "they are those of the run that it begins with");
    // Training is the same without them.
    let silent = made(&place, &[&["tiny.toml", "training.steps=8", &from]]);
    assert_eq!(run.text("metrics.csv"), silent.text("metrics.csv"));
    // A run that begins again, or continues, has them once.
    let samples = run.summary().samples;
    run.forget_after(4);
    place.xrun(&["resume", run.name()]).succeeds();
    assert_eq!(run.summary().samples, samples);
    kill_before_saves(&run);
    place.xrun(&["resume", run.name()]).succeeds();
    assert_eq!(run.summary().samples, samples);
    let divided = ["training.local_batch_size=2", "parallelism.world_size=2", "parallelism.shard=optimizer"];
    let run = made(&place, &[&["tiny.toml", "training.steps=4", &from], &writes, &divided]);
    assert_eq!(texts(&run)[..2], texts(&base)[..]);
}

/// All cells of a sweep and all runs of a comparison begin with one checkpoint, and are known again by it.
#[test]
fn sweeps_and_comparisons_begin_with_one_checkpoint() {
    let place = place();
    let base = made(&place, &[&["tiny.toml", "training.steps=4"]]);
    let text =
        format!("{EVEN}[job]\ndescription = \"next\"\n").replace("[model]", "[model]\ninit_from = \"tiny\"");
    place.write("next.toml", text.as_bytes());
    let newest = base.checkpoints().join(checkpoint::folder_name(4));
    let begun = |count: usize| {
        let runs: Vec<_> =
            fs::read_dir(place.path().join("results/next")).unwrap().map(|run| run.unwrap().path()).collect();
        assert_eq!(runs.len(), count);
        for path in runs {
            let summary = Run { path }.summary();
            assert_eq!(summary.begun_with.unwrap().folder, newest.to_string_lossy());
        }
    };
    let sweep = ["sweep", "next.toml", "training.steps=4", "optimizer.lr=1e-3,3e-3"];
    place.xrun(&sweep).succeeds();
    begun(2);
    place.xrun(&sweep).succeeds().says(&["2 done, 0 to run"]);
    let compare = ["compare", "next.toml", "optimizer.lr=1e-3", "--on", "val_loss", "--seeds", "2"];
    let compared = place.xrun(&[&compare[..], &["--set", "training.steps=4"]].concat());
    assert!(matches!(compared.code, Some(0 | 3)), "{}", compared.stderr);
    begun(6);
    // A checkpoint with another content makes other cells.
    let another = made(&place, &[&["tiny.toml", "training.steps=4", "training.seed=9"]]);
    let named = format!("model.init_from={}", another.name());
    place.xrun(&[&sweep[..], &[&named]].concat()).succeeds().says(&["0 done, 2 to run"]);
}
