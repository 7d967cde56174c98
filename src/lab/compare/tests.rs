//! Tests the judgment, history and text of comparisons on handmade records.

use super::judge;
use super::question::confidence_per_measure;
use super::*;
use crate::results::experiment::example::experiment;
use crate::results::experiment::{
    Budget, EXPERIMENT, EarlierExperiment, Experiment, ExperimentRun, Finding, RegisteredPrediction,
    Standing, VerdictBasis,
};
use crate::results::ledger::{AskedArm, Ledger, QuestionLine};
use crate::results::measure::{Measure, MeasureValue, parse_list};
use crate::statistics::{Verdict, paired_difference};
use family::Family;
use history::{check_peeking, fresh_seeds, same_change};
use setting::StoredExperiment;
use std::path::{Path, PathBuf};

/// Makes a speed comparison without runs, whose speed and curves are not judged yet.
pub fn trials() -> Experiment {
    let findings = vec![
        Finding::unjudged(Measure::SPEED, Some(0.01), 0.95),
        Finding::unjudged(Measure::LossCurves, None, 1.0),
    ];
    experiment(Design::Trials { trials: 0 }, findings, Vec::new())
}

/// Makes a comparison of these measures from the values of both arms, pair by pair.
fn comparison(on: &str, values: &[[MeasureValue; 2]]) -> Experiment {
    let measures = parse_list(on).unwrap();
    let each = confidence_per_measure(0.95, measures.iter());
    let pairs = values.iter().enumerate();
    let runs =
        pairs.flat_map(|(at, values)| [0, 1].map(|arm| make_run(at as u64, arm, &measures, &values[arm])));
    let runs: Vec<ExperimentRun> = runs.collect();
    let asked =
        measures.iter().map(|measure| Finding::unjudged(measure.clone(), measure.default_min_effect(), each));
    experiment(Design::Pairs { pairs: values.len() }, asked.collect(), runs)
}

/// Makes a run with the same value for every measure.
fn make_run(seed: u64, arm: usize, measures: &[Measure], value: &MeasureValue) -> ExperimentRun {
    let status = match value {
        MeasureValue::Diverged => "diverged",
        MeasureValue::Missing(_) => "killed",
        _ => "ok",
    };
    let values = match value {
        MeasureValue::Missing(_) => Default::default(),
        value => measures.iter().map(|measure| (measure.to_string(), value.clone())).collect(),
    };
    ExperimentRun {
        arm,
        seed: Some(seed),
        run: Some(format!("r/{seed}-{arm}")),
        status: Some(status.to_owned()),
        reason: matches!(value, MeasureValue::Missing(_)).then(|| "ended by signal 9".to_owned()),
        metrics_hash: Some(format!("{seed}-{arm}")),
        values,
        ..ExperimentRun::default()
    }
}

/// Makes the values of both arms from differences; the baseline is always 2.
fn differing(differences: &[f64]) -> Vec<[MeasureValue; 2]> {
    let values = differences.iter().map(|difference| [2.0, 2.0 + difference].map(MeasureValue::Value));
    values.collect()
}

fn judged(on: &str, values: &[[MeasureValue; 2]]) -> Experiment {
    let mut comparison = comparison(on, values);
    judge::judge(&mut comparison);
    comparison
}

fn missing() -> MeasureValue {
    MeasureValue::Missing(String::new())
}

#[test]
fn a_verdict_is_that_of_the_interval_of_differences() {
    let better = [-0.05, -0.04, -0.06, -0.05];
    let found = judged("val_loss", &differing(&better));
    let measure = &found.findings[0];
    let expected = paired_difference(&better, 0.95).unwrap();
    assert!((measure.interval.unwrap().low - expected.interval.low).abs() < 1e-12);
    assert!((measure.p.unwrap() - expected.p).abs() < 1e-9);
    assert_eq!((measure.verdict, measure.pairs), (Verdict::Better, 4));
    assert_eq!(found.verdict(), Verdict::Better);
    let verdict = |differences: &[f64]| judged("val_loss", &differing(differences)).verdict();
    assert_eq!(verdict(&[0.05, 0.04, 0.06]), Verdict::Worse);
    assert_eq!(verdict(&[0.001, -0.001, 0.002]), Verdict::NoDifference);
    assert_eq!(verdict(&[0.5, -0.4, 0.1]), Verdict::Inconclusive);
    assert_eq!(verdict(&[0.5]), Verdict::Inconclusive);
    assert_eq!(verdict(&[]), Verdict::Inconclusive);
}

#[test]
fn speeds_are_compared_by_their_ratio_and_higher_is_better() {
    let pair = |ratio: f64| [100.0, 100.0 * ratio].map(MeasureValue::Value);
    let found = judged("tok_s", &[pair(1.2), pair(1.21), pair(1.19)]);
    let interval = found.findings[0].interval.unwrap();
    assert_eq!(found.verdict(), Verdict::Better);
    assert!((interval.estimate - 0.2).abs() < 1e-4 && interval.low > 0.17, "{interval:?}");
    assert!((found.findings[0].baseline.unwrap() - 100.0).abs() < 1e-9);
    assert_eq!(judged("tok_s", &[pair(1.0), pair(1.001), pair(0.999)]).verdict(), Verdict::NoDifference);
    let text = describe(&found.findings[0], &found);
    assert!(text.starts_with("better by 20.0") && text.contains(" %"), "{text}");
}

#[test]
fn equal_bits_in_every_pair_are_an_outcome_of_their_own() {
    let mut same = comparison("val_loss,tok_s", &differing(&[0.0, 0.0]));
    for run in &mut same.runs {
        run.metrics_hash = run.seed.map(|seed| seed.to_string());
    }
    let mut other = same.clone();
    judge::judge(&mut same);
    let verdicts: Vec<Verdict> = same.findings.iter().map(|one| one.verdict).collect();
    assert_eq!(verdicts, [Verdict::SameBits, Verdict::NoDifference], "times have no bits");
    // If one pair differs, the bits are no longer the same.
    other.runs[3].metrics_hash = Some("other".to_owned());
    judge::judge(&mut other);
    assert_eq!(other.findings[0].verdict, Verdict::NoDifference);
}

#[test]
fn a_side_with_diverged_runs_is_not_better_and_counts_decide_where_they_can() {
    let good = || [2.0, 1.9].map(MeasureValue::Value);
    let gone = || [MeasureValue::Value(2.0), MeasureValue::Diverged];
    let found = judged("val_loss", &[good(), good(), good(), gone()]);
    assert_eq!(found.verdict(), Verdict::Inconclusive, "three better pairs, and one diverged");
    assert!(found.findings[0].because.as_ref().unwrap().contains("the candidate alone in 1"));
    let counts = found.diverged.unwrap();
    assert_eq!((counts.pairs, counts.baseline, counts.candidate), (4, 0, 1));
    assert!((counts.p - 1.0).abs() < 1e-12, "{}", counts.p);
    let all: Vec<_> = (0..6).map(|_| gone()).collect();
    let found = judged("val_loss", &all);
    assert_eq!((found.verdict(), found.findings[0].basis), (Verdict::Worse, VerdictBasis::DivergedRuns));
    let text = describe(&found.findings[0], &found);
    assert!(text.starts_with("worse, by diverged runs"), "{text}");
    assert_eq!(judged("val_loss", &differing(&[0.1])).diverged, None);
}

/// In six pairs, loss and speed fall by a fifth; in seven more, the baseline diverges.
#[test]
fn runs_of_the_other_side_that_diverge_make_none_faster() {
    let both = (0..6).map(|i| [2.0, 1.6 + 0.01 * f64::from(i)].map(MeasureValue::Value));
    let gone = (0..7).map(|_| [MeasureValue::Diverged, MeasureValue::Value(1.6)]);
    let found = judged("tok_s,val_loss", &both.chain(gone).collect::<Vec<_>>());
    let [speed, loss] = &found.findings[..] else { panic!("two measures") };
    assert!(speed.interval.unwrap().high < -0.1, "slower");
    assert_eq!((speed.verdict, speed.basis), (Verdict::Inconclusive, VerdictBasis::Differences));
    assert_eq!((loss.verdict, loss.basis), (Verdict::Better, VerdictBasis::DivergedRuns));
    assert_eq!(found.joint.unwrap().verdict, Verdict::Inconclusive);
}

/// Whoever ends the runs that go badly chooses the pairs that are left.
#[test]
fn a_pair_that_the_machine_ended_is_missing_and_there_is_no_verdict() {
    for differences in [[-0.05, -0.04, -0.06], [0.05, 0.04, 0.06], [0.001, -0.001, 0.002]] {
        for lost in [0, 1] {
            let mut values = differing(&differences);
            let mut pair = [MeasureValue::Value(2.0), MeasureValue::Value(2.0)];
            pair[lost] = missing();
            values.push(pair);
            for design in [Design::Pairs { pairs: 4 }, Design::Sequential { max_pairs: 4, looks: Vec::new() }]
            {
                let mut found = Experiment { design, ..comparison("val_loss", &values) };
                judge::judge(&mut found);
                assert_eq!(found.verdict(), Verdict::Inconclusive, "{differences:?}");
            }
        }
    }
    let mut values = differing(&[-0.05, -0.04, -0.06]);
    values.push([MeasureValue::Value(2.0), missing()]);
    let found = judged("val_loss", &values);
    assert_eq!(found.findings[0].pairs, 3);
    let text = describe(&found.findings[0], &found);
    assert!(text.contains("1 pair without a value (seed 3: killed: ended by signal 9)"), "{text}");
    assert!(found.diverged.is_none(), "the machine's fault is no divergence");
}

/// An accuracy on few tokens has few values, so two pairs may differ equally by chance.
#[test]
fn equal_differences_of_shares_have_no_verdict() {
    for difference in [0.0, 0.01, -0.01] {
        for pairs in [2, 4, 5] {
            let values = differing(&vec![difference; pairs]);
            let mut found = comparison("val_accuracy", &values);
            judge::judge(&mut found);
            assert_eq!(found.verdict(), Verdict::Inconclusive, "{difference} in {pairs}");
            assert!(found.findings[0].because.as_ref().unwrap().contains("all differences are equal"));
            found.design = Design::Sequential { max_pairs: 8, looks: Vec::new() };
            judge::judge(&mut found);
            assert!(!judge::is_decided(&found) && found.verdict() == Verdict::Inconclusive);
        }
    }
    assert_eq!(judged("val_accuracy", &differing(&[0.01, 0.011, 0.0105])).verdict(), Verdict::Better);
}

#[test]
fn a_target_that_is_never_reached_is_later_than_any() {
    let never = || [MeasureValue::NeverReached(100.0), MeasureValue::Value(60.0)];
    let both = |a: f64, b: f64| [a, b].map(MeasureValue::Value);
    let found =
        judged("steps_until:val_loss=2", &[never(), never(), never(), never(), never(), both(90.0, 50.0)]);
    let measure = &found.findings[0];
    assert_eq!((measure.verdict, measure.basis), (Verdict::Better, VerdictBasis::Ranks));
    assert_eq!((measure.interval, measure.baseline), (None, None));
    assert!((measure.p.unwrap() - 2.0 / 64.0).abs() < 1e-12, "{measure:?}");
}

#[test]
fn several_measures_share_the_error_and_the_intervals_are_wider() {
    let differences = [-0.03, -0.02, -0.05, -0.02];
    let alone = judged("val_loss", &differing(&differences)).findings[0].interval.unwrap();
    let both = judged("val_loss,train_loss", &differing(&differences));
    let wider = both.findings[0].interval.unwrap();
    assert!(wider.low < alone.low && wider.high > alone.high);
    assert!((both.findings[0].confidence - 0.975).abs() < 1e-12);
    assert_eq!(both.joint, None);
}

#[test]
fn faster_and_no_worse_is_one_question() {
    let pairs = |speeds: [f64; 3], losses: [f64; 3]| {
        let mut comparison = comparison("tok_s,val_loss", &differing(&[0.0; 3]));
        for (at, pair) in comparison.runs.chunks_mut(2).enumerate() {
            let value = |x: f64| MeasureValue::Value(x);
            pair[0].values.insert("tok_s".to_owned(), value(100.0));
            pair[1].values.insert("tok_s".to_owned(), value(100.0 * speeds[at]));
            pair[1].values.insert("val_loss".to_owned(), value(2.0 + losses[at]));
        }
        judge::judge(&mut comparison);
        comparison
    };
    let verdict = |speeds, losses| pairs(speeds, losses).joint.unwrap().verdict;
    let faster = [1.2, 1.205, 1.195];
    assert_eq!(verdict(faster, [0.001, 0.002, 0.0]), Verdict::Better);
    // Better by an uncertain amount, but surely no worse by 0.01.
    assert_eq!(verdict(faster, [-0.05, 0.0, -0.03]), Verdict::Inconclusive);
    assert_eq!(verdict(faster, [-0.05, -0.03, -0.04]), Verdict::Better);
    assert_eq!(verdict(faster, [0.05, 0.045, 0.055]), Verdict::Worse);
    assert_eq!(verdict(faster, [0.5, -0.4, 0.1]), Verdict::Inconclusive);
    assert_eq!(verdict([1.2, 0.9, 1.0], [0.001, 0.002, 0.0]), Verdict::Inconclusive);
    assert_eq!(verdict([1.0, 1.001, 1.0], [0.001, 0.0, 0.0]), Verdict::NoDifference);
    let mut found = pairs([0.8, 0.805, 0.795], [0.0; 3]);
    assert_eq!(found.verdict(), Verdict::Worse);
    // Every line that has a verdict has what it must be read with.
    found.standing = Some(Standing::Confirmatory);
    found.keys_set = Some(2);
    judge::judge(&mut found);
    for line in
        report(&found).lines().filter(|line| line.starts_with("together") || line.starts_with("verdict"))
    {
        assert!(line.contains("with 2 keys changed at once"), "{line}");
    }
    assert_eq!(found.joint.unwrap().found, "tok_s is worse");
}

/// Whatever is asked together, all measures share the error.
#[test]
fn every_list_of_measures_shares_the_error() {
    let all = ["val_loss", "tok_s", "train_loss", "bits_per_byte", "steps_until:val_loss=2"];
    for chosen in 1..1u32 << all.len() {
        let chosen = (0..all.len()).filter(|at| chosen >> at & 1 == 1).map(|at| all[at]);
        let chosen: Vec<&str> = chosen.collect();
        let measures = parse_list(&chosen.join(",")).unwrap();
        let each = confidence_per_measure(0.95, measures.iter());
        assert!((each - (1.0 - 0.05 / chosen.len() as f64)).abs() < 1e-12, "{chosen:?}: {each}");
    }
}

/// Times that are not comparable have no verdict, and other measures keep theirs.
#[test]
fn measures_of_time_have_no_verdict_where_times_are_not_comparable() {
    let mut found = comparison("tok_s,val_loss", &differing(&[0.5, 0.51, 0.52, 0.49, 0.5, 0.5, 0.5]));
    let timed = parse_list("seconds_until:val_loss=2").unwrap().remove(0);
    for run in &mut found.runs {
        let seconds = 10.0 - run.arm as f64;
        run.values.insert(timed.to_string(), MeasureValue::Value(seconds));
    }
    found.findings.push(Finding::unjudged(timed, None, 0.95));
    for range in ["tok_s +20..+30%", "faster"] {
        found.prediction = Some(predicted(range));
        found.contended.clear();
        judge::judge(&mut found);
        let verdicts: Vec<Verdict> = found.findings.iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [Verdict::Better, Verdict::Worse, Verdict::Better]);
        found.contended.push("other load fell on the baseline".to_owned());
        judge::judge(&mut found);
        let verdicts: Vec<Verdict> = found.findings.iter().map(|one| one.verdict).collect();
        assert_eq!(verdicts, [Verdict::Inconclusive, Verdict::Worse, Verdict::Inconclusive]);
        assert_eq!(found.findings[0].because.as_deref(), Some("times are not comparable"));
        assert_eq!(found.prediction.as_ref().unwrap().held, None, "{range}");
    }
}

/// One recipe with budgets of 60 and 300 steps reaches the target after 100 on average.
#[test]
fn a_larger_budget_makes_no_arm_better() {
    for (clock, budgets) in [("steps", [60, 300]), ("tokens", [60, 300]), ("seconds", [60, 300])] {
        let values: Vec<[MeasureValue; 2]> = (0..8)
            .map(|k| [MeasureValue::NeverReached(60.0), MeasureValue::Value(f64::from(90 + k))])
            .collect();
        let mut found = comparison(&format!("{clock}_until:val_loss=2"), &values);
        for (arm, budget) in found.arms.iter_mut().zip(budgets) {
            arm.budget = Some(Budget { steps: budget, tokens: budget, parameters: None, flops: None });
        }
        judge::judge(&mut found);
        assert_eq!(found.verdict(), Verdict::Inconclusive, "{clock}");
        assert!(found.findings[0].because.as_ref().unwrap().contains("8 times are not used"));
        // Where both reached it, what lies beyond the smaller budget is no rank.
        for run in &mut found.runs {
            run.training_s = Some(budgets[run.arm] as f64);
            let reached = MeasureValue::Value(if run.arm == 0 { 50.0 } else { 90.0 });
            run.values.insert(found.findings[0].measure.to_string(), reached);
        }
        judge::judge(&mut found);
        assert_eq!((found.verdict(), found.findings[0].candidate), (Verdict::Worse, None), "{clock}");
    }
}

#[test]
fn a_sequential_design_looks_from_the_fourth_pair_on_and_stops() {
    let mut found = comparison("val_loss", &differing(&[-0.5, -0.51, -0.49, -0.5, 3.0]));
    found.design = Design::Sequential { max_pairs: 8, looks: Vec::new() };
    judge::judge(&mut found);
    let Design::Sequential { looks, .. } = &found.design else { unreachable!() };
    assert_eq!((looks.len(), looks[0].pairs, looks[0].stops), (1, 4, true));
    let measure = &found.findings[0];
    assert_eq!(
        (measure.verdict, measure.pairs, measure.basis),
        (Verdict::Better, 4, VerdictBasis::Sequential)
    );
    assert!(judge::is_decided(&found), "the fifth pair came too late");
    let fixed = paired_difference(&[-0.5, -0.51, -0.49, -0.5], 0.95).unwrap().interval;
    assert!(measure.interval.unwrap().high > fixed.high, "the price of looking");
    let mut open = comparison("val_loss", &differing(&[-0.5, 0.1, -0.3, 0.2]));
    open.design = Design::Sequential { max_pairs: 40, looks: Vec::new() };
    judge::judge(&mut open);
    assert_eq!(open.verdict(), Verdict::Inconclusive);
}

fn predicted(text: &str) -> RegisteredPrediction {
    RegisteredPrediction { text: text.to_owned(), held: None }
}

#[test]
fn a_prediction_holds_by_verdict_or_by_interval() {
    let held = |on: &str, predicts: &str, differences: &[f64]| {
        let mut comparison = comparison(on, &differing(differences));
        comparison.prediction = Some(predicted(predicts));
        judge::judge(&mut comparison);
        comparison.prediction.unwrap().held
    };
    let (better, open) = ([-0.05, -0.04, -0.06], [0.5, -0.4, 0.1]);
    assert_eq!(held("val_loss", "better", &better), Some(true));
    assert_eq!(held("val_loss", "worse", &better), Some(false));
    assert_eq!(held("val_loss", "no difference", &better), Some(false));
    assert_eq!(held("val_loss", "better", &open), None);
    // The interval is -0.075 to -0.025.
    assert_eq!(held("val_loss", "val_loss -0.08..-0.02", &better), Some(true));
    assert_eq!(held("val_loss", "val_loss -0.06..-0.04", &better), None, "the estimate alone lies inside");
    assert_eq!(held("val_loss", "val_loss -0.04..-0.01", &better), None, "the estimate alone lies outside");
    assert_eq!(held("val_loss", "val_loss -0.02..-0.01", &better), Some(false));
    assert_eq!(held("val_loss", "val_loss -4..-1%", &better), Some(true));
    assert_eq!(held("val_loss", "val_loss -3..-2%", &better), None);
    assert_eq!(held("val_loss", "val_loss -9..9", &open), Some(true));
    assert_eq!(held("val_loss", "val_loss 8..9", &open), Some(false));
    assert_eq!(held("val_loss", "val_loss 0..9", &open), None);
    let mut unfinished = comparison("val_loss", &differing(&better));
    (unfinished.finished, unfinished.prediction) = (false, Some(predicted("better")));
    judge::judge(&mut unfinished);
    assert_eq!(unfinished.prediction.unwrap().held, None);
}

/// Makes a question with these seeds about the change in [`comparison`].
fn question(seeds: &[u64], is_sequential: bool) -> Question {
    let request = ArmsRequest {
        recipe: Some("quickstart".into()),
        candidate: vec!["optimizer.lr=0.001".to_owned()],
        ..Default::default()
    };
    let arms = Arms::new(&request, Path::new("none")).unwrap();
    let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
    let options = Options {
        on: Some("val_loss".to_owned()),
        seeds: Some(seeds.join(",")),
        sequential: is_sequential,
        ..Options::default()
    };
    Question::new(arms, &options).unwrap()
}

/// Makes the line of an answered question about these arms, measures and seeds.
fn answered(name: &str, arms: &[AskedArm], measures: &str, seeds: &[u64]) -> [QuestionLine; 2] {
    let asked = QuestionLine {
        comparison: name.to_owned(),
        question: format!("{name} {measures}"),
        arms: arms.to_vec(),
        measures: measures.split(',').map(str::to_owned).collect(),
        seeds: seeds.iter().map(|seed| [*seed; 2]).collect(),
        reasons: Vec::new(),
        answer: None,
        at: "2026-01-02T03:04:05Z".to_owned(),
    };
    let answer = Some(format!("{measures}: inconclusive"));
    [asked.clone(), QuestionLine { answer, ..asked }]
}

/// Returns the family of a question, after these lines were written to a ledger.
fn family(question: &Question, lines: &[QuestionLine]) -> (Vec<AskedArm>, Family) {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(dir.path()).unwrap();
    lines.iter().for_each(|line| ledger.ask(line.clone()).unwrap());
    let read = Ledger::read(dir.path()).unwrap();
    let asked = |ledger: &Ledger| ledger.questions().iter().map(|(_, line)| line.clone()).collect::<Vec<_>>();
    assert_eq!(asked(&read), asked(&ledger), "lines read as they are written");
    let arms = question.asked_arms().unwrap();
    let family = Family::find(&arms, &read, &[]);
    (arms, family)
}

/// Enumerates who asks again: with other pairs, in the other order, with another design, about other
/// measures.
#[test]
fn other_pairs_after_a_verdict_are_peeking_whoever_asks() {
    let swapped = |arms: &[AskedArm]| vec![arms[1].clone(), arms[0].clone()];
    let old: [u64; 4] = [0, 1, 2, 3];
    for is_swapped in [false, true] {
        for is_sequential in [false, true] {
            let check = |seeds: &[u64], measures: &str| {
                let new = question(seeds, is_sequential);
                let arms = new.asked_arms().unwrap();
                let known = if is_swapped { swapped(&arms) } else { arms };
                let (arms, family) = family(&new, &answered("r/1", &known, measures, &old));
                assert_eq!(family.answered_before(&new.hash(&arms)), 1);
                check_peeking(&new, &arms, &family)
            };
            check(&[0, 1, 2, 3], "val_loss").expect("the same pairs, which are then known");
            check(&[3, 2, 1, 0], "val_loss").expect("in any order");
            check(&[10, 11, 12, 13], "val_loss").expect("fresh seeds");
            check(&[0, 1, 2, 3, 4], "train_loss").expect("another question, which shares the error");
            for seeds in [&[0, 1, 2, 3, 4, 5][..], &[0, 1, 2, 9], &[3, 10, 11, 12], &[1, 2, 3, 4, 5]] {
                let error = check(seeds, "val_loss").unwrap_err();
                let message = error.message();
                assert!(message.contains("peeking") && message.contains("--confirm r/1"), "{error}");
                assert_eq!(message.contains("the arms swapped"), is_swapped, "{error}");
            }
            let open = question(&[0, 1, 2, 3, 4, 5], is_sequential);
            let arms = open.asked_arms().unwrap();
            let (arms, family) = family(&open, &answered("r/1", &arms, "val_loss", &old)[..1]);
            check_peeking(&open, &arms, &family).expect("no verdict is known");
        }
    }
}

/// The same command has the same seeds and is the same question; anything else is another one.
#[test]
fn every_part_of_a_question_is_in_its_hash() {
    let base = question(&[0, 1, 2, 3], false);
    let hash = |question: &Question| question.hash(&question.asked_arms().unwrap());
    let mut hashes = std::collections::BTreeSet::from([hash(&base)]);
    assert!(!hashes.insert(hash(&question(&[0, 1, 2, 3], false))));
    let mut others = vec![question(&[0, 1, 2, 4], false), question(&[0, 1, 2, 3], true)];
    let mut with = |change: fn(&mut Question)| {
        let mut changed = base.clone();
        change(&mut changed);
        others.push(changed);
    };
    with(|one| one.confidence = 0.9);
    with(|one| one.findings[0].min_effect = Some(0.02));
    with(|one| one.findings[0].measure = "train_loss".parse().unwrap());
    with(|one| one.predicts = Some("better".parse().unwrap()));
    with(|one| one.confirms = Some("r/1".to_owned()));
    with(|one| one.seeds[0] = [7, 7]);
    for other in others {
        assert!(hashes.insert(hash(&other)), "{other:?}");
    }
    // Words about it are no part of it.
    let named = Question { hypothesis: Some("why".to_owned()), name: "other".to_owned(), ..base.clone() };
    assert!(!hashes.insert(hash(&named)));
}

#[test]
fn an_exploratory_answer_has_intervals_and_no_verdict_anywhere() {
    let mut found = comparison("val_loss,train_loss", &differing(&[-0.05, -0.04, -0.06, -0.05]));
    found.prediction = Some(predicted("val_loss -1..0"));
    found.earlier_questions = 1;
    judge::judge(&mut found);
    assert_eq!(found.prediction.as_ref().unwrap().held, Some(true));
    found.standing = Some(Standing::from_reasons(vec!["8 of 8 runs are older".to_owned()]));
    judge::judge(&mut found);
    assert!(found.findings.iter().all(|one| one.verdict == Verdict::Inconclusive && one.interval.is_some()));
    assert_eq!((found.verdict(), found.prediction.as_ref().unwrap().held), (Verdict::Inconclusive, None));
    let text = report(&found);
    assert!(!text.contains("better") && text.contains("`val_loss -1..0`: open"), "{text}");
    let verdicts: Vec<&str> = text.lines().filter(|line| line.starts_with("verdict")).collect();
    assert_eq!(verdicts.len(), 2);
    for line in verdicts.into_iter().chain([found.verdict_words().as_str()]) {
        assert!(line.contains("exploratory, no verdict") && line.contains("8 of 8 runs are older"), "{line}");
        assert!(line.contains("asked after 1 other answer"), "{line}");
    }
}

#[test]
fn history_has_the_same_two_recipes_and_fresh_seeds_are_above_it() {
    let mut first = judged("val_loss", &differing(&[-0.05, -0.04, -0.06]));
    first.pilot.extend_from_slice(&first.runs[..2]);
    first.pilot[1].seed = Some(70);
    let mut other = first.clone();
    other.arms[1].seedless_hash = Some("c".to_owned());
    let stored =
        [first.clone(), other].map(|experiment| StoredExperiment { folder: PathBuf::new(), experiment });
    let earlier = same_change(&stored, ["a", "b"]);
    assert_eq!(earlier, [&first]);
    // Records of earlier versions are not in the ledger.
    let dir = tempfile::tempdir().unwrap();
    let arm = |hash: &str| AskedArm { hash: hash.to_owned(), ..AskedArm::default() };
    let old = Family::find(&[arm("b"), arm("a")], &Ledger::read(dir.path()).unwrap(), &stored);
    let said = old.history("r/2", &[[2, 2], [3, 3]]);
    assert_eq!((said.len(), said[0].pairs, said[0].shared_seeds), (1, 3, 1));
    assert_eq!(
        (said[0].ended.as_str(), said[0].relation.as_deref()),
        ("val_loss: better", Some("the arms swapped"))
    );
    assert_eq!(fresh_seeds(2, [0, 0], &earlier).unwrap(), [[71, 71], [72, 72]]);
    assert_eq!(fresh_seeds(1, [0, 100], &earlier).unwrap(), [[71, 171]]);
    assert_eq!(fresh_seeds(1, [100, 0], &earlier).unwrap(), [[171, 71]]);
    assert!(fresh_seeds(1, [i64::MAX as u64; 2], &[]).is_err());
}

#[test]
fn the_report_has_pairs_verdict_prediction_and_history() {
    let mut found = judged("val_loss", &differing(&[-0.05, -0.04, -0.06]));
    found.prediction = Some(predicted("better"));
    found.hypothesis = Some("a \u{1b}[31mreason".to_owned());
    let earlier = EarlierExperiment {
        comparison: "r/1".to_owned(),
        pairs: 3,
        shared_seeds: 1,
        ended: "val_loss: better".to_owned(),
        relation: None,
    };
    found.history = vec![earlier.clone(), earlier];
    judge::judge(&mut found);
    let text = report(&found);
    for said in [
        "baseline",
        "-0.05000",
        "better by 0.0500 nats per token (95 %: 0.0252 to 0.0748), p = 0.0131, over 3 pairs",
        "`better`: held",
        "2 earlier comparisons of this change: 2 × val_loss: better; the newest on 1 of these seeds is r/1",
        "a ␛[31mreason",
    ] {
        assert!(text.contains(said), "no `{said}` in\n{text}");
    }
    found.finished = false;
    assert!(report(&found).contains("not judged before the last pair"));
}

#[test]
fn a_record_reads_as_it_is_written() {
    let mut found = judged("val_loss,tok_s", &differing(&[-0.05, -0.04, -0.06]));
    found.runs[1].values.insert("val_loss".to_owned(), MeasureValue::NeverReached(0.1 + 0.2));
    found.design = Design::Sequential { max_pairs: 9, looks: Vec::new() };
    let dir = tempfile::tempdir().unwrap();
    found.write(dir.path()).unwrap();
    assert_eq!(Experiment::read(dir.path()).unwrap(), found);
    let refused = |text: &str| {
        std::fs::write(dir.path().join(EXPERIMENT), text).unwrap();
        Experiment::read(dir.path()).unwrap_err().message().to_owned()
    };
    assert!(refused("{\n\"name\": 3}").contains("experiment.json:2: not an experiment"));
    found.arms.pop();
    let text = serde_json::to_string(&found).unwrap();
    assert!(refused(&text).contains("needs at least two arms and has 1"));
    found.arms.push(found.arms[0].clone());
    found.runs[0].arm = 2;
    let text = serde_json::to_string(&found).unwrap();
    assert!(refused(&text).contains("a run belongs to arm 2"));
}
