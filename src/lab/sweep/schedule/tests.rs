//! Tests schedules with simulated runs.

use super::*;
use crate::error::ErrorKind;
use crate::executor::simulation::{Fate, Simulation};
use crate::executor::{Capacity, Limits};
use crate::machine::Machine;
use crate::ranks::environment;
use crate::results::names::{LEDGERS, SWEEPS};
use crate::results::progress::Mode;
use crate::sweep::{Request, Sweep};
use std::path::PathBuf;
use tempfile::TempDir;

/// Steps per training.
const STEPS: u64 = 4;

const RECIPE: &str = "[model]\ndim = 32\nn_heads = 2\nn_layers = 1\nffn_dim = 64\n[training]\nseq_len = 32\nsteps = 4\n\
                      [lr_scheduler]\nwarmup_steps = 0\n[data]\ntrain_tokens = 20_000\nvalidation_tokens = 600\n\
                      [validation]\ninterval = 1\nsteps = 1\n[engine]\ndevice = \"cpu\"\n";

/// A sweep with its own results folder.
struct TestSweep {
    dir: TempDir,
    sweep: Sweep,
    retry: Vec<CellStatus>,
    limits: Limits,
}

struct NoOutput;

impl Output for NoOutput {
    fn write(&mut self, _: &[Cell], _: &Ledger) -> Result<()> {
        Ok(())
    }
}

impl TestSweep {
    fn new(arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recipe = dir.path().join("tiny.toml");
        std::fs::write(&recipe, RECIPE).unwrap();
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        let request = Request {
            recipe: &recipe,
            arguments: &arguments,
            results: dir.path(),
            jobs: 1,
            retry: &[],
            limits: Limits::default(),
            progress: Mode::Quiet,
            machine: environment::machine(),
            batch: None,
        };
        let mut sweep = Sweep::new(&request).unwrap();
        // Without a machine, no CPU speed is measured to predict times.
        let works = sweep.cells.iter_mut().filter_map(|cell| cell.work.as_mut().ok());
        works.for_each(|work| work.machine = Machine::none());
        Self { dir, sweep, retry: Vec::new(), limits: Limits::default() }
    }

    fn results(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn ledger(&self) -> Ledger {
        Ledger::read(&self.results()).unwrap()
    }

    /// Calls `with` on a schedule that has not begun.
    fn with<T>(&self, executor: &mut dyn Executor, with: impl FnOnce(&mut Schedule<'_>) -> T) -> T {
        let results = self.results();
        let policy = SweepPolicy {
            name: "tiny",
            results: &results,
            retry: &self.retry,
            limits: self.limits,
            build: "build",
            comparison: None,
            task: None,
        };
        let display = Display::new(Mode::Quiet, &[], self.sweep.cells.len());
        let (ledger, mut output) = (Ledger::open(&results).unwrap(), NoOutput);
        let Sweep { cells, design, .. } = &self.sweep;
        let mut schedule = Schedule::new(&policy, cells, design, ledger, executor, &mut output, display);
        with(&mut schedule)
    }

    fn run(&self, executor: &mut dyn Executor) -> Result<()> {
        self.run_until(executor, &Stop::default())
    }

    fn run_until(&self, executor: &mut dyn Executor, stop: &Stop) -> Result<()> {
        self.with(executor, |schedule| schedule.run(Path::new("table.md"), stop))
    }

    /// Returns the status and the number of the last attempt at each cell.
    fn statuses(&self) -> Vec<(CellStatus, u64)> {
        let ledger = self.ledger();
        let last = |cell: &Cell| ledger.last(&cell.key).map(|last| (last.status, last.attempt)).unwrap();
        self.sweep.cells.iter().map(last).collect()
    }
}

fn cpu(runs: usize) -> Capacity {
    Capacity { gpus: 0, cpu_runs: runs }
}

fn seed(spec: &RunSpec) -> u64 {
    let seed = spec.arguments.iter().find_map(|argument| argument.strip_prefix("training.seed="));
    seed.map_or(0, |seed| seed.parse().unwrap())
}

#[test]
fn every_cell_runs_once_as_many_at_a_time_as_there_is_room_for() {
    let place = TestSweep::new(&["training.seed=1,2,3,4,5"]);
    let mut simulation = Simulation::new(cpu(2), STEPS, |_| Fate::Completes(1.0));
    place.run(&mut simulation).unwrap();
    assert_eq!(place.statuses(), [(CellStatus::Ok, 1); 5]);
    assert_eq!((simulation.most, simulation.started.len()), (2, 5));
    let ledger = place.ledger();
    assert!(ledger.lines().iter().all(|line| line.measured.get("planned_bytes").is_some()));
    place.run(&mut simulation).unwrap();
    assert_eq!((simulation.started.len(), place.ledger().lines()), (5, ledger.lines()));
}

#[test]
fn a_run_ends_as_it_does_and_the_rest_goes_on() {
    let mut place = TestSweep::new(&["training.seed=1,2,3,4,5"]);
    place.limits.hang = Some(Duration::from_secs(2));
    let fate = |spec: &RunSpec| match seed(spec) {
        1 => Fate::Fails,
        2 => Fate::Hangs,
        3 => Fate::Killed(2),
        4 => Fate::NotStarted,
        _ => Fate::Completes(1.0),
    };
    let mut simulation = Simulation::new(cpu(2), STEPS, fate);
    let error = place.run(&mut simulation).unwrap_err();
    assert!(error.message().contains("--retry failed,hang,killed"), "{error}");
    let expected =
        [CellStatus::Failed, CellStatus::Hang, CellStatus::Killed, CellStatus::Failed, CellStatus::Ok];
    assert_eq!(place.statuses(), expected.map(|status| (status, 1)));
    let ledger = place.ledger();
    let reason = |cell: usize| ledger.last(&place.sweep.cells[cell].key).unwrap().reason.clone().unwrap();
    assert_eq!([reason(0), reason(3)], ["it broke", "no run today"]);
    assert!(reason(1).contains("2 s") && reason(2).contains("signal: 9"), "{}, {}", reason(1), reason(2));

    // A killed cell runs again by itself, a failed one on request.
    place.retry = vec![CellStatus::Failed];
    let mut better = Simulation::new(cpu(1), STEPS, |_| Fate::Completes(1.0));
    place.run(&mut better).unwrap_err();
    assert_eq!(better.started.iter().map(seed).collect::<Vec<_>>(), [1, 3, 4]);
    let expected = [CellStatus::Ok, CellStatus::Hang, CellStatus::Ok, CellStatus::Ok, CellStatus::Ok];
    assert_eq!(place.statuses().iter().map(|(status, _)| *status).collect::<Vec<_>>(), expected);
}

#[test]
fn a_signal_lets_runs_save_and_starts_no_other() {
    let place = TestSweep::new(&["training.seed=1,2,3"]);
    let stop = Stop::default();
    let mut simulation = Simulation::new(cpu(1), STEPS, |_| Fate::Completes(1.0));
    let request = stop.clone();
    // The signal comes during the second cell.
    simulation.at_pause = Box::new(move |pause| {
        if pause == STEPS + 2 {
            request.request();
        }
    });
    let error = place.run_until(&mut simulation, &stop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(simulation.started.len(), 2);
    let ledger = place.ledger();
    let status = |cell: usize| ledger.last(&place.sweep.cells[cell].key).map(|last| last.status);
    assert_eq!([status(0), status(1), status(2)], [Some(CellStatus::Ok), Some(CellStatus::Killed), None]);
    place.run(&mut simulation).unwrap();
    assert_eq!(place.statuses(), [(CellStatus::Ok, 1), (CellStatus::Ok, 2), (CellStatus::Ok, 1)]);
}

#[test]
fn a_run_that_its_scheduler_left_is_found_at_every_moment() {
    for dies_at in 0..=2 * STEPS {
        let place = TestSweep::new(&["training.seed=1,2"]);
        let mut simulation = Simulation::new(cpu(1), STEPS, |_| Fate::Completes(1.0));
        simulation.dies_at = Some(dies_at);
        let error = place.run(&mut simulation).unwrap_err();
        assert!(error.message().contains("dies"), "{error}");
        simulation.dies_at = None;
        // The run may end while nobody watches.
        (0..dies_at % 3 * STEPS).for_each(|_| simulation.pause());
        place.run(&mut simulation).unwrap();
        assert_eq!(place.statuses(), [(CellStatus::Ok, 1); 2], "at {dies_at}");
        assert_eq!(simulation.started.len(), 2);
    }
}

#[test]
fn a_run_that_died_with_its_scheduler_runs_again() {
    let place = TestSweep::new(&["training.seed=1,2"]);
    let mut first = Simulation::new(cpu(1), STEPS, |_| Fate::Completes(1.0));
    first.dies_at = Some(1);
    place.run(&mut first).unwrap_err();
    // This executor knows nothing of the first one's runs.
    let mut second = Simulation::new(cpu(1), STEPS, |_| Fate::Completes(1.0));
    place.run(&mut second).unwrap();
    assert_eq!(place.statuses(), [(CellStatus::Ok, 2), (CellStatus::Ok, 1)]);
    assert_eq!(place.ledger().lines()[1].reason.as_deref(), Some("ended with an earlier sweep"));
}

#[test]
fn rungs_are_climbed_by_the_best_from_their_checkpoints_whoever_dies() {
    let rates = ["sweep.rungs=[1, 2]", "sweep.eta=2", "optimizer.lr=1e-3,2e-3,3e-3,4e-3"];
    let loss = |spec: &RunSpec| {
        let rate = spec.arguments.iter().find_map(|argument| argument.strip_prefix("optimizer.lr="));
        // A continued run has its rate in its folder, not in its arguments.
        rate.map_or(0.5, |rate| rate.parse::<f64>().unwrap())
    };
    for dies_at in [None, Some(0), Some(2), Some(4), Some(6), Some(8)] {
        let place = TestSweep::new(&rates);
        let mut simulation = Simulation::new(cpu(1), STEPS, |spec| Fate::Completes(loss(spec)));
        simulation.dies_at = dies_at;
        if dies_at.is_some() {
            place.run(&mut simulation).unwrap_err();
            simulation.dies_at = None;
        }
        place.run(&mut simulation).unwrap();
        let status: Vec<CellStatus> = place.statuses().into_iter().map(|(status, _)| status).collect();
        let (first, second) = (CellStatus::Ok, CellStatus::Dropped);
        assert_eq!(status, [first, second, second, second], "{dies_at:?}");
        let resumed = simulation.started.iter().filter(|spec| matches!(spec.task, Task::Resume(_))).count();
        let until: Vec<Option<u64>> = simulation.started.iter().map(|spec| spec.until).collect();
        assert_eq!(resumed, 3, "two go on from the first rung, one from the second");
        assert_eq!(until, [Some(1), Some(1), Some(1), Some(1), Some(2), Some(2), None]);
    }
}

/// Removes the end of the newest ledger file: its last line, or all but `kept` bytes of it.
fn tear(place: &TestSweep, kept: usize) {
    let entries = std::fs::read_dir(place.results().join(SWEEPS).join(LEDGERS)).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let newest = files.filter(|path| path.extension().is_some_and(|e| e == "jsonl"));
    let newest = newest.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap();
    let bytes = std::fs::read(&newest).unwrap();
    let last = bytes.trim_ascii_end().iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    std::fs::write(&newest, &bytes[..(last + kept).min(bytes.len())]).unwrap();
}

/// A power cut may take the last lines of the ledger, though the runs that they describe are on the disk.
#[test]
fn rungs_are_climbed_alike_whichever_lines_the_ledger_loses() {
    let rates = ["sweep.rungs=[1, 2]", "sweep.eta=2", "optimizer.lr=1e-3,2e-3,3e-3,4e-3"];
    let loss = |spec: &RunSpec| {
        let rate = spec.arguments.iter().find_map(|argument| argument.strip_prefix("optimizer.lr="));
        rate.map_or(0.5, |rate| rate.parse::<f64>().unwrap())
    };
    let mut recognized = 0;
    for (dies_at, torn) in
        (2..12).flat_map(|dies_at| [vec![0], vec![40], vec![0, 0]].map(|torn| (dies_at, torn)))
    {
        let place = TestSweep::new(&rates);
        let mut simulation = Simulation::new(cpu(1), STEPS, |spec| Fate::Completes(loss(spec)));
        simulation.dies_at = Some(dies_at);
        let died = place.run(&mut simulation).is_err();
        simulation.dies_at = None;
        torn.iter().for_each(|kept| tear(&place, *kept));
        place.run(&mut simulation).unwrap();
        let status: Vec<CellStatus> = place.statuses().into_iter().map(|(status, _)| status).collect();
        let (first, second) = (CellStatus::Ok, CellStatus::Dropped);
        assert_eq!(status, [first, second, second, second], "died at {dies_at}: {died}, torn {torn:?}");
        let ledger = place.ledger();
        assert!(ledger.lines().iter().all(|line| line.status != CellStatus::Failed), "{dies_at} {torn:?}");
        let has = |line: &Attempt, status| {
            let same = |other: &&Attempt| (&other.key, other.attempt) == (&line.key, line.attempt);
            ledger.lines().iter().filter(same).any(|other| other.status == status)
        };
        let halted = ledger.lines().iter().filter(|line| line.status == CellStatus::Halted);
        recognized += halted.filter(|line| !has(line, CellStatus::Running)).count();
    }
    assert!(recognized > 0, "no cell was found where its run had stopped");
}

#[test]
fn shorter_cells_fork_from_the_trunk_of_the_longest() {
    let trunk = ["sweep.cooldowns=[1, 2, 3]", "lr_scheduler.decay=wsd", "lr_scheduler.decay_ratio=0.25"];
    let place = TestSweep::new(&trunk);
    let steps: Vec<u64> =
        place.sweep.cells.iter().map(|cell| cell.work.as_ref().unwrap().plan.steps as u64).collect();
    let mut simulation = Simulation::new(cpu(2), *steps.iter().max().unwrap(), |_| Fate::Completes(1.0));
    place.run(&mut simulation).unwrap();
    assert_eq!(place.statuses(), [(CellStatus::Ok, 1); 3]);
    let forks = simulation.started.iter().filter(|spec| matches!(spec.task, Task::Fork { .. })).count();
    assert_eq!((forks, simulation.started.len()), (2, 3));
}

#[test]
fn two_schedulers_run_each_cell_once() {
    let place = TestSweep::new(&["training.seed=1,2,3,4,5,6"]);
    let run = || {
        let mut simulation = Simulation::new(cpu(1), 20 * STEPS, |_| Fate::Completes(1.0));
        place.run(&mut simulation).unwrap();
        simulation.started.len()
    };
    let started = std::thread::scope(|scope| {
        let both = [scope.spawn(run), scope.spawn(run)];
        both.map(|one| one.join().unwrap())
    });
    assert_eq!(started[0] + started[1], 6);
    assert!(started.iter().all(|&started| started > 0), "{started:?}");
    assert_eq!(place.statuses(), [(CellStatus::Ok, 1); 6]);
    assert_eq!(place.ledger().lines().len(), 12);
}

#[test]
fn a_scheduler_leaves_alone_what_another_one_runs() {
    let place = TestSweep::new(&["training.seed=1,2,3"]);
    let mut first = Simulation::new(cpu(1), STEPS, |_| Fate::Completes(1.0));
    place.with(&mut first, |running| {
        running.begin().unwrap();
        running.start_waiting().unwrap();
        let mut second = Simulation::new(cpu(2), STEPS, |_| Fate::Completes(1.0));
        place.with(&mut second, |waiting| {
            waiting.begin().unwrap();
            waiting.start_waiting().unwrap();
            assert_eq!((waiting.running.len(), &waiting.elsewhere[..]), (2, &[0][..]));
        });
    });
}

#[test]
fn a_gpu_has_one_scheduler_at_a_time() {
    let place = TestSweep::new(&["training.seed=1,2"]);
    let gpus = Capacity { gpus: 2, cpu_runs: 1 };
    let [mut one, mut other] = [1, 2].map(|_| Simulation::new(gpus, STEPS, |_| Fate::Completes(1.0)));
    place.with(&mut one, |one| {
        assert!(matches!(one.claim(0, &[1]).unwrap(), Claim::Free));
        place.with(&mut other, |other| {
            assert!(matches!(other.claim(0, &[0]).unwrap(), Claim::Elsewhere));
            assert!(matches!(other.claim(1, &[0, 1]).unwrap(), Claim::NoDevice));
            other.refresh().unwrap();
            assert_eq!(other.gpus_elsewhere, [1]);
            one.release_cell(&place.sweep.cells[0].key, &[1]);
            assert!(matches!(other.claim(1, &[0, 1]).unwrap(), Claim::Free));
            assert!(matches!(one.claim(0, &[0]).unwrap(), Claim::NoDevice));
        });
    });
}
