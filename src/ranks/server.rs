//! The group's end of the lines to ranks in other processes.

use super::connection::{Down, Line, Up};
use super::group::Group;
use crate::device::communicator::Deposit;
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long who leaves waits until all have been told why. A word of a few bytes takes none of it, but for a rank that does
/// not read.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves the ranks at the ends of lines: two threads each, one that reads, and one that waits in meetings for it.
pub struct Hub {
    group: Arc<Group>,
    lines: Arc<Lines>,
    /// The lines once more: closed, they wake whoever writes on them.
    closing: Vec<Line>,
    last_words: Arc<LastWords>,
    readers: Vec<JoinHandle<()>>,
}

/// What ranks left behind, by rank.
type LastWords = Mutex<BTreeMap<usize, Vec<u8>>>;

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("lines", &self.closing.len()).finish()
    }
}

/// What is done when the line to a rank ends before the rank said that it was done.
pub type Lost = Arc<dyn Fn(usize) + Send + Sync>;

impl Hub {
    /// Begins to serve.
    ///
    /// # Errors
    /// When no thread or handle can be had.
    pub fn serve(group: &Arc<Group>, lines: Vec<(usize, Line)>, lost: Lost) -> Result<Self> {
        let failed = |e: std::io::Error| Error::failed(format!("cannot serve ranks: {e}"));
        let (mut writing, mut closing, mut readers) = (Vec::new(), Vec::new(), Vec::new());
        let last_words: Arc<LastWords> = Arc::default();
        for (rank, line) in lines {
            let reading = line.another().map_err(failed)?;
            closing.push(line.another().map_err(failed)?);
            let line = Arc::new(Mutex::new(line));
            let (sender, brought) = channel();
            let spawn = |what: &str, body: Box<dyn FnOnce() + Send>| {
                std::thread::Builder::new().name(format!("xrun-{what}-{rank}")).spawn(body).map_err(failed)
            };
            let (here, lost, words) = (Arc::clone(group), Arc::clone(&lost), Arc::clone(&last_words));
            let reader = spawn("line", Box::new(move || read(&here, rank, reading, &sender, &lost, &words)))?;
            readers.push(reader);
            let (here, line_of_worker) = (Arc::clone(group), Arc::clone(&line));
            spawn("meets", Box::new(move || attend(&here, rank, &brought, &line_of_worker)))?;
            writing.push(line);
        }
        let lines = Arc::new(Lines { lines: writing, telling: Mutex::default() });
        let told = Arc::clone(&lines);
        group.on_abort(Box::new(move |error| told.tell(error)));
        Ok(Self { group: Arc::clone(group), lines, closing, last_words, readers })
    }

    /// How a rank said that it ended, once all lines are closed by the ranks.
    pub fn last_words(mut self, rank: usize) -> Option<Vec<u8>> {
        for reader in self.readers.drain(..) {
            // A reader that panicked has said so already.
            let _ = reader.join();
        }
        self.last_words.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank)
    }

    /// Asks every rank to save and stop.
    pub fn ask_to_stop(&self) {
        self.lines.say(&Down::Stop);
    }
}

impl Drop for Hub {
    /// Who ends a run and leaves must not close the lines before the others know why.
    fn drop(&mut self) {
        if let Some(error) = self.group.ended() {
            self.lines.tell(&error);
            self.lines.wait(FAREWELL);
        }
        self.closing.iter().for_each(Line::close);
    }
}

/// The lines to write on.
struct Lines {
    lines: Vec<Arc<Mutex<Line>>>,
    /// Once all are being told that the run is ended: closed when all have been.
    telling: Mutex<Option<Receiver<Infallible>>>,
}

impl Lines {
    /// Says something to every rank, each on a thread of its own: one that does not read its line must not keep the others
    /// from hearing. What is returned closes when all are done with it.
    fn say(&self, word: &Down) -> Receiver<Infallible> {
        let (says, said) = channel();
        for line in &self.lines {
            let (line, word, says) = (Arc::clone(line), word.clone(), says.clone());
            let body = move || {
                // One that is gone needs no word.
                let _ = send(&line, &word, &[]);
                drop(says);
            };
            // Without a thread it goes unsaid; the rank sees its line end.
            let _ = std::thread::Builder::new().name("xrun-says".to_owned()).spawn(body);
        }
        said
    }

    /// Begins to tell every rank, once, that the run is ended.
    fn tell(&self, why: &Error) {
        let mut telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        telling.get_or_insert_with(|| self.say(&Down::ended(why)));
    }

    /// Waits until every rank has been told, at most this long.
    fn wait(&self, patience: Duration) {
        if let Some(told) = &*self.telling.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = told.recv_timeout(patience);
        }
    }
}

/// Tells a rank, which has joined already, that there will be no run.
pub fn turn_away(mut line: Line, why: &Error) {
    // One that is gone needs no word.
    let _ = line.send(&Down::ended(why), &[]);
}

fn send(line: &Mutex<Line>, header: &Down, body: &[&[u8]]) -> std::io::Result<()> {
    line.lock().unwrap_or_else(PoisonError::into_inner).send(header, body)
}

/// Takes what a rank says until its line ends.
fn read(
    group: &Group,
    rank: usize,
    mut line: Line,
    brought: &Sender<(String, Deposit)>,
    lost: &Lost,
    words: &LastWords,
) {
    loop {
        match line.receive::<Up>() {
            Ok((Up::Meet { meeting, kind }, body)) => match Deposit::of(kind, body) {
                Ok(deposit) => drop(brought.send((meeting, deposit))),
                Err(e) => group.abort_by(rank, &Error::failed(e.to_string())),
            },
            Ok((Up::Now { step, activity }, _)) => group.now(rank, step, activity),
            Ok((Up::LastWords, said)) => {
                words.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, said);
            }
            Ok((Up::Abort { kind, reason }, _)) => group.abort_by(rank, &Error::new(kind, reason)),
            Err(e) => {
                if e.kind() == std::io::ErrorKind::InvalidData {
                    group.abort_by(rank, &Error::failed(e.to_string()));
                } else if !group.has_left(rank) {
                    lost(rank);
                }
                return;
            }
        }
    }
}

/// Goes to meetings in a rank's place, and tells it what came of them.
fn attend(group: &Group, rank: usize, brought: &Receiver<(String, Deposit)>, line: &Mutex<Line>) {
    while let Ok((meeting, deposit)) = brought.recv() {
        // Whoever ends a run tells every line.
        let Ok(outcome) = group.meet(rank, &meeting, deposit) else { return };
        let body = outcome.body();
        let lengths = body.iter().map(|part| part.len() as u64).collect();
        if send(line, &Down::Outcome { kind: outcome.kind(), lengths }, &body).is_err() {
            return;
        }
    }
}
