use super::*;
use crate::task_evaluation::{
    EvaluationRecord, FigureRecord, FileRecord, ItemRow, ScoredModel, TaskKey, TaskRecord,
};
use std::path::PathBuf;

/// What a planted evaluation has.
#[derive(Clone)]
struct Planted {
    name: &'static str,
    /// The step of its model, which names its weights too.
    step: u64,
    context: usize,
    shots: usize,
    limit: Option<usize>,
    definition: &'static str,
    files: &'static str,
    cut_items: usize,
    /// Tasks with their chance levels, and which of the items are right.
    tasks: Vec<(&'static str, f64, Vec<f64>)>,
}

impl Planted {
    fn new(name: &'static str, tasks: Vec<(&'static str, f64, Vec<f64>)>) -> Self {
        Self {
            name,
            step: 5,
            context: 64,
            shots: 0,
            limit: None,
            definition: "d",
            files: "f",
            cut_items: 0,
            tasks,
        }
    }

    fn write(&self, results: &Path) -> PathBuf {
        let folder = results.join("evaluations").join(self.name);
        std::fs::create_dir_all(&folder).unwrap();
        let text = |text: &str| text.to_owned();
        let model = ScoredModel {
            name: format!("tiny/{}", self.name),
            step: Some(self.step),
            weights: text("training"),
            hash: Some(text(self.name)),
            tokenizer: text("t"),
            parameters: 10,
            dtype: text("fp32"),
            device: text("cpu"),
            context: self.context,
            batch: [1, 48],
            xrun_version: text("0"),
        };
        let task = |(task, chance, right): &(&str, f64, Vec<f64>)| {
            let row = |(index, adds): (usize, &f64)| ItemRow {
                item: format!("item-{index}"),
                cluster: index,
                gold: Some(0),
                chosen: Some(0),
                adds: Some([*adds, 1.0]).filter(|_| adds.is_finite()),
                log_probs: vec![-1.0],
                greedy: vec![true],
                text: None,
                answer: None,
                contaminated: None,
            };
            let rows: String = right
                .iter()
                .enumerate()
                .map(|one| serde_json::to_string(&row(one)).unwrap() + "\n")
                .collect();
            let limit = self.limit.map_or(String::new(), |limit| format!("-limit-{limit}"));
            let file = format!("{task}-{}-shot{limit}.jsonl", self.shots);
            std::fs::write(folder.join(&file), &rows).unwrap();
            let file_record = FileRecord { name: text("a"), blake3: text(self.files), rows: 1 };
            let figure = FigureRecord {
                metric: text("acc"),
                value: Some(0.5),
                error: None,
                interval: None,
                items: right.len(),
                clusters: right.len(),
                chance: Some(*chance),
                within_chance: Some(false),
            };
            TaskRecord {
                key: TaskKey {
                    task: text(task),
                    definition: text(self.definition),
                    shots: self.shots,
                    limit: self.limit,
                    files: vec![file_record],
                },
                rows: file,
                rows_blake3: blake3::hash(rows.as_bytes()).to_hex().to_string(),
                metric: text("acc"),
                figures: vec![figure],
                algorithms: None,
                cut_items: self.cut_items,
                requests: 1,
                tokens: 1,
                scored_tokens: 1,
                padding: 0.0,
                contamination: None,
            }
        };
        let record = EvaluationRecord { version: 1, model, tasks: self.tasks.iter().map(task).collect() };
        std::fs::write(folder.join("evaluation.json"), serde_json::to_vec(&record).unwrap()).unwrap();
        folder
    }
}

/// Answers of 40 items: right up to `right`, and those that `flipped` divides turned around.
fn answers(right: usize, flipped: usize) -> Vec<f64> {
    (0..40).map(|item| f64::from(u8::from((item < right) != (item % flipped == 0)))).collect()
}

fn compared(results: &Path, sides: [&str; 2], tasks: Option<&[String]>) -> Result<ScoreComparison> {
    compare_scores(&ScoresRequest { results, sides, tasks, confidence: 0.95, min_effect: 0.0 })
}

#[test]
fn checkpoints_and_seeds_have_their_own_verdicts() {
    let place = tempfile::tempdir().unwrap();
    let results = place.path();
    for (name, right, flipped) in [("a1", 10, 7), ("a2", 12, 9), ("b1", 30, 7), ("b2", 28, 9), ("b3", 29, 11)]
    {
        let two = vec![("one", 0.25, answers(right, flipped)), ("two", 0.5, answers(right / 2, flipped))];
        Planted::new(name, two).write(results);
    }
    let two = compared(results, ["a1", "b1"], None).unwrap();
    assert_eq!((two.units, two.questions, two.tasks.len()), (Units::Checkpoints, 3, 2));
    let [one, ..] = &two.tasks[..] else { panic!() };
    assert!((one.difference - (one.means[1] - one.means[0])).abs() < 1e-12 && one.difference > 0.0);
    assert_eq!((one.verdict, one.error), (Verdict::Better, one.items_error));
    assert!((one.corrected_p - 3.0 * one.p).abs() < 1e-15 && one.could_see > one.error);
    let mean = two.mean.as_ref().unwrap();
    let centred =
        |side: usize| (two.tasks[0].means[side] - 0.25) / 1.5 + (two.tasks[1].means[side] - 0.5) / 1.0;
    assert!((mean.difference - (centred(1) - centred(0))).abs() < 1e-12, "{mean:?}");
    let text = two.to_string();
    assert!(
        text.contains("of these two checkpoints only")
            && text.contains("better (these two checkpoints only)")
    );
    assert!(text.contains("p <0.0001 for 3 questions") || text.contains("for 3 questions"), "{text}");
    assert!(text.contains("could have seen") && !text.contains("note"), "{text}");
    // The other way around it is worse.
    let back = compared(results, ["b1", "a1"], Some(&["one".to_owned()])).unwrap();
    assert_eq!((back.questions, back.mean.is_none(), back.worse()), (1, true, vec!["one"]));

    let seeds = compared(results, ["a1,a2", "b1, b2,b3"], None).unwrap();
    assert_eq!(seeds.units, Units::Seeds);
    assert!(seeds.notes[0].contains("nothing checks that the evaluations of a side are of one recipe"));
    assert!(seeds.to_string().contains("seeds, 2 and 3, and items: the verdicts are on the recipes"));
    let path = results.join("evaluations/a1").display().to_string();
    assert_eq!(compared(results, [&path, "b1"], None).unwrap().sides[0][0], path);
    let same = compared(results, ["a1", "a1"], None).unwrap();
    assert_eq!((same.tasks[0].difference, same.tasks[0].p), (0.0, 1.0));
    assert!(same.notes.iter().any(|note| note == "both sides have the same weights"), "{:?}", same.notes);
}

#[test]
fn wins_are_items_that_only_the_candidate_has_right() {
    let place = tempfile::tempdir().unwrap();
    let results = place.path();
    // Of 12 items, 5 are right in both, 6 only in the candidate, and 1 only in the baseline.
    let right = |ranges: [std::ops::Range<usize>; 2]| {
        (0..12).map(|item| f64::from(u8::from(ranges.iter().any(|range| range.contains(&item))))).collect()
    };
    Planted::new("before", vec![("one", 0.25, right([0..5, 11..12]))]).write(results);
    Planted { step: 6, ..Planted::new("after", vec![("one", 0.25, right([0..5, 5..11]))]) }.write(results);
    let found = compared(results, ["before", "after"], None).unwrap();
    let counts = found.tasks[0].counts.unwrap();
    assert_eq!((counts.wins, counts.ties, counts.losses), (6, 5, 1));
    // 2 · (1 + 7) / 2⁷.
    assert!((counts.p.unwrap() - 0.125).abs() < 1e-12, "{counts:?}");
    let text = found.to_string();
    let row = text.lines().skip_while(|line| !line.contains("ties")).nth(1).expect("a row of counts");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["one", "6", "5", "1", "0.12"], "{text}");
    assert!(text.contains("an item is a win if the candidate's answer is right and the baseline's wrong"));
    let back = compared(results, ["after", "before"], None).unwrap().tasks[0].counts.unwrap();
    assert_eq!((back.wins, back.ties, back.losses, back.p), (1, 5, 6, counts.p));
    // Items of one passage are not independent.
    for name in ["before", "after"] {
        let folder = results.join("evaluations").join(name);
        let rows = folder.join("one-0-shot.jsonl");
        let shared = std::fs::read_to_string(&rows).unwrap().replace("\"cluster\":1,", "\"cluster\":0,");
        std::fs::write(&rows, &shared).unwrap();
        let summary = folder.join("evaluation.json");
        let mut record: EvaluationRecord = serde_json::from_slice(&std::fs::read(&summary).unwrap()).unwrap();
        record.tasks[0].rows_blake3 = blake3::hash(shared.as_bytes()).to_hex().to_string();
        std::fs::write(&summary, serde_json::to_vec(&record).unwrap()).unwrap();
    }
    let shared = compared(results, ["before", "after"], None).unwrap();
    assert_eq!((shared.tasks[0].clusters, shared.tasks[0].counts.unwrap().p), (11, None));
    // Seeds of two recipes have no counts: an item has several answers a side.
    for name in ["a1", "a2", "b1", "b2"] {
        Planted::new(name, vec![("one", 0.25, answers(10, 7))]).write(results);
    }
    let seeds = compared(results, ["a1,a2", "b1,b2"], None).unwrap();
    assert_eq!(seeds.tasks[0].counts, None);
    assert!(!seeds.to_string().contains("ties"), "{seeds}");
}

#[test]
fn what_was_asked_differently_is_not_compared() {
    let place = tempfile::tempdir().unwrap();
    let results = place.path();
    let tasks = |right: Vec<f64>| vec![("one", 0.25, right)];
    let base = Planted::new("base", tasks(answers(10, 7)));
    base.write(results);
    Planted { step: 6, ..Planted::new("later", tasks(answers(11, 7))) }.write(results);
    let shown = Planted { shots: 2, ..Planted::new("shown", tasks(answers(10, 7))) };
    shown.write(results);
    let mut flipped = answers(10, 7);
    flipped[3] = f64::NAN;
    let plant = |planted: Planted| planted.write(results);
    plant(Planted { limit: Some(40), ..Planted::new("limit", tasks(answers(9, 7))) });
    plant(Planted { definition: "e", ..Planted::new("definition", tasks(answers(9, 7))) });
    plant(Planted { shots: 2, files: "g", ..Planted::new("examples", tasks(answers(9, 7))) });
    plant(Planted { context: 32, cut_items: 1, ..Planted::new("cut", tasks(answers(9, 7))) });
    plant(Planted::new("fewer", tasks(answers(9, 7)[..39].to_vec())));
    plant(Planted::new("nan", tasks(flipped)));
    plant(Planted::new("other", vec![("two", 0.25, answers(9, 7))]));
    let items = plant(Planted::new("items", tasks(answers(9, 7))));
    let rows = items.join("one-0-shot.jsonl");
    let changed = std::fs::read_to_string(&rows).unwrap().replace("item-7", "item-x");
    std::fs::write(&rows, &changed).unwrap();
    let error = |sides: [&str; 2]| compared(results, sides, None).unwrap_err().message().to_owned();
    assert!(
        error(["base", "items"]).contains("was changed after it was written"),
        "{}",
        error(["base", "items"])
    );
    let summary = items.join("evaluation.json");
    let mut record: EvaluationRecord = serde_json::from_slice(&std::fs::read(&summary).unwrap()).unwrap();
    record.tasks[0].rows_blake3 = blake3::hash(changed.as_bytes()).to_hex().to_string();
    std::fs::write(&summary, serde_json::to_vec(&record).unwrap()).unwrap();
    for (sides, said) in [
        (["base", "items"], "one: item 8 has the hash item-7 in"),
        (["base", "limit"], "asked with 0 examples and all items in"),
        (["base", "shown"], "2 examples and all items"),
        (["base", "definition"], "its definition has the hash d in"),
        (["shown", "examples"], "its examples come from files with the hashes f in"),
        (["base", "cut"], "with the same --max-len"),
        (["base", "fewer"], "it has as many items as 40 in"),
        (["base", "nan"], "item 4 of one has no number for acc"),
        (["base", "other"], "no task in common"),
        (["base", "base,fewer"], "one side has a single evaluation and the other 2"),
        (["base,base", "later,later"], "of the same weights, not of two seeds"),
        (["base,later", "base,later"], "their step is 5 and 6"),
        (["base,cut", "base,later"], "their context is 64 and 32"),
        (["base", "missing"], "is no evaluation"),
        (["base", ""], "is no evaluation"),
    ] {
        assert!(error(sides).contains(said), "{sides:?}: {}", error(sides));
    }
    let named = compared(results, ["base", "later"], Some(&["three".to_owned()])).unwrap_err();
    assert!(named.message().contains("no evaluation has the task three; they have one"), "{named}");
}

/// The recipes of runs in the results folder say which evaluations are of seeds of one recipe, and which of
/// both sides have the same seed.
#[test]
fn seeds_are_paired_and_other_recipes_refused() {
    let place = tempfile::tempdir().unwrap();
    let results = place.path();
    for (name, right, recipe) in [
        ("a1", 10, "[training]\nseed = 1\n"),
        ("a2", 14, "[training]\nseed = 2\n"),
        ("b2", 20, "[training]\nseed = 2\n[optimizer]\nlr = 0.01\n"),
        ("b1", 17, "[training]\nseed = 1\n[optimizer]\nlr = 0.01\n"),
        ("b3", 17, "[training]\nseed = 3\n[optimizer]\nlr = 0.01\n"),
        ("again", 12, "[training]\nseed = 1\n"),
    ] {
        Planted::new(name, vec![("one", 0.25, answers(right, 7))]).write(results);
        let run = results.join("tiny").join(name);
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join("resolved.toml"), recipe).unwrap();
    }
    let paired = compared(results, ["a1,a2", "b2,b1"], None).unwrap();
    assert_eq!((paired.units, paired.notes.len()), (Units::PairedSeeds, 0), "{:?}", paired.notes);
    assert!(
        paired.sides[1][0].ends_with("b1") && paired.to_string().contains("2 seeds, the same on both sides")
    );
    let apart = compared(results, ["a1,a2", "b1,b3"], None).unwrap();
    assert_eq!((apart.units, apart.notes.len()), (Units::Seeds, 0));
    assert_ne!(apart.tasks[0].error, paired.tasks[0].error);
    for (side, said) in
        [("a1,b2", "optimizer.lr is"), ("a1,again", "have the same training.seed; name one of them")]
    {
        let refused = compared(results, [side, "b1,b2"], None).unwrap_err();
        assert!(refused.message().contains(said), "{refused}");
    }
}
