//! Runs `xrun compare --on` as a user does: pairs with the same seed, reused runs, verdicts, and what is
//! rejected.

use crate::place::{Done, Place, are_gone};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xrun::results::experiment::{Experiment, ExperimentRun, Standing, VerdictBasis};
use xrun::results::find::find_comparison;
use xrun::results::ledger::{CellStatus, Ledger};
use xrun::results::measure::MeasureValue;
use xrun::statistics::{Verdict, paired_difference};

/// Runs of a fraction of a second.
pub const SHORT: [&str; 6] = [
    "--set=training.steps=12",
    "--set=training.seq_len=16",
    "--set=checkpoint.interval=0",
    "--set=generation.samples=0",
    "--set=metrics.warmup=2",
    "--set=validation.interval=4",
];

/// Each update multiplies the weights by 1 - 10 · 10, and 30 of these diverge for any seed.
const DIVERGES: [&str; 3] = ["optimizer.lr=10.0", "optimizer.weight_decay=10.0", "training.max_norm=0.0"];

fn compare(place: &Place, arguments: &[&str]) -> Done {
    place.xrun(&[&["compare", "tiny.toml"], arguments, &SHORT].concat())
}

/// Returns all comparisons, oldest first.
fn comparisons(place: &Place) -> Vec<Experiment> {
    let folders = xrun::results::find::comparisons(&results(place)).unwrap();
    folders.iter().rev().map(|folder| Experiment::read(folder).unwrap()).collect()
}

#[track_caller]
fn only(place: &Place) -> Experiment {
    let mut all = comparisons(place);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn results(place: &Place) -> PathBuf {
    place.path().join("results")
}

/// Returns the number of runs that the ledger has started.
fn started(place: &Place) -> usize {
    let ledger = Ledger::read(&results(place)).unwrap();
    ledger.lines().iter().filter(|line| line.status == CellStatus::Running).count()
}

fn held(comparison: &Experiment) -> Option<bool> {
    comparison.prediction.as_ref().and_then(|prediction| prediction.held)
}

fn verdicts(comparison: &Experiment) -> Vec<Verdict> {
    comparison.findings.iter().map(|judged| judged.verdict).collect()
}

#[test]
fn a_change_is_judged_by_pairs_and_the_record_repeats_the_verdict() {
    let place = Place::new();
    let asked = [
        "optimizer.lr=0.01",
        "--on",
        "val_loss",
        "--seeds",
        "4",
        "--predicts",
        "better",
        "--hypothesis",
        "too low",
    ];
    let done = compare(&place, &asked).succeeds();
    let found = only(&place);
    assert!(found.finished && found.history.is_empty());
    assert_eq!(found.runs_in(0).map(|run| run.seed.unwrap()).collect::<Vec<_>>(), [3, 4, 5, 6]);
    assert_eq!(found.changes, ["optimizer.lr: 0.003 → 0.01"]);
    assert!(found.shared_randomness.as_ref().unwrap().contains("initial values"), "{found:?}");
    let value = |run: &ExperimentRun| {
        let value = run.values["val_loss"].value().unwrap();
        let summary = xrun::results::folder::read_summary(&results(&place).join(run.run.as_ref().unwrap()));
        assert_eq!(f64::from(summary.unwrap().val_loss.last.unwrap().loss), value);
        value
    };
    let differences: Vec<f64> =
        found.pairs().map(|pair| value(pair.candidate) - value(pair.baseline)).collect();
    let again = paired_difference(&differences, found.confidence).unwrap();
    let judged = &found.findings[0];
    assert_eq!((judged.interval, judged.p), (Some(again.interval), Some(again.p)));
    // The rate is so low that a three times larger one is better in every pair, whatever the seed.
    assert_eq!((judged.verdict, held(&found)), (Verdict::Better, Some(true)));
    for said in ["better by", "over 4 pairs", "`better`: held", "no earlier comparison", "too low"] {
        assert!(done.stdout.contains(said), "no `{said}` in {}", done.stdout);
    }
    assert_eq!(started(&place), 8);

    assert_eq!(found.standing, Some(Standing::Confirmatory));

    // The same question runs nothing and has the same answer.
    let done = compare(&place, &[&asked[..], &["--json"]].concat()).succeeds();
    assert_eq!(started(&place), 8, "stored runs are used again");
    let printed: Experiment = serde_json::from_str(&done.stdout).unwrap();
    assert!(printed.runs.iter().all(|run| run.reused));
    assert_eq!(printed.findings, found.findings);
    let [earlier] = printed.history.as_slice() else { panic!("{:?}", printed.history) };
    assert_eq!((earlier.pairs, earlier.shared_seeds, earlier.ended.as_str()), (4, 4, "val_loss: better"));

    assert_eq!((printed.standing, printed.question), (Some(Standing::Confirmatory), found.question.clone()));

    // A stored run that is gone runs again.
    let run = found.runs[3].run.as_ref().unwrap();
    std::fs::remove_dir_all(results(&place).join(run)).unwrap();
    compare(&place, &asked).succeeds();
    let last = comparisons(&place).pop().unwrap();
    assert_eq!((started(&place), &last.findings), (9, &found.findings));

    // Without the prediction it is another question, and its runs are older.
    let done = compare(&place, &asked[..5]).succeeds();
    assert!(
        done.stdout.contains("exploratory, no verdict: -") && !done.stdout.contains("better by"),
        "{}",
        done.stdout
    );
    assert_eq!(started(&place), 9);
}

#[test]
fn pairs_after_a_verdict_are_refused_and_a_confirmation_has_fresh_seeds() {
    let place = Place::new();
    let change = ["optimizer.lr=0.01", "--on", "val_loss"];
    let asked =
        |seeds: &str, more: &[&str]| compare(&place, &[&change[..], &["--seeds", seeds], more].concat());
    asked("4", &[]).succeeds();
    let first = only(&place).full_name();
    for seeds in ["6", "2", "6,7,8"] {
        let refused = asked(seeds, &[]).ended(2).says(&["peeking", "--confirm", &first]);
        assert!(!refused.stderr.contains("--sequential"), "{}", refused.stderr);
    }
    asked("6", &["--sequential"]).ended(2).says(&["peeking"]);
    asked("6", &["--plan"]).succeeds();
    asked("6", &["--sequential"]).ended(2).says(&["peeking"]);
    assert_eq!(comparisons(&place).len(), 1, "a refusal and a plan leave nothing behind");

    // The recipe has changed since; the stored runs tell what was compared.
    let recipe = std::fs::read_to_string(place.path().join("tiny.toml")).unwrap();
    place.write("tiny.toml", recipe.replace("ffn_dim = 64", "ffn_dim = 128").as_bytes());
    let done = place.xrun(&["compare", "--confirm", &first, "--predicts", "better"]).succeeds();
    assert!(done.stdout.contains(&format!("confirms    {first}")), "{}", done.stdout);
    let confirmed = comparisons(&place).into_iter().find(|found| found.confirms.is_some()).unwrap();
    let seeds: Vec<u64> = confirmed.runs_in(1).map(|run| run.seed.unwrap()).collect();
    assert_eq!(seeds, [7, 8, 9, 10], "after all that were used");
    assert_eq!(confirmed.standing, Some(Standing::Confirmatory));
    assert_eq!((confirmed.confirms.as_deref(), confirmed.history.len()), (Some(first.as_str()), 1));
    assert!((confirmed.findings[0].confidence - 0.975).abs() < 1e-12, "it shares the error of its family");
    assert!(done.stdout.contains("asked after 1 other answer about this change"), "{}", done.stdout);
    place.xrun(&["compare", "--confirm", &first, "--seeds", "5,99"]).ended(2).says(&["has used the seed 5"]);
    place.xrun(&["compare", "--confirm", "nothing"]).ended(2).says(&["no comparison `nothing`"]);
}

/// The candidate's text has the held-out text in it, and the text of both arms has that of a further set.
#[test]
fn a_held_out_text_that_one_arm_trained_on_has_no_verdict() {
    let place = Place::new();
    let text = |from: usize, count: usize| -> String {
        (from..from + count).map(|at| format!("{} ", at * 7919 % 100_003)).collect()
    };
    let (held, both) = (text(0, 300), text(1000, 300));
    place.write("held.txt", held.as_bytes());
    place.write("both.txt", both.as_bytes());
    place.write("clean.txt", (text(10_000, 2000) + &both).as_bytes());
    place.write("leaky.txt", (text(20_000, 2000) + &both + &held).as_bytes());
    let asked = [
        "data.corpus=leaky.txt",
        "--on",
        "val_loss,val_loss/both",
        "--seeds",
        "2",
        "--set=data.corpus=clean.txt",
        "--set=data.tokenizer=byte",
        "--set=data.validation=held.txt",
        "--set=validation.sets={ both = \"both.txt\" }",
    ];
    let done = compare(&place, &asked);
    let why = "the candidate alone trained on the held-out text: about 96 % of it";
    assert!(done.stdout.contains("val_loss: no verdict: ") && done.stdout.contains(why), "{}", done.stdout);
    let found = only(&place);
    assert!(found.findings[0].withheld.as_ref().unwrap().starts_with(why), "{found:?}");
    assert_eq!(found.findings[1].withheld, None);
    assert!(found.findings[1].interval.is_some());
    assert!(found.verdict_words().contains("though 96 % of the held-out text is also trained on"));
}

#[test]
fn what_keeps_the_bits_ends_as_the_same_bits() {
    let place = Place::new();
    let on = ["--on", "val_loss,train_loss", "--seeds", "2", "--predicts", "val_loss -0.01..0.01"];
    let done = compare(&place, &[&["activation_checkpoint.mode=full"], &on[..]].concat()).succeeds();
    let found = only(&place);
    assert_eq!(verdicts(&found), [Verdict::SameBits; 2]);
    assert!(found.findings.iter().all(|judged| judged.basis == VerdictBasis::SameBits));
    assert!(done.stdout.contains("the same bits in 2 of 2 pairs"), "{}", done.stdout);
    assert_eq!(held(&found), Some(true));
}

#[test]
fn a_diverging_candidate_counts_and_is_not_run_again() {
    let place = Place::new();
    let on = ["--on", "val_loss", "--seeds", "6", "--jobs", "2"];
    let done = place.xrun(&[&["compare", "tiny.toml"], &DIVERGES[..], &on].concat()).ended(3);
    let done = done.says(&["exit code 3: val_loss is worse\n"]);
    assert!(!done.stderr.contains("error: val_loss"), "{}", done.stderr);
    let found = only(&place);
    let counts = found.diverged.unwrap();
    assert_eq!((counts.pairs, counts.baseline, counts.candidate), (6, 0, 6));
    assert!((counts.p - 2.0 / 64.0).abs() < 1e-12, "{}", counts.p);
    assert_eq!(found.findings[0].basis, VerdictBasis::DivergedRuns);
    assert!(found.runs_in(1).all(|run| run.values["val_loss"] == MeasureValue::Diverged));
    assert!(done.stdout.contains("worse, by diverged runs"), "{}", done.stdout);
    assert_eq!(started(&place), 12, "a run that diverged would diverge again");
}

#[test]
fn disjoint_seeds_tell_chance_alone() {
    let place = Place::new();
    compare(&place, &["training.seed=1000", "--on", "val_loss", "--seeds", "3"]);
    let found = only(&place);
    let seeds = |at: usize| [found.runs[2 * at].seed.unwrap(), found.runs[2 * at + 1].seed.unwrap()];
    assert_eq!([seeds(0), seeds(2)], [[3, 1000], [5, 1002]]);
    assert_eq!(found.baseline().seedless_hash, found.candidate().seedless_hash);
    assert!(found.shared_randomness.as_ref().unwrap().contains("not shared: initial values"), "{found:?}");
}

#[test]
fn speed_is_measured_in_turns_and_never_used_again() {
    let place = Place::new();
    let asked =
        ["engine.placement=naive", "--on", "tok_s,val_loss", "--seeds", "2", "--set=training.steps=24"];
    let short: Vec<&str> = SHORT.iter().copied().filter(|one| !one.contains("training.steps")).collect();
    let arguments = [&["compare", "tiny.toml"], &asked[..], &short].concat();
    for runs in [4, 8] {
        // Which arm is faster is not certain.
        let done = place.xrun(&arguments);
        assert!([Some(0), Some(3)].contains(&done.code), "{}", done.stderr);
        assert_eq!(started(&place), runs);
    }
    let found = comparisons(&place).pop().unwrap();
    assert_eq!(verdicts(&found)[1], Verdict::SameBits);
    assert!(found.joint.is_some() && verdicts(&found)[0] != Verdict::SameBits);
    let ledger = Ledger::read(&results(&place)).unwrap();
    let began: Vec<&str> = ledger.lines()[..8]
        .iter()
        .filter(|line| line.status == CellStatus::Running)
        .map(|line| line.settings.get("engine.placement").map_or("baseline", |_| "candidate"))
        .collect();
    assert_eq!(began, ["baseline", "candidate", "candidate", "baseline"]);
    place.xrun(&[&arguments[..], &["--jobs", "2"]].concat()).ended(2).says(&["one run at a time"]);
}

#[test]
fn a_killed_comparison_goes_on_where_it_was() {
    let place = Place::new();
    let arguments =
        [&["compare", "tiny.toml", "optimizer.lr=0.01", "--on", "val_loss", "--seeds", "5"], &SHORT[..]]
            .concat();
    let mut running = place.start(&arguments);
    let ended = || {
        let ledger = Ledger::read(&results(&place));
        ledger.is_ok_and(|ledger| {
            ledger.lines().iter().filter(|line| line.status == CellStatus::Ok).count() >= 3
        })
    };
    assert!(running.until(ended));
    let process = running.id();
    assert!(running.kill());
    are_gone(&[process], Duration::from_secs(10));
    let cut = only(&place);
    assert!(!cut.finished && cut.runs.len() == 10);
    assert_eq!(verdicts(&cut), [Verdict::Inconclusive], "nothing is judged before the last pair");
    place.xrun(&arguments).succeeds().says(&["continues", &cut.full_name()]);
    let found = only(&place);
    assert!(found.finished && found.ended_pairs() == 5);
    assert!(found.runs[0].reused);
    assert!(started(&place) <= 11, "at most the run that was cut off began twice");

    // An uninterrupted start gives the same.
    let other = Place::new();
    other.xrun(&arguments).succeeds();
    assert_eq!(only(&other).findings, found.findings);
}

#[test]
fn the_plan_runs_its_pilot_alone_and_says_what_pairs_see() {
    let place = Place::new();
    let asked = ["optimizer.lr=0.0031", "--on", "val_loss", "--seeds", "4"];
    compare(&place, &[&asked[..], &["--plan"]].concat()).succeeds().says(&["--pilot 8 estimates", "8 runs"]);
    assert!(comparisons(&place).is_empty() && place.runs().is_empty(), "nothing is run");
    compare(&place, &[&asked[..], &["--plan", "--pilot", "3"]].concat())
        .succeeds()
        .says(&["3 pilot pairs with seeds from 1000003", "4 pairs see a true difference of"]);
    assert_eq!((comparisons(&place).len(), started(&place)), (0, 6));
    // The pilot is used for planning but not judged.
    let done = compare(&place, &[&asked[..], &["--pilot", "3"]].concat());
    assert!([Some(0), Some(3)].contains(&done.code), "{}", done.stderr);
    let found = only(&place);
    assert_eq!((started(&place), found.pilot.len(), found.runs.len()), (14, 6, 8));
    let plan = found.plan.as_ref().unwrap();
    assert_eq!((plan.runs, plan.stored_runs, plan.power[0].plan.deviation.freedom), (8, 0, 2));
    assert!(found.runs.iter().all(|run| run.seed.unwrap() < 1_000_000));
}

#[test]
fn a_recipe_may_say_what_is_judged() {
    let place = Place::new();
    let recipe = std::fs::read_to_string(place.path().join("tiny.toml")).unwrap();
    let compared = "[compare]\nchange = { \"optimizer.lr\" = 0.01 }\non = \"val_loss\"\nseeds = 2\n\
                    confidence = 0.8\npredicts = \"better\"\n";
    place.write("judged.toml", format!("{recipe}{compared}").as_bytes());
    place.xrun(&[&["compare", "judged.toml"], &SHORT[..]].concat()).succeeds();
    let found = only(&place);
    assert_eq!((found.confidence, found.runs.len()), (0.8, 4));
    assert_eq!(found.prediction.as_ref().unwrap().text, "better");
    assert!(found.arms.iter().all(|arm| arm.budget.unwrap().steps == found.arms[0].budget.unwrap().steps));
    place.write("wrong.toml", format!("{recipe}{}", compared.replace("val_loss", "val_los")).as_bytes());
    place.xrun(&["compare", "wrong.toml"]).ended(2).says(&["wrong.toml:", "did you mean val_loss?"]);
}

#[test]
fn a_kept_comparison_keeps_its_runs() {
    let place = Place::new();
    // One evaluation only: when a run is kept, its times must agree from row to row, even on a busy machine.
    let asked = ["optimizer.lr=0.01", "--on", "val_loss", "--seeds", "2", "--set=validation.interval=0"];
    place
        .xrun(&[&["compare", "tiny.toml"], &asked[..], &["--set=generation.interval=0"]].concat())
        .succeeds();
    let found = only(&place);
    let folder = find_comparison(&results(&place), &found.full_name()).unwrap().unwrap();
    assert!(folder.ends_with(found.full_name()));
    place.xrun(&["keep", "comparisons/tiny"]).succeeds();
    let kept = results(&place).join("kept");
    assert!(found.run_names().iter().all(|run| kept.join(run).join("summary.json").is_file()));
    let (name, own) = (found.full_name(), format!("`xrun keep comparisons/{}`", found.full_name()));
    place.xrun(&["keep", "tiny"]).succeeds().says(&["part of the comparison", &own]);
    place.xrun(&["keep", &format!("comparisons/{name}")]).succeeds().says(&["already kept"]);
    let folder = kept.join("comparisons").join(found.full_name());
    assert_eq!(Experiment::read(&folder).unwrap(), found);
    let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(
        readme.contains(&format!("tiny: {}", found.verdict().words()))
            && readme.contains(found.run_names()[3]),
        "{readme}"
    );
}

#[test]
fn stored_runs_with_the_same_seeds_are_pairs() {
    let place = Place::new();
    compare(&place, &["optimizer.lr=0.01", "--on", "val_loss", "--seeds", "3"]);
    let found = only(&place);
    let names =
        |arm: usize| -> Vec<String> { found.runs_in(arm).map(|run| run.run.clone().unwrap()).collect() };
    let (before, after) = (names(0), names(1));
    let judge = |baseline: &[&String], candidate: &[&String], more: &[&str]| {
        let joined = |runs: &[&String]| runs.iter().map(|run| run.as_str()).collect::<Vec<_>>().join(",");
        let arms = [joined(baseline), joined(candidate)];
        place.xrun(&[&["compare", "--runs", &arms[0], &arms[1], "--on"], more].concat())
    };
    let (a, b): (Vec<&String>, Vec<&String>) = (before.iter().collect(), after.iter().collect());

    // In any order and without new runs, the verdict equals the one of the comparison that made the runs.
    let done = judge(&a, &[b[2], b[0], b[1]], &["val_loss", "--name", "stored"]);
    assert!([Some(0), Some(3)].contains(&done.code), "{}", done.stderr);
    assert_eq!(place.runs().len(), 6);
    let again = comparisons(&place).into_iter().find(|comparison| comparison.name == "stored").unwrap();
    assert_eq!((&again.findings, &again.changes), (&found.findings, &found.changes));
    assert!(again.provenance.device.as_ref().unwrap().starts_with("cpu"));
    assert_eq!(again.provenance.corpus_hashes, found.provenance.corpus_hashes);
    assert!(again.finished && again.runs.iter().all(|run| run.reused));
    assert_eq!(again.standing, Some(Standing::Confirmatory), "the question was asked before its runs");
    // It is about the same change as the comparison that made the runs.
    assert_eq!(again.change(), found.change());
    assert_eq!(again.history[0].comparison, found.full_name());
    place.xrun(&["keep", &again.full_name()]).succeeds();
    // Kept runs are judged like others, and kept where they are.
    let [baseline, candidate] = [before.join(","), after.join(",")];
    let kept = ["--results", "results/kept"];
    let asked = ["compare", "--runs", &baseline, &candidate, "--on", "val_loss", "--name", "of-kept-runs"];
    let done = place.xrun(&[&kept[..], &asked].concat()).succeeds();
    assert!(done.stdout.contains("the question was asked after its runs had been made"), "{}", done.stdout);
    let name = find_comparison(&results(&place).join("kept"), "of-kept-runs").unwrap().unwrap();
    let name = name.to_str().unwrap();
    place.xrun(&[&kept[..], &["keep", name, "--to", "elsewhere"]].concat()).succeeds();
    assert!(place.path().join("elsewhere").join(&before[0]).join("summary.json").is_file());

    let refused = |baseline: &[&String], candidate: &[&String], more: &[&str], hint: &str| {
        judge(baseline, candidate, more).ended(2).says(&[hint]);
    };
    let on = ["val_loss"];
    refused(&a[..2], &b, &on, "the baseline has 3, 4 and the candidate 3, 4, 5");
    refused(&a[..1], &b[..1], &on, "one pair cannot tell a difference from chance");
    refused(&[a[0], b[1]], &b[..2], &on, "are in one arm, but optimizer.lr is");
    refused(&[a[0], a[1], a[0]], &b, &on, "have the same training.seed = 3");
    refused(&a, &a, &on, "both arms are the same recipe");
    refused(&a, &b, &["tok_s,val_loss"], "needs runs that took turns");
    refused(&a, &b, &["val_loss", "--seeds", "3"], "--seeds is for new runs");
    refused(&a, &b, &["val_loss", "--predicts", "better"], "--predicts is for new runs");
    refused(&a[..2], &b[..2], &on, "peeking");
    let done = place.xrun(&["compare", "--confirm", &again.full_name()]);
    assert!([Some(0), Some(3)].contains(&done.code), "{}", done.stderr);
    assert_eq!(place.runs().len(), 12, "of seeds that it never saw");
}

#[test]
fn stored_runs_that_have_not_ended_are_no_pairs() {
    let place = Place::killed_after(6);
    let run = place.run();
    let done = place.xrun(&["compare", "--runs", run.name(), run.name(), "--on", "val_loss"]);
    done.ended(2).says(&["quality is judged only for runs that ended"]);
}

#[test]
fn wrong_questions_are_refused_before_anything_runs() {
    let place = Place::new();
    let refused = |arguments: &[&str], hint: &str| {
        compare(&place, arguments).ended(2).says(&[hint]);
    };
    refused(&["optimizer.lr=0.01", "--on", "val_los"], "did you mean val_loss?");
    refused(&["tiny.toml", "--on", "val_loss"], "both arms are the same recipe");
    refused(&["optimizer.lr=0.01", "--seeds", "4"], "--on val_loss");
    refused(&["optimizer.lr=0.01", "--predicts", "better"], "--on val_loss");
    refused(&["optimizer.lr=0.01", "--on", "val_loss", "--repeats", "3"], "--repeats");
    refused(&["optimizer.lr=0.01", "--on", "val_loss", "--predicts", "faster"], "`better`, `worse`");
    refused(&["optimizer.lr=0.01", "--on", "val_loss", "--confidence", "1"], "below 1");
    refused(&["data.tokenizer=byte", "--on", "val_loss"], "bits_per_byte");
    refused(&["model.n_heads=5", "--on", "val_loss"], "heads");
    assert!(!Path::new(&results(&place)).join("comparisons").exists());
}
