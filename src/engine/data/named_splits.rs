//! The files of a split in a folder as HuggingFace data sets are downloaded: by the card, or by the names of
//! files and folders.
//!
//! The rules are those of the `datasets` library, in this order ("Structure your repository" in
//! HuggingFace's documentation): the `data_files` of the one configuration that the card has; files such as
//! `data/NAME-00000-of-00012.parquet`; folders with a keyword of a split in their name; files with one; and
//! if nothing names a split, all files are `train`.

use super::dataset_card::{Card, CardFiles};
use super::pattern;
use crate::error::{Error, IoContext, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The splits that names stand for, with their keywords.
const KEYWORDS: [(&str, &[&str]); 3] = [
    (TRAIN, &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

const TRAIN: &str = "train";

/// Files that describe a data set and are no part of it.
const DESCRIPTIONS: [&str; 6] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
];

/// Most splits, and configurations, that a message lists.
const LISTED: usize = 12;

/// Most `**` in a path of the card.
const MAX_DEEP_WILDCARDS: usize = 2;

/// Returns the files of a folder's split, sorted by path.
///
/// # Errors
/// If there is no such split (the message lists those that there are), if a file belongs to two splits, if
/// the card cannot be followed, or if the folder cannot be listed.
pub(super) fn files(folder: &Path, split: &str) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Err(Error::usage(format!(
            "corpus {}: a split is taken of a folder, and this is a {}; name the folder, or leave the split out",
            folder.display(),
            if folder.exists() { "file" } else { "pattern" }
        )));
    }
    let splits = match Card::read(folder)? {
        Some(card) => by_card(folder, &card, split)?,
        None => by_names(folder, &below(folder)?),
    };
    let Some(files) = splits.get(split) else {
        let found = splits.iter().take(LISTED).map(|(name, files)| {
            let example = files.first().map_or(Path::new(""), |file| shown(folder, file));
            format!("{name} ({})", example.display())
        });
        let found = found.collect::<Vec<_>>().join(", ");
        return Err(Error::usage(match found.is_empty() {
            true => format!("corpus {}: the folder has no files, so no split {split:?}", folder.display()),
            false => {
                format!("corpus {}: there is no split {split:?}; the folder has {found}", folder.display())
            }
        }));
    };
    let in_other = |file: &&PathBuf| {
        let other = splits.iter().find(|(name, files)| *name != split && files.contains(file))?;
        Some(((*file).clone(), other.0.clone()))
    };
    if let Some((file, other)) = files.iter().find_map(|file| in_other(&file)) {
        return Err(Error::usage(format!(
            "corpus {}: {} belongs to the splits {split} and {other} by its name; name the files with a pattern \
             instead of a split",
            folder.display(),
            shown(folder, &file).display()
        )));
    }
    refuse_configurations(folder, split, files)?;
    Ok(files.clone())
}

/// Refuses shards of one name in several folders: they are several configurations of a data set, which often
/// hold the same text.
fn refuse_configurations(folder: &Path, split: &str, files: &[PathBuf]) -> Result<()> {
    let mut known: BTreeMap<&OsStr, &Path> = BTreeMap::new();
    for file in files {
        let name = file.file_name().unwrap_or_default();
        if shard_of(&name.to_string_lossy()).is_none() {
            continue;
        }
        if let Some(other) = known.insert(name, file) {
            return Err(Error::usage(format!(
                "corpus {}: the split {split:?} is there several times, as {} and {}; name the folder of one \
                 configuration, or several in a list",
                folder.display(),
                shown(folder, other).display(),
                shown(folder, file).display()
            )));
        }
    }
    Ok(())
}

/// Returns a path as it is below a folder.
fn shown<'p>(folder: &Path, path: &'p Path) -> &'p Path {
    path.strip_prefix(folder).unwrap_or(path)
}

/// Returns the files below a folder that may belong to a data set, sorted. Linked folders may form cycles and
/// are left out.
fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).at("list", &folder)? {
            let entry = entry.at("list", &folder)?;
            let (name, path) = (entry.file_name(), entry.path());
            let is_folder = entry.file_type().at("read", &path)?.is_dir();
            let name = name.to_string_lossy();
            match is_folder {
                _ if name.starts_with('.') => {}
                true if !name.starts_with("__") => folders.push(path),
                false if path.is_file() && !DESCRIPTIONS.contains(&name.as_ref()) => files.push(path),
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The files of each split.
type Splits = BTreeMap<String, Vec<PathBuf>>;

fn add(splits: &mut Splits, split: &str, file: &Path) {
    splits.entry(split.to_owned()).or_default().push(file.to_owned());
}

/// Divides the files below a folder into splits by their names.
fn by_names(folder: &Path, files: &[PathBuf]) -> Splits {
    let mut splits = Splits::new();
    let data = folder.join("data");
    for file in files.iter().filter(|file| file.parent() == Some(&data)) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if let Some(split) = shard_of(&name) {
            add(&mut splits, split, file);
        }
    }
    if !splits.is_empty() {
        return splits;
    }
    for names_of in [folder_names, file_name] {
        for file in files {
            let names = names_of(shown(folder, file));
            for (split, keywords) in KEYWORDS {
                let is_named = |(name, ending): &(String, Ending)| {
                    keywords.iter().any(|keyword| has_word(name, keyword, *ending))
                };
                if names.iter().any(is_named) {
                    add(&mut splits, split, file);
                }
            }
        }
        if !splits.is_empty() {
            return splits;
        }
    }
    if !files.is_empty() {
        splits.insert(TRAIN.to_owned(), files.to_vec());
    }
    splits
}

/// Returns the split of a file called `SPLIT-00000-of-00012.ENDING`.
fn shard_of(name: &str) -> Option<&str> {
    const DIGITS: usize = 5;
    let is_number = |text: &str| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    let (before, after) = name.rsplit_once("-of-")?;
    let (split, number) = before.rsplit_once('-')?;
    let count = after.get(..DIGITS)?;
    let is_shard = is_number(number) && is_number(count) && after[DIGITS..].contains('.');
    (is_shard && !split.is_empty()).then_some(split)
}

/// What may follow a keyword at the end of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// Nothing, or a separator.
    Any,
    /// A separator: a file's name ends with its ending.
    Separator,
}

/// Returns the names of the folders of a path.
fn folder_names(path: &Path) -> Vec<(String, Ending)> {
    let folders = path.parent().into_iter().flat_map(Path::components);
    folders.map(|part| (part.as_os_str().to_string_lossy().into_owned(), Ending::Any)).collect()
}

/// Returns the name of a file.
fn file_name(path: &Path) -> Vec<(String, Ending)> {
    path.file_name()
        .map(|name| (name.to_string_lossy().into_owned(), Ending::Separator))
        .into_iter()
        .collect()
}

/// Returns true if a keyword is in a name, in any case, between separators or its ends. `datasets` knows
/// keywords in lower case alone, and reads a `Test.txt` beside a `Train.txt` as training text.
fn has_word(name: &str, keyword: &str, ending: Ending) -> bool {
    let is_separator = |c: char| "-._ ".contains(c) || c.is_ascii_digit();
    let name = name.to_ascii_lowercase();
    name.match_indices(keyword).any(|(at, _)| {
        let follows = name[at + keyword.len()..].chars().next();
        name[..at].chars().next_back().is_none_or(is_separator)
            && follows.map_or(ending == Ending::Any, is_separator)
    })
}

/// Divides the files of a folder into splits as its card says.
fn by_card(folder: &Path, card: &Card, split: &str) -> Result<Splits> {
    let wrong = |what: String| Error::usage(format!("corpus {}: README.md {what}", folder.display()));
    let configuration = match card.configurations.as_slice() {
        [one] => one,
        several => {
            let listed = several.iter().take(LISTED).map(|configuration| {
                let patterns = configuration.files.iter().filter(|files| files.split == split);
                let patterns: Vec<&str> = patterns.map(|files| files.pattern.as_str()).collect();
                format!("{} ({})", configuration.name, patterns.join(", "))
            });
            return Err(wrong(format!(
                "names several configurations, and a split is taken of one: {}; name the files of one with a \
                 pattern instead of a split",
                listed.collect::<Vec<_>>().join(", ")
            )));
        }
    };
    if configuration.files.is_empty() {
        return Ok(by_names(folder, &below(folder)?));
    }
    let mut splits = Splits::new();
    for CardFiles { split, pattern: written } in &configuration.files {
        // Every `**` multiplies the folders that are looked through.
        let is_slow = written.matches("**").count() > MAX_DEEP_WILDCARDS;
        if is_slow
            || written.contains(['[', '{'])
            || Path::new(written).is_absolute()
            || written.contains("..")
        {
            return Err(wrong(format!(
                "names files as {written:?}, which xrun does not read; name them with a pattern of `*`, `?` and `**` \
                 instead of a split"
            )));
        }
        let path = folder.join(written);
        let found = match path.is_file() {
            true => vec![path],
            false => pattern::files(&path)?,
        };
        splits.entry(split.clone()).or_default().extend(found);
    }
    for files in splits.values_mut() {
        files.sort();
        files.dedup();
    }
    Ok(splits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str], card: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "text").unwrap();
        }
        if !card.is_empty() {
            std::fs::write(dir.path().join("README.md"), card).unwrap();
        }
        dir
    }

    /// What `files` gives, below the folder, or the message.
    fn of_split(dir: &tempfile::TempDir, split: &str) -> Result<Vec<String>, String> {
        let found = files(dir.path(), split).map_err(|e| e.message().to_owned())?;
        Ok(found.iter().map(|file| shown(dir.path(), file).display().to_string()).collect())
    }

    /// Checked against datasets 5.2.0 (`get_data_patterns` and `DataFilesDict.from_patterns`), except for the
    /// last two.
    #[test]
    fn names_divide_files_as_the_datasets_library_does() {
        type Splits = [(&'static str, &'static [&'static str])];
        let layouts: [(&[&str], &Splits); 12] = [
            (
                &[
                    "data/train-00000-of-00002.parquet",
                    "data/train-00001-of-00002.parquet",
                    "data/validation-00000-of-00001.parquet",
                    "data/extra-00000-of-00001-abc.parquet",
                    "other/train.jsonl",
                ],
                &[
                    ("train", &["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]),
                    ("validation", &["data/validation-00000-of-00001.parquet"]),
                    ("extra", &["data/extra-00000-of-00001-abc.parquet"]),
                ],
            ),
            (
                &["train.jsonl", "validation.jsonl", "test.jsonl", "dataset_infos.json", "README.md"],
                &[
                    ("train", &["train.jsonl"]),
                    ("validation", &["validation.jsonl"]),
                    ("test", &["test.jsonl"]),
                ],
            ),
            (
                &["train.jsonl.gz", "dev.jsonl.gz", "eval.jsonl.gz"],
                &[
                    ("train", &["train.jsonl.gz"]),
                    ("validation", &["dev.jsonl.gz"]),
                    ("test", &["eval.jsonl.gz"]),
                ],
            ),
            (
                &["train-00.jsonl", "train-01.jsonl", "val-00.jsonl"],
                &[("train", &["train-00.jsonl", "train-01.jsonl"]), ("validation", &["val-00.jsonl"])],
            ),
            (
                &["train/a.txt", "train/b/c.txt", "test/a.txt", "notes.txt"],
                &[("train", &["train/a.txt", "train/b/c.txt"]), ("test", &["test/a.txt"])],
            ),
            (
                &["my_train_file.txt", "training2.txt", "trainer.txt", "pretrain.txt", "train"],
                &[("train", &["my_train_file.txt", "training2.txt"])],
            ),
            (
                &["train0.txt", "0train.txt", "val1.txt"],
                &[("train", &["0train.txt", "train0.txt"]), ("validation", &["val1.txt"])],
            ),
            (
                &["en-train/a.txt", "validation-matched/b.txt", "retrain/c.txt", "train/test.txt"],
                &[
                    ("train", &["en-train/a.txt", "train/test.txt"]),
                    ("validation", &["validation-matched/b.txt"]),
                ],
            ),
            (&["a.txt", "b/c.txt", ".hidden.txt", "__pycache__/d.txt"], &[("train", &["a.txt", "b/c.txt"])]),
            (
                &["evaluation/a.txt", "training/b.txt", "dev/c.txt"],
                &[
                    ("train", &["training/b.txt"]),
                    ("validation", &["dev/c.txt"]),
                    ("test", &["evaluation/a.txt"]),
                ],
            ),
            (&["Train.txt", "TEST.txt"], &[("train", &["Train.txt"]), ("test", &["TEST.txt"])]),
            (&["train.txt", "train_test.txt"], &[]),
        ];
        for (files, splits) in layouts {
            let dir = folder(files, "");
            for split in ["train", "validation", "test", "extra"] {
                let expected =
                    splits.iter().find(|(name, _)| *name == split).map(|(_, files)| files.to_vec());
                let found = of_split(&dir, split).ok();
                assert_eq!(
                    found,
                    expected.map(|names| names.into_iter().map(str::to_owned).collect()),
                    "{files:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_split_is_said() {
        let card = |configs: &str| format!("---\nlicense: mit\nconfigs:\n{configs}tags:\n- a\n---\n# Text\n");
        let one = "- config_name: default\n  data_files:\n  - split: train\n    path: parts/*.txt\n";
        let several =
            "- config_name: en\n  data_files:\n  - split: train\n    path: en/*\n- config_name: de\n";
        let files =
            ["parts/a.txt", "parts/b.txt", "c/train-00000-of-00001.txt", "d/train-00000-of-00001.txt"];
        for (card, split, says) in [
            ("", "train", "several times, as c/train-00000-of-00001.txt and d/train-00000-of-00001.txt"),
            ("", "dev", "there is no split \"dev\"; the folder has train (c/train-00000-of-00001.txt)"),
            (&card(one), "test", "there is no split \"test\"; the folder has train (parts/a.txt)"),
            (
                &card(several),
                "train",
                "several configurations, and a split is taken of one: en (en/*), de ()",
            ),
            (&card("- data_files: \"x/*.txt\"\n"), "train", "no file matches"),
            (&card("- data_files: '[ab].txt'\n"), "train", "which xrun does not read"),
            (&card("- data_files: ../x.txt\n"), "train", "which xrun does not read"),
            (&card("- data_files: '**/a/**/b/**'\n"), "train", "which xrun does not read"),
            (
                &card("- data_files: [a.txt]\n"),
                "train",
                "README.md:4: \"- data_files: [a.txt]\" is not a form",
            ),
            (&card("- data_dir: parts\n"), "train", "README.md:4: \"- data_dir"),
        ] {
            let dir = folder(&files, card);
            let error = of_split(&dir, split).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let dir = folder(&files, &card(one));
        assert_eq!(of_split(&dir, "train").unwrap(), ["parts/a.txt", "parts/b.txt"]);
        let file = super::files(&dir.path().join("parts/a.txt"), "train").unwrap_err();
        assert!(file.message().contains("is taken of a folder, and this is a file"), "{file}");
        let both = folder(&["train.txt", "train_test.txt"], "");
        assert!(
            of_split(&both, "train")
                .unwrap_err()
                .contains("train_test.txt belongs to the splits train and test")
        );
    }
}
