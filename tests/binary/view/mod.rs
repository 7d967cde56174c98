//! `xrun view` over a socket, as a browser and as an attacker use it, and the files that it writes.

mod documents;
mod file;
mod hostile;
mod live;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use xrun::metrics::{MetricsRow, Phase, TimingRow};
use xrun::results::folder::{METRICS, RunFolder, TIMING};
use xrun::results::summary::Sample;
use xrun::results::{Status, Summary};

/// A running server.
struct Viewed {
    child: Child,
    port: u16,
    /// The folder of the page, `/NAME`, which all targets are in.
    folder: String,
    token: String,
    cookie: String,
}

/// A response.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let is_named = |line: &&str| line.to_lowercase().starts_with(&format!("{name}: "));
        self.head.lines().find(is_named).and_then(|line| Some(line.split_once(": ")?.1))
    }
}

impl Viewed {
    /// Serves a results folder, and exchanges the token of the printed address for a cookie.
    fn start(results: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_xrun"))
            .args(["view", "--results"])
            .arg(results)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, token) = line.trim().split_once("/?token=").expect("an address with a token");
        let address = address.strip_prefix("http://127.0.0.1:").expect("loopback");
        let (port, folder) = address.split_once('/').expect("a folder");
        let (port, folder) = (port.parse().unwrap(), format!("/{folder}"));
        let mut viewed = Self { child, port, folder, token: token.to_owned(), cookie: String::new() };
        let entered = viewed.get_as(&format!("/?token={token}"), &[]);
        assert_eq!((entered.status, entered.header("location")), (303, Some("./")), "{entered:?}");
        let cookie = entered.header("set-cookie").unwrap();
        viewed.cookie = cookie.split(';').next().unwrap().to_owned();
        viewed
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    fn host(&self) -> String {
        format!("Host: 127.0.0.1:{}", self.port)
    }

    /// Sends bytes as they are, and reads the whole response.
    fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The server may reject too long a request before it has read all of it.
        let _ = stream.write_all(bytes);
        read(stream)
    }

    /// Requests a target in the page's folder, with only a Host and these headers.
    fn get_as(&self, target: &str, headers: &[&str]) -> Answer {
        let (host, folder) = (self.host(), &self.folder);
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        self.send(format!("GET {folder}{target} HTTP/1.1\r\n{host}\r\n{headers}\r\n").as_bytes())
    }

    /// Requests a target as the page does.
    fn get(&self, target: &str) -> Answer {
        let cookie = format!("Cookie: {}", self.cookie);
        self.get_as(target, &[&cookie, "Sec-Fetch-Site: same-origin"])
    }

    /// Returns a document.
    fn document(&self, target: &str) -> Value {
        let answer = self.get(target);
        assert_eq!(answer.status, 200, "{target}: {answer:?}");
        answer.json()
    }
}

impl Drop for Viewed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// Makes the row of a step: the loss has a spike at step 500 and is NaN at step 600.
fn metrics(step: u64) -> MetricsRow {
    let loss = match step {
        500 => 99.5,
        600 => f32::NAN,
        step => 4.0 / step as f32 + 1.0,
    };
    MetricsRow {
        step,
        tokens_seen: step * 64,
        loss,
        val_loss: step.is_multiple_of(100).then_some(2.25),
        lr: 1e-3,
        grad_norm: 1.0,
        ..MetricsRow::default()
    }
}

fn timing(step: u64) -> TimingRow {
    TimingRow { tok_s: Some(640.0), ..TimingRow::timed(step, Phase::Train, step as f64 / 10.0, 100.0) }
}

/// Makes a finished run of `steps` steps with a sample.
fn run(results: &Path, recipe: &str, time: &str, steps: u64, sample: &str) -> PathBuf {
    let folder = RunFolder::create(results, recipe, "0123abcd", time.parse().unwrap()).unwrap();
    let (mut rows, mut times) = (folder.start_rows(METRICS).unwrap(), folder.start_rows(TIMING).unwrap());
    for step in 1..=steps {
        rows.append(&metrics(step)).unwrap();
        times.append(&timing(step)).unwrap();
    }
    folder.write_recipe("[model]\ndim = 32\n").unwrap();
    folder
        .write_resolved(&format!(
            "[model]\ndim = 32\n[training]\nseed = {steps}\n[data]\ncorpus = \"/srv/texts/a b.txt\"\n"
        ))
        .unwrap();
    let mut summary = Summary::started(recipe, &folder.name(), "0123abcd", steps);
    let known: Vec<MetricsRow> = (1..=steps).map(metrics).collect();
    summary.measure(&known, &(1..=steps).map(timing).collect::<Vec<_>>(), 1);
    summary.status = Status::Ok;
    summary.samples.push(Sample { step: steps, prompt: "\"quoted\" '".to_owned(), text: sample.to_owned() });
    folder.write_summary(&summary).unwrap();
    folder.log("a line \u{1b}[31m of the log").unwrap();
    folder.path().to_owned()
}

/// Returns `RECIPE/RUN` for a run's folder.
fn id(run: &Path) -> String {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    format!("{}/{}", name(run.parent().unwrap()), name(run))
}
