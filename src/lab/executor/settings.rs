//! The settings of a site: which partition, account and limits its batch system wants, or which hosts it has.
//!
//! They are no part of a recipe, because a recipe trains the same model everywhere. They are in a file of
//! their own, `xrun.toml` in the working folder or in the user's configuration folder.

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::ranks::environment;
use crate::regular;
use crate::results::names::file_part;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The name of the file.
const FILE: &str = "xrun.toml";

/// The content of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteFile {
    #[serde(default)]
    executor: Executors,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Executors {
    #[serde(default)]
    slurm: SlurmSettings,
    #[serde(default)]
    ssh: SshSettings,
}

/// Most tasks of Slurm, if the settings do not say how many cells a task has. Each task is a file of the
/// ledger, which every later task reads.
const MOST_TASKS: usize = 1000;

/// How the cells of a sweep are divided into tasks, and what a task may use.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSettings {
    /// The machine that cells are planned for.
    pub machine: Machine,
    /// CPU threads of a task; `None` for as many as the plan uses, and 8 with a GPU.
    pub cpus: Option<usize>,
    /// Host memory of a task in MiB; `None` for what the plan needs.
    pub memory_mib: Option<u64>,
    /// Time of a task in minutes; `None` for what the plan predicts.
    pub minutes: Option<u64>,
    /// False if a task may take as long as it wants, so that its time need not be known.
    pub has_time_limit: bool,
    /// Cells of a task; `None` for as few as `most_tasks` allows.
    pub cells_per_task: Option<usize>,
    /// Most tasks if `cells_per_task` is not set.
    pub most_tasks: usize,
    /// How often a task whose time runs out is queued again.
    pub most_requeues: usize,
}

/// `[executor.slurm]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlurmSettings {
    /// `--partition`.
    pub partition: Option<String>,
    /// `--account`.
    pub account: Option<String>,
    /// `--qos`.
    pub qos: Option<String>,
    /// `--constraint`.
    pub constraint: Option<String>,
    /// The type of GPU in `--gres=gpu:TYPE:N`.
    pub gpu_type: Option<String>,
    /// The GPUs of the nodes, as `xrun plan --on` names them; `None` for those of this machine.
    pub device: Option<String>,
    /// How the GPUs of a node are linked, in the terms of `nvidia-smi topo -m`.
    pub gpu_links: Option<String>,
    /// CPU threads of a task; `None` for as many as the plan uses, and 8 with a GPU.
    pub cpus: Option<usize>,
    /// Host memory of a task in MiB; `None` for what the plan needs.
    pub memory_mib: Option<u64>,
    /// Time of a task in minutes; `None` for what the plan predicts.
    pub minutes: Option<u64>,
    /// Most tasks of an array that run at once.
    pub throttle: usize,
    /// Cells that a task runs, one after another; `None` for one, or more if there were over a thousand
    /// tasks.
    pub cells_per_task: Option<usize>,
    /// How often a task whose time runs out is queued again.
    pub most_requeues: usize,
    /// Further options of `sbatch`, such as `--exclusive`.
    pub extra: Vec<String>,
    /// Lines of the script before xrun starts, such as `module load cuda`.
    pub setup: Vec<String>,
}

impl Default for SlurmSettings {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            qos: None,
            constraint: None,
            gpu_type: None,
            device: None,
            gpu_links: None,
            cpus: None,
            memory_mib: None,
            minutes: None,
            throttle: 256,
            cells_per_task: None,
            most_requeues: 50,
            extra: Vec::new(),
            setup: Vec::new(),
        }
    }
}

impl SlurmSettings {
    /// Reads the settings of a file or, without one, of the first that exists: `xrun.toml` here, then
    /// `xrun/xrun.toml` in the user's configuration folder. Without either, everything has its default.
    ///
    /// # Errors
    /// A usage error that names the file and the line if the file is wrong.
    pub fn load(file: Option<&Path>) -> Result<Self> {
        Ok(Executors::load(file)?.slurm)
    }

    /// Returns how cells are divided into tasks.
    ///
    /// # Errors
    /// A usage error if `device` is unknown.
    pub fn tasks(&self) -> Result<TaskSettings> {
        Ok(TaskSettings {
            machine: node_machine("slurm", self.device.as_deref(), self.gpu_links.as_deref())?,
            cpus: self.cpus,
            memory_mib: self.memory_mib,
            minutes: self.minutes,
            has_time_limit: true,
            cells_per_task: self.cells_per_task,
            most_tasks: MOST_TASKS,
            most_requeues: self.most_requeues,
        })
    }

    fn check(&self, path: &Path) -> Result<()> {
        let counts = [
            ("throttle", Some(self.throttle)),
            ("cells_per_task", self.cells_per_task),
            ("cpus", self.cpus),
            ("minutes", self.minutes.map(|minutes| minutes as usize)),
            ("memory_mib", self.memory_mib.map(|memory| memory as usize)),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(Error::usage(format!(
                "{}: executor.slurm.{key} = 0; set at least 1",
                path.display()
            )));
        }
        let texts = [&self.partition, &self.account, &self.qos, &self.constraint, &self.gpu_type];
        let lines = texts.into_iter().flatten().chain(&self.extra).chain(&self.setup);
        check_lines("slurm", lines, path)
    }
}

/// `[executor.ssh]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SshSettings {
    /// The hosts that run tasks, as `ssh` knows them.
    pub hosts: Vec<String>,
    /// The program `ssh` and its first arguments.
    pub command: Vec<String>,
    /// Lines of the script before xrun starts, such as `module load cuda`.
    pub setup: Vec<String>,
    /// The GPUs of the hosts, as `xrun plan --on` names them; `None` for those of this machine.
    pub device: Option<String>,
    /// How the GPUs of a host are linked, in the terms of `nvidia-smi topo -m`.
    pub gpu_links: Option<String>,
}

impl Default for SshSettings {
    fn default() -> Self {
        let command = vec!["ssh".to_owned()];
        Self { hosts: Vec::new(), command, setup: Vec::new(), device: None, gpu_links: None }
    }
}

impl SshSettings {
    /// Reads the settings from the file that [`SlurmSettings::load`] reads. `hosts`, unless they are empty,
    /// replace its hosts.
    ///
    /// # Errors
    /// A usage error that names the file and the line if the file is wrong, or if there are no hosts or
    /// unusable ones.
    pub fn load(file: Option<&Path>, hosts: &[String]) -> Result<Self> {
        let mut settings = Executors::load(file)?.ssh;
        if !hosts.is_empty() {
            settings.hosts = hosts.to_vec();
        }
        check_hosts(&settings.hosts)?;
        Ok(settings)
    }

    /// Reads only the command.
    ///
    /// # Errors
    /// A usage error that names the file and the line if the file is wrong.
    pub fn load_command(file: Option<&Path>) -> Result<Vec<String>> {
        Ok(Executors::load(file)?.ssh.command)
    }

    /// Returns how cells are divided into tasks: every host has one.
    ///
    /// # Errors
    /// A usage error if `device` is unknown.
    pub fn tasks(&self) -> Result<TaskSettings> {
        Ok(TaskSettings {
            machine: node_machine("ssh", self.device.as_deref(), self.gpu_links.as_deref())?,
            cpus: None,
            memory_mib: None,
            minutes: None,
            has_time_limit: false,
            cells_per_task: None,
            most_tasks: self.hosts.len(),
            most_requeues: 0,
        })
    }

    fn check(&self, path: &Path) -> Result<()> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(Error::usage(format!(
                "{}: executor.ssh.command names no program; set it to [\"ssh\"] or remove it",
                path.display()
            )));
        }
        check_lines("ssh", self.command.iter().chain(&self.setup), path)
    }
}

/// Returns the machine that cells are planned for: this one, or one with the GPUs that `[executor.NAME]` names.
fn node_machine(name: &str, device: Option<&str>, gpu_links: Option<&str>) -> Result<Machine> {
    let here = environment::machine();
    let Some(device) = device else { return Ok(here) };
    let wrong = |why: &str| Error::usage(format!("executor.{name}.device = {device:?}: {why}"));
    let Machine { hardware, gpus, .. } = Machine::named(device).map_err(|e| wrong(e.message()))?;
    if hardware.is_some_and(|hardware| hardware.memory_bytes.is_none()) {
        return Err(wrong("it names the GPUs of the nodes; leave it out, and set engine.device = \"cpu\""));
    }
    Ok(Machine { hardware, gpus, gpu_links: gpu_links.map(str::to_owned), ..here })
}

/// Checks that `ssh` takes each host for a host, and that each has its own files.
///
/// # Errors
/// A usage error that names the host, or if there are none.
pub(super) fn check_hosts(hosts: &[String]) -> Result<()> {
    if hosts.is_empty() {
        return Err(Error::usage(
            "--executor ssh has no hosts; name them with --hosts a,b,c, or in xrun.toml with \
             hosts = [\"a\", \"b\"] under [executor.ssh]",
        ));
    }
    let mut names: BTreeMap<String, &String> = BTreeMap::new();
    for host in hosts {
        // ssh would take a leading hyphen for an option, and may hand the name to a shell.
        let is_plain = |c: char| c.is_alphanumeric() || "._-@:[]%/".contains(c);
        if host.is_empty() || host.starts_with('-') || !host.chars().all(is_plain) {
            return Err(Error::usage(format!(
                "{host:?} is not the name of a host; correct it in --hosts or executor.ssh.hosts"
            )));
        }
        if let Some(other) = names.insert(file_part(host), host) {
            return Err(Error::usage(format!(
                "the hosts {other} and {host} would have the same files; name each host once, or give one an \
                 alias in ssh's configuration"
            )));
        }
    }
    Ok(())
}

/// Checks that each of these texts of `[executor.NAME]` is one line.
fn check_lines<'a>(name: &str, mut lines: impl Iterator<Item = &'a String>, path: &Path) -> Result<()> {
    match lines.find(|text| text.contains(['\n', '\r', '\0'])) {
        None => Ok(()),
        Some(line) => Err(Error::usage(format!(
            "{}: executor.{name} has {line:?} with a line break; write one option or line per string",
            path.display()
        ))),
    }
}

impl Executors {
    /// Reads a file or, without one, the first that exists.
    fn load(file: Option<&Path>) -> Result<Self> {
        let found = file.map(Path::to_owned).or_else(|| candidates().into_iter().find(|path| path.is_file()));
        let Some(path) = found else { return Ok(Self::default()) };
        Self::parse(&regular::read_text(&path)?, &path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let file: SiteFile = toml::from_str(text).map_err(|e| {
            let line =
                e.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            Error::usage(format!("{}:{line}: {}", path.display(), e.message()))
        })?;
        file.executor.slurm.check(path)?;
        file.executor.ssh.check(path)?;
        Ok(file.executor)
    }
}

/// Returns where the file may be, the nearest first.
fn candidates() -> Vec<PathBuf> {
    let configuration =
        std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let folder = configuration.or(home).map(|folder| folder.join("xrun").join(FILE));
    [PathBuf::from(FILE)].into_iter().chain(folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_is_an_error_with_its_line() {
        let parse = |text: &str| Executors::parse(text, Path::new("xrun.toml"));
        let read = parse("[executor.slurm]\npartition = \"gpu\"\nextra = [\"--exclusive\"]\n").unwrap().slurm;
        assert_eq!(read.partition.as_deref(), Some("gpu"));
        assert_eq!(
            read,
            SlurmSettings {
                partition: read.partition.clone(),
                extra: read.extra.clone(),
                ..SlurmSettings::default()
            }
        );
        for (text, said) in [
            ("[executor.slurm]\n\npartitions = \"gpu\"\n", "xrun.toml:3: unknown field `partitions`"),
            ("[executor.slurm]\nthrottle = \"many\"\n", "xrun.toml:2: invalid type"),
            ("[executor.slurm]\nthrottle = 0\n", "executor.slurm.throttle = 0"),
            ("[executor.slurm]\nsetup = [\"a\\nb\"]\n", "line break"),
            ("[slurm]\n", "xrun.toml:1: unknown field `slurm`"),
            ("[executor.ssh]\nhost = [\"a\"]\n", "xrun.toml:2: unknown field `host`"),
            ("[executor.ssh]\ncommand = []\n", "executor.ssh.command names no program"),
            ("[executor.ssh]\nsetup = [\"a\\nb\"]\n", "executor.ssh has \"a\\nb\" with a line break"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message().contains(said), "{error}");
        }
    }

    #[test]
    fn hosts_are_names_that_differ() {
        let check =
            |hosts: &[&str]| check_hosts(&hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>());
        check(&["a", "me@b", "10.0.0.1"]).unwrap();
        for (hosts, said) in [
            (&[][..], "--executor ssh has no hosts"),
            (&["a", ""], "\"\" is not the name of a host"),
            (&["-oProxyCommand=x"], "is not the name of a host"),
            (&["a b"], "is not the name of a host"),
            (&["a;b"], "is not the name of a host"),
            (&["a", "b", "a"], "the hosts a and a would have the same files"),
            (&["me@a", "me-a"], "the hosts me@a and me-a would have the same files"),
        ] {
            let error = check(hosts).unwrap_err();
            assert!(error.message().contains(said), "{error}");
        }
    }
}
