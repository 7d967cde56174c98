//! Checkpoints written in the background: as safe as those that training waits for, one at a time, and every
//! fault is told to whoever collects the write.

use crate::checkpoint::faulty_fs::{EIO, ENOSPC, Fault, FaultyFs};
use crate::checkpoint::state::{State, newest_of, scratch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use xrun::checkpoint::{
    BackgroundWriter, HeldState, Snapshot, Store, TensorView, Write, Written, newest, steps,
};
use xrun::{Error, Result};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A state that can be held.
struct Held(State);

impl HeldState for Held {
    fn snapshot(&self) -> Snapshot<'_> {
        self.0.snapshot()
    }
}

fn write<S>(state: S, of: &State) -> Write<S> {
    Write { meta: of.meta().clone(), state, before: Box::new(|| Ok(())) }
}

/// A folder with the checkpoint of step 100, which was written by another process.
fn bench(at: &Path) -> (PathBuf, State) {
    let (dir, old) = (at.join("checkpoint"), State::new(100, 1));
    Store::open(&dir, 1).unwrap().save(old.meta(), &old.snapshot()).unwrap();
    (dir, old)
}

fn writer<S: HeldState>(dir: &Path, fs: &FaultyFs, keep: usize) -> Result<BackgroundWriter<S>> {
    Store::open_on(Box::new(fs.clone()), dir, keep).map(|store| BackgroundWriter::new(Arc::new(store)))
}

/// Writes step 200 with the fault at an operation; returns whether it is said to be saved, and whether the
/// operation was reached.
fn met(fault: Fault, at: usize) -> (bool, bool) {
    let place = scratch();
    let (dir, old) = bench(place.path());
    let graves = place.path().join("graves");
    std::fs::create_dir(&graves).unwrap();
    let fs = FaultyFs::calm(&graves);
    let mut writer = writer(&dir, &fs, 1).unwrap();
    fs.arm(at, fault);
    let new = State::new(200, 2);
    writer.start(write(Held(State::new(200, 2)), &new)).unwrap();
    let Written { step, saved, state, .. } = writer.wait().unwrap();
    let reached = fs.operations() > at;
    assert!(step == 200 && state.is_some() && writer.in_flight().is_none());
    let is_new = newest_of(&dir, &[&old, &new]) == Some(1);
    match &saved {
        Ok(saved) => {
            assert!(is_new, "{fault:?} at {at}: it is said to be saved");
            assert_eq!(saved.path, dir.join("step-000200"));
        }
        Err(e) => assert!(e.message().contains("checkpoint of step 200 not saved"), "{e}"),
    }
    // The next process goes on.
    drop(writer);
    fs.restart();
    let next = State::new(300, 3);
    Store::open(&dir, 1).unwrap().save(next.meta(), &next.snapshot()).unwrap();
    assert_eq!(steps(&dir).unwrap(), [300]);
    (saved.is_ok(), reached)
}

#[test]
fn a_fault_at_any_operation_leaves_the_old_or_the_new_checkpoint() {
    for fault in [Fault::Once(ENOSPC), Fault::Once(EIO), Fault::Kill, Fault::LoseContents, Fault::LoseAll] {
        let mut failed = 0;
        let operations = (0..).take_while(|&at| {
            let (saved, reached) = met(fault, at);
            failed += usize::from(!saved);
            assert!(saved || reached, "{fault:?} at {at}: it failed without its fault");
            reached
        });
        let operations = operations.count();
        assert!(operations > 15 && failed > 10, "{fault:?}: {failed} of {operations} failed");
    }
}

/// What a state does when it is read.
enum Reading {
    Panics,
    Fails,
    /// Says that it is read, and waits for a word.
    Waits(Sender<()>, Receiver<()>),
}

/// A state whose last tensor is read as it says.
struct Odd(State, Reading);

// The receiver is used by the one thread that reads.
impl HeldState for Odd {
    fn snapshot(&self) -> Snapshot<'_> {
        let last = TensorView::lazy("odd", safetensors::Dtype::F32, vec![1], || match &self.1 {
            Reading::Panics => panic!("the reader lost its mind"),
            Reading::Fails => Err(Error::failed("the device is lost")),
            Reading::Waits(says, hears) => {
                says.send(()).unwrap();
                hears.recv_timeout(PATIENCE).unwrap();
                Ok(vec![0; 4].into())
            }
        });
        Snapshot::new(
            self.0.tensors().map(|(name, shape, bytes)| TensorView::new(name, shape.to_vec(), bytes)),
            [last],
        )
    }
}

#[test]
fn a_reader_that_fails_or_panics_fails_the_save_and_nothing_else() {
    let place = scratch();
    let (dir, old) = bench(place.path());
    let mut writer = BackgroundWriter::new(Arc::new(Store::open(&dir, 2).unwrap()));
    let (new, odd) = (State::new(200, 2), |reading| Odd(State::new(200, 2), reading));
    for (reading, says) in
        [(Reading::Fails, "the device is lost"), (Reading::Panics, "the reader lost its mind")]
    {
        let panics = matches!(reading, Reading::Panics);
        writer.start(write(odd(reading), &new)).unwrap();
        let written = writer.wait().unwrap();
        let error = written.saved.unwrap_err();
        assert!(error.message().contains("checkpoint of step 200 not saved"), "{error}");
        assert!(error.message().contains(says), "{error}");
        assert_eq!(written.state.is_none(), panics, "the memory comes back unless the thread is lost");
        assert_eq!(newest_of(&dir, &[&old]), Some(0));
    }
    // The writer works on, and the leftovers go.
    let (says, _heard) = channel();
    let (word, hears) = channel();
    word.send(()).unwrap();
    writer.start(write(odd(Reading::Waits(says, hears)), &new)).unwrap();
    writer.wait().unwrap().saved.unwrap();
    assert_eq!(steps(&dir).unwrap(), [100, 200]);
    assert!(
        std::fs::read_dir(&dir).unwrap().all(|e| !e
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with(".tmp-"))
    );
}

#[test]
fn one_write_is_in_flight_and_nothing_is_published_before_its_end() {
    let place = scratch();
    let (dir, old) = bench(place.path());
    let mut writer = BackgroundWriter::new(Arc::new(Store::open(&dir, 2).unwrap()));
    let (says, heard) = channel();
    let (word, hears) = channel();
    let new = State::new(200, 2);
    writer.start(write(Odd(State::new(200, 2), Reading::Waits(says, hears)), &new)).unwrap();
    heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(writer.in_flight(), Some(200));
    assert!(writer.ended().is_none());
    assert_eq!(newest_of(&dir, &[&old]), Some(0));
    let second = writer.start(write(Odd(State::new(201, 2), Reading::Fails), &State::new(201, 2)));
    assert!(second.unwrap_err().message().contains("step 200 is still being written"));
    word.send(()).unwrap();
    let began = Instant::now();
    let written = loop {
        match writer.ended() {
            Some(written) => break written,
            None => assert!(began.elapsed() < PATIENCE),
        }
        std::thread::yield_now();
    };
    assert_eq!(written.saved.unwrap().path, dir.join("step-000200"));
    assert!(writer.in_flight().is_none() && writer.wait().is_none());
    assert_eq!(newest(&dir).unwrap().unwrap().meta().step, 200);
}

#[test]
fn what_a_checkpoint_builds_on_is_durable_first() {
    let place = scratch();
    let (dir, old) = bench(place.path());
    let mut writer = BackgroundWriter::new(Arc::new(Store::open(&dir, 2).unwrap()));
    let new = State::new(200, 2);
    let before = Box::new(|| -> Result<()> { Err(Error::failed("cannot sync metrics.csv")) });
    writer.start(Write { before, ..write(Held(State::new(200, 2)), &new) }).unwrap();
    let error = writer.wait().unwrap().saved.unwrap_err();
    assert!(
        error.message().contains("step 200 not saved") && error.message().contains("metrics.csv"),
        "{error}"
    );
    assert_eq!(newest_of(&dir, &[&old]), Some(0));
    assert_eq!(steps(&dir).unwrap(), [100]);
}
