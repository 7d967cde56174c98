//! Slurm, through its commands `sbatch`, `squeue`, `scancel` and `scontrol`.

use super::batch_system::{
    ArrayJob, BatchSystem, JobId, QueuedTask, SystemRecord, TaskEnd, TaskState, quoted,
};
use super::settings::SlurmSettings;
use crate::error::{Error, Result};
use crate::results::atomic;
use crate::results::ledger::TASK_VARIABLE;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Slurm's limit if its configuration does not name one.
const DEFAULT_MAX_ARRAY_SIZE: usize = 1001;

/// Seconds between the signal to save and the end of a task's time. Saving takes a step and the time to write
/// a checkpoint.
const NOTICE_S: u64 = 120;

/// Fields of a line of `squeue`, separated by `|`: job, index in the array, name, state, reason, nodes.
const QUEUE_FORMAT: &str = "%F|%K|%j|%T|%r|%N";

/// Variables that Slurm sets in a task.
const ARRAY_JOB: &str = "SLURM_ARRAY_JOB_ID";
const ARRAY_INDEX: &str = "SLURM_ARRAY_TASK_ID";
const RESTARTS: &str = "SLURM_RESTART_COUNT";

/// A Slurm cluster.
#[derive(Clone, Debug)]
pub struct Slurm {
    settings: SlurmSettings,
}

impl Slurm {
    /// Uses the cluster that this machine belongs to, with the settings of `[executor.slurm]`.
    pub fn new(settings: SlurmSettings) -> Self {
        Self { settings }
    }

    /// Returns the script of a job. Every word of the command is quoted for the shell.
    fn script(&self, job: &ArrayJob) -> Result<String> {
        let SlurmSettings { partition, account, qos, constraint, gpu_type, throttle, .. } = &self.settings;
        let needs = &job.needs;
        let mut text = "#!/bin/sh\n".to_owned();
        let mut line = |option: &str, value: &str| _ = writeln!(text, "#SBATCH --{option}={value}");
        line("job-name", &job.name);
        line("array", &format!("0-{}%{throttle}", job.count.max(1) - 1));
        // A percent sign begins one of Slurm's patterns.
        line("output", &format!("\"{}/%A_%a.log\"", utf8(&job.folder)?.replace('%', "%%")));
        line("open-mode", "append");
        line("nodes", "1");
        line("ntasks", "1");
        line("cpus-per-task", &needs.cpus.to_string());
        line("mem", &format!("{}M", needs.memory_mib));
        let minutes = needs.time.as_secs().div_ceil(60).max(1);
        line("time", &minutes.to_string());
        line("signal", &format!("B:USR2@{}", NOTICE_S.min(minutes * 30)));
        if needs.exclusive {
            text += "#SBATCH --exclusive\n";
        }
        let mut line = |option: &str, value: &str| _ = writeln!(text, "#SBATCH --{option}={value}");
        if needs.gpus > 0 {
            let kind = gpu_type.as_ref().map(|kind| format!("{kind}:")).unwrap_or_default();
            line("gres", &format!("gpu:{kind}{}", needs.gpus));
        }
        for (option, value) in
            [("partition", partition), ("account", account), ("qos", qos), ("constraint", constraint)]
        {
            if let Some(value) = value {
                line(option, value);
            }
        }
        if !job.after.is_empty() {
            let ids: Vec<&str> = job.after.iter().map(|job| job.0.as_str()).collect();
            line("dependency", &format!("afterany:{}", ids.join(":")));
        }
        text += "#SBATCH --requeue\n";
        for extra in &self.settings.extra {
            let _ = writeln!(text, "#SBATCH {extra}");
        }
        for setup in &self.settings.setup {
            let _ = writeln!(text, "{setup}");
        }
        let word = |word: &OsString| utf8(word.as_ref()).map(|word| quoted(&word));
        let words: Vec<String> = job.command.iter().map(word).collect::<Result<_>>()?;
        let _ = writeln!(text, "export {TASK_VARIABLE}=\"${{{ARRAY_JOB}}}_${ARRAY_INDEX}\"");
        // The process of the script becomes xrun, because Slurm's signal reaches only this one.
        let _ = writeln!(text, "exec {} $(({} + {ARRAY_INDEX}))", words.join(" "), job.first);
        Ok(text)
    }
}

impl BatchSystem for Slurm {
    fn record(&self) -> SystemRecord {
        SystemRecord::Slurm
    }

    fn last_tasks(&self) -> usize {
        1
    }

    fn check(&self, _: &Path) -> Result<()> {
        // Slurm itself chooses nodes that work.
        Ok(())
    }

    fn most_tasks(&self) -> Result<usize> {
        let shown = output("scontrol", ["show", "config"])?;
        let limit = shown.lines().find_map(|line| line.trim().strip_prefix("MaxArraySize"));
        let limit = limit.and_then(|rest| rest.trim_start_matches([' ', '=']).trim().parse().ok());
        // The limit is above the highest index.
        Ok(limit.unwrap_or(DEFAULT_MAX_ARRAY_SIZE).saturating_sub(1).max(1))
    }

    fn submit(&self, job: &ArrayJob) -> Result<JobId> {
        let script = job.folder.join(format!("{}.sh", job.name));
        atomic::write(&script, self.script(job)?.as_bytes())?;
        let printed = output("sbatch", [OsStr::new("--parsable"), script.as_os_str()])?;
        // With several clusters, the name of the cluster follows the id.
        let id = printed.trim().split(';').next().unwrap_or_default();
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::failed(format!(
                "sbatch printed {printed:?} where the id of a job was expected"
            )));
        }
        Ok(JobId(id.to_owned()))
    }

    fn queued(&self, names: &[String]) -> Result<Vec<QueuedTask>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let names = format!("--name={}", names.join(","));
        let printed = output("squeue", [&names, "--noheader", "--array", "--format", QUEUE_FORMAT])?;
        Ok(printed.lines().filter_map(parse_queued).collect())
    }

    fn cancel(&self, jobs: &[JobId]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        output("scancel", jobs.iter().map(|job| job.0.as_str())).map(drop)
    }

    fn end_of_task(&self, task: &str) -> Option<TaskEnd> {
        // With duplicates: a task that was queued again has a line for each time.
        let job = format!("--jobs={task}");
        let ends = ["--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State", &job];
        if let Ok(printed) = output("sacct", ends)
            && let Some(end) = printed.lines().rev().find_map(parse_end)
        {
            return Some(end);
        }
        // The controller knows a task for some minutes after its end.
        let printed = output("scontrol", ["show", "job", "--oneliner", task]).ok()?;
        printed.split_whitespace().find_map(|word| parse_end(word.strip_prefix("JobState=")?))
    }

    fn requeue_own_task(&self, most: usize) -> Result<bool> {
        let variable = |name: &str| {
            std::env::var(name)
                .map_err(|_| Error::failed(format!("{name} is not set, so this is no task of Slurm")))
        };
        let restarts: usize = std::env::var(RESTARTS).ok().and_then(|count| count.parse().ok()).unwrap_or(0);
        if restarts >= most {
            return Ok(false);
        }
        // The id of the array would restart all of its tasks.
        let own = format!("{}_{}", variable(ARRAY_JOB)?, variable(ARRAY_INDEX)?);
        output("scontrol", ["requeue", &own]).map(|_| true)
    }
}

/// Parses a line of `squeue`. `None` if the job is no array or the line is not understood.
fn parse_queued(line: &str) -> Option<QueuedTask> {
    let mut fields = line.split('|');
    let (job, index, name, state, reason, nodes) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let index = index.parse().ok()?;
    let state = match state {
        "RUNNING" | "COMPLETING" | "SUSPENDED" | "CONFIGURING" => TaskState::Running(nodes.to_owned()),
        _ => TaskState::Waiting(reason.to_owned()),
    };
    Some(QueuedTask { job: JobId(job.to_owned()), name: name.to_owned(), index, state })
}

/// Parses the state of a task that has ended. `None` if it ended by itself or has not ended.
fn parse_end(state: &str) -> Option<TaskEnd> {
    // Who canceled it may follow.
    match state.split_whitespace().next()? {
        "PREEMPTED" | "REQUEUED" | "CANCELLED" => Some(TaskEnd::Preempted),
        "NODE_FAIL" | "BOOT_FAIL" => Some(TaskEnd::NodeFailed),
        "TIMEOUT" | "DEADLINE" => Some(TaskEnd::TimeLimit),
        "OUT_OF_MEMORY" => Some(TaskEnd::OutOfMemory),
        _ => None,
    }
}

/// Runs a command of Slurm and returns what it prints.
fn output<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> Result<String> {
    let ran = Command::new(program).args(arguments).stdin(Stdio::null()).output().map_err(|e| {
        Error::failed(format!(
            "cannot run {program}: {e}; Slurm's commands are needed, as on a login node of a cluster"
        ))
    })?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned();
        return Err(Error::failed(format!("{program} failed: {said}")));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

/// Returns a path or a word as text.
fn utf8(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains(['\n', '"']));
    text.map(str::to_owned).ok_or_else(|| {
        Error::usage(format!(
            "{path:?} cannot stand in a script of Slurm: it is not UTF-8, or it has a line break or a double \
             quote"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::batch_system::TaskNeeds;
    use std::time::Duration;

    fn job(folder: &str, command: &[&str]) -> ArrayJob {
        ArrayJob {
            name: "xrun-a-1".to_owned(),
            command: command.iter().map(OsString::from).collect(),
            first: 40,
            count: 3,
            needs: TaskNeeds {
                gpus: 2,
                cpus: 16,
                memory_mib: 9000,
                time: Duration::from_secs(601),
                exclusive: true,
            },
            after: vec![JobId("7".to_owned()), JobId("8".to_owned())],
            folder: folder.into(),
        }
    }

    #[test]
    fn a_script_asks_for_what_a_task_needs_and_quotes_every_word() {
        let settings = SlurmSettings {
            partition: Some("gpu".to_owned()),
            gpu_type: Some("h100".to_owned()),
            extra: vec!["--exclude=n7".to_owned()],
            setup: vec!["module load cuda".to_owned()],
            throttle: 4,
            ..SlurmSettings::default()
        };
        let script = Slurm::new(settings).script(&job("/r/50% off", &["/p/x run", "it's $HOME"])).unwrap();
        insta::assert_snapshot!(script, @r#"
        #!/bin/sh
        #SBATCH --job-name=xrun-a-1
        #SBATCH --array=0-2%4
        #SBATCH --output="/r/50%% off/%A_%a.log"
        #SBATCH --open-mode=append
        #SBATCH --nodes=1
        #SBATCH --ntasks=1
        #SBATCH --cpus-per-task=16
        #SBATCH --mem=9000M
        #SBATCH --time=11
        #SBATCH --signal=B:USR2@120
        #SBATCH --exclusive
        #SBATCH --gres=gpu:h100:2
        #SBATCH --partition=gpu
        #SBATCH --dependency=afterany:7:8
        #SBATCH --requeue
        #SBATCH --exclude=n7
        module load cuda
        export XRUN_BATCH_TASK="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
        exec '/p/x run' 'it'\''s $HOME' $((40 + SLURM_ARRAY_TASK_ID))
        "#);
    }

    #[test]
    fn a_path_that_a_script_cannot_hold_is_refused() {
        for folder in ["/r/a\"b", "/r/a\nb"] {
            let error = Slurm::new(SlurmSettings::default()).script(&job(folder, &["x"])).unwrap_err();
            assert!(error.message().contains("cannot stand in a script"), "{error}");
        }
    }

    #[test]
    fn the_end_of_a_task_is_told_from_its_state() {
        let ends = ["CANCELLED by 1000", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"].map(parse_end);
        let expected = [TaskEnd::Preempted, TaskEnd::NodeFailed, TaskEnd::TimeLimit, TaskEnd::OutOfMemory];
        assert_eq!(ends, expected.map(Some));
        assert_eq!(["RUNNING", "PENDING", "COMPLETED", "FAILED", ""].map(parse_end), [None; 5]);
    }

    #[test]
    fn lines_of_the_queue_are_read_and_others_left_out() {
        let task = |index, state| {
            let (job, name) = (JobId("12".to_owned()), "xrun-a-1".to_owned());
            Some(QueuedTask { job, name, index, state })
        };
        assert_eq!(
            parse_queued("12|3|xrun-a-1|RUNNING|None|n4"),
            task(3, TaskState::Running("n4".to_owned()))
        );
        let waiting = TaskState::Waiting("Priority".to_owned());
        assert_eq!(parse_queued("12|0|xrun-a-1|PENDING|Priority|"), task(0, waiting));
        // A job that is no array, and a line that is cut off.
        assert_eq!(parse_queued("12|N/A|other|RUNNING|None|n4"), None);
        assert_eq!(parse_queued("12|0|xrun"), None);
    }
}
