//! Finds runs and comparisons in a results folder.

use super::began::began;
use super::folder::{is_held, read_summary};
use super::names::{
    CHECKPOINT, COMPARISONS, EXPERIMENT, METRICS, RECIPE, RESOLVED, SUMMARY, SWEEPS, folder_name,
    parse_run_name, time_in_name,
};
use super::progress::eprint_line;
use super::summary::Summary;
use crate::error::{Error, IoContext, Result};
use crate::regular;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The name that stands for the newest run.
pub const LATEST: &str = "latest";

/// The length from which a beginning of a name or hash can select a run.
const MIN_PREFIX_LEN: usize = 4;

/// Returns all run folders `RESULTS/RECIPE/RUN`, newest first, and none if the results folder is missing.
pub fn runs(results: &Path) -> Result<Vec<PathBuf>> {
    let mut runs = run_folders(results)?;
    runs.retain(|run| has_summary(run));
    sort_newest_first(&mut runs);
    Ok(runs)
}

/// Returns the folders `RESULTS/RECIPE/RUN` of runs that have lost their summary, sorted by path. Leaves out
/// folders that a process holds, because it may be about to write the summary.
pub fn without_summary(results: &Path) -> Result<Vec<PathBuf>> {
    let mut damaged = run_folders(results)?;
    damaged.retain(|run| has_lost_summary(run));
    damaged.sort();
    Ok(damaged)
}

/// Returns the folders `RESULTS/RECIPE/RUN`, except hidden ones, which are being removed.
fn run_folders(results: &Path) -> Result<Vec<PathBuf>> {
    let mut runs = nested_folders(results)?;
    runs.retain(|run| !is_hidden(run));
    Ok(runs)
}

/// Returns true if the name of a file or folder begins with a dot.
pub fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Returns true for a folder with a summary, whether or not it can be read: a link, a FIFO or a damaged file
/// in its place is a run whose row says so, not a folder that is passed over.
pub fn has_summary(run: &Path) -> bool {
    !regular::is_missing(&run.join(SUMMARY)) && run.is_dir()
}

/// Returns true for a run folder that has no summary and that no process holds.
pub fn has_lost_summary(run: &Path) -> bool {
    let is_of_run = [RESOLVED, METRICS].iter().any(|file| run.join(file).is_file());
    // The process may write the summary and end between the looks.
    let has_none = || !has_summary(run) && !lists_summary(run);
    is_of_run && has_none() && !is_held(run).unwrap_or(true) && has_none()
}

/// Returns true if the summary is in the folder's listing. A client of a network file system may remember for a
/// minute that a file was missing, such as this one or the lock, but asks again when a folder is opened.
fn lists_summary(run: &Path) -> bool {
    let is_summary =
        |entry: std::io::Result<std::fs::DirEntry>| entry.is_ok_and(|e| e.file_name() == SUMMARY);
    std::fs::read_dir(run).is_ok_and(|mut entries| entries.any(is_summary))
}

/// Describes a run that has lost a file, and what can still be done with it.
pub fn describe_loss(run: &Path, file: &str) -> String {
    let run_path = run.display();
    let mut still = Vec::new();
    if subfolders(&run.join(CHECKPOINT)).is_ok_and(|checkpoints| !checkpoints.is_empty()) {
        still.push(format!("`xrun sample {run_path}` and `xrun export {run_path}` use its checkpoint"));
    }
    if run.join(RECIPE).is_file() && file != RECIPE {
        still.push(format!("`xrun {run_path}` trains its recipe again, in a new folder"));
    }
    let still =
        if still.is_empty() { "nothing can be done with it".to_owned() } else { still.join(", and ") };
    format!("the run {run_path} is damaged: it has no {file}; {still}")
}

/// Reads the summary of one of several runs. If it is damaged, warns on stderr and returns `None`, because
/// the other runs are still usable.
pub fn summary_or_warn(run: &Path) -> Option<Summary> {
    read_summary(run).inspect_err(|e| eprint_line(&format!("warning: {e}; this run is left out"))).ok()
}

/// Returns the newest run in `results` that can be resumed and that no process holds.
///
/// # Errors
/// If a run folder cannot be read.
pub fn newest_unfinished(results: &Path) -> Result<Option<PathBuf>> {
    for path in runs(results)? {
        if !summary_or_warn(&path).is_some_and(|summary| summary.status.is_unfinished()) {
            continue;
        }
        // The run may have finished since its summary was read.
        match is_held(&path) {
            Ok(false) if read_summary(&path)?.status.is_unfinished() => return Ok(Some(path)),
            Ok(_) => {}
            Err(e) => eprint_line(&format!("warning: {e}; this run is left out")),
        }
    }
    Ok(None)
}

/// Returns the names of a folder's parent and of the folder itself: RECIPE and RUN for a run, NAME and ID for
/// a comparison.
pub fn names_of(folder: &Path) -> [String; 2] {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned()
    };
    [name(absolute.parent()), name(Some(&absolute))]
}

/// Returns `RECIPE/RUN` for a run's folder, or `NAME/ID` for a comparison's.
pub fn folder_id(folder: &Path) -> String {
    names_of(folder).join("/")
}

/// Returns the run called `name`. It may be a run folder's path, a run's name, `RECIPE/RUN`, a recipe's name
/// (for its newest run), `latest`, or the beginning of exactly one run's name or hash.
///
/// # Errors
/// A usage error if no run has this name, or if several begin with it.
pub fn find(results: &Path, name: &str) -> Result<PathBuf> {
    find_where(results, name, |_| true)
}

/// Finds a run as [`find`] does, but if `name` stands for several runs, prefers the newest suitable one. If
/// none is suitable, returns the newest.
///
/// # Errors
/// A usage error if no run has this name, or if several begin with it.
pub fn find_where(results: &Path, name: &str, is_suitable: impl Fn(&Path) -> bool) -> Result<PathBuf> {
    let path = Path::new(name);
    if has_summary(path) {
        return Ok(path.to_owned());
    }
    if name.is_empty() {
        return Err(Error::usage("a run's name is empty; `latest` is the newest run"));
    }
    let runs = runs(results)?;
    // The name of a recipe's folder.
    let folder = folder_name(name).ok();
    let means = |run: &&PathBuf| {
        let has_recipe = run.parent().and_then(Path::file_name).and_then(|recipe| recipe.to_str());
        has_recipe.is_some_and(|recipe| folder.as_deref() == Some(recipe)) || is_called(run, results, path)
    };
    let mut meant = runs.iter().filter(means);
    if let Some(newest) = meant.next() {
        let suitable = std::iter::once(newest).chain(meant).find(|run| is_suitable(run));
        return Ok(suitable.unwrap_or(newest).clone());
    }
    if let Some(damaged) = find_without_summary(results, name)? {
        return Err(Error::usage(describe_loss(&damaged, SUMMARY)));
    }
    find_by_prefix(&runs, results, name)?.ok_or_else(|| {
        let hint = match first_names(runs.iter(), results) {
            names if names.is_empty() => "there are no runs yet".to_owned(),
            names => format!("the newest runs are {names}"),
        };
        Error::usage(format!("no run `{name}` in {}: {hint}", results.display()))
    })
}

/// Returns the run called `name` that has lost its summary, if there is one. The name is a path, a run's name
/// or `RECIPE/RUN`.
///
/// # Errors
/// If the results folder cannot be read.
pub fn find_without_summary(results: &Path, name: &str) -> Result<Option<PathBuf>> {
    let path = Path::new(name);
    if name.is_empty() {
        return Ok(None);
    }
    if has_lost_summary(path) {
        return Ok(Some(path.to_owned()));
    }
    Ok(without_summary(results)?.into_iter().find(|run| run.ends_with(path)))
}

/// Returns the run called `name`, if there is one: its name, `RECIPE/RUN`, the beginning of its name or hash,
/// or `latest`. A recipe's name finds nothing.
///
/// # Errors
/// If several runs begin with `name`.
pub fn find_by_id(results: &Path, name: &str) -> Result<Option<PathBuf>> {
    let runs = runs(results)?;
    if name == LATEST {
        return Ok(runs.into_iter().next());
    }
    find_by_prefix(&runs, results, name)
}

/// Returns the run with the short name `name`, or the only run whose name or hash begins with `name`. In both
/// cases `RECIPE/` may come first.
fn find_by_prefix(runs: &[PathBuf], results: &Path, name: &str) -> Result<Option<PathBuf>> {
    let (recipe, beginning) = name.rsplit_once('/').map_or((None, name), |(recipe, id)| (Some(recipe), id));
    if beginning.len() < MIN_PREFIX_LEN {
        return Ok(None);
    }
    let has_recipe = |run: &Path| recipe.is_none_or(|recipe| recipe == names_of(run)[0]);
    let short = short_names(runs);
    let is_short = |(run, short): &(&PathBuf, &String)| *short == beginning && has_recipe(run);
    if let Some((run, _)) = runs.iter().zip(&short).find(is_short) {
        return Ok(Some(run.clone()));
    }
    let begins = |run: &&PathBuf| {
        let [_, id] = names_of(run);
        has_recipe(run) && (id.starts_with(beginning) || name_hash(&id).starts_with(beginning))
    };
    let found: Vec<&PathBuf> = runs.iter().filter(begins).collect();
    let exact = found.iter().find(|run| names_of(run)[1] == beginning);
    match (exact, found.as_slice()) {
        (Some(one), _) | (None, [one]) => Ok(Some((*one).clone())),
        (None, []) => Ok(None),
        (None, several) => Err(Error::usage(format!(
            "`{name}` begins the name or the hash of {} runs, such as {}: write more of it, or a name that \
             `xrun runs` lists",
            several.len(),
            first_names(several.iter().copied(), results)
        ))),
    }
}

/// Lists the first three runs as `RECIPE/RUN`.
fn first_names<'a>(runs: impl Iterator<Item = &'a PathBuf>, results: &Path) -> String {
    let names = runs.take(3).filter_map(|run| Some(run.strip_prefix(results).ok()?.display().to_string()));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the hash in a run's name `<UTC time>-<hash8>[-n]`; empty for a name that a person chose.
fn name_hash(id: &str) -> &str {
    time_in_name(id).and_then(|_| id.split('-').nth(1)).unwrap_or_default()
}

/// Returns a short name for each run; `runs` must hold all runs, newest first. The short name is the hash if
/// only one run has it, and otherwise the hash and a number that counts these runs from the oldest. A run
/// without a hash keeps its name.
pub fn short_names(runs: &[PathBuf]) -> Vec<String> {
    let ids: Vec<String> =
        runs.iter().map(|run| run.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for id in &ids {
        *times.entry(name_hash(id)).or_default() += 1;
    }
    let mut later = times.clone();
    let mut short = |id: &String| {
        let hash = name_hash(id);
        let number = later.get_mut(hash).map_or(1, |left| std::mem::replace(left, *left - 1));
        match times.get(hash) {
            _ if hash.len() < MIN_PREFIX_LEN => id.clone(),
            Some(1) | None => hash.to_owned(),
            Some(_) => format!("{hash}-{number}"),
        }
    };
    ids.iter().map(&mut short).collect()
}

/// Returns the comparison called `name`, if there is one. It may be a comparison's folder, its id, `NAME/ID`,
/// its name (for the newest one), any of these after `comparisons/`, or `latest`.
///
/// # Errors
/// If the results folder cannot be read.
pub fn find_comparison(results: &Path, name: &str) -> Result<Option<PathBuf>> {
    let path = Path::new(name);
    if is_comparison(path) {
        return Ok(Some(path.to_owned()));
    }
    let root = results.join(COMPARISONS);
    let path = path.strip_prefix(COMPARISONS).unwrap_or(path);
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let found = comparisons(results)?;
    Ok(found.into_iter().find(|one| is_called(one, &root, path)))
}

/// Returns all folders `RESULTS/comparisons/NAME/ID` of comparisons, newest first.
///
/// # Errors
/// If the results folder cannot be read.
pub fn comparisons(results: &Path) -> Result<Vec<PathBuf>> {
    let mut found = nested_folders(&results.join(COMPARISONS))?;
    found.retain(|one| is_comparison(one));
    sort_newest_first(&mut found);
    Ok(found)
}

/// The largest number of names that an error lists.
const MAX_LISTED: usize = 5;

/// Returns the error for a `name` after `sweeps/` or `comparisons/`, or a path there, that does not exist.
/// `None` for other names.
///
/// # Errors
/// If the results folder cannot be read.
pub fn unknown_group_error(results: &Path, name: &str) -> Result<Option<Error>> {
    let name = Path::new(name).strip_prefix(results).ok().and_then(Path::to_str).unwrap_or(name);
    let groups = [(SWEEPS, "sweep"), (COMPARISONS, "comparison")];
    let after = |root: &str| name.strip_prefix(root).and_then(|rest| rest.strip_prefix('/'));
    let meant = groups.into_iter().find_map(|(root, what)| Some((root, what, after(root)?)));
    let Some((root, what, name)) = meant else { return Ok(None) };
    let folder = results.join(root);
    if root == COMPARISONS
        && let Some(damaged) = missing_result_error(&folder.join(name))?
    {
        return Ok(Some(damaged));
    }
    let mut names: Vec<String> = subfolders(&folder)?
        .iter()
        .filter_map(|one| Some(one.file_name()?.to_string_lossy().into_owned()))
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    let more = if names.len() > MAX_LISTED { ", …" } else { "" };
    names.truncate(MAX_LISTED);
    let hint = match names.as_slice() {
        [] => "there are none yet".to_owned(),
        names => format!("there are: {}{more}", names.join(", ")),
    };
    Ok(Some(Error::usage(format!("no {what} `{name}` in {}; {hint}", folder.display()))))
}

/// Returns the error for a comparison that has lost its result file. `folder` is the comparison's, or
/// `RESULTS/comparisons/NAME`, in which case its newest comparison is checked. `None` if no comparison is
/// there or the file exists.
fn missing_result_error(folder: &Path) -> Result<Option<Error>> {
    let is_id = |one: &Path| one.file_name().and_then(|name| time_in_name(name.to_str()?)).is_some();
    let inside = subfolders(folder)?.into_iter().filter(|one| is_id(one)).max_by_key(|one| age_key(one));
    let itself = (is_id(folder) && folder.is_dir()).then(|| folder.to_owned());
    let Some(comparison) = itself.or(inside).filter(|one| !is_comparison(one)) else { return Ok(None) };
    let path = comparison.display();
    Ok(Some(Error::usage(match is_held(&comparison)? {
        true => format!("{path} has no {EXPERIMENT} yet: a process works on it; wait for it to end"),
        false => format!("{path} is damaged: it has no {EXPERIMENT}; restore the file, or compare again"),
    })))
}

/// Returns true for the folder of a comparison.
fn is_comparison(folder: &Path) -> bool {
    folder.join(EXPERIMENT).is_file()
}

/// Returns true if a path stands for a folder in `root`: as `latest`, or as the beginning or the end of the
/// folder's path.
fn is_called(folder: &Path, root: &Path, path: &Path) -> bool {
    let begins_or_ends = |folder: &Path| folder.ends_with(path) || folder.starts_with(path);
    path == Path::new(LATEST) || folder.strip_prefix(root).is_ok_and(begins_or_ends)
}

fn sort_newest_first(folders: &mut [PathBuf]) {
    folders.sort_by_cached_key(|folder| std::cmp::Reverse((age_key(folder), folder.clone())));
}

/// Sorts later runs higher, by: when the run began; within one second, names that xrun gave before copies;
/// when the recipe was written; the `n` in the name `<UTC time>-<hash8>[-n]`.
type AgeKey = (Option<Timestamp>, bool, Option<SystemTime>, u64);

fn age_key(run: &Path) -> AgeKey {
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    let written = std::fs::symlink_metadata(run.join(RECIPE)).and_then(|file| file.modified()).ok();
    let number = name.splitn(3, '-').nth(2).and_then(|number| number.parse().ok());
    (began(run), parse_run_name(&name).is_some(), written, number.unwrap_or(1))
}

/// Returns the folders in the folders of a folder.
fn nested_folders(root: &Path) -> Result<Vec<PathBuf>> {
    let inside: Vec<Vec<PathBuf>> =
        subfolders(root)?.iter().map(|one| subfolders(one)).collect::<Result<_>>()?;
    Ok(inside.concat())
}

/// Returns the folders inside a folder and the links to folders; none if it does not exist.
///
/// # Errors
/// If the folder cannot be read.
pub fn subfolders(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        entries => entries.at("read", folder)?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.at("read", folder)?;
        let path = entry.path();
        // The type in the directory entry needs no further system call. A link may lead to a folder.
        if entry.file_type().is_ok_and(|kind| kind.is_dir() || (kind.is_symlink() && path.is_dir())) {
            folders.push(path);
        }
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{RunFolder, Status, Summary};

    fn create(results: &Path, recipe: &str, time: &str, status: Status) -> RunFolder {
        let folder = RunFolder::create(results, recipe, "0123abcd", time.parse().unwrap()).unwrap();
        let mut summary = Summary::started(recipe, &folder.name(), "0123abcd", 10);
        summary.status = status;
        folder.write_summary(&summary).unwrap();
        folder
    }

    #[test]
    fn runs_are_found_by_every_name_they_go_by() {
        let dir = tempfile::tempdir().unwrap();
        let run = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(SUMMARY), "").unwrap();
            path
        };
        let old = run("a/20260101T000000Z-aaaaaaaa");
        let tenth = run("a/20260102T000000Z-aaaaaaaa-10");
        let second = run("a/20260102T000000Z-aaaaaaaa-2");
        let other = run("b/20260101T120000Z-bbbbbbbb");
        run("kept/a/20270101T000000Z-aaaaaaaa");
        std::fs::create_dir_all(dir.path().join("b/20280101T000000Z-no-summary")).unwrap();
        assert_eq!(runs(dir.path()).unwrap(), [&tenth, &second, &other, &old].map(Clone::clone));

        let found = |name: &str| find(dir.path(), name).unwrap();
        assert_eq!(found(LATEST), tenth);
        assert_eq!(found("b"), other);
        // Of two runs that started in the same second, the later one is found.
        let [first, last] = ["c/20260103T000000Z-ffffffff", "c/20260103T000000Z-00000000"].map(run);
        for (age, run) in [(9, &first), (3, &last)] {
            let recipe = std::fs::File::create(run.join(RECIPE)).unwrap();
            recipe.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        assert_eq!(found("c"), last);
        let [first, last] = [first, last].map(|run| std::fs::remove_dir_all(run).is_ok());
        assert!(first && last);
        assert_eq!(found("20260101T000000Z-aaaaaaaa"), old);
        assert_eq!(found("a/20260102T000000Z-aaaaaaaa-2"), second);
        assert_eq!(found(&old.to_string_lossy()), old);
        // The beginning of a name or hash, if only one run has it.
        assert_eq!(found("20260101T0000"), old);
        assert_eq!(found("bbbb"), other);
        assert_eq!(found("a/20260101"), old);
        assert_eq!(find_by_id(dir.path(), "bbbbb").unwrap(), Some(other.clone()));
        assert_eq!(find_by_id(dir.path(), LATEST).unwrap(), Some(tenth.clone()));
        for no_id in ["b", "bbb", "b/aaaa", "cccc"] {
            assert_eq!(find_by_id(dir.path(), no_id).unwrap(), None, "{no_id}");
        }
        let error = find(dir.path(), "aaaa").unwrap_err();
        assert!(error.message().contains("begins the name or the hash of 3 runs"), "{error}");
        assert!(find(dir.path(), "20260102T000000Z-aaaaaaaa").unwrap_err().message().contains("2 runs"));
        let all = runs(dir.path()).unwrap();
        let short = short_names(&all);
        assert_eq!(short, ["aaaaaaaa-3", "aaaaaaaa-2", "bbbbbbbb", "aaaaaaaa-1"]);
        for (name, run) in short.iter().zip(&all) {
            assert_eq!(found(name), *run);
        }
        let error = find(dir.path(), "c").unwrap_err();
        assert!(error.message().contains("a/20260102T000000Z-aaaaaaaa-10"), "{error}");
        let error = find(&dir.path().join("none"), LATEST).unwrap_err();
        assert!(error.message().contains("no runs yet"), "{error}");
    }

    #[test]
    fn a_copy_is_as_old_as_the_run_and_never_newest_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let old = create(dir.path(), "a", "2026-11-01T00:00:00Z", Status::Ok).path().to_owned();
        let new = create(dir.path(), "a", "2026-11-02T00:00:00Z", Status::Ok).path().to_owned();
        let copy = |run: &Path, name: &str| {
            let to = dir.path().join("a").join(name);
            std::fs::create_dir(&to).unwrap();
            std::fs::copy(run.join(SUMMARY), to.join(SUMMARY)).unwrap();
            std::fs::write(to.join(RECIPE), "").unwrap();
            to
        };
        let new_copy = copy(&new, "mycopy");
        let with_end = copy(&new, "20261102T000000Z-0123abcd-copy");
        let old_copy = copy(&old, "z-copy");
        let unknown = copy(&old, "zzz");
        std::fs::write(unknown.join(SUMMARY), "{}").unwrap();
        let found = runs(dir.path()).unwrap();
        assert_eq!(found[0], new);
        assert!(found[1..3].contains(&new_copy) && found[1..3].contains(&with_end), "{found:?}");
        assert_eq!(found[3..], [old, old_copy.clone(), unknown]);
        assert_eq!(find(dir.path(), LATEST).unwrap(), new);
        assert_eq!(find(dir.path(), "z-copy").unwrap(), old_copy);
        assert!(short_names(&found).contains(&"z-copy".to_owned()));
    }

    #[test]
    fn a_comparison_without_its_result_is_named_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join(COMPARISONS).join("layers").join("20261126T200452Z-623d1658");
        std::fs::create_dir_all(&one).unwrap();
        let said = |name: &str| {
            assert_eq!(find_comparison(dir.path(), name).unwrap(), None);
            unknown_group_error(dir.path(), name).unwrap().unwrap().message().to_owned()
        };
        let path = dir.path().join("comparisons/layers").to_str().unwrap().to_owned();
        for name in ["comparisons/layers", "comparisons/layers/20261126T200452Z-623d1658", &path] {
            let error = said(name);
            assert!(error.starts_with(&format!("{} is damaged", one.display())), "{error}");
            assert!(error.contains("has no experiment.json"), "{error}");
        }
        let error = said("comparisons/zebra");
        assert!(error.contains("no comparison `zebra` in") && error.contains("there are: layers"), "{error}");
    }

    #[test]
    fn the_newest_suitable_run_is_found_among_several() {
        let dir = tempfile::tempdir().unwrap();
        let old = create(dir.path(), "a", "2026-11-01T00:00:00Z", Status::Ok).path().to_owned();
        let new = create(dir.path(), "a", "2026-11-02T00:00:00Z", Status::Ok).path().to_owned();
        let is_old = |run: &Path| run == old;
        assert_eq!(find(dir.path(), "a").unwrap(), new);
        for name in [LATEST, "a"] {
            assert_eq!(find_where(dir.path(), name, is_old).unwrap(), old);
            assert_eq!(find_where(dir.path(), name, |_| false).unwrap(), new);
        }
        let name = new.file_name().unwrap().to_str().unwrap();
        assert_eq!(find_where(dir.path(), name, is_old).unwrap(), new, "a name means one run");
    }

    #[test]
    fn a_run_without_its_summary_is_named_as_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let held = create(dir.path(), "a", "2026-11-01T00:00:00Z", Status::Ok);
        for file in [RECIPE, RESOLVED] {
            std::fs::write(held.path().join(file), "").unwrap();
        }
        std::fs::create_dir_all(held.path().join(CHECKPOINT).join("step-000001")).unwrap();
        std::fs::remove_file(held.path().join(SUMMARY)).unwrap();
        assert_eq!(without_summary(dir.path()).unwrap(), [] as [PathBuf; 0], "it may be about to be written");
        let run = held.path().to_owned();
        drop(held);
        assert_eq!(without_summary(dir.path()).unwrap(), std::slice::from_ref(&run));
        let name = run.file_name().unwrap().to_str().unwrap();
        for name in [name, run.to_str().unwrap(), &format!("a/{name}")] {
            let error = find(dir.path(), name).unwrap_err();
            assert!(error.message().contains("is damaged: it has no summary.json"), "{error}");
            assert!(error.message().contains("use its checkpoint, and `xrun"), "{error}");
        }
    }

    #[test]
    fn the_newest_unfinished_run_is_found_and_running_ones_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(newest_unfinished(&dir.path().join("none")).unwrap().is_none());
        create(dir.path(), "a", "2026-11-01T00:00:00Z", Status::Interrupted);
        let expected = create(dir.path(), "b", "2026-11-02T00:00:00Z", Status::Running).path().to_owned();
        create(dir.path(), "a", "2026-11-03T00:00:00Z", Status::Ok);
        create(dir.path(), "a", "2026-11-04T00:00:00Z", Status::Diverged);
        let held = create(dir.path(), "a", "2026-11-05T00:00:00Z", Status::Running);
        let found = newest_unfinished(dir.path()).unwrap().unwrap();
        assert_eq!(found, expected);
        let path = held.path().to_owned();
        drop(held);
        assert_eq!(newest_unfinished(dir.path()).unwrap(), Some(path));
    }
}
