//! Limits of the system, and folders and names from someone who means harm.

use crate::place::Place;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};
use xrun::results::Status;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the binary under a limit of the shell.
fn limited(place: &Place, limit: &str, arguments: &[&str]) -> Output {
    let shell = format!("{limit}; exec \"$0\" \"$@\"");
    Command::new("/bin/sh")
        .args(["-c", &shell, env!("CARGO_BIN_EXE_xrun")])
        .args(arguments)
        .current_dir(place.path())
        .env_clear()
        .output()
        .unwrap()
}

/// Whatever allocation is refused, there is a message, no abort, and no run that stays `running`.
#[test]
fn a_refused_allocation_ends_with_a_message() {
    let mut refused = 0;
    // Threads are refused below 80 MiB, and nothing from 110 MiB on, which grows with the program.
    for mib in [60, 76, 84, 92, 100, 120] {
        let place = Place::new();
        let limit = format!("ulimit -v {}", mib << 10);
        let mut run = vec!["tiny.toml", "-q", "training.steps=3", "generation.samples=0"];
        run.extend(["data.tokenizer=byte", "metrics.plots=true"]);
        let output = limited(&place, &limit, &run);
        let said = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1 | 4)), "{mib} MiB: {:?} {said}", output.status);
        refused += usize::from(output.status.code() == Some(4));
        assert!(output.status.success() || said.contains("error: "), "{mib} MiB: {said}");
        for run in place.runs() {
            assert_ne!(run.summary().status, Status::Running, "{mib} MiB: {said}");
        }
    }
    // A corpus is read before there is a folder. This one is a single document, and its byte tokens take four
    // times its size.
    let place = Place::new();
    place.write("a.txt", &vec![b'a'; 64 << 20]);
    let output =
        limited(&place, "ulimit -v 300000", &["tiny.toml", "data.corpus=a.txt", "data.tokenizer=byte"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(refused > 0 && place.runs().is_empty(), "{refused} were refused");
}

/// With the signal ignored, a write beyond the limit is an error like on a full disk, for every command.
#[test]
fn a_limit_of_file_sizes_is_a_message() {
    let place = Place::new();
    let data = ["data", "--corpus", "stories", "--out", "shards"];
    let output = limited(&place, "ulimit -f 20", &data);
    assert_eq!(output.status.code(), Some(1), "{:?} {}", output.status, text(&output.stderr));
    assert!(text(&output.stderr).contains("shards"), "{}", text(&output.stderr));
}

#[test]
fn absurd_numbers_of_threads_and_ranks_are_refused_before_they_start() {
    let place = Place::new();
    for (set, says) in [
        (&["engine.threads=8000"][..], "more than 2048"),
        (&["parallelism.world_size=65536"], "65536 ranks are more than the 256"),
        (
            &["parallelism.world_size=65536", "parallelism.launcher=process"],
            "65536 ranks are more than the 256",
        ),
        (
            &["parallelism.world_size=200", "parallelism.launcher=process", "engine.threads=1000"],
            "200 processes of 1000",
        ),
    ] {
        place.xrun(&[&["tiny.toml"], set].concat()).ended(2).says(&[says]);
    }
    place
        .xrun(&["sweep", "tiny.toml", "parallelism.world_size=257,258"])
        .ended(2)
        .says(&["257 ranks are more"]);
    assert!(place.runs().is_empty());
}

#[test]
fn paths_that_are_no_text_are_refused_before_a_run_begins() {
    let place = Place::new();
    let run = |arguments: Vec<std::ffi::OsString>| {
        let command = Command::new(env!("CARGO_BIN_EXE_xrun"))
            .args(arguments)
            .current_dir(place.path())
            .env_clear()
            .output()
            .unwrap();
        (command.status.code(), text(&command.stderr))
    };
    let odd = std::ffi::OsString::from_vec(b"res\xff".to_vec());
    let (code, said) = run(vec!["tiny.toml".into(), "--results".into(), odd.clone()]);
    assert!(code == Some(2) && said.contains("not UTF-8"), "{code:?} {said}");
    assert!(!place.path().join(&odd).exists());
    for name in [b"odd\x1b[31m.toml".to_vec(), b"odd\xff.toml".to_vec(), b"a\nb.toml".to_vec()] {
        let name = std::ffi::OsString::from_vec(name);
        fs::copy(place.path().join("tiny.toml"), place.path().join(&name)).unwrap();
        let (code, said) = run(vec![name.clone()]);
        assert!(code == Some(2) && said.contains("rename it") && !said.contains('\u{1b}'), "{code:?} {said}");
        let (_, listed) = run(vec!["plan".into(), name]);
        assert!(!listed.contains('\u{1b}'), "{listed}");
    }
    assert!(!place.path().join("results").exists());
}

/// Escape sequences from others are shown on a terminal, not obeyed.
#[test]
fn escapes_of_others_are_shown_and_not_obeyed() {
    let place = Place::new();
    let odd = "\\u001b[31mred\\u0007 \\u202eoverride\\u009b1m";
    place.write("odd.toml", format!("extends = \"tiny.toml\"\n[job]\ndescription = \"{odd}\"\n").as_bytes());
    let listed = place.xrun(&["ls"]).succeeds().stdout;
    assert!(listed.contains("␛[31mred␇ ⟨U+202E⟩override⟨U+009B⟩1m"), "{listed}");
    let acts = |text: &str| text.contains(['\u{1b}', '\u{7}', '\u{202e}', '\u{9b}']);
    assert!(!acts(&listed));

    // Prompts, and so samples, appear in notes, in the log and in JSON.
    let prompt = format!("generation.prompt=\"\"\"{odd}\"\"\"");
    let run = ["tiny.toml", "training.steps=3", "generation.samples=1", "data.tokenizer=byte", &prompt];
    let done = place.xrun(&run).succeeds();
    assert!(
        done.stderr.contains("␛[31mred␇ ⟨U+202E⟩override⟨U+009B⟩1m") && !acts(&done.stderr),
        "{}",
        done.stderr
    );
    let run = place.run();
    assert!(run.text("log").contains("␛[31mred␇") && !acts(&run.text("log")), "{}", run.text("log"));
    assert!(!acts(&run.text("summary.json")));
    assert_eq!(run.summary().samples[0].prompt, "\u{1b}[31mred\u{7} \u{202e}override\u{9b}1m");
    let json = place.xrun(&["sample", run.name(), "--json"]).succeeds().stdout;
    assert!(!acts(&json), "{json}");
    let object: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(object["prompt"], "\u{1b}[31mred\u{7} \u{202e}override\u{9b}1m");
    // In a pipe, a sample is exactly what the model wrote, byte for byte.
    let raw = place.xrun(&["sample", run.name()]).succeeds().stdout;
    assert!(raw.starts_with("\u{1b}[31mred\u{7} \u{202e}override\u{9b}1m"), "{raw:?}");

    for arguments in [
        &["tiny.toml", "data.corpus=\u{1b}[2Jnowhere"][..],
        &["resume", "\u{1b}[2Jnowhere"],
        &["\u{1b}[2Jnowhere.toml"],
        &["sample", "\u{1b}]0;title\u{7}"],
    ] {
        let done = place.xrun(arguments);
        assert!(done.code == Some(2) || done.code == Some(1));
        assert!(done.stderr.contains('␛') && !acts(&done.stderr), "{}", done.stderr);
    }
}

/// Returns the contents of all files below a folder.
fn contents(folder: &std::path::Path) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let read = |path: std::path::PathBuf| match path.is_dir() {
        true => contents(&path),
        false => vec![fs::read(&path).unwrap()],
    };
    entries.flat_map(|entry| read(entry.unwrap().path())).collect()
}

/// No file that a run writes is followed through a link to a file of the user.
#[test]
fn links_in_a_run_folder_lead_to_nothing_that_is_written() {
    for name in ["lock", "log", "metrics.csv", "timing.csv", "env-2.json", "plots/loss-light.svg"] {
        for command in ["resume", "keep"] {
            let place = Place::killed_after(15);
            let run = place.run();
            fs::create_dir(run.path.join("plots")).unwrap();
            let precious = place.write("precious", b"precious\n");
            let path = run.path.join(name);
            let _ = fs::remove_file(&path);
            symlink(&precious, &path).unwrap();
            let draws: &[&str] = if command == "resume" { &["metrics.plots=true"] } else { &[] };
            let done = place.xrun(&[&[command, run.name()], draws].concat());
            assert_eq!(fs::read(&precious).unwrap(), b"precious\n", "{name} {command:?}");
            // `keep` takes no lock, writes nothing into the run's folder, and copies only the run's own
            // files.
            let kept = place.path().join("results/kept");
            assert!(!contents(&kept).contains(&b"precious\n".to_vec()), "{name} was kept");
            let refused = command == "resume" && ["lock", "log"].contains(&name);
            assert!(
                !refused || done.stderr.contains(&format!("{name} is a link")),
                "{name}: {}",
                done.stderr
            );
        }
    }
    // A dangling link creates nothing.
    let place = Place::killed_after(15);
    let run = place.run();
    let _ = fs::remove_file(run.path.join("lock"));
    symlink(place.path().join("new"), run.path.join("lock")).unwrap();
    place.xrun(&["resume", run.name()]).ended(2).says(&["lock is a link"]);
    assert!(!place.path().join("new").exists());
}
