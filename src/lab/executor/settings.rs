//! The settings of a site: which partition, account and limits its batch system wants.
//!
//! They are no part of a recipe, because a recipe trains the same model everywhere. They are in a file of
//! their own, `xrun.toml` in the working folder or in the user's configuration folder.

use crate::error::{Error, Result};
use crate::regular;
use serde::Deserialize;
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
        let slurm = file.executor.slurm;
        let counts = [
            ("throttle", Some(slurm.throttle)),
            ("cells_per_task", slurm.cells_per_task),
            ("cpus", slurm.cpus),
            ("minutes", slurm.minutes.map(|minutes| minutes as usize)),
            ("memory_mib", slurm.memory_mib.map(|memory| memory as usize)),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(Error::usage(format!(
                "{}: executor.slurm.{key} = 0; set at least 1",
                path.display()
            )));
        }
        let texts = [&slurm.partition, &slurm.account, &slurm.qos, &slurm.constraint, &slurm.gpu_type];
        let lines = texts.into_iter().flatten().chain(&slurm.extra).chain(&slurm.setup);
        if let Some(line) = lines.into_iter().find(|text| text.contains(['\n', '\r', '\0'])) {
            return Err(Error::usage(format!(
                "{}: executor.slurm has {line:?} with a line break; write one option or line per string",
                path.display()
            )));
        }
        Ok(slurm)
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
        let parse = |text: &str| SlurmSettings::parse(text, Path::new("xrun.toml"));
        let read = parse("[executor.slurm]\npartition = \"gpu\"\nextra = [\"--exclusive\"]\n").unwrap();
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
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message().contains(said), "{error}");
        }
    }
}
