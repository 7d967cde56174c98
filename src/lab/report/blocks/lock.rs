//! `report.lock`: the hashes of blocks, one line per block.
//!
//! ```text
//! PAGE KIND SELECTION HASH-OF-MANIFESTS HASH-OF-TEXT
//! ```
//!
//! It lies in the folder that pages are rendered from, and is checked into version control with them. Words
//! are separated by one space; spaces within them are written as `%20`.

use super::attributes::{self, Attributes};
use super::kept::Source;
use super::page_context::Rendered;
use crate::error::Result;
use crate::regular;
use crate::results::atomic;
use crate::results::names::COMPARISONS;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

/// The file's name.
pub const LOCK: &str = "report.lock";

/// The first line of the file.
const TITLE: &str =
    "# Hashes of the blocks in pages, written by `xrun report`: page, kind, selection, kept files, text.";

/// The block of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The page, relative to the folder of the lock.
    pub page: String,
    /// The kind of the block. Some kinds add what they show: `plot/loss`, `curves/COLUMN`,
    /// `configurations/COLUMN`, `value/COLUMN`.
    pub kind: String,
    /// The block's `select`, or the value's comparison. Otherwise equal blocks of a page get `#2`, `#3` ….
    pub selection: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.page, self.kind, self.selection)
    }
}

/// The hashes of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// BLAKE3 hash of the manifest of the block's source, or of all manifests if it shows several kept
    /// folders.
    pub kept: String,
    /// BLAKE3 hash of the text between the markers.
    pub body: String,
}

/// A line that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongLine {
    /// Its number, from 1.
    pub line: usize,
    /// The reason, in words.
    pub why: String,
}

/// The lines of the file.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// Hashes by block.
    pub lines: BTreeMap<Key, Hashes>,
    /// Lines that cannot be parsed.
    pub wrong: Vec<WrongLine>,
    /// True if the file exists.
    pub exists: bool,
}

impl Lock {
    /// Reads the lock of a folder. A missing file has no lines.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let path = root.join(LOCK);
        match std::fs::symlink_metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Self::default()),
            _ => Ok(Self::parse(&regular::read_text_through_link(&path)?)),
        }
    }

    fn parse(text: &str) -> Self {
        let mut lock = Self { exists: true, ..Self::default() };
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut wrong = |why: String| lock.wrong.push(WrongLine { line: index + 1, why });
            let words: Vec<&str> = line.split(' ').collect();
            let [page, kind, selection, kept, body] = words[..] else {
                wrong(format!("not five words: `{}`", line.chars().take(80).collect::<String>()));
                continue;
            };
            if let Some(hash) = [kept, body].into_iter().find(|hash| !is_hash(hash)) {
                wrong(format!("`{hash}` is not a BLAKE3 hash"));
                continue;
            }
            let [page, kind, selection] = [page, kind, selection].map(str::to_owned);
            let key = Key { page, kind, selection };
            if lock.lines.contains_key(&key) {
                wrong(format!("a second line for `{key}`"));
                continue;
            }
            lock.lines.insert(key, Hashes { kept: kept.to_owned(), body: body.to_owned() });
        }
        lock
    }

    /// Replaces the file if its content changes. Does not create a file without lines.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, root: &Path) -> Result<()> {
        let line = |(key, hashes): (&Key, &Hashes)| format!("{key} {} {}\n", hashes.kept, hashes.body);
        let text = format!("{TITLE}\n{}", self.lines.iter().map(line).collect::<String>());
        let path = root.join(LOCK);
        let there = regular::read_text_through_link(&path).ok();
        if there.as_ref() == Some(&text) || (there.is_none() && self.lines.is_empty()) {
            return Ok(());
        }
        atomic::write_through(&path, text.as_bytes())
    }
}

fn is_hash(word: &str) -> bool {
    word.len() == 64 && word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c))
}

/// Returns the keys of the blocks of a page, in page order.
pub fn keys<'a>(page: &str, blocks: impl IntoIterator<Item = &'a Attributes>) -> Vec<Key> {
    let mut seen: BTreeMap<Key, usize> = BTreeMap::new();
    let key = |attributes: &'a Attributes| {
        let get = |name: &str| attributes::get(attributes, name).unwrap_or_default();
        let column = attributes::get(attributes, "column");
        let kind = match get("kind") {
            "" if column.is_some() => format!("value/{}", column.unwrap_or_default()),
            "plot" => format!("plot/{}", attributes::get(attributes, "plot").unwrap_or("loss")),
            kind @ ("curves" | "configurations") => {
                format!("{kind}/{}", column.unwrap_or(attributes::MEASURED_COLUMN))
            }
            kind => kind.to_owned(),
        };
        let selection: Vec<&str> = get("select").split(',').map(str::trim).collect();
        let selection = match attributes::get(attributes, "comparison") {
            Some(name) => format!("{COMPARISONS}/{name}"),
            None => selection.join(","),
        };
        let key = Key { page: word(page), kind: word(&kind), selection: word(&selection) };
        let count = seen.entry(key.clone()).or_default();
        *count += 1;
        match *count {
            1 => key,
            count => Key { selection: format!("{}#{count}", key.selection), ..key },
        }
    };
    blocks.into_iter().map(key).collect()
}

/// Encodes a value as one word.
pub fn word(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '%' => out.push_str("%25"),
            c if c.is_whitespace() || c.is_control() => out.push_str("%20"),
            c => out.push(c),
        }
    }
    if out.is_empty() { "-".to_owned() } else { out }
}

/// Returns the sources of a block that no other source's manifest covers.
pub fn roots(rendered: &Rendered) -> Vec<&Source> {
    let covered: BTreeSet<&str> =
        rendered.sources.iter().flat_map(|source| &source.runs).map(|run| run.run.as_str()).collect();
    rendered.sources.iter().filter(|source| !covered.contains(source.id.as_str())).collect()
}

/// Returns the hash of a block's sources: the manifest hash of a single source, or the hash of the list of
/// manifests.
pub fn root_hash(rendered: &Rendered) -> String {
    match &roots(rendered)[..] {
        [source] => source.manifest.clone(),
        sources => {
            let mut lines: Vec<String> =
                sources.iter().map(|source| format!("{} {}\n", source.id, source.manifest)).collect();
            lines.sort();
            blake3::hash(lines.concat().as_bytes()).to_hex().to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(pairs: &[(&str, &str)]) -> Attributes {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn equal_blocks_of_a_page_are_numbered() {
        let runs = attributes(&[("kind", "runs"), ("select", "a, b")]);
        let plot = attributes(&[("kind", "plot"), ("select", "a"), ("plot", "throughput")]);
        let value = attributes(&[("select", "a"), ("column", "loss")]);
        let ratio = attributes(&[("comparison", "a"), ("column", "ratio")]);
        let found: Vec<String> = keys("docs/a b.md", [&runs, &plot, &runs, &value, &ratio])
            .iter()
            .map(|key| key.to_string().replace("docs/a%20b.md ", ""))
            .collect();
        assert_eq!(
            found,
            ["runs a,b", "plot/throughput a", "runs a,b#2", "value/loss a", "value/ratio comparisons/a"]
        );
    }

    #[test]
    fn lines_are_sorted_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!Lock::read(dir.path()).unwrap().exists);
        Lock::default().write(dir.path()).unwrap();
        assert!(!dir.path().join(LOCK).exists(), "without blocks there is no file");
        let mut lock = Lock::default();
        for page in ["docs/b.md", "README.md", "docs/a.md"] {
            let block = attributes(&[("kind", "runs"), ("select", "a")]);
            let hashes = Hashes { kept: "a".repeat(64), body: "b".repeat(64) };
            lock.lines.insert(keys(page, [&block]).remove(0), hashes);
        }
        lock.write(dir.path()).unwrap();
        let read = Lock::read(dir.path()).unwrap();
        assert_eq!((&read.lines, read.wrong.len()), (&lock.lines, 0));
        let text = std::fs::read_to_string(dir.path().join(LOCK)).unwrap();
        let mut sorted: Vec<&str> = text.lines().collect();
        sorted.sort_unstable();
        assert_eq!(text.lines().collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn damaged_lines_are_named() {
        let hash = "0".repeat(64);
        let text = format!(
            "# x\na runs b {hash} {hash}\na runs b {hash}\n<<<<<<< HEAD\na runs b {hash} {hash}\na runs c 12 {hash}\n"
        );
        let wrong = Lock::parse(&text).wrong;
        assert_eq!(wrong.iter().map(|wrong| wrong.line).collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert!(wrong[2].why.contains("second line"), "{wrong:?}");
    }
}
