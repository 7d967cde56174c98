//! Hosts without a batch system, through the system's `ssh`.
//!
//! ```text
//! FOLDER/JOB@HOST.sh      runs the host's tasks of a job, one after another
//! FOLDER/JOB@HOST.state   its process group, and which of its tasks have not ended
//! FOLDER/JOB@HOST.log     what the tasks print
//! ```
//!
//! All hosts share the folder, and only these scripts and their tasks run on them. The tasks of a job are
//! dealt to the hosts in turn. Hosts do not wait for each other: a task finds in the ledger what others
//! train, and takes over the cells of hosts that died.

use super::batch_system::{
    ArrayJob, BatchSystem, JobId, QueuedTask, SystemRecord, TaskEnd, TaskState, quoted,
};
use super::settings::{SshSettings, check_hosts};
use crate::error::{Error, IoContext, Result};
use crate::regular;
use crate::results::atomic;
use crate::results::names::file_part;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Options of `ssh`: it must not ask for a password, and must notice a host that is gone.
const OPTIONS: [&str; 4] =
    ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"];

/// The command on the host. The script goes to its stdin, so that the login shell, which may be fish or csh,
/// has nothing to unquote.
const REMOTE_COMMAND: &str = "sh -s";

/// The longest time of a call of `ssh`.
const MOST_TIME: Duration = Duration::from_secs(60);

/// Time between two checks whether `ssh` has ended.
const TICK: Duration = Duration::from_millis(10);

/// States in a state file: scripts of earlier jobs run, a task runs, the script has ended.
const WAITING: &str = "waiting";
const RUNNING: &str = "running";
const ENDED: &str = "ended";

/// Defines a shell function that tells whether the script with the path `$1.sh` runs on this host, and sets
/// `pid` to its process group. It compares the command line too, because after a reboot another process may
/// have the number.
const ALIVE: &str = r#"alive() {
    read -r pid rest <"$1.state" && tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -e "$1.sh"
} 2>/dev/null
"#;

/// Defines a shell function that replaces the state file, which may be read at any time.
const WRITE_STATE: &str = r#"state() { echo "$$ $*" >"$xrun_files.new" && mv "$xrun_files.new" "$xrun_files.state"; }
"#;

/// Hosts that run tasks.
#[derive(Clone, Debug)]
pub struct Ssh {
    settings: SshSettings,
    /// The folders of the jobs that were submitted before.
    folders: Vec<PathBuf>,
    /// Why the settings cannot be used; `None` if they can.
    refusal: Option<String>,
}

/// The script of a job on a host.
#[derive(Debug)]
struct Script<'a> {
    job: &'a str,
    /// The path of its files without their extensions.
    stem: String,
    /// The tasks that have not ended; `None` if the script has not begun.
    tasks: Option<OpenTasks>,
}

/// The tasks of a script that have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenTasks {
    /// True if the first of them runs, false if it waits too.
    is_running: bool,
    /// The index of the first of them in the job. The next ones follow at a distance of the number of hosts.
    first: usize,
    /// Their number.
    count: usize,
}

impl Ssh {
    /// Uses the hosts of the user's settings, to submit jobs.
    pub fn new(settings: SshSettings) -> Self {
        Self { settings, folders: Vec::new(), refusal: None }
    }

    /// Uses the hosts that a submission names, to ask for its jobs, whose files are in `folders`. The results
    /// folder may be somebody else's, so the program that it names runs only if it is `ssh`, or is the
    /// `own_command` of the user's settings.
    pub fn recorded(settings: SshSettings, folders: Vec<PathBuf>, own_command: &[String]) -> Self {
        let is_known = settings.command == own_command || settings.command == SshSettings::default().command;
        let refusal = check_hosts(&settings.hosts).err().map(|e| e.message().to_owned()).or_else(|| {
            (!is_known).then(|| {
                format!(
                    "the sweep was submitted with executor.ssh.command = {:?}, which your xrun.toml does not have; \
                     set it there to run this program",
                    settings.command
                )
            })
        });
        Self { settings, folders, refusal }
    }

    /// Returns an error if the settings of a submission cannot be used.
    fn check_settings(&self) -> Result<()> {
        self.refusal.clone().map_or(Ok(()), |refusal| Err(Error::usage(refusal)))
    }

    /// Does something for each host, all at once. Returns the results in the order of the hosts.
    fn on_every_host<T: Send>(&self, act: impl Fn(usize, &str) -> T + Sync) -> Vec<T> {
        let act = &act;
        std::thread::scope(|scope| {
            let hosts = self.settings.hosts.iter().enumerate();
            let threads: Vec<_> = hosts.map(|(at, host)| scope.spawn(move || act(at, host))).collect();
            let result = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join();
            let results = threads.into_iter().map(result);
            results.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    /// Runs a shell script on a host and returns what it prints, or else the last line of its errors.
    fn run(&self, host: &str, script: &str) -> Result<String, String> {
        let Some((program, arguments)) = self.settings.command.split_first() else {
            return Err("executor.ssh.command names no program".to_owned());
        };
        let mut command = Command::new(program);
        command.args(arguments).args(OPTIONS.iter().flat_map(|option| ["-o", option]));
        command.args([host, REMOTE_COMMAND]);
        output(command, script).map_err(|e| format!("cannot run {program}: {e}"))?
    }

    /// Returns the tasks of a job that a host runs; `None` if there are none.
    fn dealt(&self, job: &ArrayJob, host: usize) -> Option<OpenTasks> {
        let hosts = self.settings.hosts.len();
        // The number of a task in the whole submission decides, so that single tasks of many jobs spread.
        let first = (host + hosts - job.first % hosts) % hosts;
        let count = job.count.saturating_sub(first).div_ceil(hosts);
        (count > 0).then_some(OpenTasks { is_running: false, first, count })
    }

    /// Returns the script that runs tasks of a job on a host, in the folder `here`.
    fn script(&self, job: &ArrayJob, host: &str, tasks: OpenTasks, here: &Path) -> Result<String> {
        let OpenTasks { first, count, .. } = tasks;
        let stem = stem(&job.folder, &job.name, host)?;
        let mut text = format!("#!/bin/sh\n# Runs tasks of {} on {host}.\n{ALIVE}", job.name);
        let _ = writeln!(text, "xrun_files={}", quoted(&stem));
        text += WRITE_STATE;
        let _ = writeln!(text, "trap 'state {ENDED}' EXIT\ntrap 'exit 143' TERM");
        let _ = writeln!(text, "state {WAITING} {first} {count}");
        let _ = writeln!(text, "cd {} || exit", quoted(&utf8(here)?));
        for JobId(earlier) in &job.after {
            let stem = quoted(&self::stem(&job.folder, earlier, host)?);
            let _ = writeln!(text, "while alive {stem}; do sleep 1; done");
        }
        for line in &self.settings.setup {
            let _ = writeln!(text, "{line}");
        }
        let words: Vec<String> = job
            .command
            .iter()
            .map(|word| utf8(word.as_ref()).map(|word| quoted(&word)))
            .collect::<Result<_>>()?;
        // A setup with `set -e` must not keep a failed task from being followed by the next.
        let _ = writeln!(
            text,
            "task={first}\nleft={count}\nwhile [ \"$left\" -gt 0 ]; do\n    \
                 state {RUNNING} \"$task\" \"$left\"\n    \
                 {} \"$(({} + task))\" || :\n    \
                 task=$((task + {}))\n    \
                 left=$((left - 1))\n\
             done",
            words.join(" "),
            job.first,
            self.settings.hosts.len()
        );
        Ok(text)
    }

    /// Returns the scripts of jobs on a host that have not ended, as far as their state files say.
    fn open_scripts<'a>(&self, jobs: impl Iterator<Item = &'a str>, host: &str) -> Result<Vec<Script<'a>>> {
        let mut scripts = Vec::new();
        for job in jobs {
            for folder in &self.folders {
                let stem = stem(folder, job, host)?;
                if !Path::new(&format!("{stem}.sh")).is_file() {
                    continue;
                }
                let state = regular::read_text(Path::new(&format!("{stem}.state"))).ok();
                let tasks = state.as_deref().and_then(parse_state);
                if tasks.is_none_or(|tasks| tasks.count > 0) {
                    scripts.push(Script { job, stem, tasks });
                }
            }
        }
        Ok(scripts)
    }

    /// Returns the tasks of a script that have not ended. The first is in the state `first`.
    fn queued_tasks(&self, job: &str, tasks: OpenTasks, first: &TaskState) -> Vec<QueuedTask> {
        let waiting = TaskState::Waiting("earlier tasks of the host".to_owned());
        let rest = if matches!(first, TaskState::Unknown(_)) { first } else { &waiting };
        let task = |at: usize| QueuedTask {
            job: JobId(job.to_owned()),
            name: job.to_owned(),
            index: tasks.first + at * self.settings.hosts.len(),
            state: if at == 0 && tasks.is_running { first } else { rest }.clone(),
        };
        (0..tasks.count).map(task).collect()
    }

    /// Returns the tasks of jobs on a host that have not ended.
    fn queued_on(&self, host: &str, names: &[String]) -> Result<Vec<QueuedTask>> {
        let scripts = self.open_scripts(names.iter().map(String::as_str), host)?;
        // Without a question, a host whose scripts have ended may be off.
        if scripts.is_empty() {
            return Ok(Vec::new());
        }
        let mut text = ALIVE.to_owned();
        text += "show() { alive \"$2\" && read -r line <\"$2.state\" && echo \"$1 $line\"; }\n";
        for (at, script) in scripts.iter().enumerate() {
            let _ = writeln!(text, "show {at} {}", quoted(&script.stem));
        }
        text += "exit 0\n";
        match self.run(host, &text) {
            Ok(printed) => {
                let running = TaskState::Running(host.to_owned());
                let shown = printed.lines().filter_map(|line| {
                    let (at, state) = line.split_once(' ')?;
                    let script = scripts.get(at.parse::<usize>().ok()?)?;
                    Some(self.queued_tasks(script.job, parse_state(state)?, &running))
                });
                Ok(shown.flatten().collect())
            }
            Err(said) => {
                let unknown = scripts.iter().filter_map(|script| {
                    let folder = Path::new(&script.stem).parent().unwrap_or(Path::new("")).display();
                    let unknown = TaskState::Unknown(format!(
                        "{host} does not answer ({said}); if it never will again, remove {folder}/*@{}.state",
                        file_part(host)
                    ));
                    Some(self.queued_tasks(script.job, script.tasks?, &unknown))
                });
                Ok(unknown.flatten().collect())
            }
        }
    }
}

impl BatchSystem for Ssh {
    fn record(&self) -> SystemRecord {
        SystemRecord::Ssh(SshSettings { setup: Vec::new(), ..self.settings.clone() })
    }

    fn last_tasks(&self) -> usize {
        // Any host may be slow or die, so the others do what it leaves.
        self.settings.hosts.len()
    }

    fn check(&self, folder: &Path) -> Result<()> {
        let (token, here) = (folder.join("shared"), current_folder()?);
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|e| Error::failed(format!("cannot get random bytes: {e}")))?;
        let expected = blake3::hash(&random).to_hex();
        atomic::write(&token, expected.as_bytes())?;
        let script = format!(
            "cat {} || exit\ncd {} || exit\n\
             fail() {{ echo \"$1\" >&2; exit 1; }}\n\
             command -v setsid >/dev/null || fail 'setsid is not installed; it is part of util-linux'\n\
             [ -r \"/proc/$$/cmdline\" ] || fail 'there is no /proc; tasks need Linux'\n",
            quoted(&utf8(&token)?),
            quoted(&utf8(&here)?)
        );
        let answers = self.on_every_host(|_, host| match self.run(host, &script) {
            // The login shell may print lines of its own.
            Ok(printed) if printed.lines().any(|line| line == expected.as_str()) => None,
            Ok(_) => Some(format!("{host} has another folder as {}", folder.display())),
            Err(said) => Some(format!("{host}: {said}")),
        });
        let _ = std::fs::remove_file(&token);
        let refused: Vec<String> = answers.into_iter().flatten().collect();
        if refused.is_empty() {
            return Ok(());
        }
        Err(Error::failed(format!(
            "no task was started, because {} of {} hosts cannot run any: {}; every host must answer \
             `ssh HOST true` without a password, and have {} and {} at the same paths as here: correct that, or \
             leave the host out of --hosts",
            refused.len(),
            self.settings.hosts.len(),
            refused.join("; "),
            folder.display(),
            here.display()
        )))
    }

    fn most_tasks(&self) -> Result<usize> {
        Ok(usize::MAX)
    }

    fn submit(&self, job: &ArrayJob) -> Result<JobId> {
        let here = current_folder()?;
        let started = self.on_every_host(|at, host| {
            let Some(tasks) = self.dealt(job, at) else { return Ok(()) };
            let stem = stem(&job.folder, &job.name, host)?;
            let script = format!("{stem}.sh");
            atomic::write(Path::new(&script), self.script(job, host, tasks, &here)?.as_bytes())?;
            self.run(host, &start(&stem))
                .map(drop)
                .map_err(|said| Error::failed(format!("{} was not started on {host}: {said}", job.name)))
        });
        started.into_iter().collect::<Result<Vec<()>>>()?;
        Ok(JobId(job.name.clone()))
    }

    fn queued(&self, names: &[String]) -> Result<Vec<QueuedTask>> {
        self.check_settings()?;
        let tasks = self.on_every_host(|_, host| self.queued_on(host, names));
        Ok(tasks.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    fn cancel(&self, jobs: &[JobId]) -> Result<()> {
        self.check_settings()?;
        let ended = self.on_every_host(|_, host| {
            let scripts = self.open_scripts(jobs.iter().map(|job| job.0.as_str()), host)?;
            if scripts.is_empty() {
                return Ok(None);
            }
            let mut text = ALIVE.to_owned();
            for script in scripts {
                // Runs are in groups of their own, to which their task passes the signal on.
                let _ = writeln!(text, "alive {} && kill -s TERM -- \"-$pid\"", quoted(&script.stem));
            }
            text += "exit 0\n";
            Ok(self.run(host, &text).err().map(|said| format!("{host} does not answer ({said})")))
        });
        let silent: Vec<String> =
            ended.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(Error::failed(format!(
            "{}; tasks there may run on, and those of the other hosts end; repeat the command when the host \
             answers",
            silent.join("; ")
        )))
    }

    fn end_of_task(&self, _: &str) -> Option<TaskEnd> {
        // Nobody keeps account.
        None
    }

    fn requeue_own_task(&self, _: usize) -> Result<bool> {
        // The time of a task has no end.
        Ok(false)
    }
}

/// Returns the commands that start a script on a host and wait until it has begun.
fn start(stem: &str) -> String {
    let [script, state, log] = ["sh", "state", "log"].map(|ending| quoted(&format!("{stem}.{ending}")));
    let why = quoted(&format!("the script did not begin; see {stem}.log"));
    // In a session of its own, the script survives the connection.
    format!(
        "setsid sh {script} </dev/null >>{log} 2>&1 &\n\
         tries=0\n\
         while [ ! -s {state} ]; do\n    \
             tries=$((tries + 1))\n    \
             if [ \"$tries\" -gt 100 ]; then echo {why} >&2; exit 1; fi\n    \
             sleep 0.1 || sleep 1\n\
         done\n"
    )
}

/// Runs a command to its end or for [`MOST_TIME`], with a text as its stdin. Returns what it prints, or else
/// the last line of its errors.
fn output(mut command: Command, input: &str) -> std::io::Result<Result<String, String>> {
    // Files, because a pipe stays open as long as any process has it.
    let (mut stdin, stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?, tempfile::tempfile()?);
    stdin.write_all(input.as_bytes())?;
    stdin.seek(SeekFrom::Start(0))?;
    command.stdin(stdin).stdout(Stdio::from(stdout.try_clone()?)).stderr(Stdio::from(stderr.try_clone()?));
    let mut process = command.spawn()?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = process.try_wait()? {
            break status;
        }
        if began.elapsed() >= MOST_TIME {
            process.kill()?;
            process.wait()?;
            return Ok(Err(format!("no answer within {} s", MOST_TIME.as_secs())));
        }
        std::thread::sleep(TICK);
    };
    let text = |mut file: File| -> std::io::Result<String> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if status.success() {
        return Ok(Ok(text(stdout)?));
    }
    let said = text(stderr)?;
    // Warnings and banners come first.
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Err(last.map_or_else(|| format!("no message, {status}"), |line| line.trim().to_owned())))
}

/// Parses a state file: the process group, the state, and the first and the number of the tasks that have not
/// ended. `None` if it is not understood.
fn parse_state(text: &str) -> Option<OpenTasks> {
    let mut words = text.split_whitespace().skip(1);
    let state = words.next()?;
    if state == ENDED {
        return Some(OpenTasks { is_running: false, first: 0, count: 0 });
    }
    let is_running = match state {
        RUNNING => true,
        WAITING => false,
        _ => return None,
    };
    Some(OpenTasks { is_running, first: words.next()?.parse().ok()?, count: words.next()?.parse().ok()? })
}

/// Returns the path of the files of a job on a host, without their extensions.
fn stem(folder: &Path, job: &str, host: &str) -> Result<String> {
    utf8(&folder.join(format!("{job}@{}", file_part(host))))
}

fn current_folder() -> Result<PathBuf> {
    std::env::current_dir().at("find", Path::new("."))
}

/// Returns a path or a word as text.
fn utf8(path: &Path) -> Result<String> {
    let text = path.to_str().filter(|text| !text.contains(['\n', '\r', '\0']));
    text.map(str::to_owned).ok_or_else(|| {
        Error::usage(format!(
            "{path:?} cannot stand in a script for another host: it is not UTF-8, or it has a line break"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::batch_system::TaskNeeds;
    use std::ffi::OsString;

    fn ssh(hosts: &[&str], folder: &Path) -> Ssh {
        let settings = SshSettings {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            setup: vec!["module load cuda".to_owned()],
            ..SshSettings::default()
        };
        Ssh::recorded(settings, vec![folder.to_owned()], &[])
    }

    fn job(first: usize, count: usize, folder: &Path) -> ArrayJob {
        ArrayJob {
            name: "xrun-a-2".to_owned(),
            command: ["/p/x run", "it's $HOME"].map(OsString::from).to_vec(),
            first,
            count,
            needs: TaskNeeds { gpus: 0, cpus: 1, memory_mib: 1, time: Duration::ZERO, exclusive: false },
            after: vec![JobId("xrun-a-1".to_owned())],
            folder: folder.to_owned(),
        }
    }

    #[test]
    fn a_script_runs_the_tasks_of_its_host_and_quotes_every_word() {
        let (ssh, job) = (ssh(&["a", "me@b"], Path::new("/r")), job(40, 5, Path::new("/r/o'k")));
        let tasks = ssh.dealt(&job, 1).unwrap();
        let script = ssh.script(&job, "me@b", tasks, Path::new("/home/my work")).unwrap();
        insta::assert_snapshot!(script, @r#"
        #!/bin/sh
        # Runs tasks of xrun-a-2 on me@b.
        alive() {
            read -r pid rest <"$1.state" && tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -e "$1.sh"
        } 2>/dev/null
        xrun_files='/r/o'\''k/xrun-a-2@me-b'
        state() { echo "$$ $*" >"$xrun_files.new" && mv "$xrun_files.new" "$xrun_files.state"; }
        trap 'state ended' EXIT
        trap 'exit 143' TERM
        state waiting 1 2
        cd '/home/my work' || exit
        while alive '/r/o'\''k/xrun-a-1@me-b'; do sleep 1; done
        module load cuda
        task=1
        left=2
        while [ "$left" -gt 0 ]; do
            state running "$task" "$left"
            '/p/x run' 'it'\''s $HOME' "$((40 + task))" || :
            task=$((task + 2))
            left=$((left - 1))
        done
        "#);
        insta::assert_snapshot!(start("/r/x@b"), @r#"
        setsid sh '/r/x@b.sh' </dev/null >>'/r/x@b.log' 2>&1 &
        tries=0
        while [ ! -s '/r/x@b.state' ]; do
            tries=$((tries + 1))
            if [ "$tries" -gt 100 ]; then echo 'the script did not begin; see /r/x@b.log' >&2; exit 1; fi
            sleep 0.1 || sleep 1
        done
        "#);
    }

    #[test]
    fn every_task_of_a_job_is_dealt_to_one_host() {
        let ssh = ssh(&["a", "b", "c"], Path::new("/r"));
        for (first, count) in [(0, 1), (1, 1), (2, 1), (0, 3), (4, 7), (5, 2), (7, 0)] {
            let job = job(first, count, Path::new("/r"));
            let mut tasks: Vec<usize> = Vec::new();
            for OpenTasks { first, count, .. } in (0..3).filter_map(|host| ssh.dealt(&job, host)) {
                tasks.extend((0..count).map(|at| first + 3 * at));
            }
            tasks.sort_unstable();
            assert_eq!(tasks, (0..count).collect::<Vec<_>>(), "{first} {count}");
        }
        // The last tasks are on different hosts, whatever their numbers.
        assert!(
            (0..3).all(|host| ssh.dealt(&job(4, 3, Path::new("/r")), host).is_some_and(|own| own.count == 1))
        );
    }

    #[test]
    fn state_files_are_read_and_others_are_not_understood() {
        let open = |is_running, first, count| Some(OpenTasks { is_running, first, count });
        assert_eq!(parse_state("812 waiting 1 4\n"), open(false, 1, 4));
        assert_eq!(parse_state("812 running 3 2\n"), open(true, 3, 2));
        assert_eq!(parse_state("812 ended\n"), open(false, 0, 0));
        for text in ["", "812", "812 running", "812 running 3", "812 sleeping 3 2", "812 running x 2"] {
            assert_eq!(parse_state(text), None);
        }
    }

    #[test]
    fn tasks_of_a_silent_host_are_unknown_until_its_state_file_says_that_they_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut ssh = ssh(&["a"], folder.path());
        ssh.settings.command =
            ["sh", "-c", "echo banner >&2; echo 'no route' >&2; exit 255"].map(str::to_owned).to_vec();
        let names = ["xrun-a-2".to_owned()];
        let write = |ending: &str, text: &str| {
            std::fs::write(folder.path().join(format!("xrun-a-2@a.{ending}")), text).unwrap();
        };
        assert_eq!(ssh.queued(&names).unwrap(), [], "it was never submitted");
        write("sh", "");
        assert_eq!(ssh.queued(&names).unwrap(), [], "it has not begun");
        write("state", "812 running 1 2\n");
        let queued = ssh.queued(&names).unwrap();
        assert_eq!(queued.iter().map(|task| task.index).collect::<Vec<_>>(), [1, 2]);
        let why = format!(
            "a does not answer (no route); if it never will again, remove {}/*@a.state",
            folder.path().display()
        );
        assert!(queued.iter().all(|task| task.state == TaskState::Unknown(why.clone())), "{queued:?}");
        let error = ssh.cancel(&[JobId("xrun-a-2".to_owned())]).unwrap_err();
        assert!(
            error.message().starts_with("a does not answer (no route); tasks there may run on"),
            "{error}"
        );
        write("state", "812 ended\n");
        assert_eq!(ssh.queued(&names).unwrap(), []);
        ssh.cancel(&[JobId("xrun-a-2".to_owned())]).unwrap();
    }

    #[test]
    fn a_process_that_has_the_number_of_a_script_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut ssh = ssh(&["a"], folder.path());
        // Runs the script of the host here: its stdin is the script.
        ssh.settings.command = ["sh", "-c", "exec sh -s"].map(str::to_owned).to_vec();
        let (script, state) = (folder.path().join("xrun-a-2@a.sh"), folder.path().join("xrun-a-2@a.state"));
        std::fs::write(&script, "").unwrap();
        std::fs::write(&state, format!("{} running 0 1\n", std::process::id())).unwrap();
        assert_eq!(ssh.queued(&["xrun-a-2".to_owned()]).unwrap(), []);
    }

    #[test]
    fn a_host_with_another_folder_at_the_path_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut ssh = ssh(&["a", "b"], folder.path());
        // The first argument after the options is the host.
        let script = "if [ \"$8\" = b ]; then echo hello; else exec sh -s; fi";
        ssh.settings.command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let error = ssh.check(folder.path()).unwrap_err();
        let said = format!(
            "no task was started, because 1 of 2 hosts cannot run any: b has another folder as {}; every host",
            folder.path().display()
        );
        assert!(error.message().starts_with(&said), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_submission_names_no_program_or_option_that_its_reader_does_not_know() {
        let queued = |hosts: &[&str], command: &[&str], own: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            let settings =
                SshSettings { hosts: words(hosts), command: words(command), ..SshSettings::default() };
            Ssh::recorded(settings, Vec::new(), &words(own)).queued(&["xrun-a-1".to_owned()])
        };
        assert_eq!(queued(&["a"], &["ssh"], &["ssh", "-F", "lab"]).unwrap(), []);
        assert_eq!(queued(&["a"], &["ssh", "-F", "lab"], &["ssh", "-F", "lab"]).unwrap(), []);
        let error = queued(&["a"], &["./evil"], &["ssh"]).unwrap_err();
        assert!(
            error.message().contains("command = [\"./evil\"], which your xrun.toml does not have"),
            "{error}"
        );
        let error = queued(&["-oProxyCommand=evil"], &["ssh"], &["ssh"]).unwrap_err();
        assert!(error.message().contains("is not the name of a host"), "{error}");
    }

    #[test]
    fn a_path_that_a_script_cannot_hold_is_refused() {
        let error = stem(Path::new("/r/a\nb"), "xrun-a-2", "a").unwrap_err();
        assert!(error.message().contains("cannot stand in a script"), "{error}");
    }
}
