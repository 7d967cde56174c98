//! A rank whose group is in another process.

use super::connection::{Down, Line, Up};
use super::group::{of_rank, stopped};
use crate::device::communicator::{Activity, Communicator, Deposit, Hook, Outcome};
use crate::error::{Error, Result};
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The communicator of a rank at the end of a line.
pub struct Remote {
    rank: usize,
    world: usize,
    line: Mutex<Line>,
    outcomes: Mutex<Receiver<Outcome>>,
    ending: Arc<Ending>,
}

/// How the run ends for this rank, if not by itself.
#[derive(Default)]
struct Ending(Mutex<End>);

#[derive(Default)]
struct End {
    left: bool,
    step: u64,
    error: Option<Error>,
    hooks: Vec<Hook>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("rank", &self.rank).field("world", &self.world).finish_non_exhaustive()
    }
}

impl Remote {
    /// A rank that talks to its group over `line`; `far_end` names who is there, and `stop` is called when it asks the
    /// run to save and stop.
    ///
    /// # Errors
    /// When no thread or handle can be had.
    pub fn new(
        rank: usize,
        world: usize,
        line: Line,
        far_end: &str,
        stop: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let failed = |e| Error::failed(format!("cannot listen to {far_end}: {e}"));
        let reading = line.another().map_err(failed)?;
        let (sender, outcomes) = channel();
        let ending = Arc::new(Ending::default());
        let ends = Arc::clone(&ending);
        let lost = Error::failed(format!("{far_end} is gone: the line to it was closed"));
        let listen = move || match listen(reading, &sender, &stop) {
            // Once this rank owes nobody an answer, the others may close the line.
            None if ends.lock().left => {}
            error => ends.end(&error.unwrap_or(lost)),
        };
        std::thread::Builder::new().name("xrun-line".to_owned()).spawn(listen).map_err(failed)?;
        Ok(Self { rank, world, line: Mutex::new(line), outcomes: Mutex::new(outcomes), ending })
    }

    fn send(&self, header: &Up, body: &[u8]) -> Result<()> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // Why the line is down, the thread that listens knows.
        line.send(header, &[body]).map_err(|e| self.ending.error(&format!("the line is closed: {e}")))
    }
}

/// Takes what comes until the line ends; the reason that was given for it, if one was.
fn listen(mut line: Line, outcomes: &Sender<Outcome>, stop: &impl Fn()) -> Option<Error> {
    loop {
        match line.receive::<Down>() {
            Ok((Down::Outcome { kind, lengths }, body)) => match Outcome::of(kind, &lengths, &body) {
                // Nobody waits any more where this rank is on its way out.
                Ok(outcome) => drop(outcomes.send(outcome)),
                Err(e) => return Some(Error::failed(e.to_string())),
            },
            Ok((Down::Ended { kind, reason }, _)) => return Some(Error::new(kind, reason)),
            Ok((Down::Stop, _)) => stop(),
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                return Some(Error::failed(e.to_string()));
            }
            Err(_) => return None,
        }
    }
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, End> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, error: &Error) {
        let mut end = self.lock();
        let error = end.error.get_or_insert_with(|| error.clone()).clone();
        let hooks = std::mem::take(&mut end.hooks);
        drop(end);
        hooks.into_iter().for_each(|hook| hook(&error));
    }

    fn error(&self, otherwise: &str) -> Error {
        stopped(&self.lock().error.clone().unwrap_or_else(|| Error::failed(otherwise)))
    }
}

impl Communicator for Remote {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn meet(&self, meeting: &str, mine: Deposit) -> Result<Arc<Outcome>> {
        // One meeting at a time: an outcome belongs to whoever asked.
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&Up::Meet { meeting: meeting.to_owned(), kind: mine.kind() }, mine.body())?;
        outcomes.recv().map(Arc::new).map_err(|_| self.ending.error("the line is closed"))
    }

    fn now(&self, step: u64, activity: Activity) {
        let mut end = self.ending.lock();
        (end.left, end.step) = (activity == Activity::Left, step);
        drop(end);
        // A line that is down shows at the next meeting.
        let _ = self.send(&Up::Now { step, activity }, &[]);
    }

    fn last_words(&self, words: &[u8]) {
        let _ = self.send(&Up::LastWords, words);
    }

    fn abort(&self, error: &Error) {
        let _ = self.send(&Up::Abort { kind: error.kind(), reason: error.message().to_owned() }, &[]);
        // As the group will call it, which may hear of it later than this rank looks.
        let step = self.ending.lock().step;
        self.ending.end(&of_rank(self.rank, step, error));
    }

    fn ended(&self) -> Option<Error> {
        self.ending.lock().error.clone()
    }

    fn on_abort(&self, hook: Hook) {
        let mut end = self.ending.lock();
        match end.error.clone() {
            None => end.hooks.push(hook),
            Some(error) => {
                drop(end);
                hook(&error);
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.line.lock().unwrap_or_else(PoisonError::into_inner).close();
    }
}
