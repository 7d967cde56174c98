//! Renders a chat template in a child process of this program with limits on its memory, its time and its
//! stack. The interpreter counts instructions, but one instruction may double a list, repeat a text a billion
//! times or recurse through nested values, and a stack overflow ends a process.

use super::conversation::Conversation;
use super::rendering::{Done, Job, Task, render};
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::threads::spawn_detached;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The hidden command that renders a template from its standard input.
pub const COMMAND: &str = "render-template";

/// Address space of the child, in bytes: its program, its stack and the values of the template.
const MEMORY_BYTES: u64 = 1 << 30;

/// Stack of the thread that renders, in bytes.
const STACK_BYTES: usize = 64 << 20;

/// Processor time of the child. Templates in use take milliseconds.
const CPU_SECONDS: u64 = 4;

/// Time until the parent ends the child.
const WALL: Duration = Duration::from_secs(15);

/// Conversations to train on for which a child gets that time once more.
const SHARE: u64 = 64;

/// Bytes to render for which a child gets that time once more: an answer late in a long conversation has all
/// of the text before it rendered anew.
const SHARE_BYTES: u64 = 16 << 20;

/// Most bytes of the child's answer that are read.
const MAX_ANSWER_BYTES: u64 = 512 << 20;

/// The file that is this program while it runs, even after a new build replaced it.
const SELF: &str = "/proc/self/exe";

/// Where templates are rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renderer {
    /// In a child of this process, whose program must be xrun.
    Child,
    /// In this process, without limits on memory, time and depth: for templates that are trusted.
    Here,
}

/// What the child answers.
#[derive(Serialize, Deserialize)]
enum Answer {
    Done(Done),
    Wrong(String),
}

impl Renderer {
    /// Does a job.
    ///
    /// # Errors
    /// If the template is wrong, or exceeds a limit.
    pub(super) fn render(self, job: &Job) -> Result<Done> {
        match self {
            Self::Here => render(job),
            Self::Child => render_in_child(job),
        }
    }
}

/// Returns the time that a job gets, as a multiple of that of one rendering.
fn times(job: &Job) -> u64 {
    match &job.task {
        Task::Compile | Task::Prompt(_) => 1,
        Task::Train(conversations) => {
            let bytes: u64 = conversations.iter().map(Conversation::bytes_to_render).sum();
            1 + conversations.len() as u64 / SHARE + bytes / SHARE_BYTES
        }
    }
}

fn render_in_child(job: &Job) -> Result<Done> {
    let input =
        serde_json::to_vec(job).map_err(|e| Error::failed(format!("cannot encode a template: {e}")))?;
    let program = match Path::new(SELF).exists() {
        true => PathBuf::from(SELF),
        false => {
            std::env::current_exe().map_err(|e| Error::failed(format!("cannot find this program: {e}")))?
        }
    };
    let mut child = Command::new(&program)
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // The allocator and the runtime say there why they end the process; the parent says it better.
        .stderr(Stdio::null())
        .spawn()
        .at("start", &program)?;
    let wall = WALL * times(job) as u32;
    let answered = answer(&mut child, input, wall);
    if answered.is_none() {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
    }
    let status = child.wait().at("wait for", &program)?;
    let Some(answer) = answered else {
        return Err(Error::usage(format!("the chat template does not finish within {} s", wall.as_secs())));
    };
    match serde_json::from_slice(&answer) {
        Ok(Answer::Done(done)) if status.success() => Ok(done),
        Ok(Answer::Wrong(message)) if status.success() => Err(Error::usage(message)),
        _ => Err(Error::usage(why(status, CPU_SECONDS * times(job)))),
    }
}

/// Sends the job and returns the answer; `None` if the time is up.
fn answer(child: &mut Child, input: Vec<u8>, wall: Duration) -> Option<Vec<u8>> {
    let (mut to, from) = (child.stdin.take()?, child.stdout.take()?);
    let (sender, answers) = channel();
    let talk = move || {
        // If the child ended early, its status says why.
        let _ = to.write_all(&input);
        drop(to);
        let mut answer = Vec::new();
        let _ = from.take(MAX_ANSWER_BYTES).read_to_end(&mut answer);
        let _ = sender.send(answer);
    };
    spawn_detached("xrun-template", talk).ok()?;
    answers.recv_timeout(wall).ok()
}

/// Says why the child ended without an answer.
fn why(status: ExitStatus, seconds: u64) -> String {
    let memory = status.code() == Some(ErrorKind::DoesNotFit.exit_code().into());
    // SIGXCPU has number 24 on every Linux that xrun is built for, and on macOS.
    match status.signal() {
        _ if memory => format!("the chat template takes more than {} MiB of memory", MEMORY_BYTES >> 20),
        Some(24) => format!("the chat template does not finish within {seconds} s"),
        Some(signal) => {
            format!(
                "the chat template nests values or expressions too deeply to be rendered (signal {signal})"
            )
        }
        None => format!("the chat template cannot be rendered ({status})"),
    }
}

/// Renders the template that the standard input holds, within the limits, and prints the answer. This is all
/// that a process of [`COMMAND`] does.
///
/// # Errors
/// If the limits cannot be set, or input or output fails.
pub fn render_from_stdin() -> Result<()> {
    let failed = |what: &str, e: &dyn std::fmt::Display| Error::failed(format!("cannot {what}: {e}"));
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).map_err(|e| failed("read a template", &e))?;
    let job: Job = serde_json::from_slice(&input).map_err(|e| failed("read a template", &e))?;
    // A job is read without limits: its size is that of the texts that the parent has.
    let seconds = CPU_SECONDS * times(&job);
    for (resource, most) in [(Resource::As, MEMORY_BYTES), (Resource::Cpu, seconds), (Resource::Core, 0)] {
        let maximum = getrlimit(resource).maximum;
        let current = Some(maximum.map_or(most, |maximum| maximum.min(most)));
        setrlimit(resource, Rlimit { current, maximum }).map_err(|e| failed("limit a template", &e))?;
    }
    let worker = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || render(&job));
    let rendered = worker.map_err(|e| failed("start a thread", &e))?.join();
    let answer = match rendered {
        Ok(Ok(done)) => Answer::Done(done),
        Ok(Err(e)) => Answer::Wrong(e.message().to_owned()),
        Err(_) => Answer::Wrong("the chat template makes its interpreter fail".to_owned()),
    };
    let answer = serde_json::to_vec(&answer).map_err(|e| failed("encode an answer", &e))?;
    std::io::stdout().write_all(&answer).map_err(|e| failed("answer", &e))
}

#[cfg(test)]
mod tests {
    use super::super::message::Message;
    use super::*;
    use std::collections::BTreeMap;

    fn times_of(conversations: usize, messages: usize, bytes: usize) -> u64 {
        let message = |i: usize| Message::new(["user", "assistant"][i % 2], "x".repeat(bytes));
        let trained = (1..messages).step_by(2).collect();
        let messages: Vec<Message> = (0..messages).map(message).collect();
        let one = Conversation { messages, tools: None, trained };
        let task = Task::Train(vec![one; conversations]);
        times(&Job { source: String::new(), tokens: BTreeMap::new(), task })
    }

    /// A conversation of a million characters has one answer, or five hundred, of which each has all of the
    /// text before it rendered.
    #[test]
    fn the_time_grows_with_what_is_rendered() {
        assert_eq!([times_of(1, 2, 100), times_of(64, 2, 100)], [1, 2]);
        assert_eq!(times_of(1, 2, 500_000), 1);
        let long = [times_of(1, 100, 10_000), times_of(1, 1000, 1000), times_of(10, 100, 10_000)];
        assert_eq!(long, [4, 38, 32]);
    }
}
