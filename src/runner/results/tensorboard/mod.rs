//! Event files for TensorBoard: the rows of `metrics.csv` and `timing.csv` as scalars, and samples as texts.
//!
//! A file has all rows of its run. A process that resumes the run first writes the kept rows again, so that
//! no reader sees rows that were cut off. `xrun runs export` writes the same from a run's files.

mod event;
mod record;

use super::atomic;
use super::folder::{METRICS, TIMING};
use super::names::{ENVIRONMENT, TENSORBOARD};
use super::provenance::Environment;
use super::rows::{self, MetricsRow, Phase, TimingRow};
use super::stored;
use super::summary::Sample;
use crate::error::{Error, IoContext, Result};
use crate::regular;
pub use event::{Event, SAMPLES};
use jiff::Timestamp;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Prefix of event files' names. TensorBoard looks for `tfevents`, and sorts files by name.
const PREFIX: &str = "events.out.tfevents.";
/// Suffix of the event files that xrun writes.
const SUFFIX: &str = ".xrun";

/// Limit of a run's processes that begin in the same second.
const MAX_SAME_SECOND: u32 = 10_000;

/// What a run's files record.
struct History {
    /// When the run began.
    started: Timestamp,
    metrics: Vec<MetricsRow>,
    timing: Vec<TimingRow>,
}

impl History {
    /// Reads the files of a run, kept or not.
    fn read(run: &Path) -> Result<Self> {
        let path = run.join(ENVIRONMENT);
        let environment: Environment =
            atomic::parse_json(&path, &stored::read(&path)?, "the environment of a run")?;
        let (metrics, timing) = (rows::read(&run.join(METRICS))?, rows::read(&run.join(TIMING))?);
        Ok(Self { started: environment.started, metrics, timing })
    }

    /// Writes the events of all rows and samples in ascending order of steps. Each has the wall time of its
    /// row, so the time between a run's processes does not count.
    fn write(&self, samples: &[Sample], out: &mut dyn Write) -> std::io::Result<()> {
        let started = seconds(self.started);
        let mut now = started;
        let mut metrics = self.metrics.iter().peekable();
        let mut samples = samples.chunk_by(|a, b| a.step == b.step).peekable();
        out.write_all(&Event::first(started).record())?;
        out.write_all(&Event::start(started).record())?;
        for row in &self.timing {
            while let Some(earlier) = metrics.next_if(|earlier| earlier.step < row.step) {
                out.write_all(&Event::from_metrics(earlier, now).record())?;
            }
            now = started + row.wall_s;
            out.write_all(&Event::from_timing(row, now).record())?;
            if row.phase == Phase::Sample
                && let Some(texts) = samples.next_if(|texts| texts.iter().all(|text| text.step <= row.step))
            {
                out.write_all(&Event::from_samples(texts, now).record())?;
            }
        }
        for row in metrics {
            out.write_all(&Event::from_metrics(row, now).record())?;
        }
        for texts in samples {
            out.write_all(&Event::from_samples(texts, now).record())?;
        }
        Ok(())
    }
}

/// Converts a time to seconds since 1970.
fn seconds(time: Timestamp) -> f64 {
    time.as_microsecond() as f64 / 1e6
}

/// Returns the name of an event file that was begun in this second since 1970.
fn file_name(second: i64, number: u32) -> String {
    format!("{PREFIX}{:010}.{number:04}{SUFFIX}", second.max(0))
}

/// Parses the second in an event file's name.
fn second_in_name(path: &Path) -> Option<i64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

/// The event file of a live run.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
    /// Number of bytes in complete records.
    written: u64,
}

impl EventFile {
    /// Creates the event file of this process in its run's folder, writes the existing rows to it, and
    /// removes the files of earlier processes.
    ///
    /// # Errors
    /// If the run's files cannot be read, or the file cannot be written.
    pub fn create(run: &Path, samples: &[Sample]) -> Result<Self> {
        let folder = run.join(TENSORBOARD);
        match std::fs::create_dir(&folder) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.at("create", &folder)?,
        }
        if !folder.symlink_metadata().at("read", &folder)?.is_dir() {
            return Err(Error::usage(format!(
                "{} is a link or not a folder, and xrun does not write through it; remove it and try again",
                folder.display()
            )));
        }
        let before = own_files(&folder)?;
        // Sort the new file after earlier ones by name, even if the clock was set back.
        let last = before.last().and_then(|path| second_in_name(path));
        let second = crate::format::now().as_second().max(last.unwrap_or_default());
        let mut paths = (0..MAX_SAME_SECOND).map(|number| folder.join(file_name(second, number)));
        let path = paths.find(|path| before.last().is_none_or(|last| path > last)).ok_or_else(|| {
            Error::failed(format!("{} has too many event files: remove them", folder.display()))
        })?;
        let file = regular::open_own(File::options().write(true).create_new(true), &path)?;
        let mut out = BufWriter::new(&file);
        History::read(run)?.write(samples, &mut out).and_then(|()| out.flush()).at("write", &path)?;
        drop(out);
        let written = file.metadata().at("read", &path)?.len();
        // Until now a reader had the old files. The start event in the new file makes it discard them.
        before.iter().try_for_each(|old| std::fs::remove_file(old).at("remove", old))?;
        Ok(Self { file, path, written })
    }

    /// Appends an event, which is made for the current time in seconds since 1970.
    ///
    /// # Errors
    /// If the event cannot be written. The file then ends with the record before it.
    pub fn append(&mut self, event: impl FnOnce(f64) -> Event) -> Result<()> {
        let record = event(seconds(crate::format::now())).record();
        if let Err(e) = self.file.write_all(&record) {
            // An incomplete record would hide everything after it.
            let _ = self.file.set_len(self.written);
            self.file.seek(SeekFrom::Start(self.written)).at("seek in", &self.path)?;
            return Err(e).at("write", &self.path);
        }
        self.written += record.len() as u64;
        Ok(())
    }
}

/// Returns the event files that xrun wrote into a folder, sorted by name.
fn own_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).at("list", folder)? {
        let name = entry.at("list", folder)?.file_name();
        let is_own = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        if name.to_str().is_some_and(is_own) {
            found.push(folder.join(name));
        }
    }
    found.sort();
    Ok(found)
}

/// Writes the event file of a run, kept or not, into a folder, and returns its path. The same run files give
/// the same name and bytes.
///
/// # Errors
/// If the run's files cannot be read, or the file cannot be written.
pub fn export(run: &Path, samples: &[Sample], folder: &Path) -> Result<PathBuf> {
    let history = History::read(run)?;
    std::fs::create_dir_all(folder).at("create", folder)?;
    let path = folder.join(file_name(history.started.as_second(), 0));
    atomic::write_with(&path, |out| history.write(samples, out))?;
    Ok(path)
}

#[cfg(test)]
mod tests;
