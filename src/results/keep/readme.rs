//! `README.md` of a kept folder: the runs, recipes, commands and programs behind its numbers, for readers of
//! a page that links to it. All its content comes from the kept files and is escaped.

use crate::format::BLANK;
use crate::results::comparison::{Arm, Comparison};
use crate::results::ledger::Attempt;
use crate::results::markdown::{code, link, plain, short_hash, table, target};
use crate::results::names::{COMPARISON, LEDGER, QUALITY};
use crate::results::provenance::Environment;
use crate::results::quality::{Pair, PairedRun, QualityArm, QualityComparison};
use crate::results::stored::KeptFile;
use crate::results::summary::Summary;
use std::collections::BTreeMap;

/// The file's name.
pub const README: &str = "README.md";

/// Returns the README of a run: its status, and the command, program and device of each of its processes.
pub fn for_run(
    recipe: &str,
    run: &str,
    summary: Option<&Summary>,
    processes: &[Environment],
    files: &[KeptFile],
) -> String {
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
    text += "| file | stored |\n|---|---|\n";
    for file in files {
        text += &format!("| {} | {} |\n", code(&file.path), stored(file));
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

/// Returns version, commit, profile and compiler.
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

/// Returns the device and its libraries.
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

/// Describes where a file's content is stored, and the columns that are recomputed from others.
fn stored(file: &KeptFile) -> String {
    let mut text = match &file.shared {
        Some(path) => format!("{}, shared by runs with the same content", link(path, &target(path))),
        None => "here".to_owned(),
    };
    if let Some(derived) = &file.derived {
        let names = derived.computed.keys().chain(derived.constant.keys()).map(|name| code(name));
        let names = names.collect::<Vec<_>>().join(", ");
        text += &format!(", without columns that follow from others as `manifest.json` says: {names}");
    }
    text
}

/// Returns the README of a comparison: its arms, and every trial with its run. `processes` holds the first
/// process of each kept run, by `RECIPE/RUN`.
pub fn for_comparison(comparison: &Comparison, processes: &BTreeMap<String, Environment>) -> String {
    let mut text = format!("# {}: {}\n\n", plain(&comparison.name), comparison.verdict.as_str());
    if let Some(hypothesis) = &comparison.hypothesis {
        text += &format!("> {}\n\n", plain(hypothesis));
    }
    let arm = |name: &str, side: &Arm| {
        let hash =
            |hash: &Option<String>| hash.as_ref().map_or(BLANK.to_owned(), |hash| short_hash(hash, 16));
        vec![
            name.to_owned(),
            plain(&side.label),
            code(&side.command),
            hash(&side.recipe_hash),
            hash(&side.commit),
            hash(&side.binary),
            plain(&side.device),
        ]
    };
    let headings = ["arm", "label", "command", "recipe hash", "commit", "binary", "device"];
    let arms = [arm("before", &comparison.baseline), arm("after", &comparison.candidate)];
    text += &table(&headings.map(str::to_owned), &arms);
    text.push('\n');
    let rows: Vec<Vec<String>> = comparison
        .trials
        .iter()
        .enumerate()
        .map(|(index, trial)| {
            let arm = if trial.is_candidate { "after" } else { "before" };
            let run = match &trial.run {
                Some(run) => link(run, &format!("../../../{}/{README}", target(run))),
                None => format!("[turn-{0}.jsonl](turn-{0}.jsonl)", index + 1),
            };
            let process = trial.run.as_ref().and_then(|run| processes.get(run));
            let of = |value: fn(&Environment) -> String| process.map_or(BLANK.to_owned(), value);
            let (command, program, device) = (of(|p| code(&command(p))), of(program), of(device));
            vec![(index + 1).to_string(), arm.to_owned(), run, plain(&trial.status), command, program, device]
        })
        .collect();
    let headings = ["trial", "arm", "run", "status", "command", "program", "device"];
    text += &table(&headings.map(str::to_owned), &rows);
    text + &format!("\nBlocks of steps, interval, rule and loss gate: [{COMPARISON}]({COMPARISON}).\n")
}

/// Returns the README of a comparison of quality: its arms, and every pair with its runs.
pub fn for_quality(comparison: &QualityComparison) -> String {
    let verdict = comparison.verdict().words();
    let mut text = format!("# {}: {verdict}\n\n", plain(&comparison.name));
    if let Some(hypothesis) = &comparison.hypothesis {
        text += &format!("> {}\n\n", plain(hypothesis));
    }
    let arm = |name: &str, side: &QualityArm| {
        vec![name.to_owned(), plain(&side.label), code(&side.command), short_hash(&side.recipe_hash, 16)]
    };
    let headings = ["arm", "label", "command", "recipe hash without the seed"];
    let arms = [arm("baseline", &comparison.baseline), arm("candidate", &comparison.candidate)];
    text += &table(&headings.map(str::to_owned), &arms);
    text.push('\n');
    let run = |run: &PairedRun| {
        let shown = |name: &String| link(name, &format!("../../../{}/{README}", target(name)));
        let place = run.run.as_ref().map_or(BLANK.to_owned(), shown);
        [run.seed.to_string(), place, plain(run.status.as_deref().unwrap_or(BLANK))]
    };
    let row = |pair: &Pair| [run(&pair.baseline), run(&pair.candidate)].concat();
    let headings = ["seed", "baseline", "status", "seed", "candidate", "status"];
    text += &table(&headings.map(str::to_owned), &comparison.pairs.iter().map(row).collect::<Vec<_>>());
    text + &format!("\nValues, intervals and rule: [{QUALITY}]({QUALITY}).\n")
}

/// Returns the README of a sweep: the last attempt at each of its cells.
pub fn for_sweep(name: &str, attempts: &[Attempt]) -> String {
    let mut cells: Vec<&Attempt> = Vec::new();
    for attempt in attempts {
        match cells.iter_mut().find(|cell| cell.is_of_cell(attempt)) {
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
