//! A file of a run's folder is damaged, and the run is resumed, sampled or exported: what is not noticed
//! changes nothing.

use crate::mutate::Inputs;
use crate::place::{Place, Run};
use crate::runner::{alone, long, seed};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Trials without `XRUN_CAMPAIGN_S`, and the time after which there are no more of them.
const FEW: (usize, Duration) = (24, Duration::from_secs(25));

/// The files of a folder by their path in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    Run { path: folder.to_owned() }
        .files()
        .into_iter()
        .map(|(path, bytes)| (path.strip_prefix(folder).unwrap().to_owned(), bytes))
        .collect()
}

/// What a command did: the code, everything it said, and what it made.
struct Outcome {
    code: Option<i32>,
    said: String,
    made: BTreeMap<PathBuf, Vec<u8>>,
}

const SAMPLE: [&str; 6] = ["--temperature", "0", "--prompt", "One day", "--tokens", "8"];

fn act(place: &Place, run: &Run, command: &str) -> Outcome {
    let out = place.path().join("exported");
    let done = match command {
        "resume" => place.xrun(&["resume", run.name()]),
        "sample" => place.xrun(&[&["sample", run.name()], &SAMPLE[..]].concat()),
        _ => place.xrun(&["export", run.name(), "--to", "exported"]),
    };
    let made = match command {
        "resume" => {
            let mut made = files(&run.path);
            // Measurements, and what names this process.
            made.retain(|path, _| {
                let name = path.to_string_lossy();
                name == "metrics.csv" || name.ends_with(".safetensors")
            });
            made
        }
        "sample" => [(PathBuf::from("stdout"), done.stdout.clone().into_bytes())].into(),
        _ if out.is_dir() => files(&out),
        _ => BTreeMap::new(),
    };
    Outcome { code: done.code, said: done.stderr, made }
}

#[test]
fn what_is_not_noticed_changes_nothing() {
    let _alone = alone();
    let commands = ["resume", "sample", "export"];
    let expected = commands.map(|command| {
        let place = Place::killed_after(15);
        let outcome = act(&place, &place.run(), command);
        assert_eq!(outcome.code, Some(0), "{command}: {}", outcome.said);
        outcome.made
    });
    let mut inputs = Inputs::new(seed());
    let (most, time) = long().map_or(FEW, |time| (usize::MAX, time));
    let (began, mut noticed, mut harmless) = (Instant::now(), 0, 0);
    for trial in (0..most).take_while(|_| began.elapsed() < time) {
        let place = Place::killed_after(15);
        let run = place.run();
        let all: Vec<PathBuf> = files(&run.path).into_keys().chain(["log".into(), "lock".into()]).collect();
        let name = &all[inputs.below(all.len())];
        let path = run.path.join(name);
        let original = fs::read(&path).unwrap_or_default();
        let mut damaged = original.clone();
        match inputs.below(12) {
            0 => fs::remove_file(&path).unwrap(),
            1 => fs::write(&path, b"").unwrap(),
            _ => {
                inputs.change(&mut damaged, std::slice::from_ref(&original));
                fs::write(&path, &damaged).unwrap();
            }
        }
        let left = fs::read(&path).ok();
        let at = trial % commands.len();
        // `ends` within fails where anything panicked.
        let outcome = act(&place, &run, commands[at]);
        let context = || format!("seed {}, trial {trial}: {} after {}", seed(), commands[at], name.display());
        assert!(matches!(outcome.code, Some(0..=2)), "{}: {:?}\n{}", context(), outcome.code, outcome.said);
        let told = ["warning", "changed", "cannot", "error"].iter().any(|word| outcome.said.contains(word));
        // An older checkpoint, say, that nothing read stays as it is.
        let is_left = |path: &PathBuf| {
            commands[at] == "resume" && path == name && outcome.made.get(path) == left.as_ref()
        };
        let differ: Vec<_> = expected[at]
            .keys()
            .chain(outcome.made.keys())
            .filter(|path| outcome.made.get(*path) != expected[at].get(*path) && !is_left(path))
            .collect();
        if outcome.code != Some(0) {
            assert!(outcome.said.contains("error: "), "{}: {}", context(), outcome.said);
            noticed += 1;
        } else if differ.is_empty() {
            harmless += 1;
        } else {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("campaign/folder.input");
            fs::create_dir_all(kept.parent().unwrap()).unwrap();
            fs::write(&kept, &damaged).unwrap();
            assert!(told, "{}: another result, silently: {differ:?}\n{}", context(), outcome.said);
            noticed += 1;
        }
    }
    println!("folders: {noticed} damages noticed, {harmless} without effect, 0 silent");
}
