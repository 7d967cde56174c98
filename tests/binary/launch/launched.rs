//! All processes of a run, whoever starts them.

use crate::place::{Place, Run, hears};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    Thread,
    Process,
    /// One process per rank, each told its place, as torchrun does.
    Env,
}

pub const LAUNCHERS: [Launcher; 3] = [Launcher::Thread, Launcher::Process, Launcher::Env];

/// A process and what it prints.
pub struct Member {
    child: Child,
    pub code: Option<i32>,
    pub stderr: String,
}

/// The processes that were started here; dropping this kills them all.
pub struct LaunchedRanks {
    pub launcher: Launcher,
    pub members: Vec<Member>,
}

impl Launcher {
    /// Starts a recipe or another command on `world` ranks.
    pub fn start(
        self,
        place: &Place,
        world: usize,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> LaunchedRanks {
        let world_size = format!("parallelism.world_size={world}");
        let word = match self {
            Launcher::Thread => "thread",
            Launcher::Process => "process",
            Launcher::Env => "env",
        };
        let launcher = format!("parallelism.launcher={word}");
        let arguments = [arguments, &[&world_size, &launcher]].concat();
        let of = |more: &[(&str, &str)]| Member::start(place, &arguments, &[variables, more].concat());
        let members = match self {
            Launcher::Thread | Launcher::Process => vec![of(&[])],
            Launcher::Env => {
                let (world_text, port) = (world.to_string(), port().to_string());
                let ranks = (0..world).map(|rank| {
                    let rank = rank.to_string();
                    of(&[
                        ("RANK", &rank),
                        ("LOCAL_RANK", &rank),
                        ("WORLD_SIZE", &world_text),
                        ("LOCAL_WORLD_SIZE", &world_text),
                        ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", &port),
                    ])
                });
                ranks.collect()
            }
        };
        LaunchedRanks { launcher: self, members }
    }

    /// Trains a recipe to its end.
    #[track_caller]
    pub fn trains(self, place: &Place, world: usize, arguments: &[&str]) {
        let launched = self.start(place, world, arguments, &[]).ends();
        for (number, member) in launched.members.iter().enumerate() {
            assert_eq!(member.code, Some(0), "{self:?}, process {number}:\n{}", member.stderr);
        }
    }
}

/// Returns a port that is free now.
pub fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl Member {
    pub fn start(place: &Place, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
        command.args(arguments).current_dir(place.path()).env_clear().envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), code: None, stderr: String::new() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the process to end.
    pub fn ends(&mut self) {
        use std::io::Read;
        let mut text = Vec::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_end(&mut text).unwrap();
        }
        self.stderr += &String::from_utf8(text).unwrap();
        self.code = self.child.wait().unwrap().code();
    }

    /// Reads stderr up to this text. Returns whether the text came before the process ended.
    pub fn says(&mut self, text: &str) -> bool {
        let mut heard = Vec::new();
        let found = hears(self.child.stderr.as_mut().unwrap(), &mut heard, text);
        self.stderr += &String::from_utf8(heard).unwrap();
        found
    }

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl LaunchedRanks {
    /// Waits for all processes to end.
    pub fn ends(mut self) -> Self {
        self.members.iter_mut().for_each(Member::ends);
        self
    }

    /// Waits for all processes to end, and fails if that takes longer than `limit`.
    pub fn ends_within(mut self, limit: Duration) -> Self {
        let began = Instant::now();
        while !self.members.iter_mut().all(Member::is_over) {
            assert!(began.elapsed() < limit, "{:?} lives on after {limit:?}", self.launcher);
            std::thread::sleep(Duration::from_millis(10));
        }
        self.ends()
    }

    /// Returns the process of a rank; with threads, the only process.
    pub fn process_of(&self, rank: usize) -> u32 {
        match self.launcher {
            Launcher::Thread => self.members[0].id(),
            Launcher::Process => children_of(self.members[0].id())[rank],
            Launcher::Env => self.members[rank].id(),
        }
    }

    /// Returns all processes of the run.
    pub fn processes(&self) -> Vec<u32> {
        let started = self.members.iter().map(Member::id);
        started.flat_map(|id| std::iter::once(id).chain(children_of(id))).collect()
    }

    /// Waits until the run at `place` has this many rows.
    #[track_caller]
    pub fn trained(&mut self, place: &Place, steps: usize) -> Run {
        let began = Instant::now();
        loop {
            if let Some(run) = place.runs().pop().filter(|run| run.rows() >= steps) {
                return run;
            }
            for member in &mut self.members {
                if member.is_over() {
                    member.ends();
                    panic!("it ended before step {steps}:\n{}", member.stderr);
                }
            }
            assert!(began.elapsed() < PATIENCE, "nothing came of it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns what all processes printed on stderr.
    pub fn said(&self) -> String {
        self.members.iter().map(|member| member.stderr.as_str()).collect()
    }
}

impl Drop for LaunchedRanks {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

/// Returns the children of a process, in the order in which they were started.
pub fn children_of(process: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let mut children: Vec<u32> =
        children.unwrap_or_default().split_whitespace().map(|id| id.parse().unwrap()).collect();
    children.sort_unstable();
    children
}

/// Sends a signal, given by name.
pub fn signal(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success(), "{kill}");
}

/// Sends a signal, given by name, to a process that may have ended.
pub fn signal_if_there(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status().unwrap();
}

/// Asserts that the parameters, moments and rows of two runs have the same bits.
#[track_caller]
pub fn same_bits(a: &Run, b: &Run, what: &str) {
    use xrun::checkpoint::first_difference;
    assert_eq!(a.text("metrics.csv"), b.text("metrics.csv"), "{what}");
    assert_eq!(first_difference(&a.newest(), &b.newest()).unwrap(), None, "{what}");
}

/// Reads the rows of `metrics.csv`.
pub fn metrics(run: &Run) -> Vec<xrun::results::MetricsRow> {
    xrun::results::rows::read(Path::new(&run.path.join("metrics.csv"))).unwrap()
}
