//! What lies in a run's folder may come from someone else: every file of it, in turn, is a FIFO, an endless
//! device, a link to a private file, a terabyte of nothing, a folder, empty, or unreadable.
//!
//! The small test gives every file and kind one command besides `runs`. `XRUN_CAMPAIGN_S=1` gives it all of
//! them, which takes minutes.

use crate::place::{Place, Running, copy};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What no command may print or copy.
const SECRET: &str = "PRIVATE-KEY-OF-THE-CALLER";

/// Longer than any of these commands takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address space that a command gets, in KiB. Reading a file of this size is what the test is about.
const MEMORY_KIB: u64 = 4 << 20;

const KINDS: [&str; 8] =
    ["a FIFO", "endless", "private", "private and sized", "sparse", "a folder", "empty", "unreadable"];

/// Every command that reads a run; `RUN` is the run with the odd file, `OUT` a new name.
const COMMANDS: [&[&str]; 16] = [
    &["runs"],
    &["resume", "RUN"],
    &["resume", "RUN", "--fork", "training.steps=41"],
    &["sample", "RUN"],
    &["export", "RUN", "--to", "OUT"],
    &["keep", "RUN", "--to", "OUT"],
    &["view", "--out", "OUT.html", "RUN"],
    &["replay", "RUN"],
    &["watch", "RUN", "--once"],
    &["runs", "diff", "RUN", "WHOLE"],
    &["runs", "export", "RUN", "--tensorboard=OUT"],
    &["plan", "RUN"],
    &["run", "RUN", "training.steps=2"],
    &["compare", "--runs", "RUN", "WHOLE"],
    &["runs", "note", "RUN", "a note"],
    &["runs", "rm", "RUN"],
];

/// The places in [`COMMANDS`] of those that copy files to where others read them.
const PUBLISHING: [usize; 3] = [4, 5, 6];

/// Puts a file of this kind in place of `path`. `secret` is outside of every run.
fn put(kind: &str, path: &Path, secret: &Path) {
    let bytes = fs::metadata(path).map_or(0, |file| file.len());
    fs::remove_file(path).unwrap();
    match kind {
        "a FIFO" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        "endless" => symlink("/dev/zero", path).unwrap(),
        "private" => symlink(secret, path).unwrap(),
        // As long as the file was, so that a comparison of sizes does not notice.
        "private and sized" => {
            let sized = secret.with_file_name(format!("secret-{bytes}"));
            let text = SECRET.repeat(bytes as usize / SECRET.len() + 1);
            fs::write(&sized, &text.as_bytes()[..bytes as usize]).unwrap();
            symlink(sized, path).unwrap();
        }
        "sparse" => fs::File::create(path).unwrap().set_len(1 << 40).unwrap(),
        "a folder" => fs::create_dir(path).unwrap(),
        "empty" => drop(fs::File::create(path).unwrap()),
        _ => {
            fs::write(path, "unreadable").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
        }
    }
}

/// Returns every file below a folder, relative to it.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false => found.push(path.strip_prefix(folder).unwrap().to_owned()),
            }
        }
    }
    found.sort();
    found
}

/// Returns the first file below a folder that has the secret, besides `odd`; links count by what they lead to
/// only if the command made them.
fn with_secret(folder: &Path, odd: &Path) -> Option<PathBuf> {
    let files = files_below(folder).into_iter().map(|file| folder.join(file)).filter(|file| file != odd);
    let own =
        files.filter(|file| file.symlink_metadata().is_ok_and(|data| data.is_file() && data.len() < 1 << 30));
    // A search in this test, which is compiled without optimization, would take longer than the command.
    let mut grep = Command::new("grep");
    let found = grep.args(["-laF", "-e", SECRET, "--", "/dev/null"]).args(own).output().unwrap();
    assert!(matches!(found.status.code(), Some(0..=2)), "{found:?}");
    String::from_utf8(found.stdout).unwrap().lines().next().map(PathBuf::from)
}

/// A run of every feature, stopped before its end, and a whole one beside it.
fn original() -> (Place, PathBuf) {
    let place = Place::new();
    let run = ["tiny.toml", "metrics.tensorboard=true", "checkpoint.keep=2", "-q"];
    place.xrun(&[&run[..], &["training.seed=4"]].concat()).succeeds();
    let whole = place.run().path;
    place.xrun(&[&run[..], &["--until", "22"]].concat()).succeeds();
    let run = place.runs().into_iter().find(|run| run.path != whole).unwrap().path;
    fs::write(run.join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    for rows in ["metrics.csv", "timing.csv"] {
        fs::copy(run.join(rows), run.join(format!("unsaved-{rows}"))).unwrap();
    }
    fs::write(run.join("env-2.json"), fs::read(run.join("env.json")).unwrap()).unwrap();
    (place, run)
}

/// Runs a command with an odd file, and returns what is wrong with how it ended.
fn attempt(original: &Place, run: &Path, file: &Path, kind: &str, command: &[&str]) -> Option<String> {
    let place = Place::new();
    copy(&original.path().join("results"), &place.path().join("results"));
    let inside = run.strip_prefix(original.path()).unwrap();
    let run = place.path().join(inside);
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, format!("{SECRET}\n")).unwrap();
    put(kind, &run.join(file), &secret);
    let whole = place.runs().into_iter().find(|other| other.path != run).map(|other| other.path);
    let words: Vec<String> = command
        .iter()
        .map(|word| match *word {
            "RUN" => inside.display().to_string(),
            "WHOLE" => whole.as_ref().unwrap().strip_prefix(place.path()).unwrap().display().to_string(),
            word => word.replace("OUT", "made"),
        })
        .collect();
    let mut running = start(&place, &words);
    let began = Instant::now();
    while !running.is_over() {
        if began.elapsed() > PATIENCE {
            return Some("does not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let done = running.ends();
    let sane = matches!(done.code, Some(0..=4 | 75));
    let said = done.stdout + &done.stderr;
    let wrong = match () {
        () if !sane => format!("ends with {:?}", done.code),
        () if said.contains(SECRET) => "prints what is private".to_owned(),
        () if said.contains("out of memory") => "reads without bound".to_owned(),
        () => match with_secret(place.path(), &run.join(file)) {
            Some(found) => format!("copies what is private to {}", found.display()),
            // Another run is listed whatever this one is.
            None if command == ["runs"] && done.code != Some(0) => "fails for all runs".to_owned(),
            None => return None,
        },
    };
    Some(format!("{wrong}: {}", said.chars().take(300).collect::<String>()))
}

/// Starts the binary with a limit of its memory.
fn start(place: &Place, words: &[String]) -> Running {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    place.start_under(&format!("ulimit -v {MEMORY_KIB}"), &words)
}

#[test]
fn an_odd_file_in_a_run_neither_stops_a_command_nor_leads_out() {
    let (place, run) = original();
    let files = files_below(&run);
    assert!(files.len() > 18, "{files:?}");
    let all = std::env::var_os("XRUN_CAMPAIGN_S").is_some();
    let mut trials = Vec::new();
    for (at, file) in files.iter().enumerate() {
        for (kind_at, kind) in KINDS.iter().enumerate() {
            // Every command meets every kind, every file every kind, and what leads to a private file every
            // command that publishes.
            let mut chosen = BTreeSet::from([1 + (at * KINDS.len() + kind_at) % (COMMANDS.len() - 1)]);
            chosen.extend((*kind == "private").then_some(PUBLISHING).into_iter().flatten());
            chosen.extend((at % KINDS.len() == kind_at).then_some(0));
            chosen.extend((0..COMMANDS.len()).filter(|_| all));
            trials.extend(chosen.into_iter().map(|command| (file, *kind, COMMANDS[command])));
        }
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some((file, kind, command)) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(why) = attempt(&place, &run, file, kind, command) {
                wrong.push(format!("{} is {kind}: {}: {why}", file.display(), command.join(" ")));
            }
        }
        wrong
    };
    let threads = std::thread::available_parallelism().map_or(2, usize::from).min(8);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), trials.len(), wrong.join("\n"));
}

/// A folder below a run that is a link leads to weights, rows or pictures of someone else.
#[test]
fn a_folder_below_a_run_that_is_a_link_is_not_followed() {
    for folder in ["checkpoint", "checkpoint/step-000020"] {
        let (place, run) = original();
        let away = place.path().join("away");
        fs::rename(run.join(folder), &away).unwrap();
        symlink(&away, run.join(folder)).unwrap();
        let name = run.display().to_string();
        for command in [&["export", &name, "--to", "made"][..], &["sample", &name], &["resume", &name]] {
            let done = place.xrun(command);
            assert!(
                matches!(done.code, Some(1 | 2)),
                "{folder}: {command:?}: {:?} {}",
                done.code,
                done.stderr
            );
            assert!(done.stderr.contains("is a link"), "{folder}: {command:?}: {}", done.stderr);
        }
    }
}
