//! A folder with its own recipe and results, the binary in it, and what a run left there.

use flate2::bufread::GzDecoder;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use xrun::checkpoint::{self, Loaded};
use xrun::results::folder::read_summary;
use xrun::results::stored::{COMPRESSED, compress};
use xrun::results::{Status, Summary};

/// Number of steps in [`RECIPE`].
pub const STEPS: u64 = 30;

/// How long a run may take to end after a fault. It takes seconds and, even on a busy machine, far less than
/// the 600 s after which a waiting rank gives up.
pub const SOON: Duration = Duration::from_secs(60);

/// A run of about a second with six saves; evaluations and samples fall both on saves and between them. It
/// draws no plots, which would take as long as everything else.
pub const RECIPE: &str = r#"
[model]
dim = 32
n_layers = 1
n_heads = 2
ffn_dim = 64
dropout = 0.1
[training]
seq_len = 32
local_batch_size = 4
steps = 30
seed = 3
[optimizer]
lr = 3e-3
[data]
train_tokens = 20_000
validation_tokens = 600
[checkpoint]
interval = 5
[validation]
interval = 6
steps = 2
[generation]
interval = 10
samples = 1
tokens = 8
[engine]
threads = 1
[metrics]
plots = false
"#;

/// Longer than the half second within which two signals count as one.
pub const SAME_REQUEST: Duration = Duration::from_millis(600);

/// Longer than anything here takes on a busy machine; a process that hangs fails its test.
const PATIENCE: Duration = Duration::from_secs(240);

/// The recipe trained without interruption, with every checkpoint kept.
pub static UNINTERRUPTED: LazyLock<Place> = LazyLock::new(|| {
    let place = Place::in_build();
    place.xrun(&["tiny.toml", "checkpoint.keep=10"]).succeeds();
    place
});

/// A temporary folder with `tiny.toml`.
pub struct Place {
    folder: tempfile::TempDir,
}

/// How a process ended.
pub struct Done {
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A running process; killed when dropped.
pub struct Running {
    child: Child,
    /// What was read from its stderr so far.
    heard: Vec<u8>,
}

impl Place {
    pub fn new() -> Self {
        Self::within(tempfile::tempdir().unwrap())
    }

    /// Makes a place for a static, which is never dropped: its folder is among the build's outputs.
    pub fn in_build() -> Self {
        Self::within(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn within(folder: tempfile::TempDir) -> Self {
        let place = Self { folder };
        place.write("tiny.toml", RECIPE.as_bytes());
        place
    }

    /// Copies the uninterrupted run as if it had been killed when its newest checkpoint was at `step`.
    pub fn killed_after(step: u64) -> Self {
        let place = Self::new();
        let finished = UNINTERRUPTED.run();
        let run = place.path().join("results/tiny").join(finished.path.file_name().unwrap());
        copy(&finished.path, &run);
        Run { path: run }.forget_after(step);
        place
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Starts the binary here, with an empty environment.
    pub fn start(&self, arguments: &[&str]) -> Running {
        self.start_with(arguments, Stdio::null())
    }

    fn start_with(&self, arguments: &[&str], stdin: Stdio) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
        command.args(arguments).current_dir(self.path()).env_clear();
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running { child: command.spawn().unwrap(), heard: Vec::new() }
    }

    /// Starts the binary under a limit of the shell, such as `ulimit -v 1000000`.
    pub fn start_under(&self, limit: &str, arguments: &[&str]) -> Running {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &format!("{limit}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_xrun")])
            .args(arguments);
        command.current_dir(self.path()).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running { child: command.spawn().unwrap(), heard: Vec::new() }
    }

    /// Starts the binary with files limited to this many KiB; a larger write fails, as on a full disk.
    pub fn start_limited(&self, kib: usize, arguments: &[&str]) -> Running {
        // `ulimit -f` counts blocks of 512 bytes.
        self.start_under(&format!("ulimit -f {}", 2 * kib), arguments)
    }

    /// Starts the binary with a signal ignored, as `nohup` does.
    pub fn start_ignoring(&self, signal: &str, arguments: &[&str]) -> Running {
        self.start_under(&format!("trap '' {signal}"), arguments)
    }

    /// Runs the binary to its end.
    pub fn xrun(&self, arguments: &[&str]) -> Done {
        self.start(arguments).ends()
    }

    /// Runs the binary to its end, with a text on its stdin.
    pub fn xrun_reading(&self, input: &str, arguments: &[&str]) -> Done {
        let input = fs::File::open(self.write("input", input.as_bytes())).unwrap();
        self.start_with(arguments, input.into()).ends()
    }

    /// Returns the run that a command says it has written. Names of runs of one second are in no order.
    pub fn run_of(&self, done: &Done) -> Run {
        let folder = done.stdout.lines().find_map(|line| line.strip_prefix("results in "));
        Run { path: self.path().join(folder.unwrap_or_else(|| panic!("no run in:\n{}", done.stdout))) }
    }

    /// Returns the run folders, sorted by name.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<PathBuf> = fs::read_dir(self.path().join("results/tiny"))
            .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
            .unwrap_or_default();
        runs.retain(|run| run.join("summary.json").exists());
        runs.sort();
        runs.into_iter().map(|path| Run { path }).collect()
    }

    /// Returns the only run here.
    pub fn run(&self) -> Run {
        let mut runs = self.runs();
        assert_eq!(runs.len(), 1, "{:?}", runs.iter().map(|run| &run.path).collect::<Vec<_>>());
        runs.remove(0)
    }
}

impl Done {
    pub fn new(output: Output) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let (code, signal) = (output.status.code(), output.status.signal());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code, signal, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    pub fn ended(self, code: i32) -> Self {
        let Self { signal, stdout, stderr, .. } = &self;
        assert_eq!(self.code, Some(code), "signal: {signal:?}\nstdout:\n{stdout}\nstderr:\n{stderr}");
        self
    }

    #[track_caller]
    pub fn succeeds(self) -> Self {
        self.ended(0)
    }

    /// Asserts that stderr contains each of these texts.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "no `{text}` in:\n{}", self.stderr);
        }
        self
    }
}

impl Running {
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `seen` returns true. Returns whether that came before the process ended.
    pub fn until(&mut self, mut seen: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        while !seen() {
            if self.is_over() {
                return false;
            }
            assert!(began.elapsed() < PATIENCE, "nothing came of it");
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// Sends a signal, given by name, at once: a short run may be over before another process could do it.
    pub fn signal(&self, name: &str) {
        let signal = match name {
            "HUP" => Signal::HUP,
            "INT" => Signal::INT,
            "KILL" => Signal::KILL,
            "TERM" => Signal::TERM,
            "USR1" => Signal::USR1,
            "USR2" => Signal::USR2,
            "XCPU" => Signal::XCPU,
            _ => panic!("no test sends SIG{name}"),
        };
        // If this fails, the process is over, which the callers find out.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Reads stderr up to this text. Returns whether it came before the process ended.
    pub fn says(&mut self, text: &str) -> bool {
        hears(self.child.stderr.as_mut().unwrap(), &mut self.heard, text)
    }

    /// Sends a signal, and then a second one that does not count as the same. `acknowledged` is what the
    /// process prints after the first. Returns whether the process lived long enough for both.
    pub fn signal_twice(&mut self, first: &str, acknowledged: &str, second: &str) -> bool {
        self.signal(first);
        // The process starts its clock before it prints, this one after.
        let lives = self.says(acknowledged);
        std::thread::sleep(SAME_REQUEST);
        let lives = lives && !self.is_over();
        self.signal(second);
        lives
    }

    /// Kills the process with `kill -9`. Returns whether it was still running.
    pub fn kill(mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        // An error means that the process is over.
        let _ = self.child.kill();
        self.child.wait().unwrap().signal() == Some(9)
    }

    /// Waits for the end; nothing may have panicked.
    #[track_caller]
    pub fn ends(mut self) -> Done {
        use std::io::Read;
        let (mut out, mut err) = (self.child.stdout.take().unwrap(), self.child.stderr.take().unwrap());
        let stdout = std::thread::spawn(move || {
            let mut text = Vec::new();
            out.read_to_end(&mut text).map(|_| text)
        });
        let mut stderr = std::mem::take(&mut self.heard);
        err.read_to_end(&mut stderr).unwrap();
        let status = self.child.wait().unwrap();
        let done = Done::new(Output { status, stdout: stdout.join().unwrap().unwrap(), stderr });
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        done
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run folder.
pub struct Run {
    pub path: PathBuf,
}

impl Run {
    pub fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub fn file(&self, name: &str) -> Vec<u8> {
        fs::read(self.path.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.file(name)).unwrap()
    }

    pub fn summary(&self) -> Summary {
        read_summary(&self.path).unwrap()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.file(name)).unwrap()
    }

    pub fn newest(&self) -> Loaded {
        checkpoint::newest(&self.checkpoints()).unwrap().expect("a checkpoint")
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoint")
    }

    /// Makes the folder look as if its process had been killed when its newest checkpoint was at `step`.
    pub fn forget_after(&self, step: u64) {
        let checkpoints = self.checkpoints();
        for later in checkpoint::steps(&checkpoints).unwrap().into_iter().filter(|s| *s > step) {
            fs::remove_dir_all(checkpoints.join(checkpoint::folder_name(later))).unwrap();
        }
        fs::write(checkpoints.join("latest"), format!("{}\n", checkpoint::folder_name(step))).unwrap();
        let summary = self.text("summary.json").replace("\"status\": \"ok\"", "\"status\": \"running\"");
        fs::write(self.path.join("summary.json"), summary).unwrap();
        assert_eq!(self.summary().status, Status::Running);
    }

    /// Returns the number of rows in `metrics.csv`.
    pub fn rows(&self) -> usize {
        fs::read_to_string(self.path.join("metrics.csv")).map_or(0, |text| text.lines().count().max(1) - 1)
    }

    /// Returns every file with its bytes, except the lock and the log.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(&self.path, &mut files);
        files.into_iter().filter(|(path, _)| !path.ends_with("lock") && !path.ends_with("log")).collect()
    }

    /// Asserts that the run ended like the uninterrupted one, to the bit, and that no files are left over.
    #[track_caller]
    pub fn ended_as_uninterrupted(&self) {
        self.ended_as(&UNINTERRUPTED.run());
    }

    #[track_caller]
    pub fn ended_as(&self, expected: &Run) {
        let (newest, reference) = (self.newest(), expected.newest());
        assert_eq!(newest.warnings(), [""; 0]);
        assert_eq!(newest.meta().step, reference.meta().step);
        assert_eq!(checkpoint::first_difference(&newest, &reference).unwrap(), None);
        assert_eq!(self.text("metrics.csv"), expected.text("metrics.csv"));
        let (mine, other) = (self.summary(), expected.summary());
        assert_eq!(mine.status, other.status);
        assert_eq!((mine.steps, mine.tokens_seen), (other.steps, other.tokens_seen));
        assert_eq!((mine.train_loss, mine.val_loss), (other.train_loss, other.val_loss));
        assert_eq!(mine.samples, other.samples);
        for path in self.files().into_keys() {
            let inside = path.strip_prefix(&self.path).unwrap();
            let hidden = inside.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.'));
            assert!(!hidden || inside == Path::new(".gitignore"), "{} was left", inside.display());
        }
    }
}

fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
}

pub fn copy(from: &Path, to: &Path) {
    let mut files = BTreeMap::new();
    collect(from, &mut files);
    for (path, bytes) in files {
        let path = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// Reads a stream up to a text, and appends what was read to `heard`. Returns whether the text came before
/// the end.
pub fn hears(stream: &mut impl std::io::Read, heard: &mut Vec<u8>, text: &str) -> bool {
    let mut byte = [0];
    while !heard.ends_with(text.as_bytes()) {
        if stream.read(&mut byte).unwrap() == 0 {
            return false;
        }
        heard.push(byte[0]);
    }
    true
}

/// Returns the text of a file, compressed or not.
#[track_caller]
pub fn read_text(path: &Path) -> String {
    let bytes = fs::read(path).unwrap();
    match path.to_string_lossy().ends_with(COMPRESSED) {
        true => std::io::read_to_string(GzDecoder::new(&bytes[..])).unwrap(),
        false => String::from_utf8(bytes).unwrap(),
    }
}

/// Replaces the first occurrence of a text in a file, compressed or not; the text must be there.
#[track_caller]
pub fn edit(path: &Path, from: &str, to: &str) {
    let text = read_text(path);
    assert!(text.contains(from), "no `{from}` in {}:\n{text}", path.display());
    let edited = text.replacen(from, to, 1).into_bytes();
    let is_compressed = path.to_string_lossy().ends_with(COMPRESSED);
    fs::write(path, if is_compressed { compress(&edited).unwrap() } else { edited }).unwrap();
}

/// Waits until none of these processes exists any more.
#[track_caller]
pub fn are_gone(processes: &[u32], limit: Duration) {
    let began = Instant::now();
    let lives = |id: &&u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // A zombie counts as gone; its parent has not reaped it yet.
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    while let Some(id) = processes.iter().find(lives) {
        assert!(began.elapsed() < limit, "process {id} lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}
