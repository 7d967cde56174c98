//! Finds what refers to a run: comparisons, sweeps, forks, kept copies, pages.

use super::read::Collection;
use crate::error::{IoContext, Result};
use crate::regular;
use crate::results::names::{COMPARISONS, KEPT, SWEEPS};
use crate::results::stored::MANIFEST;
use std::fmt;
use std::path::{Path, PathBuf};

/// Something that refers to a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reference {
    /// A record of a comparison or sweep, at the line that first names the run.
    Record { path: PathBuf, line: usize },
    /// A page, at the line that first names the run.
    Page { path: PathBuf, line: usize },
    /// The kept copy of the run's small files, from which pages are made. It stays when the run goes.
    KeptCopy(PathBuf),
    /// A run that continues from one of this run's checkpoints.
    Fork(PathBuf),
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Page { path, line } => write!(f, "the page {}:{line}", path.display()),
            Self::KeptCopy(path) => {
                write!(f, "{}, the kept copy of its small files, which stays", path.display())
            }
            Self::Fork(path) => write!(f, "{}, a fork of it", path.display()),
        }
    }
}

/// Everything in and beside a results folder that may refer to its runs.
#[derive(Debug)]
pub struct Referrers {
    results: PathBuf,
    records: Vec<(PathBuf, String)>,
    pages: Vec<(PathBuf, String)>,
    /// Forks, each with the name of the run that it was forked from.
    forks: Vec<(PathBuf, String)>,
}

impl Referrers {
    /// Reads the records and forks in a results folder, and these pages.
    ///
    /// # Errors
    /// If a folder, a record or a page cannot be read, because it might name a run.
    pub fn read(results: &Path, pages: &[PathBuf]) -> Result<Self> {
        let record = |path: PathBuf| {
            let bytes = regular::read(&path, regular::MAX_TEXT)?;
            Ok((path, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let page = |path: &PathBuf| Ok((path.clone(), regular::read_text_through_link(path)?));
        let forks = Collection::read(results)?.runs.into_iter();
        let forks = forks.filter_map(|run| Some((run.path, run.entry.forked_from?.run)));
        Ok(Self {
            results: results.to_owned(),
            records: records(results)?.into_iter().map(record).collect::<Result<_>>()?,
            pages: pages.iter().map(page).collect::<Result<_>>()?,
            forks: forks.collect(),
        })
    }

    /// Returns everything that refers to the run `RECIPE/RUN` in the results folder: records, pages, its kept
    /// copy and forks.
    pub fn find(&self, id: &str) -> Vec<Reference> {
        // Records are JSON, where a name is quoted, and a run's name has no characters that JSON escapes.
        let quoted = format!("\"{id}\"");
        let record = |(path, text): &(PathBuf, String)| {
            let line = line_at(text, text.find(&quoted)?);
            Some(Reference::Record { path: path.clone(), line })
        };
        let name = id.split_once('/').map_or(id, |(_, name)| name);
        let page = |(path, text): &(PathBuf, String)| {
            let line = line_at(text, find_name(text, name)?);
            Some(Reference::Page { path: path.clone(), line })
        };
        let copy = Some(self.results.join(KEPT).join(id)).filter(|copy| copy.join(MANIFEST).is_file());
        let forks = self.forks.iter().filter(|(_, parent)| parent == name);
        self.records
            .iter()
            .filter_map(record)
            .chain(self.pages.iter().filter_map(page))
            .chain(copy.map(Reference::KeptCopy))
            .chain(forks.map(|(path, _)| Reference::Fork(path.clone())))
            .collect()
    }
}

/// Returns the records that may name runs: the ledger, and the JSON files of comparisons and sweeps,
/// including kept ones.
fn records(results: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let kept = results.join(KEPT);
    let mut folders: Vec<PathBuf> =
        [results, &kept].iter().flat_map(|root| [root.join(COMPARISONS), root.join(SWEEPS)]).collect();
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&folder).at("read", &folder)? {
            let entry = entry.at("read", &folder)?;
            let path = entry.path();
            let kind = entry.file_type().at("read", &path)?;
            let is_json =
                path.extension().is_some_and(|extension| extension == "json" || extension == "jsonl");
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && is_json {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Finds a run's name in a text, but not where another name begins with it, such as `…-2`.
fn find_name(text: &str, name: &str) -> Option<usize> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric();
    text.match_indices(name).map(|(at, _)| at).find(|at| {
        let mut after = text[at + name.len()..].chars();
        match after.next() {
            Some('-') => !after.next().is_some_and(|c| c.is_ascii_digit()),
            Some(c) => !is_of_name(c),
            None => true,
        }
    })
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::folder::SUMMARY;
    use crate::results::summary::ForkedFrom;
    use crate::results::{RunFolder, Summary};

    #[test]
    fn everything_that_names_a_run_is_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path();
        let create = || {
            let folder = RunFolder::create(results, "r", "0123abcd", "2026-11-02T03:04:05Z".parse().unwrap());
            let folder = folder.unwrap();
            folder.write_summary(&Summary::started("r", &folder.name(), "0123abcd", 1)).unwrap();
            folder.name()
        };
        let [first, second] = [create(), create()];
        let of = |name: &str, pages: &[PathBuf]| {
            let found = Referrers::read(results, pages).unwrap().find(&format!("r/{name}"));
            found.iter().map(Reference::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(&first, &[]), [""; 0]);
        let write = |path: &str, text: &str| {
            let path = results.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        // The second run's name begins with the first run's name.
        write("comparisons/r/1/experiment.json", &format!("{{\n\"run\": \"r/{second}\"}}"));
        write("comparisons/r/1/unrelated.json", &format!("\"other/{first}\""));
        write(
            "sweeps/ledger/host-1-2.jsonl",
            &format!("\n{{\"run\":\"r/{second}\"}}\n{{\"run\":\"r/{second}\"}}\n"),
        );
        let page = write("page.md", &format!("# Title\n\nlike `{second}`.\n"));
        assert_eq!(of(&first, std::slice::from_ref(&page)), [""; 0]);
        let found = of(&second, std::slice::from_ref(&page));
        let expected = ["comparisons/r/1/experiment.json:2", "sweeps/ledger/host-1-2.jsonl:2", "page.md:3"];
        assert_eq!(found.len(), 3, "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.ends_with(expected), "{found}");
        }
        write("kept/comparisons/q/1/experiment.json", &format!("{{\"pairs\": [\"r/{first}\"]}}"));
        write("sweeps/r/bracket.json", &format!("[\"r/{first}\"]"));
        write(&format!("kept/r/{first}/manifest.json"), "{}");
        let mut summary = Summary::started("r", &second, "0123abcd", 1);
        summary.forked_from = Some(ForkedFrom { run: first.clone(), step: 1, tokens_seen: 1 });
        write(&format!("r/{second}/{SUMMARY}"), &serde_json::to_string(&summary).unwrap());
        let found = of(&first, &[]);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[2].contains("the kept copy") && found[3].ends_with("a fork of it"), "{found:?}");
    }

    #[test]
    fn a_name_ends_where_it_ends() {
        let name = "20261102T030405Z-0123abcd";
        for (text, is_there) in [
            ("20261102T030405Z-0123abcd", true),
            ("r/20261102T030405Z-0123abcd/log", true),
            ("20261102T030405Z-0123abcd-2", false),
            ("20261102T030405Z-0123abcde", false),
            ("20261102T030405Z-0123abcd-2 and 20261102T030405Z-0123abcd.", true),
            ("20261102T030405Z-0123abcd - a", true),
        ] {
            assert_eq!(find_name(text, name).is_some(), is_there, "{text}");
        }
    }
}
