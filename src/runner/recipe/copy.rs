//! Writes the copy of a recipe that a run's folder keeps: all layers merged into one file that can be run
//! again.

use super::layers::ENV_PREFIX;
use super::merge::Merged;
use super::schema::{SECTIONS, Values};
use super::source::Layer;
use super::toml_text::{Texts, keys_of};
use super::until::{STEPS, UNTIL};
use std::fmt::Write;
use std::path::PathBuf;

/// First line of a copy. Copies of earlier versions, which may be several files in one, do not have it.
pub const COPY_HEADER: &str = "# Everything that this run's recipe sets, in one file; it can be run again.";

/// Separates a value from its origin.
const ORIGIN: &str = "  # ";

/// What begins a value of several lines, and what ends it.
const LONG_TEXT: &str = " = \"\"\"";
const QUOTES: &str = "\"\"\"";

/// The origin of a value from the command line.
const COMMAND_LINE: &str = "command line";

/// Text before and after the path of a file as written.
const FILE: &str = "# ---- ";
const AS_WRITTEN: &str = ", as written:";

/// Returns every key that a layer sets, with its value as written (paths absolute) and where it was set,
/// followed by the files as written, in comments.
pub(super) fn copy(
    written: &Values,
    settled: &Values,
    layers: &Merged,
    files: &[(PathBuf, String)],
) -> String {
    let mut copied = Values { data: settled.data.clone(), ..written.clone() };
    copied.evaluation.clone_from(&settled.evaluation);
    copied.validation.sets.clone_from(&settled.validation.sets);
    copied.model.init_from.clone_from(&settled.model.init_from);
    copied.adapter.init_from.clone_from(&settled.adapter.init_from);
    // Steps of a lower layer than the budget's: in one file they would contradict it.
    let superseded = written.training.until.is_some() && layers.position(STEPS) < layers.position(UNTIL);
    let (keys, texts) = (keys_of(&copied), Texts::new(&copied));
    let keys = || keys.iter().filter(|key| !(superseded && key.path == STEPS));
    let mut text = format!("{COPY_HEADER}\n");
    for (section, _) in SECTIONS {
        let mut lines = keys().filter(|key| key.section() == *section).filter_map(|key| {
            let at = layers.locate(key.path)?;
            let value = texts.get(key)?;
            let origin = match at.layer() {
                Layer::CommandLine { .. } => COMMAND_LINE.to_owned(),
                other => other.to_string(),
            };
            Some(format!("{} = {value}{ORIGIN}{}\n", key.name(), in_comment(&origin)))
        });
        if let Some(first) = lines.next() {
            let _ = write!(text, "\n[{section}]\n{first}");
            text.extend(lines);
        }
    }
    for (path, written) in files {
        let _ = writeln!(text, "\n{FILE}{}{AS_WRITTEN}", in_comment(&path.display().to_string()));
        for line in written.lines() {
            let _ = writeln!(text, "{}", format!("# {}", in_comment(line)).trim_end());
        }
    }
    text
}

/// A setting in a copy that came from the command line or the environment, not from a recipe file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetInCopy {
    /// Full path of the key.
    pub key: String,
    /// The value as TOML.
    pub value: String,
}

/// Returns the settings in a copy that came from the command line or the environment: of its own run, and of
/// the earlier runs whose copies it was made from.
pub fn settings_outside_files(copy: &str) -> Vec<SetInCopy> {
    let lines: Vec<&str> = copy.lines().collect();
    let files = files_in(&lines);
    let (mut section, mut found) = ("", Vec::new());
    let mut settings = lines.iter().take_while(|line| !line.starts_with(FILE));
    while let Some(line) = settings.next() {
        // A text of several lines; the origin is behind its end.
        let mut whole = (*line).to_owned();
        while whole.contains(LONG_TEXT) && whole.matches(QUOTES).count() == 1 {
            let Some(next) = settings.next() else { break };
            whole = format!("{whole}\n{next}");
        }
        let line = &whole;
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section =
                SECTIONS.iter().map(|(known, _)| *known).find(|known| *known == name).unwrap_or_default();
        } else if let Some((setting, origin)) = line.rsplit_once(ORIGIN)
            && let Some((key, value)) = setting.split_once(" = ")
            && is_set_outside_files(origin, &files)
        {
            found.push(SetInCopy { key: format!("{section}.{key}"), value: value.to_owned() });
        }
    }
    found
}

/// Returns true if an origin is not a line of a recipe file. A line of an embedded copy counts by its own
/// origin.
fn is_set_outside_files(origin: &str, files: &[(String, Vec<String>)]) -> bool {
    if origin == COMMAND_LINE || origin.starts_with(ENV_PREFIX) {
        return true;
    }
    let Some((path, line)) = origin.rsplit_once(':') else { return false };
    let file = files.iter().find(|(name, _)| name == path).map(|(_, lines)| lines);
    let Some(lines) = file.filter(|lines| lines.first().is_some_and(|line| line == COPY_HEADER)) else {
        return false;
    };
    let at = line.parse::<usize>().ok().and_then(|line| lines.get(line.checked_sub(1)?));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    at.and_then(|line| line.rsplit_once(ORIGIN))
        .is_some_and(|(_, origin)| is_set_outside_files(origin, &files_in(&lines)))
}

/// Returns the files at the end of a copy, each with its path and its lines as written.
fn files_in(lines: &[&str]) -> Vec<(String, Vec<String>)> {
    let mut files: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines {
        if let Some(path) = line.strip_prefix(FILE).and_then(|line| line.strip_suffix(AS_WRITTEN)) {
            files.push((path.to_owned(), Vec::new()));
        } else if let (Some((_, written)), Some(line)) = (files.last_mut(), line.strip_prefix('#')) {
            written.push(line.strip_prefix(' ').unwrap_or(line).to_owned());
        }
    }
    files
}

/// Replaces control characters other than tabs, which TOML comments must not contain.
pub(super) fn in_comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(copy: &str) -> Vec<String> {
        settings_outside_files(copy).into_iter().map(|set| format!("{}={}", set.key, set.value)).collect()
    }

    /// Returns the copy of a run: of the recipe `text` in a file at `path`, with changes on the command line.
    fn run_copy(path: &str, text: &str, changes: &[&str]) -> String {
        let changes: Vec<String> = changes.iter().map(|change| (*change).to_owned()).collect();
        let none = std::iter::empty();
        let machine = crate::machine::Machine::none();
        let path = std::path::Path::new(path);
        crate::recipe::load_str(path, text, &changes, none, &machine).unwrap().copy().to_owned()
    }

    #[test]
    fn a_text_of_several_lines_is_one_setting() {
        let change = "model.definition=embed:\n  x = embedding(tokens, dim)\nblock:\nhead:\n  logits = linear(x, vocab_size)";
        let found = set(&run_copy("mine.toml", "[model]\nn_layers = 2\n", &[change, "training.steps=20"]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("model.definition=\"\"\"\nembed:\n") && found[0].ends_with("\"\"\""));
        assert_eq!(found[1], "training.steps=20");
    }

    #[test]
    fn settings_inherited_through_copies_are_found() {
        let recipe = "[model]\ndim = 64\n[generation]\nprompt = \"a  # command line\"\n";
        let first = run_copy("mine.toml", recipe, &["optimizer.lr=5", "training.steps=60"]);
        assert_eq!(set(&first), ["training.steps=60", "optimizer.lr=5.0"]);
        let second = run_copy("results/mine/1/recipe.toml", &first, &["training.steps=20"]);
        assert_eq!(set(&second), ["training.steps=20", "optimizer.lr=5.0"]);
        let third = run_copy("results/mine/2/recipe.toml", &second, &["training.seed=2"]);
        assert_eq!(set(&third), ["training.steps=20", "training.seed=2", "optimizer.lr=5.0"]);
        // A recipe file that somebody wrote counts as the recipe, whatever its comments say.
        assert_eq!(set(&run_copy("mine.toml", recipe, &[])), [""; 0]);
    }
}
