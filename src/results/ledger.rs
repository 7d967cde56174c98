//! `ledger.jsonl`: every attempt at every cell of every sweep in a results folder, one JSON object per line.
//!
//! Lines are only ever added. An attempt is a line when it begins and one when it ends, and one alone where nothing was
//! started; one that never ended was killed with the sweep, and the next sweep says so in a line of its own. The table of a
//! sweep is what its cells' last lines say.

use super::columns::NamedNumbers;
use crate::error::{Error, IoContext, Result};
use crate::metrics;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The ledger's name in a results folder.
pub const LEDGER: &str = "ledger.jsonl";

/// The folder of sweeps in a results folder; no recipe may be called so.
pub const SWEEPS: &str = "sweeps";

/// A line of the ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// What makes two cells the same: hash over the keys that change what is trained or measured, corpus, build and
    /// device class.
    pub key: String,
    /// Number of the attempt at this cell, from 1.
    pub attempt: u64,
    /// How it stands.
    pub status: CellStatus,
    /// Why, where it is not `ok`.
    pub reason: Option<String>,
    /// The recipe's name.
    pub recipe: String,
    /// What the cell sets on top of the recipe, by key, as TOML values.
    pub settings: BTreeMap<String, String>,
    /// Hash of the resolved recipe.
    pub recipe_hash: String,
    /// Hash of the corpus.
    pub corpus_hash: Option<String>,
    /// Version and commit of the program.
    pub build: String,
    /// The device class, such as `NVIDIA H200` or `cpu avx512`.
    pub device: String,
    /// `RECIPE/RUN` of the run, where one began.
    pub run: Option<String>,
    /// UTC, when the line was written.
    pub at: String,
    /// What the run measured; blank where it did not.
    pub measured: Measured,
}

/// What a cell's run measured, by the keys of [`metrics::of_ledgers`]. Blank is not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Measured {
    /// Figures of the run's summary.
    pub figures: NamedNumbers,
    /// Whether another process used the device, or it throttled.
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

/// How an attempt stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum CellStatus {
    /// Under way.
    Running,
    /// Every step was trained.
    Ok,
    /// Memory was refused while it ran.
    Oom,
    /// The plan says that it cannot fit; nothing was started.
    PredictedOom,
    /// The loss or the gradient became NaN or infinite.
    Diverged,
    /// No step for longer than the sweep allows.
    Hang,
    /// Longer than the sweep allows.
    Timeout,
    /// Ended by a signal, or with the sweep.
    Killed,
    /// Ended by another error.
    Failed,
    /// Left out: excluded, or no valid recipe.
    Skipped,
}

impl CellStatus {
    /// The status as it stands in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            CellStatus::Running => "running",
            CellStatus::Ok => "ok",
            CellStatus::Oom => "oom",
            CellStatus::PredictedOom => "predicted_oom",
            CellStatus::Diverged => "diverged",
            CellStatus::Hang => "hang",
            CellStatus::Timeout => "timeout",
            CellStatus::Killed => "killed",
            CellStatus::Failed => "failed",
            CellStatus::Skipped => "skipped",
        }
    }

    /// Whether a cell that stands so is done: a sweep does not run it again unless asked to.
    pub fn is_final(self) -> bool {
        !matches!(self, CellStatus::Running | CellStatus::Killed)
    }
}

impl fmt::Display for CellStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A ledger as it stands, and the file to which lines are added.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: Option<File>,
    attempts: Vec<Attempt>,
    /// The last line of each cell.
    last: HashMap<String, usize>,
    tail: Tail,
}

/// How the file of a ledger ends.
#[derive(Clone, Copy, Debug)]
enum Tail {
    /// With the end of a line.
    Ended,
    /// With a line that lacks its end.
    Open,
    /// With a part of a line, from this byte.
    Torn(usize),
}

impl Ledger {
    /// Reads the ledger of a results folder; one that is not there has no lines.
    ///
    /// # Errors
    /// A line that is damaged. What a crash left of the last line is passed over.
    pub fn read(results: &Path) -> Result<Self> {
        let path = results.join(LEDGER);
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            bytes => bytes.at("read", &path)?,
        };
        // A line is whole when its end is there: it is written with it.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut attempts: Vec<Attempt> = Vec::new();
        for (number, line) in bytes[..whole].split(|&byte| byte == b'\n').enumerate() {
            if line.is_empty() {
                continue;
            }
            attempts.push(serde_json::from_slice(line).map_err(|e| {
                Error::failed(format!(
                    "{}:{}: not a line of a ledger: {e}; mend or remove the line",
                    path.display(),
                    number + 1
                ))
            })?);
        }
        // No part of a line is a line by itself, so that one which reads lacks its end alone, as editors leave it.
        let rest = &bytes[whole..];
        let tail = match serde_json::from_slice(rest) {
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

    /// Opens the ledger of a results folder to add lines, and cuts off what a crash left of the last one. Whoever calls
    /// it holds the folder of sweeps. Returns a warning where something was cut off.
    ///
    /// # Errors
    /// As [`Ledger::read`], and when the file cannot be written.
    pub fn open(results: &Path) -> Result<(Self, Option<String>)> {
        let mut ledger = Self::read(results)?;
        let mut file =
            OpenOptions::new().append(true).create(true).open(&ledger.path).at("open", &ledger.path)?;
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

    /// Adds a line. It is on the disk when this returns.
    ///
    /// # Errors
    /// When it cannot be written, or the ledger was only read.
    pub fn append(&mut self, attempt: Attempt) -> Result<()> {
        let file = self.file.as_mut().ok_or_else(|| Error::failed("the ledger was opened to be read"))?;
        let mut line =
            serde_json::to_vec(&attempt).map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
        line.push(b'\n');
        file.write_all(&line).and_then(|()| file.sync_data()).at("write", &self.path)?;
        self.last.insert(attempt.key.clone(), self.attempts.len());
        self.attempts.push(attempt);
        Ok(())
    }

    /// All lines, the oldest first.
    pub fn lines(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The last line of a cell: how it stands.
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
            recipe_hash: "h".to_owned(),
            corpus_hash: None,
            build: "b".to_owned(),
            device: "d".to_owned(),
            run: None,
            at: "2026-01-02T03:04:05Z".to_owned(),
            measured,
        }
    }

    /// A ledger of three lines, and its bytes.
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
        let line = r#"{"steps":40,"loss":2.3078,"val_loss":2.2611,"tok_s":45227.0,"step_ms":45.125,"mfu_pct":null,"planned_bytes":43620761,"allocated_bytes":43620761,"contended":false}"#;
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
    fn a_status_reads_as_it_is_written() {
        for status in <CellStatus as clap::ValueEnum>::value_variants() {
            assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
            let value = clap::ValueEnum::to_possible_value(status).unwrap();
            assert_eq!(value.get_name(), status.as_str());
        }
    }
}
