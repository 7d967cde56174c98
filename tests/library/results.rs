//! Run folders as other processes see them: who may hold one, what a killed run leaves, what `xrun keep`
//! stores.

use crate::metric_tables;
use assert_cmd::Command;
use predicates::prelude::*;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use xrun::metrics::{MetricsRow, TimingRow};
use xrun::recipe::StoredKeys;
use xrun::results::folder::{METRICS, RunFolder, TIMING};
use xrun::results::provenance::Environment;
use xrun::results::rows::{self, Phase, RowWriter};
use xrun::results::{Status, Summary, keep as kept_files, stored};

/// Set for the processes that this file starts: the run folder to hold.
const HOLD: &str = "XRUN_TEST_HOLD";

fn keep(results: &Path) -> Command {
    let mut command = Command::cargo_bin("xrun").unwrap();
    command.arg("keep").arg("--results").arg(results);
    command
}

fn row(step: u64) -> MetricsRow {
    MetricsRow {
        step,
        tokens_seen: step * 64,
        loss: 2.0,
        val_loss: None,
        lr: 1e-3,
        grad_norm: 1.0,
        ..MetricsRow::default()
    }
}

/// A finished run with three rows.
fn finished_run(results: &Path) -> PathBuf {
    const RECIPE: &str =
        "[training]\nseq_len = 8\nsteps = 3\n[lr_scheduler]\nwarmup_steps = 0\nmin_lr_ratio = 1.0\n";
    let hash = StoredKeys::parse(RECIPE).unwrap().hashes()[0].clone();
    let started = "2026-11-02T03:04:05Z".parse().unwrap();
    let folder = RunFolder::create(results, "tiny", &hash[..8], started).unwrap();
    folder.write_recipe(RECIPE).unwrap();
    folder.write_resolved(RECIPE).unwrap();
    folder.write_environment(&Environment::detect(1, started)).unwrap();
    let mut writer = folder.start_rows(METRICS).unwrap();
    (1..=3).for_each(|step| writer.append(&row(step)).unwrap());
    let mut writer = folder.start_rows(TIMING).unwrap();
    let timing: Vec<TimingRow> = (1..=3)
        .map(|step| TimingRow {
            tok_s: Some(128.0),
            ..TimingRow::timed(step, Phase::Train, step as f64 * 0.5, 500.0)
        })
        .collect();
    timing.iter().for_each(|row| writer.append(row).unwrap());
    let mut summary = Summary::started("tiny", &folder.name(), &hash, 3);
    summary.status = Status::Ok;
    summary.measure(&rows::read(&folder.path().join(METRICS)).unwrap(), &timing, 0);
    folder.write_summary(&summary).unwrap();
    std::fs::write(folder.checkpoints().unwrap().join("weights"), vec![0; 1 << 20]).unwrap();
    folder.path().to_owned()
}

/// Not a test of its own: the body of the processes that `hold` starts. Holds a run folder and appends rows
/// until it is killed, or for a minute should its parent have died.
#[test]
fn holder() {
    let Some(path) = std::env::var_os(HOLD) else { return };
    match RunFolder::open(Path::new(&path)) {
        Err(error) => println!("\nrefused: {error}"),
        Ok(folder) => {
            let last: Option<MetricsRow> = rows::read(&folder.path().join(METRICS)).unwrap().pop();
            let (mut writer, _) =
                RowWriter::resume(&folder.path().join(METRICS), u64::MAX, None, &[]).unwrap();
            println!("\nheld");
            let begun = Instant::now();
            for step in (last.map_or(1, |row| row.step + 1)..).take_while(|_| begun.elapsed().as_secs() < 60)
            {
                writer.append(&row(step)).unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}

/// A process that is gone when its test is, also when that fails.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process that tries to hold a run, and waits for what it says.
fn hold(run: &Path) -> (Holder, String) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["results::holder", "--exact", "--nocapture", "--test-threads=1"])
        .env(HOLD, run)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.into_iter().find(|line| line == "held" || line.starts_with("refused")).unwrap();
    (Holder(child), said)
}

#[test]
fn one_process_holds_a_run_until_it_dies_however_it_dies() {
    let dir = tempfile::tempdir().unwrap();
    let run = finished_run(dir.path());
    let (owner, said) = hold(&run);
    assert_eq!(said, "held");
    let tries: Vec<(Holder, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| hold(&run))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let owner_id = owner.0.id();
    for (_, said) in &tries {
        assert!(said.contains(&format!("process {owner_id} ")), "{said}");
    }
    keep(dir.path())
        .arg("latest")
        .assert()
        .code(1)
        .stderr(predicate::str::contains(format!("in use by process {owner_id} ")));

    // SIGKILL: the folder is free at once, and every row but perhaps the last is whole.
    drop(owner);
    let folder = RunFolder::open(&run).unwrap();
    let (mut writer, cut) = RowWriter::resume(&folder.path().join(METRICS), 3, None, &[]).unwrap();
    assert_eq!((cut.rows_kept, cut.last), (3, Some(row(3))));
    writer.append(&row(4)).unwrap();
    assert_eq!(rows::read::<MetricsRow>(&run.join(METRICS)).unwrap(), (1..=4).map(row).collect::<Vec<_>>());
}

#[test]
fn keep_stores_a_run_once_and_refuses_another_content() {
    let dir = tempfile::tempdir().unwrap();
    let run = finished_run(dir.path());
    let kept = dir.path().join("kept/tiny").join(run.file_name().unwrap());
    let said = format!("{}\n", kept.display());
    for (name, message) in
        [("latest", "kept: "), ("tiny", "already kept"), (run.to_str().unwrap(), "already kept")]
    {
        keep(dir.path())
            .arg(name)
            .assert()
            .success()
            .stdout(said.clone())
            .stderr(predicate::str::contains(message));
    }
    let mut names: Vec<_> = std::fs::read_dir(&kept)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["README.md", "env.json", "log", "manifest.json", "resolved.toml", "summary.json", "timing.csv.gz"]
    );
    for file in ["metrics.csv", "recipe.toml"] {
        let original = std::fs::read(run.join(file)).unwrap();
        assert_eq!(stored::read(&kept.join(file)).unwrap(), original, "shared by runs with this content");
    }

    std::fs::write(run.join("recipe.toml"), "[training]\nsteps = 4\n").unwrap();
    keep(dir.path()).arg("latest").assert().code(1).stderr(
        predicate::str::contains("recipe.toml is not what was kept").and(predicate::str::contains("--to")),
    );
    let elsewhere = dir.path().join("elsewhere");
    keep(dir.path()).args(["latest", "--to"]).arg(&elsewhere).assert().success();
    assert!(elsewhere.join("tiny").is_dir());
}

#[test]
fn every_kept_file_reads_back_to_the_bits_that_were_kept() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/kept");
    let (mut runs, mut without_derived) = (0, 0);
    for id in kept_files::folders(&kept).unwrap() {
        let folder = kept.join(&id);
        kept_files::verify(&folder).unwrap();
        let manifest = stored::Manifest::read(&folder).unwrap();
        let Some(timing) = manifest.file("timing.csv") else { continue };
        runs += 1;
        let rows: Vec<TimingRow> = rows::read(&folder.join("timing.csv")).unwrap();
        assert!(!rows.is_empty(), "{id}");
        if timing.derived.is_some() {
            without_derived += 1;
            let stored = timing.stored_at(&folder);
            assert_eq!(stored, folder.join("timing.csv.gz"));
            let stored = std::fs::metadata(stored).unwrap().len();
            assert!(stored < timing.bytes / 4, "{id}: {stored} of {}", timing.bytes);
        }
    }
    assert!(runs > 100, "{runs} runs are kept");
    assert!(without_derived == runs, "{without_derived} of {runs} runs are stored without derived columns");
}

#[test]
fn keep_names_what_it_cannot_find() {
    let dir = tempfile::tempdir().unwrap();
    keep(dir.path()).arg("latest").assert().code(2).stderr(predicate::str::contains("no runs yet"));
    finished_run(dir.path());
    keep(dir.path()).arg("tny").assert().code(2).stderr(predicate::str::contains("tiny/20261102T030405Z"));
}

/// Tables of metrics in the pages, by the comment that begins each.
fn generated_tables() -> [(&'static str, &'static str, String); 3] {
    [
        ("docs/results.md", "columns of metrics.csv", metric_tables::columns(MetricsRow::METRICS)),
        ("docs/results.md", "columns of timing.csv", metric_tables::columns(TimingRow::METRICS)),
        ("docs/reports.md", "figures of runs", metric_tables::figures()),
    ]
}

/// The pages' tables are those of the program. `UPDATE_DOCS=1 cargo test --test library results::` rewrites
/// them.
#[test]
fn the_tables_of_metrics_are_up_to_date() {
    for (page, name, current) in generated_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = std::fs::read_to_string(&path).unwrap();
        let mark = format!("<!-- {name}: generated from the table of metrics -->\n");
        let begin = text.find(&mark).unwrap_or_else(|| panic!("{page} lacks {mark}")) + mark.len();
        let end = begin + text[begin..].find("<!-- end -->").expect("the mark of the end");
        let current = format!("\n{current}\n");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, [&text[..begin], &current, &text[end..]].concat()).unwrap();
        } else {
            assert!(
                text[begin..end] == current,
                "{page}: the {name} differ from the table of metrics; UPDATE_DOCS=1 cargo test --test library results:: rewrites them"
            );
        }
    }
}

/// Bytes of a page, and of its markers, lines of provenance, commands and hashes.
fn bytes_of_machine_text(page: &str) -> (usize, usize) {
    let is_hash = |word: &str| {
        (7..=64).contains(&word.len()) && word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
    };
    let mut machine = 0;
    for line in page.lines() {
        let is_marker = line.starts_with("<!-- xrun:");
        let is_provenance = line.starts_with("<sub>");
        let is_command = ["    xrun ", "    python3 "].iter().any(|start| line.starts_with(start));
        machine += if is_marker || is_provenance || is_command {
            line.len() + 1
        } else {
            let words = line.split(|c: char| c.is_whitespace() || "`(),".contains(c));
            words.filter(|word| is_hash(word)).map(str::len).sum()
        };
    }
    (page.len(), machine)
}

#[test]
fn pages_of_issues_are_written_for_people() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let entries = std::fs::read_dir(docs.join("issues")).unwrap();
    let pages = entries.map(|entry| entry.unwrap().path()).chain([docs.join("known-issues.md")]);
    let (mut all, mut machine) = (0, 0);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(!text.contains("xrun:from") && !text.contains("hash=\""), "{}", page.display());
        let (bytes, of_machine) = bytes_of_machine_text(&text);
        all += bytes;
        machine += of_machine;
    }
    assert!(all > 40_000 && machine > 1000, "{machine} of {all}");
    assert!(10 * machine <= all, "markers, provenance, commands and hashes: {machine} of {all} bytes");
}
