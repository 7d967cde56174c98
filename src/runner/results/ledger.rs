//! The ledger records every attempt at every cell of every sweep in a results folder, one JSON object per
//! line.
//!
//! ```text
//! sweeps/ledger/HOST-PID-TIME.jsonl   a file per process, only appended to, its lines chained by hash
//! sweeps/.claims/KEY.1                the cell or other thing that a process works on
//! ```
//!
//! An attempt has a line when it starts and one when it ends, or only one if nothing was started. An attempt
//! without a second line died with its sweep, and the next sweep records that in another line. A comparison
//! writes a line for its question before its first run, and one for the answer ([`QuestionLine`]). Any number
//! of processes write at once, each to its own file, and readers merge the files. The table of a sweep
//! consists of one line of each cell ([`Ledger::row`]).

mod attempt;
mod chain;
mod claims;
mod question;
mod writer;

pub use super::names::{LEDGER, LEDGERS, SWEEPS};
use crate::error::{Error, Result};
use crate::results::atomic;
pub use attempt::{Attempt, CellStatus, Measured};
use claims::Claims;
pub use question::{AskedArm, QuestionLine};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use writer::TASK_VARIABLE;
use writer::{LEASE, Liveness, SignOfLife, Source, Writer};

/// The merged lines of the ledger's files, and the file that this process writes.
///
/// Each line gets a higher number than every line that its writer had seen; ties go by file name. So what a
/// writer knew is sorted before what it wrote, whatever its clock says.
#[derive(Debug)]
pub struct Ledger {
    folder: PathBuf,
    sources: BTreeMap<String, Source>,
    writer: Option<Writer>,
    claims: Claims,
    /// True if lines can be appended.
    is_open: bool,
    /// Number and writer of each line in `attempts`.
    order: Vec<Place>,
    attempts: Vec<Attempt>,
    /// The lines about questions, in order, with number and writer.
    questions: Vec<(Place, QuestionLine)>,
    /// Index of each cell's last line.
    last: HashMap<String, usize>,
    /// Index of the line that shows each cell in the tables of sweeps.
    shown: HashMap<String, usize>,
    /// Lines from other processes that [`Ledger::news`] has not returned yet.
    news: Vec<Attempt>,
}

/// Where a line stands in the merged ledger: its number, then its writer. A line with a lower place was
/// written before, whatever the clocks said, unless two processes wrote without knowing of each other.
pub type Place = (u64, String);

/// The folder of claims, inside the folder of sweeps.
pub const CLAIMS: &str = ".claims";

/// Returns the claim's name for something that exists once per machine.
pub fn machine_claim(what: &str) -> String {
    format!("{what}-{}", &blake3::hash(writer::machine_and_boot().as_bytes()).to_hex()[..16])
}

/// Returns the folder that holds the ledger's files.
pub fn folder(results: &Path) -> PathBuf {
    results.join(SWEEPS).join(LEDGERS)
}

/// How far this machine's clock may be ahead of the file system's for [`is_written`].
const CLOCKS: Duration = Duration::from_secs(600);

/// Returns true if a live process on this machine writes the ledger, or if one on another machine did within
/// the lease, as far as clocks can tell.
///
/// # Errors
/// If the folder cannot be read.
pub fn is_written(results: &Path) -> Result<bool> {
    let within = LEASE + CLOCKS;
    let is_recent = |beat: SignOfLife| beat.1.and_then(|at| at.elapsed().ok()).is_none_or(|ago| ago < within);
    Ok(writer::files(&folder(results))?.iter().any(|(_, path)| match writer::life(path) {
        Liveness::Alive => true,
        Liveness::Dead => false,
        Liveness::Elsewhere(beat) => is_recent(beat),
    }))
}

impl Ledger {
    /// Reads the ledger of a results folder, which has no lines if it is missing.
    ///
    /// # Errors
    /// If a line is damaged. An incomplete last line, which a crash may leave, is skipped.
    pub fn read(results: &Path) -> Result<Self> {
        let mut ledger = Self::follow(results);
        ledger.refresh()?;
        ledger.news.clear();
        Ok(ledger)
    }

    /// Returns the ledger of a results folder without any lines; [`Ledger::refresh`] reads them.
    pub fn follow(results: &Path) -> Self {
        let folder = folder(results);
        Self {
            claims: Claims::new(&results.join(SWEEPS).join(CLAIMS), &folder),
            folder,
            sources: BTreeMap::new(),
            writer: None,
            is_open: false,
            order: Vec::new(),
            attempts: Vec::new(),
            questions: Vec::new(),
            last: HashMap::new(),
            shown: HashMap::new(),
            news: Vec::new(),
        }
    }

    /// Opens the ledger of a results folder to append lines and claim cells. This process's file is created
    /// when it is first needed.
    ///
    /// # Errors
    /// If [`Ledger::read`] fails.
    pub fn open(results: &Path) -> Result<Self> {
        let mut ledger = Self::read(results)?;
        ledger.is_open = true;
        Ok(ledger)
    }

    /// Reads what other processes have written since the last call.
    ///
    /// # Errors
    /// If a line is damaged or a file cannot be read.
    pub fn refresh(&mut self) -> Result<()> {
        let mut new: Vec<(Place, Attempt)> = Vec::new();
        for (name, path) in writer::files(&self.folder)? {
            if self.writer.as_ref().is_some_and(|own| own.name == name) {
                continue;
            }
            let source = self.sources.entry(name.clone()).or_insert_with(|| Source::new(&path));
            let lines = source.read()?;
            let asked = source.take_questions().into_iter().map(|(seq, line)| ((seq, name.clone()), line));
            self.questions.extend(asked);
            new.extend(lines.into_iter().map(|(seq, attempt)| ((seq, name.clone()), attempt)));
        }
        self.news.extend(new.iter().map(|(_, attempt)| attempt.clone()));
        self.merge(new);
        self.questions.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(())
    }

    /// Returns the lines of other processes that were read since the last call. Lines read by opening do not
    /// count.
    pub fn news(&mut self) -> Vec<Attempt> {
        std::mem::take(&mut self.news)
    }

    /// Adds lines of other processes in their places.
    fn merge(&mut self, mut new: Vec<(Place, Attempt)>) {
        new.sort_by(|(one, _), (other, _)| one.cmp(other));
        let Some((first, _)) = new.first() else { return };
        let known = self.attempts.len();
        let is_behind = self.order.last().is_none_or(|last| last < first);
        if !is_behind {
            new.extend(self.order.drain(..).zip(self.attempts.drain(..)));
            new.sort_by(|(one, _), (other, _)| one.cmp(other));
            (self.last, self.shown) = Default::default();
        }
        for (place, attempt) in new {
            self.order.push(place);
            self.attempts.push(attempt);
        }
        (if is_behind { known } else { 0 }..self.attempts.len()).for_each(|at| self.index(at));
    }

    /// Takes a line into account, as the last one of its cell and, perhaps, as the one that tables show.
    fn index(&mut self, at: usize) {
        let line = &self.attempts[at];
        // A comparison may run a cell again, to measure it in turns. The row of a sweep is the run that the
        // sweep made, or took over when it was finished.
        let is_settled = |shown: &usize| self.attempts[*shown].status.is_result();
        if line.comparison.is_none() || !self.shown.get(&line.key).is_some_and(is_settled) {
            self.shown.insert(line.key.clone(), at);
        }
        self.last.insert(line.key.clone(), at);
    }

    /// Appends a line, which is on disk when this returns.
    ///
    /// # Errors
    /// If the line cannot be written, or the ledger was opened for reading.
    pub fn append(&mut self, attempt: Attempt) -> Result<()> {
        let seq = self.next_number();
        let writer = self.writer()?;
        writer.append(seq, &attempt)?;
        let name = writer.name.clone();
        self.order.push((seq, name));
        self.attempts.push(attempt);
        self.index(self.attempts.len() - 1);
        Ok(())
    }

    fn next_number(&self) -> u64 {
        let asked = self.questions.last().map_or(0, |((seq, _), _)| *seq);
        self.order.last().map_or(0, |(seq, _)| *seq).max(asked) + 1
    }

    /// Appends a line about a question, which is on disk when this returns.
    ///
    /// # Errors
    /// The same as for [`append`](Self::append).
    pub fn ask(&mut self, question: QuestionLine) -> Result<()> {
        let seq = self.next_number();
        let writer = self.writer()?;
        writer.ask(seq, &question)?;
        let place = (seq, writer.name.clone());
        self.questions.push((place, question));
        Ok(())
    }

    /// Returns the lines about questions, in order.
    pub fn questions(&self) -> &[(Place, QuestionLine)] {
        &self.questions
    }

    /// Returns where the ledger says that a run, named `RECIPE/RUN`, was started; `None` if no line names it.
    pub fn began(&self, run: &str) -> Option<&Place> {
        let first = self.attempts.iter().find(|line| line.run.as_deref() == Some(run))?;
        let is_start = |line: &Attempt| (&line.key, line.attempt) == (&first.key, first.attempt);
        self.attempts.iter().position(is_start).map(|at| &self.order[at])
    }

    /// Returns the hash of a run's rows when it ended; `None` if no line recorded it.
    pub fn rows(&self, run: &str) -> Option<&str> {
        let own = self.attempts.iter().rev().filter(|line| line.run.as_deref() == Some(run));
        own.filter_map(|line| line.rows.as_deref()).next()
    }

    /// Returns the file of the first of these heads that the ledger does not have any more: lines were cut
    /// off or a file was removed.
    pub fn lost<'a>(&self, heads: &'a BTreeMap<String, String>) -> Option<&'a str> {
        let is_there =
            |(name, head): &(&String, &String)| self.sources.get(*name).is_some_and(|one| one.has_line(head));
        heads.iter().find(|head| !is_there(head)).map(|(name, _)| name.as_str())
    }

    /// Claims a cell, or something else that one process uses at a time. Returns false while another live
    /// process has it. After a claim succeeds, everything that the previous holder wrote has been read.
    ///
    /// # Errors
    /// If a file cannot be written or read.
    pub fn claim(&mut self, name: &str) -> Result<bool> {
        let writer = self.writer()?.name.clone();
        let is_claimed = self.claims.take(name, &writer)?;
        if is_claimed && let Err(e) = self.refresh_after_claim() {
            self.release(name);
            return Err(e);
        }
        Ok(is_claimed)
    }

    /// Reads what other processes have written, even if the file system is a network's.
    fn refresh_after_claim(&mut self) -> Result<()> {
        atomic::expire_listing(&self.folder)?;
        self.refresh()
    }

    /// Gives a claim back.
    pub fn release(&mut self, name: &str) {
        if let Some(writer) = &self.writer {
            self.claims.release(name, &writer.name);
        }
    }

    /// Returns the names that other live processes have claimed.
    ///
    /// # Errors
    /// If the claims cannot be read.
    pub fn claimed_by_others(&mut self) -> Result<Vec<String>> {
        let own = self.writer.as_ref().map_or("", |writer| &writer.name);
        self.claims.held_by_others(own)
    }

    /// Returns true if the claims of this process no longer hold, because it showed no sign of life for longer
    /// than the lease. [`renew`](Self::renew) ends that.
    pub fn lease_has_ended(&self) -> bool {
        self.writer.as_ref().is_some_and(Writer::lease_has_ended)
    }

    /// Shows processes on other machines that this one is alive. Call it at least every few seconds.
    pub fn renew(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.renew();
        }
    }

    fn writer(&mut self) -> Result<&mut Writer> {
        if !self.is_open {
            return Err(Error::failed("the ledger was opened for reading"));
        }
        match &mut self.writer {
            Some(writer) => Ok(writer),
            none => Ok(none.insert(Writer::create(&self.folder)?)),
        }
    }

    /// Returns all lines in order.
    pub fn lines(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Returns the hash of each writer's newest line, by the name of its file. Changing any earlier line
    /// changes the hash.
    pub fn heads(&self) -> BTreeMap<String, String> {
        let head = |(name, source): (&String, &Source)| Some((name.clone(), source.head()?.to_owned()));
        self.sources.iter().filter_map(head).collect()
    }

    /// Returns the last line of a cell, which holds its status.
    pub fn last(&self, key: &str) -> Option<&Attempt> {
        self.last.get(key).map(|&at| &self.attempts[at])
    }

    /// Returns the line that shows a cell in the tables of sweeps: the last one of a sweep or, if only
    /// comparisons ran the cell, the first that is a result. Later runs by comparisons do not change it.
    pub fn row(&self, key: &str) -> Option<&Attempt> {
        self.shown.get(key).map(|&at| &self.attempts[at])
    }

    /// Returns the attempts that have begun but not ended, in order.
    pub fn open_attempts(&self) -> Vec<Attempt> {
        let is_last = |at: &usize| self.last.get(&self.attempts[*at].key) == Some(at);
        let is_open = |at: &usize| self.attempts[*at].status == CellStatus::Running && is_last(at);
        (0..self.attempts.len()).filter(is_open).map(|at| self.attempts[at].clone()).collect()
    }

    /// Returns true if the last line of a cell was written on this machine since it booted.
    pub fn was_written_here(&self, key: &str) -> bool {
        let Some((_, writer)) = self.last.get(key).map(|&at| &self.order[at]) else { return false };
        let owner = self.sources.get(writer).and_then(|source| source.owner.as_ref());
        owner.is_none_or(|owner| owner.machine == writer::machine_and_boot())
    }

    /// Returns the task of a batch system that wrote the last line of a cell, if it was one.
    pub fn task_of(&self, key: &str) -> Option<&str> {
        let (_, writer) = self.last.get(key).map(|&at| &self.order[at])?;
        self.sources.get(writer)?.owner.as_ref()?.task.as_deref()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // A run outlives its sweep after an error. Its claim stays, and holds until the lease ends, so that no
        // other machine runs the cell meanwhile; this machine finds the run.
        let runs: HashSet<String> = self.open_attempts().into_iter().map(|open| open.key).collect();
        if let Some(writer) = &self.writer {
            self.claims.release_all(&writer.name, |name| runs.contains(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::attempt::with_key;
    use super::*;
    use std::fs::File;

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
            held_out: BTreeMap::new(),
            rows: None,
            comparison: None,
            at: "2026-01-02T03:04:05Z".to_owned(),
            measured,
        }
    }

    /// Writes three lines and returns the path of their file.
    fn three(results: &Path) -> PathBuf {
        let mut ledger = Ledger::open(results).unwrap();
        for (key, status) in
            [("a", CellStatus::Running), ("b", CellStatus::Skipped), ("a", CellStatus::PredictedOom)]
        {
            ledger.append(attempt(key, status)).unwrap();
        }
        writer::files(&folder(results)).unwrap().pop().unwrap().1
    }

    #[test]
    fn the_last_line_of_a_cell_is_how_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(three(dir.path())).unwrap();
        assert!(
            text.contains("\"status\":\"predicted_oom\"") && text.contains("\"val_loss\":null"),
            "{text}"
        );
        let ledger = Ledger::read(dir.path()).unwrap();
        assert_eq!(ledger.lines().len(), 3);
        assert_eq!(ledger.last("a"), Some(&attempt("a", CellStatus::PredictedOom)));
        assert_eq!(ledger.last("c"), None);
        assert!(Ledger::read(dir.path()).unwrap().append(attempt("a", CellStatus::Ok)).is_err());
    }

    #[test]
    fn a_torn_last_line_is_skipped_wherever_it_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let path = three(dir.path());
        let bytes = std::fs::read(&path).unwrap();
        let last = bytes[..bytes.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        for torn in [last + 1, (last + bytes.len()) / 2, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..torn]).unwrap();
            let mut ledger = Ledger::open(dir.path()).unwrap();
            assert_eq!(ledger.lines().len(), 2);
            // Other processes append to their own files.
            ledger.append(attempt("a", CellStatus::Failed)).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), bytes[..torn]);
            let read = Ledger::read(dir.path()).unwrap();
            assert_eq!(read.last("a").unwrap().status, CellStatus::Failed);
            let own = &ledger.writer.as_ref().unwrap().name;
            std::fs::remove_file(folder(dir.path()).join(own).with_extension("jsonl")).unwrap();
        }
    }

    #[test]
    fn a_line_that_is_changed_removed_or_moved_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = three(dir.path());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let write = |lines: &[&str]| std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        let changed = lines[3].replace("\"loss\":1.5", "\"loss\":1.4");
        assert_ne!(changed, lines[3]);
        for (damaged, number) in [
            (vec![lines[0], &lines[1][1..], lines[2], lines[3]], 2),
            (vec![lines[0], lines[1], lines[2], &changed], 4),
            (vec![lines[0], lines[2], lines[3]], 2),
            (vec![lines[0], lines[1], lines[3], lines[2]], 3),
            (vec![lines[0], lines[1], lines[1], lines[2], lines[3]], 3),
            (vec![lines[1], lines[2], lines[3]], 1),
        ] {
            write(&damaged);
            for error in [Ledger::read(dir.path()).unwrap_err(), Ledger::open(dir.path()).unwrap_err()] {
                let place = format!("{}:{number}: ", path.display());
                assert!(error.message().starts_with(&place), "{error}");
            }
        }
        write(&lines);
        assert_eq!(Ledger::read(dir.path()).unwrap().lines().len(), 3);
    }

    #[test]
    fn what_a_writer_knew_comes_before_what_it_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let [mut one, mut other] = [Ledger::open(dir.path()).unwrap(), Ledger::open(dir.path()).unwrap()];
        let statuses = [CellStatus::Running, CellStatus::Killed, CellStatus::Running, CellStatus::Ok];
        one.append(Attempt { at: "2027".to_owned(), ..attempt("a", statuses[0]) }).unwrap();
        // This writer's clock is behind.
        other.refresh().unwrap();
        assert_eq!((other.news().len(), other.news().len()), (1, 0));
        other.append(Attempt { at: "2025".to_owned(), ..attempt("a", statuses[1]) }).unwrap();
        other.append(attempt("a", statuses[2])).unwrap();
        one.append(attempt("b", CellStatus::Skipped)).unwrap();
        one.refresh().unwrap();
        assert_eq!(one.news().len(), 2);
        one.append(attempt("a", statuses[3])).unwrap();
        other.refresh().unwrap();
        let merged = Ledger::read(dir.path()).unwrap();
        for ledger in [&one, &other] {
            assert_eq!(ledger.lines(), merged.lines());
        }
        let statuses_of_a = merged.lines().iter().filter(|line| line.key == "a").map(|line| line.status);
        assert_eq!(statuses_of_a.collect::<Vec<_>>(), statuses);
    }

    #[test]
    fn a_claim_holds_until_it_is_given_back_or_its_writer_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let [mut one, mut other] = [Ledger::open(dir.path()).unwrap(), Ledger::open(dir.path()).unwrap()];
        assert!(one.claim("a").unwrap() && one.claim("a").unwrap());
        assert!(!other.claim("a").unwrap() && other.claim("b").unwrap());
        assert_eq!(other.claimed_by_others().unwrap(), ["a"]);
        one.append(attempt("a", CellStatus::Ok)).unwrap();
        one.release("a");
        assert!(other.claim("a").unwrap(), "it was given back");
        assert_eq!(other.last("a").unwrap().status, CellStatus::Ok, "and what was done is known");
        // As if the process had been killed: its file stays, its lock goes.
        other.writer = None;
        assert!(one.claim("a").unwrap() && one.claim("b").unwrap());
        one.release("a");
        one.release("b");
        assert_eq!(std::fs::read_dir(dir.path().join(SWEEPS).join(CLAIMS)).unwrap().count(), 0);
    }

    #[test]
    fn at_most_one_of_many_has_a_claim() {
        let dir = tempfile::tempdir().unwrap();
        let holders = std::sync::atomic::AtomicUsize::new(0);
        let taken = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    use std::sync::atomic::Ordering::SeqCst;
                    let mut ledger = Ledger::open(dir.path()).unwrap();
                    for round in 0..30 {
                        if !ledger.claim("a").unwrap() {
                            continue;
                        }
                        assert_eq!(holders.fetch_add(1, SeqCst), 0);
                        taken.fetch_add(1, SeqCst);
                        std::thread::yield_now();
                        assert_eq!(holders.fetch_sub(1, SeqCst), 1);
                        if round % 3 == 0 {
                            // Dies while it holds the claim.
                            ledger.writer = None;
                            ledger = Ledger::open(dir.path()).unwrap();
                        } else {
                            ledger.release("a");
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
    }

    #[test]
    fn what_the_last_holder_wrote_cannot_be_missed_unnoticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(dir.path()).unwrap();
        assert!(ledger.claim("a").unwrap());
        ledger.release("a");
        std::fs::remove_dir_all(folder(dir.path())).unwrap();
        let error = ledger.claim("a").unwrap_err();
        assert!(error.message().contains("cannot create"), "{error}");
        let claims = dir.path().join(SWEEPS).join(CLAIMS);
        assert_eq!(std::fs::read_dir(claims).unwrap().count(), 0, "the claim is given back");
    }

    #[test]
    fn a_writer_elsewhere_is_dead_once_its_file_stays_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let mut chain = chain::Chain::default();
        let head = r#"{"writer":"far-1-2","machine":"another","pid":1,"since":"2026-01-02T03:04:05Z"}"#;
        let folder = folder(dir.path());
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("far-1-2.jsonl");
        std::fs::write(&path, chain.seal(head) + "\n").unwrap();
        let now = std::time::SystemTime::now();
        let touch =
            |at: std::time::SystemTime| File::options().append(true).open(&path).unwrap().set_modified(at);
        assert!(is_written(dir.path()).unwrap());
        let Liveness::Elsewhere(before) = writer::life(&path) else { panic!("it is of this machine") };
        touch(now + LEASE).unwrap();
        let Liveness::Elsewhere(after) = writer::life(&path) else { panic!("it is of this machine") };
        assert_ne!(before, after, "it shows that it lives");
        touch(now - CLOCKS - 2 * LEASE).unwrap();
        assert!(!is_written(dir.path()).unwrap());
        // A claim waits for the lease whatever the file's time says, because clocks differ.
        let claims = dir.path().join(SWEEPS).join(CLAIMS);
        std::fs::create_dir_all(&claims).unwrap();
        std::fs::write(claims.join("a.1"), "far-1-2").unwrap();
        assert!(!Ledger::open(dir.path()).unwrap().claim("a").unwrap());
    }

    #[test]
    fn a_key_that_is_not_a_hash_names_no_file() {
        for key in ["../../a", "aéééééééé", ""] {
            let why = with_key(attempt(key, CellStatus::Ok)).unwrap_err();
            assert!(why.contains("not a hash"), "{why}");
        }
    }
}
