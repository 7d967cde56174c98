//! The first collective of a run: rank 0 sends what it trains, and every other rank checks that it would
//! train the same.

use super::job::Job;
use super::start::Start;
use crate::data::Dataset;
use crate::device::communicator::{Communicator, RankPhase};
use crate::device::cuda::Algorithms;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::recipe::{self, Class};
use crate::tasks::Prepared;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Status of a rank that opens corpus, device and memory.
const STARTS: RankPhase = RankPhase::working("starts");

/// Message from rank 0 to all ranks before the first step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StartMessage {
    version: String,
    recipe: String,
    corpus_hash: String,
    /// The hash of every further held-out set, by name.
    set_hashes: BTreeMap<String, String>,
    /// The hash of every task's definition and files, by name.
    task_hashes: BTreeMap<String, String>,
    /// Folder of the run; other ranks write their logs there if they can see it.
    pub folder: PathBuf,
    /// Number of finished steps. If `restored`, rank 0 sends their state before the next step.
    pub from_step: u64,
    /// True if rank 0 loaded a checkpoint.
    pub restored: bool,
    /// True if rank 0 has initial weights, which it will send.
    pub weights: bool,
    /// True if rank 0 has the optimizer's state to begin with, which it will send.
    pub optimizer: bool,
    /// Number of updates that the optimizer's state has seen before the run's first step.
    pub updates_before: u64,
    /// True if nothing is left to train.
    pub finished: bool,
    /// Table of matrix-product algorithms for all ranks, as JSON.
    pub algorithms: Option<String>,
}

impl StartMessage {
    /// Creates the message of a run that trains; without a `start`, of one whose steps are all done.
    pub fn new(job: &Job, folder: &Path, start: Option<&Start>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            recipe: job.recipe.to_toml(),
            corpus_hash: job.dataset.hash.clone(),
            set_hashes: set_hashes(&job.dataset),
            task_hashes: task_hashes(&job.tasks),
            folder: folder.to_owned(),
            from_step: start.map_or(job.steps(), Start::step),
            restored: start.is_some_and(|start| start.restored().is_some()),
            weights: start.is_some_and(|start| start.weights().is_some()),
            optimizer: start.is_some_and(|start| start.optimizer().is_some()),
            updates_before: start.map_or(0, Start::updates_before),
            finished: start.is_none(),
            algorithms: start.and_then(|start| start.algorithms.as_ref()).map(Algorithms::to_json),
        }
    }

    /// Sends the message from rank 0, which passes it as `own`. Returns it on every rank after checking it
    /// there.
    ///
    /// # Errors
    /// If a rank is lost, or this rank would train something different from rank 0.
    pub fn exchange(comm: &dyn Communicator, job: &Job, own: Option<Self>) -> Result<Self> {
        comm.set_status(0, STARTS);
        let own = own.map(|message| serde_json::to_vec(&message)).transpose();
        let own = own.map_err(|e| Error::failed(format!("the start message: {e}")))?.unwrap_or_default();
        let received = comm.broadcast("the start message", own)?;
        let message: Self = serde_json::from_slice(&received)
            .map_err(|e| Error::failed(format!("the start message of rank 0: {e}")))?;
        message.check(job)?;
        Ok(message)
    }

    /// Fails if this rank would train something different from rank 0.
    fn check(&self, job: &Job) -> Result<()> {
        if self.version != env!("CARGO_PKG_VERSION") {
            return Err(Error::usage(format!(
                "this is xrun {}, but rank 0 is {}",
                env!("CARGO_PKG_VERSION"),
                self.version
            )));
        }
        // Paths may differ between machines. The hashes below compare the content.
        let is_path = |key: &str| {
            let paths = [
                "adapter.init_from",
                "model.init_from",
                "data.chat_template",
                "data.corpus",
                "data.drop",
                "data.tokenizer",
                "data.validation",
                "evaluation.data",
                "evaluation.tasks",
                "validation.sets",
            ];
            paths.contains(&key) || recipe::is_source_path(key)
        };
        let name = Path::new("the recipe of rank 0");
        let theirs = recipe::load_resolved(name, &self.recipe, &[], &Machine::none())?;
        let changes = recipe::diff(theirs.values(), job.recipe.values()).into_iter();
        let differ = changes.filter(|change| change.class != Class::Bookkeeping && !is_path(change.key));
        let differ: Vec<String> = differ
            .map(|change| format!("{} = {} ({} on rank 0)", change.key, change.new, change.old))
            .collect();
        if !differ.is_empty() {
            return Err(Error::usage(format!(
                "this rank's recipe differs from rank 0's: {}. Start all ranks with the same command and environment",
                differ.join(", ")
            )));
        }
        if self.corpus_hash != job.dataset.hash {
            return Err(Error::usage(format!(
                "this rank's corpus has hash {}, but rank 0's has {}: give both the same files",
                job.dataset.hash, self.corpus_hash
            )));
        }
        let (mine, theirs) = (set_hashes(&job.dataset), &self.set_hashes);
        let names: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        let unlike = names.into_iter().find(|name| mine.get(*name) != theirs.get(*name));
        if let Some(name) = unlike {
            return Err(Error::usage(format!(
                "this rank's held-out set {name} differs from rank 0's: give validation.sets the same files on all ranks"
            )));
        }
        match task_hashes(&job.tasks) == self.task_hashes {
            true => Ok(()),
            false => Err(Error::usage(
                "this rank's tasks differ from rank 0's: give evaluation.data, and definitions in evaluation.tasks, the \
                 same files on all ranks",
            )),
        }
    }
}

fn set_hashes(dataset: &Dataset) -> BTreeMap<String, String> {
    dataset.sets.iter().map(|set| (set.name.clone(), set.hash.clone())).collect()
}

fn task_hashes(tasks: &[Prepared]) -> BTreeMap<String, String> {
    let hash = |task: &Prepared| {
        let definition = task.definition();
        (definition.name.clone(), format!("{} {}", definition.hash, task.files_hash()))
    };
    tasks.iter().map(hash).collect()
}
