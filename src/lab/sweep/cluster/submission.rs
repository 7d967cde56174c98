//! The files of a submission, from which its tasks know what to run.
//!
//! ```text
//! sweeps/.submitted/NAME/ID/submission.json   the cells of each task, and the batch system
//! sweeps/.submitted/NAME/ID/*.toml            the recipes as they were submitted, all layers in one
//! sweeps/.submitted/NAME/ID/*.sh, *.log       the scripts of its jobs and the output of their tasks
//! sweeps/.submitted/programs/HASH/xrun        the program that submitted, which the tasks run
//! ```
//!
//! NAME is a sweep's, or a comparison's after `compare+`, which no sweep's name has.

use crate::error::{Error, IoContext, Result};
use crate::executor::batch_system::{BatchSystem, QueuedTask, SystemRecord};
use crate::executor::recorded_system;
use crate::ranks::process::own_program;
use crate::regular;
use crate::results::atomic;
use crate::results::ledger::SWEEPS;
use crate::results::progress::eprint_line;
use crate::results::provenance::own_binary_hash;
use crate::sweep::schedule::TaskStage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The folder of submissions, inside the folder of sweeps.
pub const SUBMITTED: &str = ".submitted";

/// The folder of the programs that tasks run, inside the folder of submissions.
const PROGRAMS: &str = "programs";

const FILE: &str = "submission.json";

/// A submission and its folder. `W` is what was submitted.
#[derive(Debug)]
pub struct Submission<W> {
    /// Its folder, an absolute path.
    pub folder: PathBuf,
    /// Its content.
    pub content: Content<W>,
}

/// What `submission.json` says.
#[derive(Debug, Serialize, Deserialize)]
pub struct Content<W> {
    /// Name of the folder above the submission's.
    pub name: String,
    /// What was submitted.
    pub work: W,
    /// How often a task is queued again whose time runs out.
    pub most_requeues: usize,
    /// What each task runs.
    pub tasks: Vec<TaskWork>,
    /// The jobs that the tasks are divided into.
    pub jobs: Vec<SubmittedJob>,
    /// The batch system that has the jobs.
    #[serde(default)]
    pub system: SystemRecord,
}

/// Consecutive tasks that are one job of the batch system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedJob {
    /// Its name in the batch system, which no other job has.
    pub name: String,
    /// Its first task.
    pub first: usize,
    /// Its number of tasks.
    pub count: usize,
    /// Its tasks start when those of all jobs with a lower stage have ended.
    pub stage: usize,
}

/// What a task runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskWork {
    /// These cells, as indices in the sweep's `cells.json`.
    Cells(Vec<usize>),
    /// Cells that the ledger chooses when the task runs, in a sweep with rungs.
    Stage(TaskStage),
}

/// Returns the folder of the submissions of a sweep or comparison.
fn above(results: &Path, name: &str) -> PathBuf {
    results.join(SWEEPS).join(SUBMITTED).join(name)
}

/// Creates the folder of a new submission of the sweep or comparison `name`, and returns its path.
///
/// # Errors
/// If it cannot be created.
pub fn create_folder(results: &Path, name: &str) -> Result<PathBuf> {
    let above = std::path::absolute(above(results, name)).at("find", results)?;
    let id = format!("{}-{}", crate::format::now().strftime("%Y%m%dT%H%M%SZ"), std::process::id());
    let folder = above.join(id);
    std::fs::create_dir_all(&above).at("create", &above)?;
    std::fs::create_dir(&folder).at("create", &folder)?;
    Ok(folder)
}

impl<W: Serialize> Submission<W> {
    /// Writes `submission.json`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self) -> Result<()> {
        atomic::write(&self.folder.join(FILE), &atomic::json(&self.content)?)
    }
}

impl<W: DeserializeOwned> Submission<W> {
    /// Reads the submission in a folder.
    ///
    /// # Errors
    /// If it cannot be read, or is not a submission.
    pub fn read(folder: &Path) -> Result<Self> {
        let folder = std::path::absolute(folder).at("find", folder)?;
        let path = folder.join(FILE);
        let bytes = regular::read(&path, regular::MAX_TEXT)?;
        let content: Content<W> = atomic::parse_json(&path, &bytes, "a submission")?;
        Ok(Self { folder, content })
    }

    /// Returns the submissions of a sweep or comparison, the oldest first. Leaves out folders without
    /// `submission.json`, because the command that wrote them ended before it submitted anything.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn all(results: &Path, name: &str) -> Result<Vec<Self>> {
        let above = above(results, name);
        let entries = match std::fs::read_dir(&above) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at("read", &above)?,
        };
        let mut folders: Vec<PathBuf> = Vec::new();
        for entry in entries {
            folders.push(entry.at("read", &above)?.path());
        }
        folders.sort();
        folders.iter().filter(|folder| folder.join(FILE).is_file()).map(|folder| Self::read(folder)).collect()
    }
}

impl<W> Submission<W> {
    /// Copies this program beside the submissions and returns the copy's path. Tasks run the copy: if the
    /// program were built anew while they wait, their cells would have other keys.
    ///
    /// # Errors
    /// If it cannot be copied.
    pub fn keep_program(&self) -> Result<PathBuf> {
        let (running, name) = own_program()?;
        let hash = own_binary_hash().ok_or_else(|| {
            Error::failed(format!("cannot read {}, the program that is to run the tasks", name.display()))
        })?;
        let above = self.folder.ancestors().nth(2).unwrap_or(&self.folder);
        let folder = above.join(PROGRAMS).join(hash.get(..16).unwrap_or(hash));
        let program = folder.join("xrun");
        std::fs::create_dir_all(&folder).at("create", &folder)?;
        if !regular::is_file(&program) {
            let mut own = regular::open_through_link(&running)?;
            atomic::write_with(&program, |out| std::io::copy(&mut own, out).map(drop))?;
        }
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).at("write", &program)?;
        Ok(program)
    }

    /// Returns the results folder that the submission is in.
    ///
    /// # Errors
    /// If it is in none.
    pub fn results(&self) -> Result<&Path> {
        // RESULTS/sweeps/.submitted/SWEEP/ID
        self.folder.ancestors().nth(4).ok_or_else(|| {
            Error::usage(format!("{} is not in the folder of a sweep's submissions", self.folder.display()))
        })
    }

    /// Returns the batch system that has the jobs, for one of its tasks.
    pub fn system(&self) -> Box<dyn BatchSystem> {
        recorded_system(&self.content.system, vec![self.folder.clone()], &[])
    }

    /// Returns the job of the last tasks, which run what the others left.
    pub fn last_job(&self) -> SubmittedJob {
        let name = format!("{}-last", job_name(&self.content.name, &self.folder));
        let stage = self.content.jobs.iter().map(|job| job.stage + 1).max().unwrap_or(0);
        SubmittedJob { name, first: self.content.tasks.len(), count: self.system().last_tasks(), stage }
    }

    /// Returns what a task runs; `None` for the last ones.
    ///
    /// # Errors
    /// If there is no such task.
    pub fn work_of(&self, task: usize) -> Result<Option<&TaskWork>> {
        let last = self.last_job();
        let count = last.first + last.count;
        if task >= count {
            return Err(Error::usage(format!(
                "{} has {count} tasks; there is no task {task}",
                self.folder.display()
            )));
        }
        Ok(self.content.tasks.get(task))
    }

    /// Queues the task of this process again, whose time ends, and says whether it is.
    pub fn requeue(&self, system: &dyn BatchSystem) {
        match system.requeue_own_task(self.content.most_requeues) {
            Ok(true) => eprint_line("the time of this task ends; it is queued again and continues"),
            Ok(false) => eprint_line(&format!(
                "the task ends and is not queued again, which is done at most {} times; submit again to continue",
                self.content.most_requeues
            )),
            Err(e) => {
                eprint_line(&format!("warning: the task is not queued again: {e}; submit again to continue"))
            }
        }
    }

    /// Returns the names of all jobs, the last one included.
    fn job_names(&self) -> Vec<String> {
        let last = self.last_job();
        self.content.jobs.iter().map(|job| job.name.clone()).chain([last.name]).collect()
    }

    /// Returns the batch systems of submissions, each with the names of its jobs. `ssh_command` is the command
    /// of the user's own settings.
    pub fn by_system(
        submissions: &[Self],
        ssh_command: &[String],
    ) -> Vec<(Box<dyn BatchSystem>, Vec<String>)> {
        let mut by_system: BTreeMap<&SystemRecord, Vec<&Self>> = BTreeMap::new();
        for one in submissions {
            by_system.entry(&one.content.system).or_default().push(one);
        }
        let open = |(record, own): (&SystemRecord, Vec<&Self>)| {
            let system =
                recorded_system(record, own.iter().map(|one| one.folder.clone()).collect(), ssh_command);
            (system, own.iter().flat_map(|one| one.job_names()).collect())
        };
        by_system.into_iter().map(open).collect()
    }

    /// Returns the tasks of submissions that have not ended.
    ///
    /// # Errors
    /// If a batch system does not answer.
    pub fn queued(submissions: &[Self], ssh_command: &[String]) -> Result<Vec<QueuedTask>> {
        let by_system = Self::by_system(submissions, ssh_command);
        let tasks = by_system.iter().map(|(system, names)| system.queued(names));
        Ok(tasks.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the cells, of `count` in the sweep, that a task may run; none for unknown tasks and for the
    /// last one, which runs what is left.
    pub fn cells_of(&self, task: &QueuedTask, count: usize) -> Vec<usize> {
        let job = self.content.jobs.iter().find(|job| job.name == task.name);
        let work = job.and_then(|job| self.content.tasks.get(job.first + task.index));
        work.map(|work| work.cells(count)).unwrap_or_default()
    }
}

/// Returns the beginning of the names of the jobs of a submission. No other submission has it.
pub fn job_name(name: &str, folder: &Path) -> String {
    let id = folder.file_name().unwrap_or_default().to_string_lossy();
    format!("xrun-{name}-{id}")
}

impl TaskWork {
    /// Returns the cells, of `count` in the sweep, that the task may run.
    pub fn cells(&self, count: usize) -> Vec<usize> {
        match self {
            Self::Cells(cells) => cells.clone(),
            Self::Stage(_) => (0..count).collect(),
        }
    }
}
