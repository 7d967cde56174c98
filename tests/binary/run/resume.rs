//! What may be resumed, and as what: the same run, a run executed differently, a fork, or nothing.

use crate::place::{Place, STEPS, UNINTERRUPTED};
use serde_json::json;
use std::path::Path;
use xrun::checkpoint::{Meta, Snapshot, Store, TensorView};
use xrun::format::short;
use xrun::machine::Machine;
use xrun::recipe;
use xrun::results::rows::{MetricsRow, read};

#[test]
fn a_changed_training_key_is_refused_by_name() {
    let place = Place::killed_after(10);
    let run = place.run();
    let before = run.files();
    for (change, text) in [
        ("optimizer.lr=1e-3", "optimizer.lr = 0.001 (was 0.003)"),
        ("training.steps=31", "training.steps = 31 (was 30)"),
        ("model.dropout=0.0", "model.dropout = 0.0 (was 0.1)"),
        ("training.local_batch_size=2", "training.local_batch_size = 2 (was 4)"),
        // Without a fixed global batch, more ranks train on more tokens.
        ("parallelism.world_size=2", "parallelism.world_size = 2 (was 1)"),
        ("data.seed=4", "the corpus has hash"),
        // The curve is the same, but its validation losses would continue on other text.
        ("validation.steps=1", "validation.steps = 1 (was 2)"),
    ] {
        place.xrun(&["resume", run.name(), change]).ended(2).says(&[text, "--fork"]);
    }
    let fork = format!("{} --fork training.steps=31` starts a new run from it", run.name());
    place.xrun(&["resume", run.name(), "training.steps=31"]).ended(2).says(&["xrun resume ", &fork]);
    assert!(run.files() == before, "a refused resume changed the run");
}

#[test]
fn a_fork_is_a_run_of_its_own() {
    let place = Place::killed_after(10);
    let old = place.run();
    let before = old.files();
    place
        .xrun(&["resume", old.name(), "optimizer.lr=1e-3", "--fork"])
        .succeeds()
        .says(&["resuming from step 10"]);
    assert!(old.files() == before, "a fork changed the run that it began at");
    let runs = place.runs();
    assert_eq!(runs.len(), 2);
    let fork = runs.iter().find(|run| run.path != old.path).unwrap();
    let rows: Vec<MetricsRow> = read(&fork.path.join("metrics.csv")).unwrap();
    assert_eq!(rows.iter().map(|row| row.step).collect::<Vec<_>>(), (11..=STEPS).collect::<Vec<_>>());
    assert_eq!(rows[0].tokens_seen, 11 * 4 * 32);
    assert!(fork.text("resolved.toml").contains("\nlr = 0.001\n"));
    // The first step after the fork starts from the state of step 10, so its loss is the original run's.
    let original: Vec<MetricsRow> = read(&UNINTERRUPTED.run().path.join("metrics.csv")).unwrap();
    assert_eq!(rows[0].loss, original[10].loss);
    assert_ne!(rows[5].loss, original[15].loss);
}

/// A longer fork is not a longer run. Where it begins, what it inherits and what it trained itself are shown
/// wherever its figures are.
#[test]
fn a_fork_is_marked_wherever_it_is_shown() {
    let place = Place::new();
    let mut settings = vec!["tiny.toml", "training.steps=10", "lr_scheduler.warmup_ratio=0.2"];
    settings.extend(["metrics.warmup=0", "metrics.plots=true"]);
    place.xrun(&settings).succeeds();
    let parent = place.run();
    let name = parent.path.file_name().unwrap().to_str().unwrap().to_owned();
    let done =
        place.xrun(&["resume", parent.name(), "--fork", "training.steps=30", "training.local_batch_size=2"]);
    let warmup =
        "lr_scheduler.warmup_steps = 2 is kept from the parent run; a run of this recipe from step 0 has 6";
    let changed = "changed: training.steps = 30 (was 10)";
    let done = done.succeeds().says(&[warmup, changed, &format!("fork of {name} at step 10")]);
    // Ten steps of 4 · 32 tokens before the fork, and twenty of 2 · 32 since.
    let result = format!("ok: 30 of 30 steps, 20 of them since the fork, {} tokens in", short(1280.0));
    assert!(done.stdout.starts_with(&result), "{}", done.stdout);
    let origin = format!("fork of {name} at step 10, after {} tokens", short(1280.0));
    assert!(done.stdout.contains(&origin), "{}", done.stdout);
    assert!(done.stdout.contains("(mean of the last 3 steps)"), "a tenth of all 30: {}", done.stdout);
    let fork = place.runs().into_iter().find(|run| run.path != parent.path).unwrap();
    let json = fork.json("summary.json");
    assert_eq!(json["forked_from"], json!({"run": name, "step": 10, "tokens_seen": 1280}));
    assert_eq!((json["tokens_seen"].as_u64(), fork.newest().meta().tokens_seen), (Some(2560), 2560));
    assert!(fork.summary().notes.iter().any(|note| note == warmup));
    for picture in ["loss", "throughput", "schedule"] {
        let drawn = fork.text(&format!("plots/{picture}-light.svg"));
        assert!(!drawn.is_empty());
    }
    let listed = place.xrun(&["runs"]).succeeds().stdout;
    let line = |list: &str, path: &Path| {
        let hash = path.file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().to_owned();
        list.lines().find(|line| line.starts_with(&hash)).map(str::to_owned).unwrap()
    };
    let parent_hash = name.split('-').nth(1).unwrap();
    assert!(line(&listed, &fork.path).contains(&format!("fork of {parent_hash} at step 10")), "{listed}");
    assert!(!line(&listed, &parent.path).contains("fork of"), "{listed}");
    // Resuming a fork remembers where the fork began.
    fork.forget_after(30);
    place.xrun(&["resume", fork.name()]).succeeds();
    assert_eq!(fork.json("summary.json")["forked_from"], json["forked_from"]);
    // In a table, a fork and a run from step 0 are unlike.
    let straight = ["training.steps=30", "training.local_batch_size=2"];
    place.xrun(&[&["tiny.toml"], &settings[2..], &straight].concat()).succeeds();
    for run in place.runs() {
        place.xrun(&["keep", run.name()]).succeeds();
    }
    let block = "<!-- xrun:report kind=\"runs\" select=\"tiny\" newest=\"all\" across=\"training\" -->\n<!-- xrun:end -->\n";
    place.write("page.md", block.as_bytes());
    place.xrun(&["report", "page.md"]).ended(3).says(&[
        "the rows differ in fork (",
        "none",
        &format!("of {name} at step 10"),
    ]);
    place.write("page.md", block.replace("\"training\"", "\"training,fork\"").as_bytes());
    place.xrun(&["report", "page.md"]).succeeds();
    let page = std::fs::read_to_string(place.path().join("page.md")).unwrap();
    assert!(page.contains(&format!("(fork of {name} at step 10)")), "{page}");
}

#[test]
fn a_fork_says_that_it_measures_on_other_text() {
    let place = Place::killed_after(20);
    let run = place.run();
    let text = "validation.steps = 1 (was 2): validation losses of both runs do not compare";
    place
        .xrun(&["resume", run.name(), "--fork", "validation.steps=1"])
        .succeeds()
        .says(&[&format!("changed: {text}"), "over 1 of 5 batches"]);
    let fork = place.runs().into_iter().find(|other| other.path != run.path).unwrap();
    assert_eq!(fork.summary().notes, [format!("after step 20 with {text}")]);
}

#[test]
fn an_automatic_resume_leaves_a_run_that_measures_on_other_text() {
    let place = Place::killed_after(20);
    let run = place.run();
    let before = run.files();
    place.xrun(&["tiny.toml", "checkpoint.resume=auto", "validation.steps=1"]).succeeds();
    assert_eq!(place.runs().len(), 2);
    assert!(run.files() == before, "it was resumed");
    place.xrun(&["tiny.toml", "checkpoint.resume=auto"]).succeeds().says(&["resuming from step 20"]);
    assert_eq!(place.runs().len(), 2);
}

/// Earlier versions evaluated the first batches and did not record out of how many.
#[test]
fn a_run_of_an_earlier_version_says_from_where_on_it_measures_on_other_text() {
    let place = Place::killed_after(20);
    let run = place.run();
    let mut summary = run.summary();
    summary.val_part = None;
    std::fs::write(run.path.join("summary.json"), serde_json::to_vec(&summary).unwrap()).unwrap();
    place
        .xrun(&["resume", run.name()])
        .succeeds()
        .says(&["spread over the held-out text (earlier: its first batches)"]);
    assert!(run.summary().notes[0].starts_with("after step 20 with evaluations over batches spread"));
    assert_eq!(run.summary().recipe_hash, summary.recipe_hash);
}

#[test]
fn a_fork_that_cannot_train_is_refused_before_there_is_a_folder() {
    let place = Place::killed_after(20);
    let run = place.run();
    for (change, text) in [
        ("training.steps=20", "leaves nothing to train; set it above 20"),
        ("model.dim=64", "holds a different model"),
        ("model.n_layers=2", "is not there"),
        ("data.tokenizer=byte", "holds a different model"),
    ] {
        place.xrun(&["resume", run.name(), "--fork", change]).ended(2).says(&[text]);
    }
    assert_eq!(place.runs().len(), 1);
}

#[test]
fn changed_execution_is_accepted_and_told() {
    for (change, text) in [
        ("engine.threads=2", "engine.threads = 2 (was 1)"),
        ("engine.placement=naive", "engine.placement = \"naive\" (was \"arena\")"),
        ("activation_checkpoint.mode=full", "activation_checkpoint.mode = \"full\" (was \"emitted\")"),
    ] {
        let place = Place::killed_after(20);
        let run = place.run();
        let done = place.xrun(&["resume", run.name(), change]).succeeds();
        done.says(&[&format!("changed: {text}"), "resuming from step 20"]);
        run.ended_as_uninterrupted();
        let summary = run.summary();
        assert_eq!(summary.notes, [format!("after step 20 with {text}")]);
        let recipe =
            recipe::load(&run.path.join("resolved.toml"), &[], std::iter::empty(), &Machine::none()).unwrap();
        assert_eq!(recipe.hash(), summary.recipe_hash);
        assert_eq!(run.json("env-2.json")["command"][3], change);
    }
}

#[test]
fn more_ranks_keep_a_fixed_global_batch() {
    let place = Place::new();
    let fixed =
        ["tiny.toml", "training.global_batch_size=4", "training.local_batch_size=2", "checkpoint.keep=10"];
    place.xrun(&fixed).succeeds();
    let run = place.run();
    let whole: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
    run.forget_after(10);
    let done = place.xrun(&["resume", run.name(), "parallelism.world_size=2"]).succeeds();
    done.says(&["changed: parallelism.world_size = 2 (was 1)"]);
    let ranks: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
    assert_eq!(ranks.len(), whole.len());
    for (a, b) in ranks.iter().zip(&whole) {
        assert_eq!(a.tokens_seen, b.tokens_seen);
        assert!((a.loss / b.loss - 1.0).abs() <= 1e-5, "step {}: {} and {}", a.step, a.loss, b.loss);
    }
}

#[test]
fn a_changed_corpus_is_refused() {
    let place = Place::new();
    let text = "The sun was high and the lake was calm. ".repeat(200);
    let corpus = place.write("corpus.txt", text.as_bytes());
    place
        .xrun(&["tiny.toml", "data.corpus=corpus.txt", "data.tokenizer=byte", "training.steps=6"])
        .succeeds();
    let run = place.run();
    run.forget_after(5);
    // The modification times there are in seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    std::fs::write(&corpus, text.replacen("sun", "son", 1)).unwrap();
    let (hash, path) = (run.summary().corpus_hash.unwrap(), corpus.display());
    let was = format!("(was {})", &hash[..8]);
    place.xrun(&["resume"]).ended(2).says(&[
        "the corpus has hash ",
        &was,
        &format!("{path} has 8,000 bytes, written at "),
        "; it had 8,000 bytes, written at ",
        "--fork",
    ]);
    // A fork may train on it, and says so.
    let changed = format!("{path} has 8,000 bytes");
    place.xrun(&["resume", "latest", "--fork"]).succeeds().says(&["changed: the corpus has hash ", &changed]);
    std::fs::remove_dir_all(&place.runs()[1].path).unwrap();
    std::fs::remove_file(&corpus).unwrap();
    place.xrun(&["resume"]).ended(2).says(&["corpus.txt"]);
    // The recipe said where the corpus is; the run finds it from anywhere.
    std::fs::write(&corpus, &text).unwrap();
    let elsewhere = Place::new();
    elsewhere.xrun(&["resume", run.name()]).succeeds();
}

#[test]
fn a_finished_run_stays_as_it_is() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=6"]).succeeds();
    let run = place.run();
    let before = run.files();
    place.xrun(&["resume", run.name()]).succeeds().says(&["is finished: all 6 steps are trained", "--fork"]);
    assert!(run.files() == before, "resuming a finished run changed it");
    place.xrun(&["resume"]).ended(2).says(&["no unfinished run"]);
    place.xrun(&["resume", "tiny", "training.steps=8"]).ended(2).says(&["training.steps = 8 (was 6)"]);
    place.xrun(&["resume", "tiny", "training.steps=8", "--fork"]).succeeds();
    assert_eq!(place.runs().iter().map(|run| run.rows()).sum::<usize>(), 6 + 2);
}

/// Cells of sweeps and trials of comparisons keep no checkpoint, and a user may delete one for its space.
#[test]
fn a_finished_run_without_a_checkpoint_stays_as_it_is() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=6", "checkpoint.keep=0", "metrics.plots=false"]).succeeds();
    let run = place.run();
    let before = run.files();
    let finished = "is finished: all 6 steps are trained. It has no checkpoint to continue from";
    place.xrun(&["resume", run.name()]).succeeds().says(&[finished, "metrics.plots=true` draws its plots"]);
    assert!(run.files() == before, "resuming a finished run changed it");
    place
        .xrun(&["resume", run.name(), "--fork", "training.steps=8"])
        .ended(2)
        .says(&["no checkpoint to fork"]);
    place.xrun(&["resume", run.name(), "training.steps=8"]).ended(2).says(&["training.steps = 8 (was 6)"]);
    assert!(run.files() == before);
    place.xrun(&["resume", run.name(), "metrics.plots=true"]).succeeds();
    assert!(run.path.join("plots/loss-light.svg").exists());
    assert_eq!((place.runs().len(), run.rows()), (1, 6));
}

#[test]
fn missing_pictures_of_a_finished_run_are_drawn_again() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=6", "metrics.plots=true"]).succeeds();
    let run = place.run();
    let before = run.files();
    std::fs::remove_dir_all(run.path.join("plots")).unwrap();
    place.xrun(&["resume", run.name()]).succeeds().says(&["is finished", "Its plots are drawn again"]);
    assert!(run.files() == before);
    // Existing plots stay, even if they would be drawn differently now.
    let svg = |name: &str| run.path.join("plots").join(name);
    std::fs::remove_file(svg("loss-dark.svg")).unwrap();
    std::fs::write(svg("loss-light.svg"), "of an earlier version").unwrap();
    // The process of a resume was killed before it drew the end of the run.
    std::fs::write(svg("schedule-dark.svg"), "of an earlier step").unwrap();
    let written = run.path.join("summary.json").metadata().unwrap().modified().unwrap();
    let stale = std::fs::File::options().append(true).open(svg("schedule-dark.svg")).unwrap();
    stale.set_modified(written - std::time::Duration::from_secs(60)).unwrap();
    place.xrun(&["resume", run.name()]).succeeds();
    assert_eq!(std::fs::read(svg("loss-light.svg")).unwrap(), b"of an earlier version");
    for name in ["loss-dark.svg", "schedule-dark.svg"] {
        assert_eq!(std::fs::read(svg(name)).unwrap(), before[&svg(name)], "{name}");
    }
}

#[test]
fn a_second_process_is_refused_with_the_owner() {
    let place = Place::new();
    let mut running = place.start(&["tiny.toml", "training.steps=100000", "validation.interval=0"]);
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 0)));
    let run = place.run();
    let owner = format!("process {}", running.id());
    place.xrun(&["resume", run.name()]).ended(1).says(&["is in use by", &owner]);
    place.xrun(&["tiny.toml", "training.steps=100000", "checkpoint.resume=auto"]).ended(1).says(&[&owner]);
    place.xrun(&["resume"]).ended(2).says(&["no unfinished run"]);
    assert!(running.kill());
    assert_eq!(place.runs().len(), 1);
}

#[test]
fn auto_continues_the_same_recipe_alone() {
    let place = Place::killed_after(20);
    let run = place.run();
    let auto =
        |more: &[&str]| place.xrun(&[&["tiny.toml", "checkpoint.resume=auto"], more].concat()).succeeds();
    auto(&["optimizer.lr=1e-3", "training.steps=3"]);
    assert_eq!(place.runs().len(), 2, "another recipe is another run");
    assert_eq!(run.summary().status, xrun::results::Status::Running);
    // How often a run saves is not part of what a recipe trains.
    auto(&["checkpoint.keep=3"]).says(&["resuming from step 20"]);
    assert_eq!(place.runs().len(), 2);
    run.ended_as_uninterrupted();
    auto(&[]);
    assert_eq!(place.runs().len(), 3, "a finished run is not continued");
}

#[test]
fn there_may_be_nothing_to_resume() {
    let place = Place::new();
    place.xrun(&["resume"]).ended(2).says(&["no unfinished run in results"]);
    place.xrun(&["resume", "nothing"]).ended(2).says(&["no run `nothing`", "there are no runs yet"]);
}

/// Rows without a checkpoint, as in a folder from version control: what is dropped is reported.
#[test]
fn a_run_without_checkpoints_begins_anew_and_says_so() {
    let place = Place::killed_after(20);
    let run = place.run();
    std::fs::remove_dir_all(run.checkpoints()).unwrap();
    let rows = run.rows();
    assert!(rows > 0);
    let dropped = format!("starts at step 0; the {rows} rows of steps 1 to ");
    place.xrun(&["resume", "--quiet"]).succeeds().says(&["warning: ", &dropped]);
    run.ended_as_uninterrupted();
}

/// Names that no folder can have are rejected where they are given, and a recipe is found by its name.
#[test]
fn names_lead_to_folders() {
    let place = Place::new();
    let recipe = std::fs::read(place.path().join("tiny.toml")).unwrap();
    for name in ["\u{200b}.toml", "kept.toml"] {
        place.xrun(&["init", name]).ended(2).says(&["cannot name a folder in the results"]);
        place.write(name, &recipe);
        let sweep = ["sweep", name, "optimizer.lr=1e-3,1e-2"];
        place.xrun(&sweep).ended(2).says(&["cannot name a folder in the results", "a letter or a digit"]);
    }
    assert!(!place.path().join("results").exists());
    place.write("my run.toml", &recipe);
    place.xrun(&["my run.toml", "training.steps=2"]).succeeds();
    place.xrun(&["sample", "my run", "--samples", "1"]).succeeds();
}

#[test]
fn a_checkpoint_of_another_processor_is_told() {
    let place = Place::killed_after(20);
    let run = place.run();
    let loaded = run.newest();
    let tensors = loaded.names().into_iter().map(|name| {
        let shape = loaded.shape(name).unwrap().to_vec();
        (name.to_owned(), shape.clone(), loaded.read(name, &shape).unwrap())
    });
    let tensors: Vec<_> = tensors.collect();
    let views =
        tensors.iter().map(|(name, shape, bytes)| TensorView::new(name.as_str(), shape.clone(), bytes));
    let (optimizer, parameters): (Vec<_>, Vec<_>) = views.partition(|t| t.name.starts_with("adam."));
    let meta = Meta { engine: "cpu of another age".to_owned(), ..loaded.meta().clone() };
    let snapshot = Snapshot::new(parameters, optimizer);
    let saved = Store::open(Path::new(&run.checkpoints()), 9).unwrap().save(&meta, &snapshot).unwrap();
    assert!(saved.warnings.is_empty());
    let done = place.xrun(&["resume", "--quiet"]).succeeds();
    done.says(&["warning: ", "cpu of another age", "may not match an uninterrupted run to the bit"]);
    run.ended_as_uninterrupted();
}
