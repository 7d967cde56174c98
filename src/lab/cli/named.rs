//! Which kept things the files below a folder name, in a block or in any link or text. `xrun keep --prune`
//! removes the others, so every doubt counts as a name.

use crate::compare;
use crate::error::{Error, IoContext, Result};
use crate::regular;
use crate::report::blocks::{self, Scope};
use crate::results::names::{COMPARISONS, SWEEPS, time_in_name};
use crate::results::stored::MANIFEST;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The endings of files that people read and that can have links, in lower case.
const ENDINGS: [&str; 16] = [
    "adoc", "asciidoc", "htm", "html", "ipynb", "markdown", "md", "mdown", "mdx", "mkd", "mkdn", "org",
    "qmd", "rmd", "rst", "tex",
];

/// The endings of files that can have blocks.
const PAGES: [&str; 2] = ["md", "markdown"];

/// What a page with blocks contains.
const MARKER: &str = "xrun:report";

/// The kept things that files name.
#[derive(Debug)]
pub(super) struct Named {
    /// The name of the folder of kept things, as links to the folders in it end with it.
    kept: String,
    /// Kept folders and figures that blocks show.
    folders: BTreeSet<String>,
    figures: BTreeSet<PathBuf>,
    /// Every text as it is, and with the escapes of its links resolved if it has any.
    texts: Vec<String>,
}

impl Named {
    /// Reads every file below `root` that can name kept things, whatever its folder, except for the kept
    /// things themselves.
    ///
    /// # Errors
    /// If there is no page at all, a file cannot be read, or it cannot be told what a block shows.
    pub fn read(root: &Path, kept: &Path) -> Result<Self> {
        let files = files(root, kept)?;
        if files.is_empty() {
            return Err(Error::usage(
                "there is no page here that could name anything, so everything would be removed",
            ));
        }
        let (mut pages, mut texts) = (Vec::new(), Vec::new());
        for path in files {
            let bytes = regular::read_through_link(&path, regular::MAX_TEXT)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let plain = unescaped(&text);
            if has_ending(&path, &PAGES) && text.contains(MARKER) {
                pages.push(path);
            }
            texts.extend((plain != text).then_some(plain));
            texts.push(text);
        }
        let (folders, figures) = blocks::named(&Scope {
            pages: &pages,
            is_whole: true,
            kept,
            root: Path::new(""),
            judge: compare::contradictions,
        })?;
        let kept = kept.canonicalize().unwrap_or_else(|_| kept.to_owned());
        let kept = kept.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { kept, folders, figures, texts })
    }

    /// Returns true if a kept folder, such as `RECIPE/RUN`, is shown or named: by its path, by its own name
    /// if that is a time and a hash, or by a link to a folder above it.
    pub fn folder(&self, id: &str) -> bool {
        let own = id.rsplit('/').next().unwrap_or(id);
        let own = if time_in_name(own).is_some() { own } else { id };
        let above = id.match_indices('/').map(|(end, _)| &id[..end]);
        let mut above = above.filter(|folder| ![COMPARISONS, SWEEPS].contains(folder));
        self.folders.contains(id)
            || self.texts.iter().any(|text| text.contains(own))
            || above.any(|folder| {
                self.texts.iter().any(|text| has_link_to(text, &format!("{}/{folder}", self.kept)))
            })
    }

    /// Returns true if a figure is shown or named. `inside` is its path in the folder of kept things.
    pub fn figure(&self, figure: &Path, inside: &str) -> bool {
        self.figures.contains(figure) || self.texts.iter().any(|text| text.contains(inside))
    }
}

/// Returns true if a text has a path that ends with `folder`, with nothing below it.
fn has_link_to(text: &str, folder: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || "-_.~+@".contains(c);
    text.match_indices(folder).any(|(at, _)| {
        let after = &text[at + folder.len()..];
        let below = after.strip_prefix('/').map(|below| below.trim_start_matches(['/', '.']));
        !text[..at].ends_with(in_name)
            && match below {
                Some(below) => !below.starts_with(in_name),
                // A dot may end a sentence.
                None => !after.starts_with(in_name) || after.starts_with(". ") || after.trim_end() == ".",
            }
    })
}

/// Resolves `%2F` and `\-`, as links and Markdown may write any character.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    let digit = |at: usize| bytes.get(at).and_then(|byte| (*byte as char).to_digit(16));
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                at += 3;
            }
            (b'\\', ..) if bytes.get(at + 1).is_some_and(u8::is_ascii_punctuation) => at += 1,
            (byte, ..) => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| endings.contains(&ending.as_str()))
}

/// Returns the files below a folder that can name kept things, sorted. Follows links, but not to a folder
/// that it has seen or that is above the root; leaves out git's own folder and the kept things.
fn files(root: &Path, kept: &Path) -> Result<Vec<PathBuf>> {
    let top = root.canonicalize().at("find", root)?;
    let kept = kept.canonicalize().unwrap_or_else(|_| kept.to_owned());
    let (mut found, mut seen, mut open) = (Vec::new(), BTreeSet::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        let real = folder.canonicalize().at("find", &folder)?;
        let is_above = real != top && top.starts_with(&real);
        let is_kept_thing = real.starts_with(&kept) && !regular::is_missing(&real.join(MANIFEST));
        if is_above || is_kept_thing || !seen.insert(real) {
            continue;
        }
        for entry in std::fs::read_dir(&folder).at("read", &folder)? {
            let path = entry.at("read", &folder)?.path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != ".git") {
                    open.push(path);
                }
            } else if path.is_file() && has_ending(&path, &ENDINGS) {
                found.push(path.strip_prefix("./").map_or(path.clone(), Path::to_owned));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "quickstart/20261102T030405Z-0123abcd";

    fn named(text: &str, id: &str) -> bool {
        let text = text.to_owned();
        let texts = vec![unescaped(&text), text];
        let (folders, figures) = (BTreeSet::new(), BTreeSet::new());
        Named { kept: "kept".to_owned(), folders, figures, texts }.folder(id)
    }

    #[test]
    fn a_run_is_named_however_it_is_written() {
        for text in [
            "[a](results/kept/quickstart/20261102T030405Z-0123abcd/README.md)",
            "[a](../results/kept/quickstart%2F20261102T030405Z%2D0123abcd)",
            "see quickstart/./20261102T030405Z-0123abcd",
            "20261102T030405Z\\-0123abcd",
            "[all](results/kept/quickstart)",
            "[all](results/kept/quickstart/).",
            "[all](results/kept/quick%73tart/ \"title\")",
            "all of results/kept/quickstart.",
            "<a href=\"kept/quickstart#top\">",
        ] {
            assert!(named(text, RUN), "{text}");
        }
        for text in [
            "",
            "quickstart",
            "results/kept/quickstart2",
            "results/kept/quickstart/20261102T030405Z-0123abce",
            "results/kept/quickstart/20261102T030405Z-0123abc",
            "unkept/quickstart/",
            "results/kept",
        ] {
            assert!(!named(text, RUN), "{text}");
        }
        assert!(named("[c](results/kept/comparisons/wide)", "comparisons/wide/20261102T030405Z-0123abcd"));
        assert!(!named("[c](results/kept/comparisons)", "comparisons/wide/20261102T030405Z-0123abcd"));
        assert!(named("[s](results/kept/sweeps/rates)", "sweeps/rates") && !named("rates", "sweeps/rates"));
    }
}
