//! The copy of a recipe that a run's folder keeps: all layers merged into one file that can be run again.

use super::merge::Merged;
use super::schema::{SECTIONS, Values};
use super::source::Layer;
use super::toml_text::values;
use std::fmt::Write;
use std::path::PathBuf;

/// The first line of a copy. Copies of earlier versions, which may be several files in one, lack it.
pub const COPY_HEADER: &str = "# Everything that this run's recipe sets, in one file; it can be run again.";

/// Returns every key that a layer sets, with its value as written, paths absolute, and where it was set; then
/// the files as written, in comments.
pub(super) fn copy(
    written: &Values,
    settled: &Values,
    layers: &Merged,
    files: &[(PathBuf, String)],
) -> String {
    let copied = Values { data: settled.data.clone(), ..written.clone() };
    let values = values(&copied);
    let mut text = format!("{COPY_HEADER}\n");
    for (section, _) in SECTIONS {
        let mut lines =
            values.iter().filter(|(key, _)| key.section() == *section).filter_map(|(key, value)| {
                let (value, at) = (value.as_ref()?, layers.locate(key.path)?);
                let origin = match at.layer() {
                    Layer::CommandLine { .. } => "command line".to_owned(),
                    other => other.to_string(),
                };
                Some(format!("{} = {value}  # {}\n", key.name(), in_comment(&origin)))
            });
        if let Some(first) = lines.next() {
            let _ = write!(text, "\n[{section}]\n{first}");
            text.extend(lines);
        }
    }
    for (path, written) in files {
        let _ = writeln!(text, "\n# ---- {}, as written:", in_comment(&path.display().to_string()));
        for line in written.lines() {
            let _ = writeln!(text, "{}", format!("# {}", in_comment(line)).trim_end());
        }
    }
    text
}

/// Comments of TOML have no control characters but tabs.
fn in_comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}
