//! Tries to get a verdict that the runs do not carry: every way is refused, or said in the line of the
//! verdict. `scripts/fooling.py` tries all of docs/measuring.md; these are the ones that were silent.

use crate::place::{Done, Place};
use std::fs;
use std::path::{Path, PathBuf};
use xrun::results::experiment::{Experiment, Standing};
use xrun::results::ledger::Ledger;
use xrun::statistics::Verdict;

const SHORT: [&str; 6] = [
    "--set=training.steps=12",
    "--set=training.seq_len=16",
    "--set=checkpoint.interval=0",
    "--set=generation.samples=0",
    "--set=metrics.warmup=2",
    "--set=validation.interval=6",
];

const CHANGE: [&str; 3] = ["optimizer.lr=0.01", "--on", "val_loss"];

fn compare(place: &Place, arguments: &[&str]) -> Done {
    place.xrun(&[&["compare", "tiny.toml"], arguments, &SHORT].concat())
}

fn results(place: &Place) -> PathBuf {
    place.path().join("results")
}

/// Returns the newest comparison with this name.
fn named(place: &Place, name: &str) -> (PathBuf, Experiment) {
    let folder = xrun::results::find::find_comparison(&results(place), name).unwrap().unwrap();
    let found = Experiment::read(&folder).unwrap();
    (folder, found)
}

/// Asserts that an answer has no verdict word, and that the line of the verdict says why.
#[track_caller]
fn has_no_verdict(place: &Place, done: Done, name: &str, why: &str) {
    let done = done.ended(0);
    let line = done.stdout.lines().find(|line| line.starts_with("verdict")).unwrap_or_default();
    assert!(line.contains("exploratory, no verdict") && line.contains(why), "{}", done.stdout);
    let found = named(place, name).1;
    assert!(matches!(found.standing, Some(Standing::Exploratory { .. })));
    assert!(found.findings.iter().all(|finding| finding.verdict == Verdict::Inconclusive));
    assert_eq!(found.prediction.and_then(|prediction| prediction.held), None);
}

/// Seeds that ran before, alone, in a sweep or in another comparison, and a question that follows its runs.
#[test]
fn runs_that_are_older_than_their_question_give_no_verdict() {
    let place = Place::new();
    let alone: Vec<String> = SHORT.iter().map(|setting| setting.replace("--set=", "")).collect();
    let alone: Vec<&str> = alone.iter().map(String::as_str).collect();
    place.xrun(&[&["tiny.toml"], &alone[..]].concat()).succeeds();
    place
        .xrun(
            &[&["sweep", "tiny.toml", "training.seed=20,21,22", "optimizer.lr=0.003,0.01"], &alone[..]]
                .concat(),
        )
        .succeeds();
    let seeds = |seeds: &'static str, name: &'static str| {
        let asked = [&CHANGE[..], &["--seeds", seeds, "--predicts", "better", "--name", name]].concat();
        compare(&place, &asked)
    };
    has_no_verdict(&place, seeds("3,30", "alone"), "alone", "runs with the seed 3 were there before");
    has_no_verdict(&place, seeds("20,22", "swept"), "swept", "4 of 4 runs are older than the question");
    // A number of pairs takes fresh seeds, after all that either arm had.
    seeds("2", "fresh").succeeds();
    let (_, fresh) = named(&place, "fresh");
    let used: Vec<u64> = fresh.seeds().into_iter().collect();
    assert_eq!((used, fresh.standing), (vec![4, 5], Some(Standing::Confirmatory)));
    // Another prediction, smallest effect, confidence, or the arms swapped: a question that follows its runs.
    let same = [&CHANGE[..], &["--seeds", "4,5"]].concat();
    for (more, name) in [
        (&["--predicts", "worse"][..], "p"),
        (&["--predicts", "better", "--min-effect", "0.3"], "m"),
        (&["--predicts", "better", "--confidence", "0.8"], "c"),
    ] {
        has_no_verdict(
            &place,
            compare(&place, &[&same, more, &["--name", name]].concat()),
            name,
            "4 of 4 runs are older",
        );
    }
    // A number of pairs has the seeds that the arms had, and says beforehand what becomes of the answer.
    let counted = compare(
        &place,
        &[&CHANGE[..], &["--seeds", "2", "--predicts", "no difference", "--name", "n"]].concat(),
    );
    counted.says(&["seeds from 4 on, as an earlier question", "so the answer is exploratory"]);
    let swapped = [
        "--set=optimizer.lr=0.01",
        "optimizer.lr=0.003",
        "--on",
        "val_loss",
        "--seeds",
        "4,5",
        "--name",
        "s",
    ];
    has_no_verdict(&place, compare(&place, &swapped), "s", "4 of 4 runs are older");
    let swapped = named(&place, "s").1;
    assert!(
        swapped.history.iter().any(|one| one.relation.as_deref() == Some("the arms swapped")),
        "{swapped:?}"
    );
}

#[test]
fn a_deleted_folder_and_a_near_recipe_do_not_hide_what_was_asked() {
    let place = Place::new();
    compare(&place, &[&CHANGE[..], &["--seeds", "4"]].concat()).succeeds();
    fs::remove_dir_all(results(&place).join("comparisons")).unwrap();
    compare(&place, &[&CHANGE[..], &["--seeds", "6"]].concat()).ended(2).says(&["peeking"]);
    let swapped = ["--set=optimizer.lr=0.01", "optimizer.lr=0.003", "--on", "val_loss", "--seeds", "6"];
    compare(&place, &swapped).ended(2).says(&["peeking", "the arms swapped"]);
    // 13 steps for 12: the seeds are those after the known ones, and the error is shared.
    let longer = [&CHANGE[..], &["--seeds", "2", "--name", "longer", "--set=training.steps=13"]].concat();
    let short: Vec<&str> = SHORT.iter().copied().filter(|one| !one.contains("training.steps")).collect();
    let done = place.xrun(&[&["compare", "tiny.toml"], &longer[..], &short].concat());
    assert!(
        done.stdout.contains("asked after 1 other answer about this change or a near one"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("training.steps = 13 for 12"), "{}", done.stdout);
    let longer = named(&place, "longer").1;
    assert_eq!(longer.seeds().into_iter().collect::<Vec<_>>(), [7, 8]);
    // A ledger that lost lines which a comparison had seen is said.
    let ledger = xrun::results::ledger::folder(&results(&place));
    fs::remove_dir_all(&ledger).unwrap();
    let done = compare(&place, &[&CHANGE[..], &["--seeds", "40,41", "--name", "cut"]].concat());
    has_no_verdict(&place, done, "cut", "the ledger has lost lines");
}

/// Every file that a stored run's figures rest on.
#[test]
fn stored_runs_are_verified_whenever_they_are_used() {
    let place = Place::new();
    place.write("news.txt", "the same old news of the day. ".repeat(60).as_bytes());
    let sets = "--set=validation.sets={ news = \"news.txt\" }";
    let byte = ["--set=data.tokenizer=byte", "--set=model.ffn_dim=32"];
    let asked = [&["optimizer.lr=0.01", "--on", "val_loss/news", "--seeds", "3", sets], &byte[..]].concat();
    compare(&place, &asked).succeeds();
    let (_, found) = named(&place, "tiny");
    let run = results(&place).join(found.runs[1].run.as_ref().unwrap());
    let names =
        |arm: usize| found.runs_in(arm).map(|run| run.run.clone().unwrap()).collect::<Vec<_>>().join(",");
    let stored = ["compare", "--runs", &names(0), &names(1), "--on", "val_loss/news"];
    // The rows with their summary, consistently; the rows alone; the recipe.
    for (file, from, to) in
        [("metrics.csv", "\n12,", "\n12,1"), ("resolved.toml", "steps = 12", "steps = 11")]
    {
        let path = run.join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        compare(&place, &asked).ended(1).says(&["cannot be used again", found.runs[1].run.as_ref().unwrap()]);
        assert_ne!(place.xrun(&stored).code, Some(0));
        fs::write(&path, text).unwrap();
    }
    compare(&place, &asked).succeeds();
    // A ledger line that points at another run no longer matches its hash.
    let ledger = xrun::results::ledger::folder(&results(&place));
    for file in fs::read_dir(&ledger).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let [one, other] = [1, 3].map(|at| found.runs[at].run.as_ref().unwrap().as_str());
        if text.contains(one) {
            fs::write(&path, text.replace(one, other)).unwrap();
            compare(&place, &asked).ended(1).says(&["this line was changed"]);
            fs::write(&path, text).unwrap();
        }
    }
    // Another text under the same name: the runs are made again, and stored ones are not paired with them.
    place.write("news.txt", "quite other words, longer than before; and more. ".repeat(60).as_bytes());
    let before = place.runs().len();
    let done = compare(&place, &[&asked[..], &["--name", "replaced"]].concat());
    assert!([Some(0), Some(3)].contains(&done.code), "{}", done.stderr);
    assert_eq!(place.runs().len(), before + 6);
    let (_, replaced) = named(&place, "replaced");
    let mixed = replaced.runs_in(1).map(|run| run.run.clone().unwrap()).collect::<Vec<_>>().join(",");
    let mixed = place.xrun(&["compare", "--runs", &names(0), &mixed, "--on", "val_loss/news"]);
    assert_ne!(mixed.code, Some(0));
    assert!(mixed.stderr.contains("different text"), "{}", mixed.stderr);
}

#[test]
fn a_sweeps_row_is_the_run_that_the_sweep_made() {
    let place = Place::new();
    let settings: Vec<String> = SHORT.iter().map(|setting| setting.replace("--set=", "")).collect();
    let sweep: Vec<&str> = ["sweep", "tiny.toml", "optimizer.lr=0.003,0.01"]
        .into_iter()
        .chain(settings.iter().map(String::as_str))
        .collect();
    place.xrun(&sweep).succeeds();
    let table = || {
        let folder = fs::read_dir(results(&place).join("sweeps")).unwrap().map(|entry| entry.unwrap().path());
        let mut tables = folder.map(|folder| folder.join("table.csv")).filter(|table| table.is_file());
        fs::read_to_string(tables.next().unwrap()).unwrap()
    };
    let before = table();
    let on = ["optimizer.lr=0.01", "--on", "tok_s,val_loss", "--seeds", "3,4"];
    let done = compare(&place, &on);
    assert!([Some(0), Some(3)].contains(&done.code), "{}", done.stderr);
    place.xrun(&sweep).succeeds();
    assert_eq!(table(), before);
    let again = Ledger::read(&results(&place)).unwrap();
    assert!(
        again.lines().iter().any(|line| line.comparison.is_some() && line.attempt > 1),
        "a cell ran again"
    );
}

/// Edits every kind of field of a kept record, with its manifest made anew.
#[test]
fn an_edited_record_contradicts_its_runs() {
    let place = Place::new();
    // One evaluation only: when a run is kept, its times must agree from row to row, even on a busy machine.
    let short =
        ["training.steps=12", "training.seq_len=16", "checkpoint.interval=0", "validation.interval=0"];
    let short: Vec<String> =
        short.iter().chain(&["generation.interval=0"]).map(|setting| format!("--set={setting}")).collect();
    let short: Vec<&str> = short.iter().map(String::as_str).collect();
    let asked = ["--seeds", "4", "--predicts", "better"];
    place.xrun(&[&["compare", "tiny.toml"], &CHANGE[..], &asked, &short].concat()).succeeds();
    let (folder, found) = named(&place, "tiny");
    let path = folder.join("experiment.json");
    let text = fs::read_to_string(&path).unwrap();
    type Edit = fn(&mut Experiment);
    let edits: [(&str, Edit); 18] = [
        ("verdict", |e| e.findings[0].verdict = Verdict::Worse),
        ("interval", |e| e.findings[0].interval.as_mut().unwrap().low -= 0.1),
        ("p", |e| e.findings[0].p = Some(1e-9)),
        ("min_effect", |e| e.findings[0].min_effect = Some(0.5)),
        ("confidence", |e| (e.confidence, e.findings[0].confidence) = (0.99, 0.99)),
        ("prediction's text", |e| e.prediction.as_mut().unwrap().text = "worse".to_owned()),
        ("prediction's outcome", |e| e.prediction.as_mut().unwrap().held = Some(false)),
        ("a value", |e| {
            e.runs[1].values.insert("val_loss".to_owned(), xrun::results::measure::MeasureValue::Value(1.0));
        }),
        ("a pair", |e| e.runs.truncate(6)),
        ("pairs and design", |e| {
            e.runs.truncate(6);
            e.design = xrun::results::experiment::Design::Pairs { pairs: 3 };
        }),
        ("seeds", |e| e.runs.iter_mut().for_each(|run| run.seed = run.seed.map(|seed| seed + 1))),
        ("date", |e| e.provenance.began = Some("2020-01-01T00:00:00Z".to_owned())),
        ("budget", |e| e.arms[1].budget.as_mut().unwrap().steps = 11),
        ("what it must be read with", |e| e.qualifiers.clear()),
        ("the evaluated text", |e| _ = e.provenance.evaluated_tokens.insert(String::new(), 99_000)),
        ("programs", |e| _ = e.provenance.programs.insert("another".to_owned())),
        ("parameters", |e| e.arms[1].budget.as_mut().unwrap().parameters = Some(1)),
        ("fixed seeds", |e| e.fixed_seeds.push("seeds.order = 1".to_owned())),
    ];
    for (what, edit) in edits {
        let mut edited = found.clone();
        edit(&mut edited);
        edited.write(&folder).unwrap();
        let done = place.xrun(&["keep", "comparisons/tiny"]).ended(1);
        assert!(done.stderr.contains("does not agree with its runs"), "{what}: {}", done.stderr);
    }
    fs::write(&path, &text).unwrap();
    // The folder's name has a date, and the ledger has the answer.
    let renamed = folder.with_file_name("20200101T000000Z-deadbeef");
    fs::rename(&folder, &renamed).unwrap();
    let done = place.xrun(&["keep", "comparisons/tiny"]).ended(1);
    assert!(done.stderr.contains("and its folder is tiny/20200101T000000Z-deadbeef"), "{}", done.stderr);
    fs::rename(&renamed, &folder).unwrap();
    place.xrun(&["keep", "comparisons/tiny"]).succeeds();
    // As a forger would, who makes the manifest anew.
    let kept = results(&place).join("kept");
    fs::write(
        place.path().join("README.md"),
        "<!-- xrun:report kind=\"quality\" select=\"tiny\" -->\n<!-- xrun:end -->\n",
    )
    .unwrap();
    place.xrun(&["report"]).succeeds();
    place.xrun(&["report", "--check"]).succeeds();
    let mut forged = found.clone();
    forged.findings[0].verdict = Verdict::Worse;
    let kept_folder = kept.join("comparisons/tiny").join(folder.file_name().unwrap());
    reseal(&kept_folder, &forged);
    let done = place.xrun(&["report", "--check"]).ended(3);
    assert!(done.stderr.contains("verdict is \"worse\", and its runs give \"better\""), "{}", done.stderr);
}

/// Replaces a kept record, and its entry in the manifest.
fn reseal(folder: &Path, forged: &Experiment) {
    let old = fs::read(folder.join("experiment.json")).unwrap();
    forged.write(folder).unwrap();
    let new = fs::read(folder.join("experiment.json")).unwrap();
    let path = folder.join("manifest.json");
    let manifest = fs::read_to_string(&path).unwrap();
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    assert!(manifest.contains(&hash(&old)));
    let sized = |bytes: &[u8]| format!("\"bytes\": {}", bytes.len());
    fs::write(path, manifest.replace(&hash(&old), &hash(&new)).replace(&sized(&old), &sized(&new))).unwrap();
}
