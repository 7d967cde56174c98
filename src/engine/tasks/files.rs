//! Finds the files of a split below the user's data folder, in the layouts in which data sets are downloaded
//! from the HuggingFace hub.

use super::definition::Definition;
use crate::error::{Error, IoContext, Result};
use crate::format::{printable, shortened};
use std::path::{Path, PathBuf};

/// Endings of files with rows, and of packings.
const ENDINGS: [&str; 5] = ["jsonl", "json", "ndjson", "jsonlines", "parquet"];
const PACKINGS: [&str; 3] = ["gz", "zst", "zstd"];

/// Other words for a split in the names of files.
const WORDS: [(&str, &[&str]); 3] =
    [("validation", &["valid", "val", "dev"]), ("train", &["training"]), ("test", &["testing"])];

/// Files that a message lists.
const LISTED: usize = 8;
const SHOWN: usize = 80;

/// Returns the files of a split of a configuration, which is empty if the task has only one, sorted by name.
///
/// The folder of the data set is `DATA/OWNER/NAME`, `DATA/NAME`, `DATA/TASK`, or `DATA` itself. A
/// configuration is a folder in it. Files of a split are called `SPLIT.jsonl`, `SPLIT-00000-of-00001.parquet`
/// or `…_SPLIT.jsonl`, there or in its folder `data`, unless the definition names them.
///
/// # Errors
/// If there are none, or a folder cannot be listed. The message says what was looked for.
pub(super) fn of_split(
    definition: &Definition,
    data: &Path,
    configuration: &str,
    split: &str,
) -> Result<Vec<PathBuf>> {
    if !data.is_dir() {
        return Err(Error::usage(format!(
            "{}: no such folder; it is the one with the task files, such as {}",
            data.display(),
            data.join(&definition.source.repository).display()
        )));
    }
    let source = &definition.source;
    let short = source.repository.rsplit('/').next().unwrap_or_default();
    let mut roots = vec![data.join(&source.repository)];
    for name in [short, &definition.name] {
        let root = data.join(name);
        if !roots.contains(&root) {
            roots.push(root);
        }
    }
    let looked = roots.iter().map(|root| below(root, configuration).display().to_string());
    let looked = looked.collect::<Vec<_>>().join(", ");
    roots.push(data.to_owned());
    let mut seen = Vec::new();
    for root in &roots {
        if !root.is_dir() {
            continue;
        }
        if let Some(file) = source.files.get(split).map(|name| root.join(name)).filter(|file| file.is_file())
        {
            return Ok(vec![file]);
        }
        let own = below(root, configuration);
        // Without folders for its configurations, a folder holds one of them.
        let is_flat = !own.is_dir() && source.configurations.len() == 1;
        let own = if is_flat { root.clone() } else { own };
        for folder in [own.join("data"), own] {
            let files = rows_in(&folder)?;
            let found = named(&files, split);
            if !found.is_empty() {
                return Ok(found);
            }
            seen.extend(files);
        }
    }
    let listed = seen.iter().take(LISTED).map(|file| {
        shortened(&printable(&file.strip_prefix(data).unwrap_or(file).display().to_string()), SHOWN)
    });
    let listed = listed.collect::<Vec<_>>().join(", ");
    Err(Error::usage(format!(
        "task {}: no files of the split {split:?} in {looked}; {}. Download {}{} into one of these folders, as \
         {split}.jsonl or {split}-00000-of-00001.parquet",
        definition.name,
        if listed.is_empty() { "there are no task files".to_owned() } else { format!("there are {listed}") },
        source.repository,
        if configuration.is_empty() { String::new() } else { format!(" ({configuration})") },
    )))
}

/// Returns the folder of a configuration in that of its data set.
fn below(root: &Path, configuration: &str) -> PathBuf {
    if configuration.is_empty() { root.to_owned() } else { root.join(configuration) }
}

/// Returns the files with rows directly in a folder, sorted; none if there is no such folder.
fn rows_in(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).at("list", folder)? {
        let path = entry.at("list", folder)?.path();
        if stem(&path).is_some() && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Returns a file's name without its endings, if they are those of rows.
fn stem(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let (mut stem, mut ending) = name.rsplit_once('.')?;
    if PACKINGS.contains(&ending) {
        (stem, ending) = stem.rsplit_once('.')?;
    }
    (ENDINGS.contains(&ending) && !stem.is_empty() && !stem.starts_with('.')).then_some(stem)
}

/// Returns the files of a split: those of exactly its name or, if there are none, those whose name ends with
/// it or that have another word for it.
fn named(files: &[PathBuf], split: &str) -> Vec<PathBuf> {
    let other = WORDS.iter().find(|(name, _)| *name == split).map_or(&[][..], |(_, words)| *words);
    let is_named = |stem: &str| stem == split;
    let ends = |stem: &str| {
        let before = stem.strip_suffix(split).filter(|before| before.len() < stem.len());
        before.is_some_and(|before| before.ends_with(['_', '-', '.']))
    };
    let is_other = |stem: &str| other.contains(&stem);
    let tests: [&dyn Fn(&str) -> bool; 3] = [&is_named, &ends, &is_other];
    for test in tests {
        let found = files.iter().filter(|file| stem(file).is_some_and(|stem| test(without_shard(stem))));
        let found: Vec<PathBuf> = found.cloned().collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// Returns the name of a split from that of one of its shards, `SPLIT-00000-of-00012`.
fn without_shard(stem: &str) -> &str {
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = stem.rsplit_once("-of-").and_then(|(before, count)| {
        let (split, number) = before.rsplit_once('-')?;
        (is_number(number) && is_number(count)).then_some(split)
    });
    parts.unwrap_or(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_names() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let all = files(&[
            "dev-00000-of-00001.parquet",
            "lambada_test.jsonl",
            "test-00000-of-00002.parquet",
            "test-00001-of-00002.parquet",
            "train.jsonl.gz",
            "validation-00000-of-00001.parquet",
        ]);
        for (split, found) in [
            ("dev", &all[..1]),
            ("test", &all[2..4]),
            ("train", &all[4..5]),
            ("validation", &all[5..]),
            ("none", &[]),
        ] {
            assert_eq!(named(&all, split), found, "{split}");
        }
        assert_eq!(named(&all[1..2], "test"), &all[1..2]);
        assert_eq!(named(&all[..1], "validation"), &all[..1]);
        assert_eq!(named(&files(&["contest.jsonl", "latest.json"]), "test"), files(&[]));
        for (name, expected) in
            [("a.jsonl", Some("a")), ("a.b.json.zst", Some("a.b")), ("a.txt", None), (".jsonl", None)]
        {
            assert_eq!(stem(Path::new(name)), expected, "{name}");
        }
    }
}
