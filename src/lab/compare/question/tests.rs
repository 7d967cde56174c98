use super::*;
use crate::compare::{ArmsRequest, judge};
use crate::results::experiment::ExperimentRun;
use crate::results::experiment::example::experiment;
use crate::results::measure::MeasureValue;
use crate::statistics::Verdict;
use std::path::Path;

fn question(candidate: &[&str], options: &[(&str, &str)]) -> Result<Question> {
    question_with(candidate, &[], options)
}

fn question_with(candidate: &[&str], common: &[&str], options: &[(&str, &str)]) -> Result<Question> {
    Question::new(arms(candidate, common), &parsed(options))
}

fn arms(candidate: &[&str], common: &[&str]) -> Arms {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    let request = ArmsRequest {
        recipe: Some("quickstart".into()),
        candidate: texts(candidate),
        common: texts(common),
        ..ArmsRequest::default()
    };
    Arms::new(&request, Path::new("none")).unwrap()
}

fn parsed(options: &[(&str, &str)]) -> Options {
    let mut asked = Options { on: Some("val_loss".to_owned()), ..Options::default() };
    for (name, value) in options {
        let value = (*value).to_owned();
        match *name {
            "on" => asked.on = Some(value),
            "seeds" => asked.seeds = Some(value),
            "min_effect" => asked.min_effect = Some(value),
            "predicts" => asked.predicts = Some(value.parse().unwrap()),
            "sequential" => asked.sequential = true,
            "confidence" => asked.confidence = Some(value.parse().unwrap()),
            other => panic!("{other}"),
        }
    }
    asked
}

#[track_caller]
fn refused(candidate: &[&str], options: &[(&str, &str)], hint: &str) {
    let error = question(candidate, options).unwrap_err();
    assert!(error.message().contains(hint), "{error}");
}

const LR: &[&str] = &["optimizer.lr=0.001"];

#[test]
fn a_candidate_with_a_seed_of_its_own_keeps_its_distance() {
    let base = question(LR, &[]).unwrap().base_seeds[0];
    assert_eq!(question(LR, &[]).unwrap().seeds.len(), 8, "the recipe's number");
    let other = format!("training.seed={}", base + 100);
    let found = question(&[&other], &[("seeds", "2")]).unwrap();
    assert_eq!(found.seeds, [[base, base + 100], [base + 1, base + 101]]);
    assert!(
        found.arms.candidate.recipe_and_settings().unwrap().1.iter().all(|setting| !setting.contains("seed"))
    );
    refused(LR, &[("seeds", "3,3")], "named twice");
}

#[test]
fn smallest_differences_are_by_measure_and_unit() {
    let effects = |on: &str, text: Option<&str>| -> Vec<Option<f64>> {
        let mut options = vec![("on", on)];
        options.extend(text.map(|text| ("min_effect", text)));
        question(LR, &options).unwrap().findings.into_iter().map(|asked| asked.min_effect).collect()
    };
    assert_eq!(effects("val_loss,tok_s", None), [Some(0.01), Some(0.01)]);
    assert_eq!(effects("val_loss,train_loss", Some("0.02")), [Some(0.02), Some(0.02)]);
    assert_eq!(effects("val_loss,tok_s", Some("tok_s=0.05")), [Some(0.01), Some(0.05)]);
    assert_eq!(effects("tokens_until:val_loss=1.2", None), [None]);
    let on = |on: &'static str, text: &'static str| [("on", on), ("min_effect", text)];
    refused(LR, &on("val_loss,tok_s", "0.02"), "the units nats per token and tokens per second");
    refused(LR, &on("val_loss", "train_loss=1"), "is not judged: --on has val_loss");
    refused(LR, &on("val_loss", "val_loss=-1"), "from 0 on");
    refused(LR, &on("val_loss", "nan"), "from 0 on");
    refused(LR, &on("steps_until:val_loss=2", "0.1"), "have no sizes");
    refused(LR, &on("steps_until:val_loss=2", "steps_until:val_loss=2=0.1"), "have no sizes");
}

#[test]
fn several_measures_share_the_error_also_with_a_speed() {
    let each = |on: &str| question(LR, &[("on", on)]).unwrap().findings[0].confidence;
    assert_eq!(each("val_loss"), 0.95);
    assert!((each("val_loss,train_loss") - 0.975).abs() < 1e-12);
    assert!((each("tok_s,val_loss") - 0.975).abs() < 1e-12);
    let timed = |on: &str| question(LR, &[("on", on)]).unwrap().is_timed();
    assert!(timed("tok_s,val_loss") && timed("seconds_until:val_loss=2") && !timed("val_loss"));
}

#[test]
fn measures_over_different_text_are_rejected() {
    refused(&["data.tokenizer=byte"], &[], "compare bits_per_byte");
    question(&["data.tokenizer=byte"], &[("on", "bits_per_byte")]).unwrap();
    question(&["data.tokenizer=byte"], &[("on", "tok_s")]).unwrap();
    refused(&["validation.steps=7"], &[], "validation.steps is");
    let some = |steps: &str, on: &'static str| {
        let validation = format!("validation.steps={steps}");
        question_with(&["training.local_batch_size=2"], &[&validation], &[("on", on), ("seeds", "2")])
    };
    let error = some("3", "val_loss").unwrap_err();
    assert!(error.message().contains("takes 3 batches"), "{error}");
    some("0", "val_loss").unwrap();
    some("3", "train_loss").unwrap();
    question(&["validation.steps=7", LR[0]], &[("on", "train_loss")]).unwrap();
    refused(&["data.seed=7"], &[], "data.validation");
    let news = |path: &str| format!("validation.sets={{ news = \"{path}\" }}");
    refused(&[&news("a.txt")], &[("on", "val_loss/news")], "no held-out set news");
    let with = |candidate: &[&str]| {
        question_with(candidate, &[&news("a.txt")], &[("on", "val_loss/news"), ("seeds", "2")])
    };
    with(&["data.seed=7"]).unwrap();
    let error = with(&[&news("b.txt")]).unwrap_err();
    assert!(error.message().contains("different text for news"), "{error}");
    refused(&["data.seed=7"], &[("on", "train_loss")], "data.seed is");
}

/// Weights change what is trained on, and leave the held-out text of every source as it is.
#[test]
fn mixtures_are_compared_on_the_text_of_their_sources() {
    let source = |name: &str| {
        [format!("data.sources.{name}.path={name}.txt"), format!("data.sources.{name}.weight=1")]
    };
    let sources = [source("web"), source("code")].concat();
    let base: Vec<&str> = sources.iter().map(String::as_str).chain(["data.corpus=mixture"]).collect();
    let ask = |candidate: &[&str], on: &str| {
        question_with(candidate, &base, &[("on", on), ("seeds", "2")]).map(drop).map_err(|e| e.to_string())
    };
    let weight = "data.sources.code.weight=0.2";
    for on in ["val_loss", "val_loss/web", "val_loss/code"] {
        ask(&[weight], on).unwrap();
        ask(&["data.phases=[{ from = 0.5, weights = { web = 1.0 } }]"], on).unwrap();
        ask(&["data.packing=best_fit"], on).unwrap();
        assert!(ask(&["data.seed=7"], on).unwrap_err().contains("data.seed is"));
    }
    for on in ["train_loss", "train_loss/web", "train_loss/web:last5"] {
        ask(&["optimizer.lr=0.01"], on).unwrap();
        assert!(ask(&[weight], on).unwrap_err().contains("data.sources.code.weight is"));
    }
    for (on, said) in
        [("train_loss/wbe", "did you mean web?"), ("train_loss/web:last90000", "asks for more steps")]
    {
        assert!(ask(&["optimizer.lr=0.01"], on).unwrap_err().contains(said), "{on}");
    }
    let other_text = &["data.sources.code.path=other.txt"];
    ask(other_text, "val_loss/web").unwrap();
    for on in ["val_loss", "val_loss/code"] {
        assert!(ask(other_text, on).unwrap_err().contains("data.sources.code.path is"), "{on}");
    }
    assert!(ask(&[weight], "val_loss/wbe").unwrap_err().contains("did you mean web?"));
    // Without a share that is held out, sources are no sets.
    let error = ask(&[weight, "data.validation=held.txt"], "val_loss/web").unwrap_err();
    assert!(error.contains("no held-out set web"), "{error}");
}

#[test]
fn measures_that_runs_do_not_have_are_refused() {
    let on = |on: &'static str| [("on", on)];
    let once = ["validation.interval=0"];
    let with = |options: &[(&str, &str)]| question_with(LR, &once, options).map(drop);
    with(&on("val_loss")).unwrap();
    for text in ["val_loss:last2", "steps_until:val_loss=2"] {
        let error = with(&on(text)).unwrap_err();
        assert!(error.message().contains("a run has 1"), "{error}");
    }
    refused(LR, &on("val_loss:last90000"), "takes 90000 evaluations");
    refused(LR, &on("train_loss:last90000"), "asks for more steps");
    refused(LR, &on("val_accuracy"), "no task in validation.tasks of quickstart measures val_accuracy");
    let accuracy = ["validation.tasks=[\"next_token_accuracy\"]"];
    question_with(LR, &accuracy, &[("on", "val_accuracy"), ("seeds", "2")]).unwrap();
}

/// A key that decides when a measure is taken, for each measure that depends on it.
#[test]
fn measures_that_are_taken_at_other_times_are_rejected() {
    let interval = "validation.interval=3";
    let with = |change: &str, on: &str| {
        let options = [("on", on), ("seeds", "8")];
        question_with(&[LR[0], change], &["validation.interval=6"], &options).map(drop)
    };
    for on in ["val_loss:last2", "bits_per_byte:last3"] {
        assert!(with(interval, on).unwrap_err().message().contains("validation.interval is 6 and 3"), "{on}");
    }
    for clock in ["steps", "tokens", "seconds"] {
        let error = with(interval, &format!("{clock}_until:val_loss=2")).unwrap_err();
        assert!(error.message().contains("validation.interval is 6 and 3"), "{error}");
    }
    for on in ["val_loss", "val_loss:last1", "train_loss:last5", "tok_s"] {
        with(interval, on).unwrap_or_else(|e| panic!("{on}: {e}"));
    }
    let warmup = "metrics.warmup=9";
    for on in ["tok_s", "tok_s,val_loss", "speed"] {
        let options = [("on", on)];
        let error = question(&[LR[0], warmup], &options).unwrap_err();
        assert!(error.message().contains("metrics.warmup is"), "{error}");
    }
    with(warmup, "val_loss").unwrap();
}

#[test]
fn pairs_that_vary_nothing_are_rejected() {
    refused(&["quickstart"], &[], "both arms are the same recipe");
    refused(&["checkpoint.keep=7"], &[], "both arms are the same recipe");
    let all = ["seeds.init=1", "seeds.order=1", "seeds.dropout=1"];
    refused(&all, &[], "every pair would have the same runs");
    assert_eq!(question(&["seeds.init=1"], &[]).unwrap().fixed_seeds, ["seeds.init = 1"]);
    let both = question_with(LR, &["seeds.order=7"], &[]).unwrap();
    assert_eq!(both.fixed_seeds, ["seeds.order = 7"]);
}

#[test]
fn a_prediction_must_name_a_judged_measure() {
    let with = |on: &'static str, predicts: &'static str| [("on", on), ("predicts", predicts)];
    for (on, predicts) in [
        ("val_loss", "better"),
        ("val_loss", "no difference"),
        ("val_loss,train_loss", "train_loss -0.05..-0.01"),
        ("val_loss,seconds_until:val_loss=2", "val_loss -0.05..-0.01"),
        ("tok_s,val_loss", "worse"),
        ("tok_s,val_loss", "tok_s +10..+20%"),
    ] {
        question(LR, &with(on, predicts)).unwrap_or_else(|e| panic!("{on} {predicts}: {e}"));
    }
    refused(LR, &with("val_loss", "faster"), "ends as `better`");
    refused(LR, &with("val_loss", "train_loss -1..0"), "train_loss is not judged");
    refused(LR, &with("val_loss,train_loss", "better"), "predict a range of one");
    refused(LR, &with("steps_until:val_loss=2", "steps_until:val_loss=2 -3..-1"), "have no sizes");
    refused(LR, &[("sequential", ""), ("seeds", "3")], "from 4 to 2000");
    refused(LR, &[("sequential", ""), ("on", "steps_until:val_loss=2")], "no sequential design");
}

/// Every method, number of pairs, confidence and number of measures: a comparison is refused if, and only if,
/// no values can give each measure a verdict.
#[test]
fn what_cannot_have_a_verdict_is_refused_before_it_runs() {
    let methods = [
        &["val_loss", "train_loss", "bits_per_byte"][..],
        &["tok_s", "val_loss"],
        &["steps_until:val_loss=2", "tokens_until:val_loss=2", "seconds_until:val_loss=2"],
        &["val_loss", "steps_until:val_loss=2", "train_loss"],
    ];
    // Reading the recipes takes longer than everything else.
    let arms = arms(&["optimizer.lr=0.01"], &["validation.interval=5"]);
    let (mut refusals, mut taken) = (0, 0);
    for method in methods {
        for count in 1..=method.len() {
            let on = method[..count].join(",");
            for confidence in ["0.6", "0.8", "0.9", "0.95", "0.99", "0.999"] {
                for pairs in 1..=14 {
                    let seeds = if pairs == 1 { "1".to_owned() } else { pairs.to_string() };
                    let options = [("on", on.as_str()), ("seeds", &seeds), ("confidence", confidence)];
                    let asked = Question::new(arms.clone(), &parsed(&options));
                    let each = 1.0 - (1.0 - confidence.parse::<f64>().unwrap()) / count as f64;
                    let can =
                        measure::parse_list(&on).unwrap().iter().all(|measure| can_win(measure, pairs, each));
                    assert_eq!(asked.is_ok(), can, "{on}, {pairs} pairs at {confidence}: {:?}", asked.err());
                    match asked {
                        Ok(_) => taken += 1,
                        Err(error) => {
                            assert!(error.message().contains("cannot have a verdict"), "{error}");
                            refusals += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(refusals > 100 && taken > 400, "{refusals} {taken}");
}

/// Judges the clearest values that there can be.
fn can_win(measure: &Measure, pairs: usize, confidence: f64) -> bool {
    let run = |at: usize| ExperimentRun {
        arm: at % 2,
        status: Some("ok".to_owned()),
        values: [(measure.to_string(), MeasureValue::Value(if at.is_multiple_of(2) { 100.0 } else { 50.0 }))]
            .into(),
        metrics_hash: Some(at.to_string()),
        ..ExperimentRun::default()
    };
    let finding = Finding::unjudged(measure.clone(), measure.default_min_effect(), confidence);
    let mut found = experiment(Design::Pairs { pairs }, vec![finding], (0..2 * pairs).map(run).collect());
    judge::judge(&mut found);
    found.findings[0].verdict != Verdict::Inconclusive
}
