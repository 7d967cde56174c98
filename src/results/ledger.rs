//! `ledger.jsonl`: every attempt at every cell of every sweep in a results folder, one JSON object per line.
//!
//! Lines are only appended. An attempt has a line when it starts and one when it ends, and a single one if
//! nothing was started. An attempt without a second line was killed with its sweep, which the next sweep
//! records in a line. The table of a sweep is made of the last lines of its cells.

pub use super::names::{LEDGER, SWEEPS};
use super::numbers::NamedNumbers;
use super::own_file;
use crate::error::{Error, IoContext, Result};
use crate::metrics;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Key of the cell: hash over the keys that change what is trained or measured, corpus, build and device
    /// class.
    pub key: String,
    /// Number of the attempt at this cell, from 1.
    pub attempt: u64,
    /// Its status.
    pub status: CellStatus,
    /// The reason of a status other than `ok`.
    pub reason: Option<String>,
    /// The recipe's name.
    pub recipe: String,
    /// Values that the cell sets on top of the recipe, by key, as TOML.
    pub settings: BTreeMap<String, String>,
    /// Values of the measuring keys of its recipe, by key, as TOML; empty in lines of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measuring: BTreeMap<String, String>,
    /// Hash of the resolved recipe.
    pub recipe_hash: String,
    /// Hash of the corpus.
    pub corpus_hash: Option<String>,
    /// Version and commit of the program.
    pub build: String,
    /// The device class, such as `NVIDIA H200` or `cpu avx512`.
    pub device: String,
    /// `RECIPE/RUN` of the run, if one started.
    pub run: Option<String>,
    /// Time at which the line was written, UTC.
    pub at: String,
    /// Figures of the run; blank where they were not measured.
    pub measured: Measured,
}

impl Attempt {
    /// Returns true for a cell that was planned for a device; one that was skipped has none, and its build
    /// only wrote the line.
    pub fn has_device(&self) -> bool {
        !self.device.is_empty()
    }

    /// Returns true if both are attempts at one row of one sweep: a key may belong to cells that differ in
    /// keys which change nothing that is measured.
    pub fn is_of_cell(&self, other: &Self) -> bool {
        self.key == other.key && self.settings == other.settings
    }
}

/// Figures of a cell's run, by the keys of [`metrics::of_ledgers`]. Blank is not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Measured {
    /// Figures of the run's summary.
    pub figures: NamedNumbers,
    /// True if another process used the device, or it throttled.
    pub contended: Option<bool>,
}

/// The key of [`Measured::contended`].
const CONTENDED: &str = "contended";

impl Measured {
    /// Returns the figure with that key of the ledger.
    pub fn get(&self, key: &str) -> Option<f64> {
        self.figures.get(key)
    }
}

fn keys() -> impl Iterator<Item = &'static str> {
    metrics::of_ledgers().into_iter().map(|(key, _)| key)
}

impl TryFrom<Map<String, Value>> for Measured {
    type Error = String;

    fn try_from(object: Map<String, Value>) -> std::result::Result<Self, String> {
        let contended = match object.get(CONTENDED) {
            Some(Value::Bool(contended)) => Some(*contended),
            None | Some(Value::Null) => None,
            Some(other) => return Err(format!("`{CONTENDED}` is {other}, not true or false")),
        };
        Ok(Self { figures: NamedNumbers::from_json(&object, keys())?, contended })
    }
}

impl From<Measured> for Map<String, Value> {
    fn from(measured: Measured) -> Self {
        let mut object = measured.figures.to_json(keys());
        object.insert(CONTENDED.to_owned(), measured.contended.into());
        object
    }
}

/// The status of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum CellStatus {
    /// Running.
    Running,
    /// Every step was trained.
    Ok,
    /// Trained to a rung of successive halving, with its state saved.
    Halted,
    /// Trained to a rung of successive halving, and not among those that go on from it.
    Dropped,
    /// An allocation failed while it ran.
    Oom,
    /// The plan does not fit in memory; nothing was started.
    PredictedOom,
    /// The loss or the gradient became NaN or infinite.
    Diverged,
    /// No step within the time limit of the sweep.
    Hang,
    /// Longer than the time limit of the sweep.
    Timeout,
    /// Ended by a signal, or with the sweep.
    Killed,
    /// Trained, but its last state or its results could not be saved.
    Unsaved,
    /// Ended by another error.
    Failed,
    /// Not run: excluded, or the recipe is invalid.
    Skipped,
}

impl CellStatus {
    /// Returns the status as the file has it.
    pub fn as_str(self) -> &'static str {
        match self {
            CellStatus::Running => "running",
            CellStatus::Ok => "ok",
            CellStatus::Halted => "halted",
            CellStatus::Dropped => "dropped",
            CellStatus::Oom => "oom",
            CellStatus::PredictedOom => "predicted_oom",
            CellStatus::Diverged => "diverged",
            CellStatus::Hang => "hang",
            CellStatus::Timeout => "timeout",
            CellStatus::Killed => "killed",
            CellStatus::Unsaved => "unsaved",
            CellStatus::Failed => "failed",
            CellStatus::Skipped => "skipped",
        }
    }

    /// Returns true if a cell with this status is done: the sweep that gave it does not run the cell again
    /// unless told to.
    pub fn is_final(self) -> bool {
        !matches!(self, CellStatus::Running | CellStatus::Halted | CellStatus::Killed | CellStatus::Unsaved)
    }

    /// Returns true if a cell with this status was trained to the end, or cannot be: a sweep without rungs
    /// does not run it again unless told to.
    pub fn ends_a_whole_run(self) -> bool {
        self.is_final() && self != CellStatus::Dropped
    }
}

impl fmt::Display for CellStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The lines of a ledger, and the file to which lines are appended.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: Option<File>,
    attempts: Vec<Attempt>,
    /// The last line of each cell.
    last: HashMap<String, usize>,
    tail: Tail,
}

/// The end of a ledger's file.
#[derive(Clone, Copy, Debug)]
enum Tail {
    /// A complete line.
    Ended,
    /// A line without its newline.
    Open,
    /// A part of a line, from this byte.
    Torn(usize),
}

/// Returns an attempt if its key can begin the names of files, as a hash can.
fn with_key(attempt: Attempt) -> std::result::Result<Attempt, String> {
    let is_plain = !attempt.key.is_empty() && attempt.key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { Ok(attempt) } else { Err(format!("its key {:?} is no hash", attempt.key)) }
}

impl Ledger {
    /// Reads the ledger of a results folder; a missing one has no lines.
    ///
    /// # Errors
    /// A damaged line. An incomplete last line, as a crash leaves it, is skipped.
    pub fn read(results: &Path) -> Result<Self> {
        let path = results.join(LEDGER);
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            bytes => bytes.at("read", &path)?,
        };
        // A line is written with its newline, so a line with a newline is complete.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut attempts: Vec<Attempt> = Vec::new();
        for (number, line) in bytes[..whole].split(|&byte| byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            let attempt = serde_json::from_slice(line).map_err(|e| e.to_string()).and_then(with_key);
            attempts.push(attempt.map_err(|e| {
                Error::failed(format!(
                    "{}:{}: not a line of a ledger: {e}; fix or remove the line",
                    path.display(),
                    number + 1
                ))
            })?);
        }
        // A part of a line does not parse, so a rest that parses lacks only its newline, as some editors
        // leave it.
        let rest = &bytes[whole..];
        let tail = match serde_json::from_slice(rest).map_err(|e| e.to_string()).and_then(with_key) {
            _ if rest.is_empty() => Tail::Ended,
            Ok(attempt) => {
                attempts.push(attempt);
                Tail::Open
            }
            Err(_) => Tail::Torn(whole),
        };
        let last = attempts.iter().enumerate().map(|(at, attempt)| (attempt.key.clone(), at)).collect();
        Ok(Self { path, file: None, attempts, last, tail })
    }

    /// Opens the ledger of a results folder to append lines, and cuts off an incomplete last line. The caller
    /// holds the lock of the folder of sweeps. Returns a warning if something was cut off.
    ///
    /// # Errors
    /// As [`Ledger::read`], and if the file cannot be written.
    pub fn open(results: &Path) -> Result<(Self, Option<String>)> {
        let mut ledger = Self::read(results)?;
        let mut file = own_file::open(File::options().append(true).create(true), &ledger.path)?;
        let warning = match std::mem::replace(&mut ledger.tail, Tail::Ended) {
            Tail::Torn(whole) => {
                file.set_len(whole as u64).and_then(|()| file.sync_data()).at("write", &ledger.path)?;
                let line = ledger.attempts.len() + 1;
                Some(format!(
                    "{}:{line}: cut off a line that a crash left half written",
                    ledger.path.display()
                ))
            }
            Tail::Open => {
                file.write_all(b"\n").and_then(|()| file.sync_data()).at("write", &ledger.path)?;
                None
            }
            Tail::Ended => None,
        };
        ledger.file = Some(file);
        Ok((ledger, warning))
    }

    /// Appends a line. It is on disk when this returns.
    ///
    /// # Errors
    /// If it cannot be written, or the ledger was opened for reading.
    pub fn append(&mut self, attempt: Attempt) -> Result<()> {
        let file = self.file.as_mut().ok_or_else(|| Error::failed("the ledger was opened for reading"))?;
        let mut line =
            serde_json::to_vec(&attempt).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
        line.push(b'\n');
        file.write_all(&line).and_then(|()| file.sync_data()).at("write", &self.path)?;
        self.last.insert(attempt.key.clone(), self.attempts.len());
        self.attempts.push(attempt);
        Ok(())
    }

    /// Returns all lines, oldest first.
    pub fn lines(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Returns the last line of a cell: its status.
    pub fn last(&self, key: &str) -> Option<&Attempt> {
        self.last.get(key).map(|&at| &self.attempts[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(key: &str, status: CellStatus) -> Attempt {
        let mut measured = Measured::default();
        measured.figures.set("loss", 1.5);
        Attempt {
            key: key.to_owned(),
            attempt: 1,
            status,
            reason: None,
            recipe: "r".to_owned(),
            settings: BTreeMap::from([("optimizer.lr".to_owned(), "0.001".to_owned())]),
            measuring: BTreeMap::from([("validation.steps".to_owned(), "0".to_owned())]),
            recipe_hash: "h".to_owned(),
            corpus_hash: None,
            build: "b".to_owned(),
            device: "d".to_owned(),
            run: None,
            at: "2026-01-02T03:04:05Z".to_owned(),
            measured,
        }
    }

    /// Returns a ledger of three lines, and its bytes.
    fn three(results: &Path) -> Vec<u8> {
        let (mut ledger, warning) = Ledger::open(results).unwrap();
        assert_eq!(warning, None);
        for (key, status) in
            [("a", CellStatus::Running), ("b", CellStatus::Skipped), ("a", CellStatus::PredictedOom)]
        {
            ledger.append(attempt(key, status)).unwrap();
        }
        std::fs::read(results.join(LEDGER)).unwrap()
    }

    #[test]
    fn the_last_line_of_a_cell_is_how_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = three(dir.path());
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.contains("\"status\":\"predicted_oom\"") && text.contains("\"val_loss\":null"),
            "{text}"
        );
        let ledger = Ledger::read(dir.path()).unwrap();
        assert_eq!(ledger.lines().len(), 3);
        assert_eq!(ledger.last("a"), Some(&attempt("a", CellStatus::PredictedOom)));
        assert_eq!(ledger.last("c"), None);
    }

    #[test]
    fn a_line_keeps_its_keys_their_order_and_its_digits() {
        let line = concat!(
            r#"{"steps":40,"train_loss":2.3125,"loss":2.3078,"val_loss":2.2611,"tok_s":45227.0,"step_ms":45.125,"mfu_pct":null,"#,
            r#""planned_bytes":43620761,"allocated_bytes":43620761,"val_batches":2,"val_batches_of":40,"contended":false}"#
        );
        let measured: Measured = serde_json::from_str(line).unwrap();
        assert_eq!((measured.get("tok_s"), measured.get("mfu_pct")), (Some(45227.0), None));
        assert_eq!(serde_json::to_string(&measured).unwrap(), line);
        assert_eq!(serde_json::from_str::<Measured>("{}").unwrap(), Measured::default());
        assert!(
            serde_json::from_str::<Measured>(r#"{"loss":"low"}"#).unwrap_err().to_string().contains("loss")
        );
    }

    #[test]
    fn a_torn_last_line_is_cut_off_wherever_it_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = three(dir.path());
        let path = dir.path().join(LEDGER);
        let second = bytes[..bytes.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        for torn in [second + 1, (second + bytes.len()) / 2, bytes.len() - 2] {
            std::fs::write(&path, &bytes[..torn]).unwrap();
            assert_eq!(Ledger::read(dir.path()).unwrap().lines().len(), 2, "read without a change");
            assert_eq!(std::fs::read(&path).unwrap(), bytes[..torn]);
            let (mut ledger, warning) = Ledger::open(dir.path()).unwrap();
            let warning = warning.expect("a warning");
            assert!(warning.contains("ledger.jsonl:3: "), "{warning}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes[..second]);
            ledger.append(attempt("a", CellStatus::PredictedOom)).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn a_last_line_without_its_end_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = three(dir.path());
        let path = dir.path().join(LEDGER);
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (ledger, warning) = Ledger::open(dir.path()).unwrap();
        assert_eq!((ledger.lines().len(), warning), (3, None));
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn a_damaged_line_is_named_and_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let text = String::from_utf8(three(dir.path())).unwrap();
        let path = dir.path().join(LEDGER);
        let damaged = text.replacen("\"skipped\"", "\"skip", 1);
        std::fs::write(&path, &damaged).unwrap();
        let error = Ledger::open(dir.path()).unwrap_err();
        assert!(error.message().contains("ledger.jsonl:2: "), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged);
    }

    #[test]
    fn a_key_that_is_no_hash_names_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let text = String::from_utf8(three(dir.path())).unwrap();
        for key in ["../../a", "aéééééééé", ""] {
            let damaged = text.replacen("\"key\":\"b\"", &format!("\"key\":\"{key}\""), 1);
            assert_ne!(damaged, text);
            std::fs::write(dir.path().join(LEDGER), &damaged).unwrap();
            let error = Ledger::read(dir.path()).unwrap_err();
            assert!(
                error.message().contains("ledger.jsonl:2: ") && error.message().contains("no hash"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_status_reads_as_it_is_written() {
        for status in <CellStatus as clap::ValueEnum>::value_variants() {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            let value = clap::ValueEnum::to_possible_value(status).unwrap();
            assert_eq!(value.get_name(), status.as_str());
        }
    }
}
