//! Finds out when a run or a comparison began.

use super::names::{ENVIRONMENT, EXPERIMENT, SUMMARY, time_in_name};
use crate::regular;
use jiff::Timestamp;
use serde_json::Value;
use std::path::Path;

/// Returns when the run or comparison in a folder began. The time comes from the folder's name or, if someone
/// copied or renamed the folder, from its records. `None` if neither has one.
pub fn began(folder: &Path) -> Option<Timestamp> {
    let in_name = folder.file_name().and_then(|name| time_in_name(name.to_str()?));
    in_name.or_else(|| recorded(folder))
}

/// Returns the time in the folder's original name, or else the time when the process that began the run
/// started.
fn recorded(folder: &Path) -> Option<Timestamp> {
    let names = [(SUMMARY, "run"), (EXPERIMENT, "id")];
    let in_name = names.iter().find_map(|(file, key)| time_in_name(&text(folder, file, key)?));
    in_name.or_else(|| text(folder, ENVIRONMENT, "started")?.parse().ok())
}

/// Returns the text under a key of a JSON file.
fn text(folder: &Path, file: &str, key: &str) -> Option<String> {
    let bytes = regular::read(&folder.join(file), regular::MAX_TEXT).ok()?;
    let value: Value = serde_json::from_slice(&bytes).ok()?;
    value.get(key)?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_name_or_of_the_records() {
        let dir = tempfile::tempdir().unwrap();
        let began = |name: &str, files: &[(&str, &str)]| {
            let folder = dir.path().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|(file, text)| std::fs::write(folder.join(file), text).unwrap());
            super::began(&folder).map(|time| time.to_string())
        };
        let summary = (SUMMARY, r#"{"run": "20261102T030405Z-0123abcd"}"#);
        let environment = (ENVIRONMENT, r#"{"started": "2026-11-03T00:00:00Z"}"#);
        let expected = |time: &str| Some(time.to_owned());
        let named = began("20261101T000000Z-0123abcd", &[summary, environment]);
        assert_eq!(named, expected("2026-11-01T00:00:00Z"));
        assert_eq!(began("both", &[summary, environment]), expected("2026-11-02T03:04:05Z"));
        assert_eq!(began("damaged", &[(SUMMARY, "{"), environment]), expected("2026-11-03T00:00:00Z"));
        assert_eq!(began("neither", &[(SUMMARY, r#"{"run": "x"}"#)]), None);
    }
}
