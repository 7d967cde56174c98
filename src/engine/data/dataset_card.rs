//! The card of a HuggingFace data set: the part of `README.md` that says which files are which split.
//!
//! It is YAML between two lines of `---`. Only the form is read in which HuggingFace writes `configs`: nested
//! lists and tables with a value per line. Anything else is refused, because files that are not what the
//! card says would be trained on.

use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use crate::regular;
use std::path::Path;

/// Longest value that a message shows, in characters.
const SHOWN: usize = 60;

/// Most paths of files in a card, each of which lists a folder.
const MAX_PATHS: usize = 1024;

/// The configurations that a card names, one or more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Card {
    pub configurations: Vec<Configuration>,
}

/// A configuration of a data set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Configuration {
    pub name: String,
    /// The files of its splits; none if their names say it.
    pub files: Vec<CardFiles>,
}

/// Files of a split.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CardFiles {
    pub split: String,
    /// A path or pattern below the folder.
    pub pattern: String,
}

impl Card {
    /// Reads the card of a folder; `None` if there is none, or it names no configurations.
    ///
    /// # Errors
    /// If the card cannot be read, or its `configs` have another form.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("README.md");
        if !path.is_file() {
            return Ok(None);
        }
        let text = regular::read_text_through_link(&path)?;
        Self::parse(&text).map_err(|fault| {
            Error::usage(format!(
                "{}:{}: {:?} is not a form of `configs` that xrun reads; name the files with a pattern instead of a \
                 split",
                path.display(),
                fault.line,
                shortened(&printable(&fault.text), SHOWN)
            ))
        })
    }

    fn parse(text: &str) -> Result<Option<Self>, Fault> {
        let mut lines = text.lines().zip(1..);
        if lines.next().is_none_or(|(first, _)| first.trim_end() != "---") {
            return Ok(None);
        }
        let front = lines.take_while(|(line, _)| line.trim_end() != "---");
        let mut configs = front.skip_while(|(line, _)| !line.starts_with("configs:"));
        let Some((first, line)) = configs.next() else { return Ok(None) };
        if first.trim_end() != "configs:" {
            return Err(Fault { line, text: first.to_owned() });
        }
        let mut reader = Reader::default();
        let is_inside = |line: &str| line.starts_with([' ', '-', '#']) || line.trim().is_empty();
        for (text, line) in configs.take_while(|(line, _)| is_inside(line)) {
            reader.read(text).ok_or_else(|| Fault { line, text: text.to_owned() })?;
        }
        match reader.configurations.is_empty() {
            true => Err(Fault { line, text: first.to_owned() }),
            false => Ok(Some(Self { configurations: reader.configurations })),
        }
    }
}

/// A line that has another form.
#[derive(Debug)]
struct Fault {
    line: usize,
    text: String,
}

/// What the lines so far say.
#[derive(Debug, Default)]
struct Reader {
    configurations: Vec<Configuration>,
    /// Spaces before the dash of a configuration.
    indent: Option<usize>,
    /// Spaces before `data_files`, while lines belong to it.
    data_files: Option<usize>,
    /// The split whose paths follow.
    split: Option<String>,
}

impl Reader {
    /// Reads a line; `None` if it has another form.
    fn read(&mut self, line: &str) -> Option<()> {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if content.is_empty() || content.starts_with('#') {
            return Some(());
        }
        let item = content.strip_prefix("- ").map(str::trim);
        if item.is_some() && indent == *self.indent.get_or_insert(indent) {
            self.configurations
                .push(Configuration { name: "default".to_owned(), ..Configuration::default() });
            (self.data_files, self.split) = (None, None);
        }
        let column = if item.is_some() { indent + 2 } else { indent };
        let entry = item.unwrap_or(content.trim_end());
        let in_files = self.data_files.is_some_and(|at| indent > at || (indent == at && item.is_some()));
        if !in_files {
            self.data_files = None;
        }
        let (key, value) = match entry.split_once(':') {
            Some((key, value)) if value.is_empty() || value.starts_with(' ') => (key, value.trim()),
            _ if !in_files => return self.configurations.last().map(drop),
            // A path of a list.
            _ => return item.and_then(|path| self.add(path)),
        };
        match (key, in_files) {
            ("config_name", false) => {
                self.configurations.last_mut()?.name = plain(value)?.to_owned();
                Some(())
            }
            ("data_files", false) => {
                (self.data_files, self.split) = (Some(column), None);
                if value.is_empty() { Some(()) } else { self.add(value) }
            }
            // Its files would be in another folder.
            ("data_dir", false) => None,
            (_, false) => self.configurations.last().map(drop),
            ("split", true) => {
                self.split = Some(plain(value)?.to_owned());
                Some(())
            }
            // A path before its split would be taken for one of the split before.
            ("path", true) if item.is_some() || self.split.is_none() => None,
            ("path", true) if value.is_empty() => Some(()),
            ("path", true) => self.add(value),
            (_, true) => None,
        }
    }

    /// Adds files to the split. Files without one are trained on.
    fn add(&mut self, value: &str) -> Option<()> {
        let split = self.split.clone().unwrap_or_else(|| "train".to_owned());
        let pattern = plain(value)?.to_owned();
        if self.configurations.iter().map(|one| one.files.len()).sum::<usize>() >= MAX_PATHS {
            return None;
        }
        self.configurations.last_mut()?.files.push(CardFiles { split, pattern });
        Some(())
    }
}

/// Returns a string without its quotes; `None` for a value of another kind.
fn plain(value: &str) -> Option<&str> {
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote) {
            return inner.strip_suffix(quote).filter(|inner| !inner.contains([quote, '\\']));
        }
    }
    let is_plain =
        !value.is_empty() && !value.starts_with(|c| "[]{}&*!|>%@`?,#".contains(c)) && !value.contains(" #");
    is_plain.then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configurations in a card, as `name: split pattern, …`; the line of a fault.
    fn read(configs: &str) -> Result<Vec<String>, usize> {
        let text = format!("---\n{configs}---\nconfigs: none\n");
        let card = Card::parse(&text).map_err(|fault| fault.line)?;
        let in_words = |one: &Configuration| {
            let files: Vec<String> =
                one.files.iter().map(|files| format!("{} {}", files.split, files.pattern)).collect();
            format!("{}: {}", one.name, files.join(", "))
        };
        Ok(card.map_or(Vec::new(), |card| card.configurations.iter().map(in_words).collect()))
    }

    #[test]
    fn configurations_are_read_as_hugging_face_writes_them() {
        for (configs, expected) in [
            ("license: mit\n", &[][..]),
            (
                "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n  \
                 - split: test\n    path: \"data/test-*\"\ndataset_info:\n- config_name: other\n",
                &["default: train data/train-*, test data/test-*"],
            ),
            (
                "configs:\n  - config_name: en\n    default: true\n    data_files:\n      - split: train\n        \
                 path:\n          - 'a.txt'\n          - b.txt\n  - config_name: de\n    data_files: de.txt\n",
                &["en: train a.txt, train b.txt", "de: train de.txt"],
            ),
            (
                "configs:\n# a comment\n- data_files:\n  - a.txt\n  - b.txt\n  config_name: x\n  features:\n  \
                 - name: text\n    dtype: string\n",
                &["x: train a.txt, train b.txt"],
            ),
        ] {
            assert_eq!(
                read(configs).as_deref(),
                Ok(&expected.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..])
            );
        }
        for (configs, line) in [
            ("configs: [a]\n", 2),
            ("configs:\nlicense: mit\n", 2),
            ("configs:\n- config_name: a\n  data_files:\n    train: a.txt\n", 5),
            ("configs:\n- config_name: a\n  data_files:\n  - path: a.txt\n    split: train\n", 5),
            ("configs:\n- config_name: a\n  data_files: &x\n", 4),
            ("configs:\n- config_name: a\n  data_dir: x\n", 4),
            ("configs:\n- config_name: a\n  data_files:\n  - split: 'a\n", 5),
        ] {
            assert_eq!(read(configs), Err(line), "{configs}");
        }
        assert_eq!(Card::parse("# Text\nconfigs:\n").unwrap(), None, "no front matter");
        let many = format!("configs:\n- data_files:\n{}", "  - a\n".repeat(MAX_PATHS));
        assert_eq!(
            (read(&many).map(|all| all.len()), read(&(many + "  - a\n"))),
            (Ok(1), Err(MAX_PATHS + 4))
        );
    }
}
