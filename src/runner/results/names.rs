//! Names of the files in a run folder, and of the folders in a results folder.

use crate::error::{Error, Result};
use crate::format::printable;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::borrow::Cow;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::is_combining_mark;

/// The recipe as written, with all its layers merged into one file.
pub const RECIPE: &str = "recipe.toml";
/// The recipe with every value filled in.
pub const RESOLVED: &str = "resolved.toml";
/// The environment of the process that started the run. [`environment_file`] also names those of processes
/// that resumed it.
pub const ENVIRONMENT: &str = "env.json";
/// The deterministic rows, one per step.
pub const METRICS: &str = "metrics.csv";
/// The measured rows, such as times.
pub const TIMING: &str = "timing.csv";
/// What the run began from.
pub const ORIGIN: &str = "origin.json";
/// The summary of the run.
pub const SUMMARY: &str = "summary.json";
/// The loss of every held-out document at the last evaluation, as
/// [`DocumentLoss`](crate::metrics::DocumentLoss).
pub const DOCUMENTS: &str = "documents.csv";
/// Log lines in plain text.
pub const LOG: &str = "log";
/// The algorithms chosen for matrix products on a GPU.
pub const ALGORITHMS: &str = "algorithms.json";
/// Where the time of a step goes, as measured by `xrun profile RUN --keep`.
pub const PROFILE: &str = "profile.json";
/// The folder of checkpoints.
pub const CHECKPOINT: &str = "checkpoint";
/// The folder of plots.
pub const PLOTS: &str = "plots";
/// The folder of the scores of items of tasks, with a folder for each evaluated step.
pub const TASK_SCORES: &str = "evaluation";
/// The folder of TensorBoard event files.
pub const TENSORBOARD: &str = "tensorboard";

/// The folder of kept runs in a results folder.
pub const KEPT: &str = "kept";
/// The folder of comparisons in a results folder.
pub const COMPARISONS: &str = "comparisons";
/// The record of an experiment, in its folder.
pub const EXPERIMENT: &str = "experiment.json";
/// The folder for `xrun coordinates` in a results folder.
pub const COORDINATES: &str = "coordinates";
/// The folder of evaluations on tasks in a results folder.
pub const EVALUATIONS: &str = "evaluations";
/// Fitted slopes of coordinates, in their folder.
pub const COORDINATES_JSON: &str = "coordinates.json";
/// Measured rows of coordinates, in their folder.
pub const COORDINATE_ROWS: &str = "coordinates.csv";
/// The folder of compared binaries in a results folder. Each binary is named by its BLAKE3.
pub const BINARIES: &str = "binaries";
/// The folder of sweeps in a results folder.
pub const SWEEPS: &str = "sweeps";
/// The folder of the ledger's files, inside the folder of sweeps.
pub const LEDGERS: &str = "ledger";
/// The ledger of a kept sweep.
pub const LEDGER: &str = "ledger.jsonl";

/// Turns a text into a part of a file's name: letters and digits of any script, `.`, `_` and `-` stay,
/// composed (NFC), and every other character becomes `-`.
pub fn file_part(text: &str) -> String {
    // Letters that nobody sees, such as the Hangul fillers, would give two names that look the same.
    let is_visible = |c: char| matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Borrowed(_));
    let stays = |c: char| (c.is_alphanumeric() || is_combining_mark(c)) && is_visible(c) || "._-".contains(c);
    text.nfc().map(|(c, _)| if stays(c) { c } else { '-' }).collect()
}

/// Turns a recipe's name into a folder name, see [`file_part`].
///
/// # Errors
/// If no letter or digit is left of the name, or it begins with a dot or is reserved for another folder in a
/// results folder.
pub fn folder_name(recipe: &str) -> Result<String> {
    let name = file_part(recipe);
    let is_reserved =
        [KEPT, SWEEPS, COMPARISONS, COORDINATES, EVALUATIONS, BINARIES].contains(&name.as_str());
    if is_reserved || !name.contains(char::is_alphanumeric) || name.starts_with('.') {
        return Err(Error::usage(format!(
            "`{recipe}` cannot name a folder in the results: a name needs a letter or a digit, must not begin with \
             a dot, and must not be {KEPT}, {SWEEPS}, {COMPARISONS}, {COORDINATES}, {EVALUATIONS} or {BINARIES}; choose \
             another one"
        )));
    }
    Ok(name)
}

/// Returns the name of the file with the environment of a run's process: [`ENVIRONMENT`] for process 1, which
/// started the run, and `env-2.json` and so on for those that resumed it.
pub fn environment_file(process: usize) -> String {
    if process == 1 { ENVIRONMENT.to_owned() } else { format!("env-{process}.json") }
}

/// Digits of the hash in a run's name.
pub(super) const HASH_LEN: usize = 8;

/// Characters of the time in a run's name.
const TIME_LEN: usize = "20261122T110113Z".len();

/// Returns the time in a folder's name, `<UTC time>-…`; `None` if a person chose the name.
pub fn time_in_name(name: &str) -> Option<Timestamp> {
    let (time, _) = name.split_once('-')?;
    // The parser would also accept signs and shorter numbers.
    let is_digit = |(at, c): (usize, u8)| [8, TIME_LEN - 1].contains(&at) || c.is_ascii_digit();
    if time.len() != TIME_LEN || !time.bytes().enumerate().all(is_digit) {
        return None;
    }
    let time = DateTime::strptime("%Y%m%dT%H%M%SZ", time).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Returns the time and the hash in a run's name, `<UTC time>-<hash8>[-n]`.
pub fn parse_run_name(name: &str) -> Option<(Timestamp, &str)> {
    let mut parts = name.splitn(3, '-').skip(1);
    let (hash, number) = (parts.next()?, parts.next());
    let is_numbered = number.is_none_or(|number| number.bytes().all(|c| c.is_ascii_digit()));
    (hash.len() == HASH_LEN && is_numbered).then_some(())?;
    Some((time_in_name(name)?, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_time_and_a_hash() {
        let (time, hash) = parse_run_name("20261102T030405Z-0123abcd-2").unwrap();
        assert_eq!((time.to_string().as_str(), hash), ("2026-11-02T03:04:05Z", "0123abcd"));
        for name in ["", "latest", "20261102T030405Z", "20261102T030405Z-0123", "20261102T030405Z-0123abcd-x"]
        {
            assert_eq!(parse_run_name(name), None, "{name}");
        }
    }

    /// Recipes whose names look different have different folders, and however a name's letters are composed,
    /// it has one.
    #[test]
    fn names_of_any_script_stay_apart() {
        let names = [
            "größe",
            "grüße",
            "groesse",
            "größe-2",
            "modèle",
            "modele",
            "модель",
            "модели",
            "模型",
            "模型２",
            "モデル",
            "मॉडल",
            "मडल",
            "نموذج",
            "δ",
            "a.b",
            "a_b",
            "a-b",
            "Å",
            "A",
        ];
        let folders: Vec<String> = names.iter().map(|name| folder_name(name).unwrap()).collect();
        for (at, folder) in folders.iter().enumerate() {
            assert!(!folders[..at].contains(folder), "{} and another name share {folder}", names[at]);
            assert_eq!(folder, names[at], "letters and digits stay");
        }
        for (one, other) in
            [("größe", "gro\u{308}ße"), ("Å", "A\u{30a}"), ("Å", "\u{212b}"), ("가", "\u{1100}\u{1161}")]
        {
            assert_eq!(folder_name(one).unwrap(), folder_name(other).unwrap());
        }
        for hidden in
            ["a\u{3164}b", "a\u{200b}b", "a\u{202e}b", "a\u{115f}b", "a b", "a/b", "a\\b", "a😀b", "a\nb"]
        {
            assert_eq!(folder_name(hidden).unwrap(), "a-b", "{hidden:?}");
        }
        for nothing in ["", "-", "😀", "\u{301}", "..", ".a", "kept", "\u{3164}"] {
            assert!(folder_name(nothing).is_err(), "{nothing:?}");
        }
    }

    #[test]
    fn a_name_that_someone_chose_has_no_time() {
        assert!(time_in_name("20261102T030405Z-0123abcd-copy").is_some());
        for name in
            ["mycopy", "my-copy", "20261302T030405Z-0123abcd", "2026112T0304050Z-0123abcd", "2026-11-02"]
        {
            assert_eq!(time_in_name(name), None, "{name}");
        }
    }
}
