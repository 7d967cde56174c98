//! The schema test: changing any key changes what runs, what comes out, or what is written, on every launch
//! path, or it is rejected. A key without a case fails.

pub mod runs;
mod table;

use crate::engine::harness::{Setup, Trained};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use table::{Case, Shows, case};
use xrun::error::ErrorKind;
use xrun::recipe::{Class, KEYS, Key};

/// Enough steps for a schedule with two warm-up steps to differ after them.
const STEPS: usize = 3;

/// The launch paths: one rank, and two ranks as threads.
const WORLDS: [usize; 2] = [1, 2];

#[test]
fn every_key_changes_something_or_is_refused() {
    let (files, shared) = (table::Files::new(), Shared::default());
    let (keys, wrong) = (Mutex::new(KEYS.iter()), Mutex::new(Vec::new()));
    let check_some = || {
        while let Some(key) = { keys.lock().unwrap().next() } {
            let found = wrong_with(key, &files, &shared);
            wrong.lock().unwrap().extend(found);
        }
    };
    // Use separate threads. If trainings filled all of rayon's threads, they would wait forever for the
    // hashes of their checkpoints, which are computed on rayon's threads.
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| _ = scope.spawn(check_some));
    });
    let wrong: Vec<String> = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns what is wrong with a key on either launch path.
fn wrong_with(key: &Key, files: &table::Files, shared: &Shared) -> Vec<String> {
    let Some(case) = case(key.path, files) else { return vec![format!("{} has no case", key.path)] };
    let wrong = WORLDS.into_iter().filter_map(|world| check(key, &case, world, shared).err());
    wrong.map(|wrong| format!("{}: {wrong}", key.path)).collect()
}

/// Both sides of a case on one launch path.
struct Sides {
    before: Vec<String>,
    after: Vec<String>,
}

impl Sides {
    fn new(case: &Case, world: usize) -> Self {
        let world = format!("parallelism.world_size={world}");
        let before = on_top(&[world], &case.base);
        let after = on_top(&before, &case.change);
        Self { before, after }
    }
}

/// Merges settings with others on top, since a command line sets each key once.
fn on_top(settings: &[String], others: &[String]) -> Vec<String> {
    let key = |setting: &str| setting.split('=').next().map(str::to_owned);
    let merged: BTreeMap<_, _> = settings.iter().chain(others).map(|s| (key(s), s.clone())).collect();
    merged.into_values().collect()
}

fn strs(settings: &[String]) -> Vec<&str> {
    settings.iter().map(String::as_str).collect()
}

/// A recipe as it is planned and trained.
struct Seen {
    listing: String,
    trained: Vec<Trained>,
}

fn see(settings: &[String]) -> Result<Seen, String> {
    let setup = Setup::try_new(&strs(settings)).map_err(|e| e.message().to_owned())?;
    Ok(Seen { listing: setup.listing(), trained: setup.train(STEPS) })
}

impl Seen {
    fn same_curve(&self, other: &Self) -> bool {
        self.trained.len() == other.trained.len()
            && self.trained.iter().zip(&other.trained).all(|(a, b)| a.difference(b).is_none())
    }
}

/// What ran without a change, by its settings: most keys change the same few recipes.
struct Baselines<T>(Mutex<BTreeMap<Vec<String>, Arc<T>>>);

impl<T> Default for Baselines<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Baselines<T> {
    fn get(
        &self,
        settings: &[String],
        run: impl FnOnce(&[String]) -> Result<T, String>,
    ) -> Result<Arc<T>, String> {
        let known = self.0.lock().unwrap().get(settings).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let ran = Arc::new(run(settings)?);
        self.0.lock().unwrap().insert(settings.to_vec(), Arc::clone(&ran));
        Ok(ran)
    }
}

/// The baselines of all keys.
#[derive(Default)]
struct Shared {
    trained: Baselines<Seen>,
    written: Baselines<runs::Run>,
}

fn check(key: &Key, case: &Case, world: usize, shared: &Shared) -> Result<(), String> {
    let Sides { before, after } = Sides::new(case, world);
    let must = |holds: bool, what: &str| match holds {
        true => Ok(()),
        false => Err(format!("{what}, with {after:?} on {before:?}")),
    };
    let shows = case.shows(world);
    match (key.class, shows) {
        (Class::Training, Shows::Curve | Shows::SingleRank | Shows::Special(_)) => {}
        (Class::Execution, Shows::SingleRank | Shows::Program { .. }) => {}
        (Class::Execution, Shows::Memory | Shows::Written(_) | Shows::Refused(..) | Shows::Special(_)) => {}
        (Class::Measuring, Shows::Written(_)) => {}
        (Class::Bookkeeping, Shows::Written(_) | Shows::Recorded | Shows::Special(_)) => {}
        (class, shows) => return Err(format!("{shows:?} does not suit a key of the {class} class")),
    }
    match shows {
        Shows::Curve => {
            let (before, after) = (shared.trained.get(&before, see)?, see(&after)?);
            must(!before.same_curve(&after), "the same curve")
        }
        Shows::Program { same_bits } => {
            let (before, after) = (shared.trained.get(&before, see)?, see(&after)?);
            must(before.listing != after.listing, "the same programs")?;
            must(!same_bits || before.same_curve(&after), "another curve")
        }
        Shows::Memory => {
            let (before, after) = (shared.trained.get(&before, see)?, see(&after)?);
            let transient = |seen: &Seen| seen.trained.iter().map(|t| t.transient).collect::<Vec<_>>();
            must(transient(&before) != transient(&after), "the same memory")?;
            must(before.same_curve(&after), "another curve")
        }
        Shows::SingleRank => {
            let (before, after) = (shared.trained.get(&before, see)?, see(&after)?);
            let quiet = !before.listing.contains("all_reduce") && before.listing == after.listing;
            must(world == 1 && quiet && before.same_curve(&after), "a rank alone has nobody to talk to")
        }
        Shows::Refused(kind) => {
            let error = runs::start(&after, Path::new("nowhere")).err();
            let refused = error.as_ref().is_some_and(|e| e.kind() == kind && e.message().contains(key.path));
            must(refused, &format!("not refused: {error:?}"))?;
            must(
                kind != ErrorKind::Usage || shared.trained.get(&before, see).is_ok(),
                "refused without the key",
            )
        }
        Shows::Recorded => {
            let toml = |settings: &[String]| {
                crate::engine::harness::recipe(&strs(settings)).map(|r| (r.to_toml(), r.hash()))
            };
            let (before, after) = (toml(&before), toml(&after));
            let (Ok(before), Ok(after)) = (&before, &after) else {
                return Err(format!("refused: {before:?} {after:?}"));
            };
            must(before.0 != after.0 && before.1 == after.1, "not in the resolved recipe alone")
        }
        Shows::Written(differ) => {
            let before = shared.written.get(&before, runs::run)?;
            runs::compare(&before, &after, key.class, differ)
        }
        Shows::Special(show) => show(&before, &after),
    }
}
