//! Runs on pairs of answers: the model begins as its own reference and learns to prefer the chosen answers,
//! whatever the cut of a batch, and the reference's log-probabilities are computed once and kept.

use crate::place::{Place, Run};
use std::fmt::Write;
use std::path::PathBuf;
use xrun::results::rows::{MetricsRow, read};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' \
     %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// Settings of a run on the pairs of [`place`], without what makes steps differ at random.
const PAIRS: [&str; 16] = [
    "tiny.toml",
    "model.init_from=base",
    "data.corpus=pairs.jsonl",
    "data.format=preference",
    "data.packing=document",
    "data.chat_template=t.jinja",
    "data.tokenizer=byte",
    "data.validation=0.2",
    "training.seq_len=96",
    "model.dropout=0",
    "generation.samples=0",
    "optimizer.lr=1e-3",
    "lr_scheduler.warmup_steps=0",
    "checkpoint.interval=4",
    "checkpoint.keep=9",
    "training.local_batch_size=8",
];

/// A folder with a run, `base`, and uneven pairs of which the chosen answer is `yes`.
fn place() -> Place {
    let place = Place::new();
    let base = ["tiny.toml", "data.tokenizer=byte", "training.steps=10", "training.seq_len=96"];
    place.xrun(&[&base[..], &["model.dropout=0", "generation.samples=0"]].concat()).succeeds();
    std::fs::rename(place.run().path, place.path().join("base")).unwrap();
    std::fs::remove_dir_all(place.path().join("results")).unwrap();
    let mut lines = String::new();
    for i in 0..40 {
        let (question, more) = ("a".repeat(1 + i % 7), "n".repeat(1 + i % 5));
        writeln!(lines, r#"{{"prompt": "{question}{i}", "chosen": "yes", "rejected": "{more}o"}}"#).unwrap();
    }
    lines += "{\"prompt\": \"same\", \"chosen\": \"a\", \"rejected\": \"a\"}\n";
    place.write("pairs.jsonl", lines.as_bytes());
    place.write("t.jinja", TEMPLATE.as_bytes());
    place
}

fn rows(run: &Run) -> Vec<MetricsRow> {
    read(&run.path.join("metrics.csv")).unwrap()
}

/// Returns the settings, with others in their place or beside them.
fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let key = |setting: &'a str| setting.split('=').next();
    let kept = PAIRS.into_iter().filter(|setting| !more.iter().any(|other| key(other) == key(setting)));
    kept.chain(more.iter().copied()).collect()
}

fn trained(place: &Place, more: &[&str]) -> Run {
    place.run_of(&place.xrun(&with(more)).succeeds())
}

fn value(row: &MetricsRow, column: &str) -> f64 {
    row.value(column).unwrap_or_else(|| panic!("{column} is blank"))
}

#[test]
fn a_model_begins_as_its_reference_and_learns_what_is_preferred() {
    let place = place();
    for (loss, first) in [("dpo", std::f64::consts::LN_2), ("ipo", 25.0)] {
        let more = [&format!("preference.loss={loss}")[..], "validation.interval=6", "training.steps=12"];
        let run = trained(&place, &more);
        let rows = rows(&run);
        assert!((value(&rows[0], "loss") / first - 1.0).abs() < 1e-6, "{loss}: {}", rows[0].loss);
        for column in ["margin", "preference_accuracy", "chosen_reward", "rejected_reward"] {
            assert_eq!(value(&rows[0], column), 0.0, "{loss}: {column}");
        }
        // Each answer has its end token: "yes" four tokens, and the others from three to seven.
        assert_eq!(value(&rows[0], "chosen_tokens"), 4.0);
        assert!((3.0..=7.0).contains(&value(&rows[0], "rejected_tokens")));
        let [early, last] = [&rows[5], &rows[11]];
        assert!(value(last, "loss") < 0.9 * first, "{loss}: {}", last.loss);
        assert!(value(last, "margin") > value(early, "margin"));
        assert_eq!(value(last, "preference_accuracy"), 1.0);
        assert!(value(last, "val_loss") < value(early, "val_loss"));
        assert_eq!(value(last, "val_preference_accuracy"), 1.0);
        assert!(value(last, "val_margin") > 0.0);
        assert_eq!(run.summary().bits_per_byte, None, "a loss of pairs is none per byte");
    }
}

#[test]
fn a_batch_of_pairs_has_one_loss_however_it_is_cut() {
    let place = place();
    let mut first: Option<Vec<[f64; 4]>> = None;
    for (local, accumulation, ranks, more) in [
        (8, 1, 1, "engine.fused=true"),
        (2, 4, 1, "engine.fused=false"),
        (4, 1, 2, "parallelism.shard=none"),
        (1, 2, 4, "parallelism.shard=optimizer"),
        (8, 1, 1, "activation_checkpoint.mode=full"),
    ] {
        let cut = [
            format!("training.local_batch_size={local}"),
            format!("training.accumulation={accumulation}"),
            format!("parallelism.world_size={ranks}"),
        ];
        let cut: Vec<&str> = cut.iter().map(String::as_str).chain(["training.steps=3", more]).collect();
        let run = trained(&place, &cut);
        let columns = ["loss", "grad_norm", "margin", "chosen_reward"];
        let found: Vec<[f64; 4]> =
            rows(&run).iter().map(|row| columns.map(|column| value(row, column))).collect();
        let expected = first.get_or_insert_with(|| found.clone());
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!(
                (found - expected).abs() < 1e-4 * expected.abs().max(1e-2),
                "{cut:?}: {found} {expected}"
            );
        }
    }
}

/// Returns the only entry of the cache of log-probabilities.
fn cached(place: &Place) -> PathBuf {
    let folder = place.path().join("cache/reference");
    let mut entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entry = entries.next().unwrap();
    assert_eq!(entries.next(), None);
    entry
}

#[test]
fn the_reference_is_computed_once_kept_and_verified() {
    let place = place();
    let start = |more: &[&str]| place.start_under("export XRUN_CACHE=\"$PWD/cache\"", &with(more)).ends();
    // Dropout is off for the reference, so it is the same with and without.
    let done = start(&["training.steps=8", "model.dropout=0.5"]).succeeds();
    let run = place.run_of(&done.says(&["by the reference model: computed"]));
    assert!(
        (value(&rows(&run)[0], "loss") - std::f64::consts::LN_2).abs() > 1e-4,
        "dropout is on in training"
    );
    let done = start(&["training.steps=8", "preference.beta=0.5"]).succeeds();
    let run = place.run_of(&done.says(&["by the reference model: from the cache", "0.6931472"]));
    let whole = run.text("metrics.csv");

    // A damaged entry is none; one with other numbers is found out by the loss, and computed again.
    let entry = cached(&place);
    let bytes = std::fs::read(&entry).unwrap();
    std::fs::write(&entry, &bytes[..bytes.len() - 1]).unwrap();
    start(&["training.steps=1"]).succeeds().says(&["reference model: computed"]);
    assert_eq!(std::fs::read(&entry).unwrap(), bytes);
    let mut other = bytes[..bytes.len() - 32].to_vec();
    (88..other.len()).step_by(16).for_each(|at| other[at + 6] ^= 1);
    let hash = blake3::hash(&other);
    other.extend(hash.as_bytes());
    std::fs::write(&entry, other).unwrap();
    start(&["training.steps=1"]).succeeds().says(&["reference model: computed"]);
    assert_eq!(std::fs::read(&entry).unwrap(), bytes);

    // The run has its own copy, and resumes with it to the bit; a fork takes it along.
    std::fs::remove_dir_all(place.path().join("cache")).unwrap();
    run.forget_after(4);
    place.xrun(&["resume", run.name()]).succeeds().says(&["by the reference model: as the run has them"]);
    assert_eq!(run.text("metrics.csv"), whole);
    let done = place.xrun(&["resume", run.name(), "--fork", "--at", "4", "optimizer.lr=1e-4"]).succeeds();
    let fork = place.run_of(&done.says(&["by the reference model: as the run has them"]));
    assert_eq!(value(&rows(&fork)[0], "margin"), value(&rows(&run)[4], "margin"));
    let lines = std::fs::read_to_string(place.path().join("pairs.jsonl")).unwrap();
    place.write("others.jsonl", lines.replace("yes", "yea").as_bytes());
    let fork = ["resume", run.name(), "--fork", "data.corpus=others.jsonl", "training.steps=12"];
    place.xrun(&fork).ended(2).says(&["reference.bin is of other pairs", "Begin a new run"]);
    std::fs::remove_file(run.path.join("reference.bin")).unwrap();
    run.forget_after(4);
    place.xrun(&["resume", run.name()]).ended(2).says(&["reference.bin cannot be read", "Begin a new run"]);
}

#[test]
fn adapters_are_compared_with_the_model_under_them() {
    let place = place();
    let lora = ["adapter.kind=lora", "adapter.rank=4", "training.steps=8", "optimizer.lr=1e-2"];
    let run = trained(&place, &lora);
    let rows = rows(&run);
    assert!((value(&rows[0], "loss") - std::f64::consts::LN_2).abs() < 1e-6);
    assert!(value(&rows[7], "margin") > 0.1);
}

#[test]
fn what_is_wrong_with_pairs_is_said_before_a_run() {
    let place = place();
    for (more, says) in [
        (&["data.packing=best_fit"][..], "a row of a batch has one pair of answers"),
        (&["training.z_loss=1e-4"], "the loss of pairs has no further terms"),
        (&["training.seq_len=16"], "no pair of answers to train on"),
        (&["data.corpus=stories"], "a generated corpus has no pairs of answers"),
    ] {
        place.xrun(&with(more)).ended(2).says(&[says]);
    }
    let without: Vec<&str> = PAIRS.into_iter().filter(|key| !key.starts_with("model.init_from")).collect();
    place.xrun(&without).ended(2).says(&["set model.init_from to the folder of a trained model"]);
    place.write("pairs.jsonl", b"{\"prompt\": \"q\", \"chosen\": \"a\"}\n");
    place.xrun(&PAIRS).ended(2).says(&["pairs.jsonl:1", "no pair of answers"]);
    // The plan shows what is left out, and what is trained on of both answers.
    let other = self::place();
    let plan = other.xrun(&[&["plan"], &PAIRS[..]].concat()).succeeds().says(&["whose answers are equal"]);
    for says in ["40 pairs by ", "⟦yes<|endoftext|>⟧"] {
        assert!(plan.stdout.contains(says), "no {says} in:\n{}", plan.stdout);
    }
    assert!(other.runs().is_empty());
}
