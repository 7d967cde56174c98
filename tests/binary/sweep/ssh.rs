//! Sweeps whose tasks run on hosts without a batch system. The `ssh` here is a script that runs the remote
//! command on this machine, or plays a host that is gone; `scripts/ssh_trial` uses real ones.

use super::cluster::{figures, files};
use super::grid::{finals, lines, runs};
use crate::place::{Done, Place};
use crate::slurm::submission;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use xrun::results::ledger::CellStatus;

/// Skips options, and runs the command unless the file `gone-HOST` exists.
const SSH: &str = r#"#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1
shift
cd "${0%/*}"
echo "$host" >>asked
[ -f "gone-$host" ] && { echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }
exec sh -c "$*"
"#;

const PATH: &str = "PATH=/usr/bin:/bin; export PATH";

/// The cells: seven seeds.
const SWEEP: [&str; 3] = ["sweep", "grid.toml", "training.seed=1,2,3,4,5,6,7"];

/// Longer than any of the sweeps here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

/// Makes a folder with a recipe and the `ssh` of the hosts.
fn hosts() -> Place {
    use std::os::unix::fs::PermissionsExt;
    let place = super::grid::place("");
    let path = place.write("bin/ssh", SSH.as_bytes());
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let settings = format!("[executor.ssh]\nhosts = [\"a\", \"me@b\", \"c\"]\ncommand = [{path:?}]\n");
    place.write("xrun.toml", settings.as_bytes());
    place
}

fn xrun(place: &Place, arguments: &[&str]) -> Done {
    place.start_under(PATH, arguments).ends()
}

fn submit(place: &Place, sweep: &[&str]) -> Done {
    xrun(place, &[sweep, &["--executor", "ssh"]].concat())
}

fn status(place: &Place) -> String {
    xrun(place, &["sweep", "--status", "grid"]).succeeds().stdout
}

/// Waits until a text appears in what the status says.
fn wait_for(place: &Place, text: &str) -> String {
    let began = Instant::now();
    loop {
        let said = status(place);
        if said.contains(text) {
            return said;
        }
        assert!(began.elapsed() < PATIENCE, "no `{text}` in:\n{said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the files of the only submission whose names end so.
fn submitted(place: &Place, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(submission(place)).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.to_string_lossy().ends_with(end));
    found.sort();
    found
}

/// Makes a host be gone or answer again.
fn set_gone(place: &Place, host: &str, is_gone: bool) {
    match is_gone {
        true => drop(place.write(&format!("bin/gone-{host}"), b"")),
        false => fs::remove_file(place.path().join(format!("bin/gone-{host}"))).unwrap(),
    }
}

#[test]
fn a_sweep_on_hosts_has_the_rows_of_a_local_one() {
    let halving = [
        "sweep",
        "grid.toml",
        "optimizer.lr=1e-3,3e-3,1e-2",
        "training.seed=1,2",
        "validation.interval=10",
        "sweep.rungs=[10, 20]",
    ];
    let confirmed = ["sweep", "grid.toml", "optimizer.lr=1e-3,3e-3", "training.seed=1,2", "sweep.confirm=2"];
    let rest = "0 done or not to run, 0 queued before; jobs xrun-grid-";
    for (sweep, cells, said) in [
        (&SWEEP[..], 7, "submitted 7 cells in 3 tasks"),
        (&confirmed, 4, "submitted 4 cells in 2 tasks"),
        (&halving, 6, "submitted 6 cells in 7 tasks"),
    ] {
        let place = hosts();
        let done = submit(&place, sweep).succeeds();
        assert!(done.stdout.contains(&format!("{said}, {rest}")), "{}", done.stdout);
        assert!(done.stderr.contains(" of memory, without a limit of time\n"), "{}", done.stderr);
        wait_for(&place, "no task is queued\n");
        let local = super::grid::place("");
        local.xrun(sweep).succeeds();
        assert_eq!(figures(&place, cells), figures(&local, cells));
        assert_eq!(runs(&place), runs(&local), "no cell was trained twice");
        assert_eq!(files(&place), files(&local), "a last task completes tables and plots");
        assert_eq!(submitted(&place, "-last@me-b.sh").len(), 1);
        for log in submitted(&place, ".log") {
            let text = fs::read_to_string(&log).unwrap();
            assert!(!text.contains("error"), "{}: {text}", log.display());
        }
        // A host whose scripts have ended need not answer.
        ["a", "me@b", "c"].into_iter().for_each(|host| set_gone(&place, host, true));
        let again = status(&place);
        assert!(again.contains("no task is queued\n"), "{again}");
    }
}

#[test]
fn hosts_are_named_only_in_the_folder_of_the_submission() {
    let place = hosts();
    submit(&place, &SWEEP).succeeds();
    wait_for(&place, "no task is queued\n");
    place.xrun(&["keep", "sweeps/grid"]).succeeds();
    place.xrun(&["view", "--out", "page.html", "sweeps/grid"]).succeeds();
    let is_own = |path: &PathBuf| ["bin", "xrun.toml"].iter().any(|name| path.ends_with(name));
    let (mut folders, mut published, mut named) = (vec![place.path().to_owned()], 0, 0);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for path in entries.filter(|path| !is_own(path)) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = [path.to_string_lossy().as_bytes(), &fs::read(&path).unwrap()].concat();
            let is_hidden = path.components().any(|part| part.as_os_str() == ".submitted");
            if is_hidden {
                named += usize::from(names_a_host(&bytes));
            } else {
                assert!(!names_a_host(&bytes), "{}", path.display());
                published += 1;
            }
        }
    }
    assert!(published > 20 && named > 5, "{published} {named}");
}

fn names_a_host(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|part| part == b"me@b" || part == b"me-b")
}

#[test]
fn the_cells_of_a_killed_task_are_taken_over() {
    let place = hosts();
    submit(&place, &[&SWEEP[..], &["training.steps=400"]].concat()).succeeds();
    wait_for(&place, "tasks run on 3 nodes");
    for job in ["1", "last"] {
        let [state] = &submitted(&place, &format!("-{job}@me-b.state"))[..] else { panic!("one state file") };
        let group = fs::read_to_string(state).unwrap().split(' ').next().unwrap().parse().unwrap();
        kill_process_group(Pid::from_raw(group).unwrap(), Signal::KILL).unwrap();
    }
    let said = wait_for(&place, "no task is queued\n");
    assert!(said.contains("7 cells\n       7  ok\n"), "{said}");
    let oks = |lines: &Vec<_>| super::grid::count(lines, CellStatus::Ok);
    let finals = finals(&lines(&place));
    assert!(finals.len() == 7 && finals.values().all(|lines| oks(lines) == 1), "{finals:?}");
    let local = super::grid::place("");
    local.xrun(&[&SWEEP[..], &["training.steps=400"]].concat()).succeeds();
    assert_eq!(figures(&place, 7), figures(&local, 7));
}

#[test]
fn a_host_that_does_not_answer_is_refused_and_named() {
    let place = hosts();
    set_gone(&place, "c", true);
    submit(&place, &SWEEP).ended(1).says(&[
        "no task was started, because 1 of 3 hosts cannot run any: c: ssh: connect to host c port 22: No route",
        "leave the host out of --hosts",
    ]);
    assert!(status(&place).contains("7  not submitted\nno task is queued\n"));
    set_gone(&place, "c", false);

    let long = [&SWEEP[..], &["training.steps=100000"]].concat();
    submit(&place, &long).succeeds();
    wait_for(&place, "3 tasks run on 3 nodes, 3 wait (earlier tasks of the host)\n");
    set_gone(&place, "c", true);
    let said = status(&place);
    assert!(said.contains("2 tasks run on 2 nodes, 2 wait (earlier tasks of the host)\n"), "{said}");
    let silent =
        "2 tasks may run: c does not answer (ssh: connect to host c port 22: No route to host); if it ";
    assert!(said.contains(silent), "{said}");
    assert!(said.contains("  on a host that does not answer\n"), "{said}");
    let again = submit(&place, &[&long[..], &["--hosts", "a"]].concat());
    again.ended(1).says(&["may still run, so they are not submitted again: c does not answer"]);
    let canceled = xrun(&place, &["sweep", "--cancel", "grid"]);
    canceled.ended(1).says(&["c does not answer (ssh: connect", "those of the other hosts end"]);
    set_gone(&place, "c", false);
    let canceled = xrun(&place, &["sweep", "--cancel", "grid"]).succeeds();
    assert!(canceled.stdout.starts_with("ended "), "{}", canceled.stdout);
    let said = wait_for(&place, "no task is queued\n");
    assert!(said.contains("       3  preempted\n"), "the running cells saved their state: {said}");
    assert_eq!(super::grid::count(&lines(&place), CellStatus::Ok), 0);
}

#[test]
fn a_comparison_on_hosts_is_answered_once() {
    let place = hosts();
    let pairs = ["compare", "grid.toml", "optimizer.lr=1e-2", "--on", "val_loss", "--seeds", "3"];
    submit(&place, &pairs).succeeds();
    let began = Instant::now();
    while !xrun(&place, &["compare", "--status", "grid"]).succeeds().stdout.contains(": answered\n") {
        assert!(began.elapsed() < PATIENCE, "no answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((runs(&place), super::grid::count(&lines(&place), CellStatus::Ok)), (6, 6), "each run once");
    let comparisons = fs::read_dir(place.path().join("results/comparisons/grid")).unwrap().count();
    assert_eq!(comparisons, 1);
    let timed = ["compare", "grid.toml", "engine.threads=2"];
    submit(&place, &timed).ended(2).says(&["times are measured on one host; name one, as in --hosts a"]);
}

#[test]
fn wrong_hosts_are_said_with_the_next_step() {
    let place = hosts();
    let said = |arguments: &[&str], text: &str| {
        xrun(&place, &[&SWEEP[..], arguments].concat()).ended(2).says(&[text]);
    };
    said(&["--hosts", "a"], "--hosts names the hosts of --executor ssh");
    said(&["--hosts", "a", "--executor", "slurm"], "--hosts names the hosts of --executor ssh");
    said(&["--hosts", "a,-v", "--executor", "ssh"], "\"-v\" is not the name of a host");
    said(&["--hosts", "a,b,a", "--executor", "ssh"], "the hosts a and a would have the same files");
    place.write("xrun.toml", b"");
    said(&["--executor", "ssh"], "--executor ssh has no hosts; name them with --hosts a,b,c");
    place.write("xrun.toml", b"[executor.ssh]\ncommand = [\"/nowhere/ssh\"]\n");
    let missing = xrun(&place, &[&SWEEP[..], &["--hosts", "a", "--executor", "ssh"]].concat());
    missing.ended(1).says(&["a: cannot run /nowhere/ssh: No such file"]);
}
