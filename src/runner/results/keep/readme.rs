//! `README.md` of a kept folder. It shows readers of a page the runs, recipes, commands and programs behind
//! the page's numbers. All its content comes from the kept files and is escaped.

use crate::format::BLANK;
use crate::results::experiment::{ARM_NAMES, Arm, Experiment, ExperimentRun};
use crate::results::ledger::Attempt;
use crate::results::markdown::{code, link, plain, short_hash, table, target};
use crate::results::names::{EXPERIMENT, LEDGER};
use crate::results::provenance::Environment;
use crate::results::stored::COMPRESSED;
use crate::results::summary::Summary;
use std::collections::BTreeMap;

/// The file's name.
pub const README: &str = "README.md";

/// Returns the README of a run: its status, and the command, program and device of each of its processes.
pub fn for_run(recipe: &str, run: &str, summary: Option<&Summary>, processes: &[Environment]) -> String {
    let mut text = format!("# {}: run {}\n\n", plain(recipe), plain(run));
    if let Some(summary) = summary {
        text += &format!(
            "{} after {} steps; recipe hash {}.\n\n",
            summary.status.as_str(),
            summary.steps,
            short_hash(&summary.recipe_hash, 64)
        );
    }
    for (number, process) in processes.iter().enumerate() {
        if processes.len() > 1 {
            text += &format!("## Process {}\n\n", number + 1);
        }
        text += &process_table(process);
        text.push('\n');
    }
    text
}

fn process_table(process: &Environment) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let variables: Vec<String> =
        process.variables.iter().map(|(name, value)| code(&format!("{name}={value}"))).collect();
    let mut rows = vec![
        row("command", code(&command(process))),
        row("program", program(process)),
        row("device", device(process)),
        row("started", process.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
    ];
    if !variables.is_empty() {
        rows.push(row("variables", variables.join(", ")));
    }
    table(&["".to_owned(), "".to_owned()], &rows)
}

fn command(process: &Environment) -> String {
    process.command.join(" ")
}

/// Returns the program's version, commit, profile and compiler.
fn program(process: &Environment) -> String {
    let build = &process.build;
    let commit = match (&build.commit, build.dirty) {
        (Some(commit), Some(true)) => format!("commit {} with changes", short_hash(commit, 12)),
        (Some(commit), _) => format!("commit {}", short_hash(commit, 12)),
        (None, _) => "commit unknown".to_owned(),
    };
    let mut parts = vec![format!("xrun {}", plain(&build.version)), commit];
    parts.extend(build.profile.iter().chain(&build.rustc).map(|text| plain(text)));
    parts.join(", ")
}

/// Returns the device and the versions of its libraries.
fn device(process: &Environment) -> String {
    let Some(gpu) = &process.gpu else {
        let cpu = &process.cpu;
        let model = plain(cpu.model.as_deref().unwrap_or("model unknown"));
        return format!("{model}, {}, {} threads, no GPU", plain(&cpu.instructions), cpu.threads);
    };
    let versions =
        [("driver", &gpu.driver), ("CUDA", &gpu.cuda), ("cuBLASLt", &gpu.cublaslt), ("nvrtc", &gpu.nvrtc)];
    let mut parts = vec![plain(&gpu.class())];
    parts.extend(
        versions.iter().filter_map(|(name, version)| Some(format!("{name} {}", plain(version.as_ref()?)))),
    );
    if let Some(nccl) = &gpu.nccl {
        parts.extend(nccl.version.as_ref().map(|version| format!("NCCL {}", plain(version))));
        parts.extend(nccl.variables.iter().map(|(name, value)| code(&format!("{name}={value}"))));
    }
    parts.join(", ")
}

/// Returns the README of a comparison: its arms and every run. `processes` holds the environment of each kept
/// run's first process, by `RECIPE/RUN`.
pub fn for_comparison(experiment: &Experiment, processes: &BTreeMap<String, Environment>) -> String {
    let mut text = format!("# {}: {}\n\n", plain(&experiment.name), experiment.verdict_words());
    if let Some(hypothesis) = &experiment.hypothesis {
        text += &format!("> {}\n\n", plain(hypothesis));
    }
    let short = |hash: Option<&String>| hash.map_or(BLANK.to_owned(), |hash| short_hash(hash, 16));
    let row = |(name, arm): (&&str, &Arm)| {
        vec![
            (*name).to_owned(),
            plain(&arm.label),
            code(&arm.command),
            short(arm.recipe_hash.as_ref().or(arm.seedless_hash.as_ref())),
            short(arm.commit.as_ref()),
            short(arm.binary.as_ref()),
            arm.device.as_deref().map_or(BLANK.to_owned(), plain),
        ]
    };
    let headings = ["arm", "label", "command", "recipe hash", "commit", "binary", "device"];
    let arms: Vec<Vec<String>> = ARM_NAMES.iter().zip(&experiment.arms).map(row).collect();
    text += &table(&headings.map(str::to_owned), &arms);
    text.push('\n');
    let row = |(index, run): (usize, &ExperimentRun)| {
        let number = index + 1;
        let process = run.run.as_ref().and_then(|run| processes.get(run));
        let cell = |value: fn(&Environment) -> String| process.map_or(BLANK.to_owned(), value);
        let place = match &run.run {
            Some(run) => link(run, &format!("../../../{}/{README}", target(run))),
            None => format!("[trial-{number}.jsonl](trial-{number}.jsonl{COMPRESSED})"),
        };
        let status = run.status.as_deref().unwrap_or(BLANK);
        let status = run.reason.as_ref().map_or(plain(status), |why| plain(&format!("{status}: {why}")));
        vec![
            number.to_string(),
            ARM_NAMES.get(run.arm).map_or(BLANK, |name| *name).to_owned(),
            run.seed.map_or(BLANK.to_owned(), |seed| seed.to_string()),
            place,
            status,
            cell(|process| code(&command(process))),
            cell(program),
            cell(device),
        ]
    };
    let headings = ["", "arm", "seed", "run", "status", "command", "program", "device"];
    let rows: Vec<Vec<String>> = experiment.runs.iter().enumerate().map(row).collect();
    text += &table(&headings.map(str::to_owned), &rows);
    text + &format!("\nValues, intervals and rule: [{EXPERIMENT}]({EXPERIMENT}).\n")
}

/// Returns the README of a sweep, with the last attempt at each of its cells.
pub fn for_sweep(name: &str, attempts: &[Attempt]) -> String {
    let mut cells: Vec<&Attempt> = Vec::new();
    for attempt in attempts {
        match cells.iter_mut().find(|cell| cell.is_same_cell(attempt)) {
            Some(cell) => *cell = attempt,
            None => cells.push(attempt),
        }
    }
    let row = |cell: &&Attempt| {
        let settings: Vec<String> =
            cell.settings.iter().map(|(key, value)| code(&format!("{key}={value}"))).collect();
        vec![
            plain(&cell.recipe),
            settings.join(", "),
            cell.status.as_str().to_owned(),
            short_hash(&cell.recipe_hash, 16),
            cell.run.as_deref().map_or(BLANK.to_owned(), plain),
            plain(&cell.build),
            plain(&cell.device),
        ]
    };
    let headings = ["recipe", "settings", "status", "recipe hash", "run", "program", "device"];
    let cells = table(&headings.map(str::to_owned), &cells.iter().map(row).collect::<Vec<_>>());
    format!("# Sweep {}\n\n{cells}\nEvery attempt: [{LEDGER}]({LEDGER}).\n", plain(name))
}
