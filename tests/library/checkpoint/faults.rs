//! Crashes, full disks and power losses around every file operation of a save.

use crate::checkpoint::faulty_fs::{EIO, ENOSPC, EROFS, Fault, FaultyFs};
use crate::checkpoint::state::{State, newest_of, scratch};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use xrun::checkpoint::{Saved, Store, newest};
use xrun::error::ErrorKind;

const FAULTS: [Fault; 8] = [
    Fault::Once(ENOSPC),
    Fault::Once(EIO),
    Fault::Always(ENOSPC),
    Fault::Always(EROFS),
    Fault::Kill,
    Fault::LoseContents,
    Fault::LoseAll,
    Fault::LoseAllButRemovals,
];

/// What is there before the save that meets a fault, and how many are kept.
struct Scenario {
    name: &'static str,
    before: &'static [u64],
    step: u64,
    keep: usize,
}

const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "the first save", before: &[], step: 100, keep: 1 },
    Scenario { name: "replacing the only one", before: &[100], step: 200, keep: 1 },
    Scenario { name: "one of several", before: &[100, 200, 300], step: 400, keep: 2 },
    Scenario { name: "the same step again", before: &[100], step: 100, keep: 1 },
    Scenario { name: "after going back", before: &[100, 300], step: 200, keep: 2 },
];

/// A run's checkpoint folder with what the scenario has in it. Only its content matters, so nothing is
/// synced.
struct Bench {
    at: tempfile::TempDir,
    before: Vec<State>,
    new: State,
    keep: usize,
}

impl Bench {
    fn new(scenario: &Scenario) -> Self {
        let before = scenario.before.iter().map(|&step| State::new(step, step as u32)).collect();
        let bench = Self { at: scratch(), before, new: State::new(scenario.step, 9999), keep: scenario.keep };
        fs::create_dir(bench.at.path().join("graves")).unwrap();
        fs::create_dir(bench.dir()).unwrap();
        let store = Store::open_on(Box::new(bench.calm()), &bench.dir(), usize::MAX).unwrap();
        for state in &bench.before {
            store.save(state.meta(), &state.snapshot()).unwrap();
        }
        bench
    }

    fn dir(&self) -> std::path::PathBuf {
        self.at.path().join("checkpoint")
    }

    /// A new process on this folder, whose earlier contents are durable.
    fn calm(&self) -> FaultyFs {
        let graves = self.at.path().join("graves");
        let mine = graves.join(fs::read_dir(&graves).unwrap().count().to_string());
        fs::create_dir(&mine).unwrap();
        FaultyFs::calm(&mine)
    }

    fn open(&self, fs: &FaultyFs) -> xrun::Result<Store> {
        Store::open_on(Box::new(fs.clone()), &self.dir(), self.keep)
    }

    fn save(&self, fs: &FaultyFs) -> xrun::Result<Saved> {
        self.open(fs)?.save(self.new.meta(), &self.new.snapshot())
    }

    /// The newest checkpoint is one from before or the new one; the new one if `must_be_new`.
    fn check(&self, must_be_new: bool) {
        let mut states: Vec<_> = self.before.iter().collect();
        states.push(&self.new);
        match newest_of(&self.dir(), &states) {
            Some(i) if i == self.before.len() => {}
            Some(_) => assert!(!must_be_new, "the new checkpoint is not the newest"),
            None => assert!(!must_be_new && self.before.is_empty(), "a checkpoint is lost"),
        }
    }

    /// The next save works, and leaves nothing behind but itself and what is kept.
    fn recover(&self) {
        let next = State::new(1000, 1);
        let store = self.open(&self.calm()).unwrap();
        let saved = store.save(next.meta(), &next.snapshot()).unwrap();
        assert!(saved.warnings.is_empty(), "{:?}", saved.warnings);
        assert_eq!(newest_of(&self.dir(), &[&next]), Some(0));
        let names = names(&self.dir());
        assert!(names.len() <= self.keep + 1, "{names:?}");
        assert!(names.iter().all(|n| n == "latest" || n.starts_with("step-")), "{names:?}");
    }
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// Runs `test` for every fault and every operation of a save, each time on a new folder.
fn each_fault(scenario: &Scenario, faults: &[Fault], test: impl Fn(&Bench, &FaultyFs, usize, Fault)) {
    let bench = Bench::new(scenario);
    let calm = bench.calm();
    bench.save(&calm).unwrap();
    bench.check(true);
    let operations = calm.operations();
    assert!(operations > 20, "{operations}");
    for &fault in faults {
        for k in 0..operations {
            let bench = Bench::new(scenario);
            let fs = bench.calm();
            fs.arm(k, fault);
            test(&bench, &fs, k, fault);
        }
    }
}

#[test]
fn a_fault_at_any_operation_leaves_the_old_or_the_new_checkpoint() {
    for scenario in &SCENARIOS {
        each_fault(scenario, &FAULTS, |bench, fs, k, fault| {
            println!("{}: {fault:?} at operation {k}", scenario.name);
            let result = bench.save(fs);
            match &result {
                // What fails once the new one is complete is a warning.
                Ok(saved) => assert!(!saved.warnings.is_empty()),
                Err(e) => assert!(e.message().contains("earlier ones are untouched"), "{e}"),
            }
            bench.check(result.is_ok());
            if let Ok(Some(loaded)) = newest(&bench.dir()) {
                assert!(
                    loaded.warnings().is_empty(),
                    "no half checkpoint is in sight: {:?}",
                    loaded.warnings()
                );
            }
            bench.recover();
        });
    }
}

#[test]
fn a_run_goes_on_saving_after_a_failed_save() {
    for scenario in &SCENARIOS {
        each_fault(scenario, &[Fault::Once(ENOSPC), Fault::Once(EIO)], |bench, fs, k, fault| {
            println!("{}: {fault:?} at operation {k}", scenario.name);
            let store = bench.open(fs).unwrap();
            let first = store.save(bench.new.meta(), &bench.new.snapshot());
            assert!(first.is_err() || !first.unwrap().warnings.is_empty());
            let later = State::new(5000, 5);
            assert!(store.save(later.meta(), &later.snapshot()).unwrap().warnings.is_empty());
            assert_eq!(newest_of(&bench.dir(), &[&later]), Some(0));
        });
    }
}

#[test]
fn a_power_loss_while_recovering_from_a_kill_loses_nothing() {
    let scenario = &SCENARIOS[3];
    each_fault(scenario, &[Fault::Kill], |_, _, k, fault| {
        for second in 0.. {
            println!("{}: killed at {k}, power lost at {second}", scenario.name);
            let bench = Bench::new(scenario);
            let fs = bench.calm();
            fs.arm(k, fault);
            let first = bench.save(&fs).is_ok();
            fs.restart();
            fs.arm(second, Fault::LoseAllButRemovals);
            let result = bench.save(&fs);
            bench.check(first || result.is_ok());
            if result.is_ok_and(|saved| saved.warnings.is_empty()) {
                break;
            }
        }
    });
}

#[test]
fn crash_after_crash_after_crash_loses_nothing() {
    let crashes = [Fault::Kill, Fault::LoseContents, Fault::LoseAll, Fault::LoseAllButRemovals];
    for scenario in &SCENARIOS[1..] {
        each_fault(scenario, &crashes, |bench, fs, k, fault| {
            // Every eighth point of the first crash; the later ones go through all of theirs on the same
            // folder.
            if !k.is_multiple_of(8) {
                return;
            }
            bench.check(bench.save(fs).is_ok());
            for next in 0.. {
                println!("{}: {fault:?} at {k}, up to {next}", scenario.name);
                fs.restart();
                fs.arm(next, crashes[next % crashes.len()]);
                let result = bench.save(fs);
                bench.check(result.is_ok());
                if result.is_ok_and(|saved| saved.warnings.is_empty()) {
                    break;
                }
            }
        });
    }
}

#[test]
fn a_power_loss_right_after_a_save_takes_nothing_back() {
    for scenario in &SCENARIOS {
        for fault in [Fault::LoseContents, Fault::LoseAll, Fault::LoseAllButRemovals] {
            let bench = Bench::new(scenario);
            let fs = bench.calm();
            bench.save(&fs).unwrap();
            fs.power_loss(fault);
            bench.check(true);
            bench.recover();
        }
    }
}

/// Returns the checkpoints and the pointers with their text; leftovers are left out.
fn content(dir: &Path) -> BTreeMap<String, String> {
    let shown = |name: &String| !name.starts_with('.');
    let text = |name: &String| fs::read_to_string(dir.join(name)).unwrap_or_default();
    names(dir).into_iter().filter(shown).map(|name| (name.clone(), text(&name))).collect()
}

/// A process that is killed anywhere in a save leaves it to the next process to finish: the pointers, the
/// best checkpoint and what is pruned.
#[test]
fn the_next_process_finishes_what_a_killed_save_began() {
    let best = |store: &mut Store| store.keeps_best = true;
    for scenario in &SCENARIOS {
        for keeps_best in [false, true] {
            let open = |bench: &Bench, fs: &FaultyFs| {
                bench.open(fs).map(|mut store| {
                    if keeps_best {
                        best(&mut store);
                    }
                    store
                })
            };
            let save = |bench: &Bench, fs: &FaultyFs| {
                let mut meta = bench.new.meta().clone();
                meta.set_validation_loss(keeps_best.then_some(1.5));
                open(bench, fs)?.save(&meta, &bench.new.snapshot())
            };
            let (old, new) = (Bench::new(scenario), Bench::new(scenario));
            assert_eq!(open(&old, &old.calm()).unwrap().repair(), Vec::<String>::new());
            let calm = new.calm();
            assert!(save(&new, &calm).unwrap().warnings.is_empty());
            for k in 0..calm.operations() {
                let bench = Bench::new(scenario);
                let fs = bench.calm();
                fs.arm(k, Fault::Kill);
                let _ = save(&bench, &fs);
                let store = open(&bench, &bench.calm()).unwrap();
                assert_eq!(store.repair(), Vec::<String>::new(), "{} at {k}", scenario.name);
                let found = content(&bench.dir());
                assert!(
                    found == content(&old.dir()) || found == content(&new.dir()),
                    "{} at {k}: {found:?}",
                    scenario.name
                );
                assert_eq!(names(&bench.dir()).len(), found.len(), "{} at {k}: leftovers", scenario.name);
                assert_eq!(store.repair(), Vec::<String>::new());
                assert_eq!(content(&bench.dir()), found, "a second repair changes nothing");
            }
        }
    }
}

#[test]
fn a_damaged_checkpoint_that_a_person_may_restore_is_not_removed_by_a_repair() {
    let bench = Bench::new(&SCENARIOS[2]);
    for file in ["manifest.json", "model.safetensors"] {
        let path = bench.dir().join("step-000300").join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[1..]).unwrap();
        let before = names(&bench.dir()).len();
        bench.open(&bench.calm()).unwrap().repair();
        assert!(path.exists());
        assert!(before - names(&bench.dir()).len() <= 1, "an older one is surplus at most: {file}");
        assert!(newest(&bench.dir()).unwrap().is_some(), "{file}");
        fs::write(&path, whole).unwrap();
    }
}

/// On NFS and sshfs, a folder of which another process has a file open cannot be removed.
#[test]
fn saves_do_not_depend_on_removals() {
    for scenario in &SCENARIOS {
        let bench = Bench::new(scenario);
        let fs = bench.calm();
        fs.keep_open_files(true);
        let store = bench.open(&fs).unwrap();
        store.probe().unwrap();
        // The same step twice, because a replaced checkpoint also stays.
        let steps = [scenario.step, 1000, 1000, 1000, 2000, 3000];
        let states: Vec<State> =
            (0u32..).zip(steps).map(|(seed, step)| State::new(step, 50 + seed)).collect();
        let mut warnings = Vec::new();
        for state in &states {
            let saved = store.save(state.meta(), &state.snapshot()).unwrap();
            warnings.extend(saved.warnings);
            assert_eq!(newest_of(&bench.dir(), &[state]), Some(0), "{}", scenario.name);
            let loaded = newest(&bench.dir()).unwrap().unwrap();
            assert!(loaded.warnings().is_empty(), "{:?}", loaded.warnings());
        }
        assert!(warnings.iter().all(|warning| warning.contains("cannot remove")), "{warnings:?}");
        let count = warnings.len();
        warnings.sort();
        warnings.dedup();
        assert_eq!(warnings.len(), count, "what stays is said once");
        // Another process that can remove nothing either begins and saves.
        let store = bench.open(&fs).unwrap();
        store.repair();
        store.save(states[5].meta(), &states[5].snapshot()).unwrap();
        fs.keep_open_files(false);
        drop(store);
        bench.recover();
    }
}

/// The tests above would prove nothing if a save without syncs passed them too.
#[test]
fn without_syncs_a_power_loss_does_lose_checkpoints() {
    for fault in [Fault::LoseContents, Fault::LoseAllButRemovals] {
        let bench = Bench::new(&SCENARIOS[1]);
        let fs = bench.calm();
        fs.ignore_syncs();
        bench.save(&fs).unwrap();
        fs.power_loss(fault);
        assert!(!newest(&bench.dir()).is_ok_and(|found| found.is_some()), "{fault:?}");
    }
}

#[test]
fn writes_that_take_only_a_few_bytes_are_no_fault() {
    let bench = Bench::new(&SCENARIOS[1]);
    let fs = bench.calm();
    fs.write_at_most(7);
    assert!(bench.save(&fs).unwrap().warnings.is_empty());
    bench.check(true);
}

#[test]
fn an_unusable_folder_is_named_before_training() {
    // A full disk is no mistake of the user's: a sweep tries such a cell again.
    for (errno, kind) in [(ENOSPC, ErrorKind::Unsaved), (EROFS, ErrorKind::Usage)] {
        let bench = Bench::new(&SCENARIOS[0]);
        let fs = bench.calm();
        let store = bench.open(&fs).unwrap();
        store.probe().unwrap();
        assert_eq!(names(&bench.dir()), Vec::<String>::new());
        fs.arm(0, Fault::Always(errno));
        let error = store.probe().unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.message().contains("checkpoints are written there"), "{error}");
    }
}
