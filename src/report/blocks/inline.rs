//! Provenance of blocks of the inline form: a line per run or arm. Verified until a page is migrated.

use super::kept::{KeptRun, Source};
use super::page_context::PageContext;
use super::provenance::{device, distinct, link, places};
use super::text::{code, link_to, plain, short_hash};
use crate::format::BLANK;
use crate::results::comparison::{COMPARISON, Comparison};
use crate::results::folder::RESOLVED;
use crate::results::ledger::{Attempt, LEDGER};
use crate::results::provenance::{Environment, Gpu};
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the origin of runs, a line per origin.
pub fn runs(runs: &[KeptRun], context: &PageContext<'_>) -> String {
    small(&lines(runs, context))
}

/// Returns the origin of each arm's numbers.
pub fn comparison(
    comparison: &Comparison,
    runs: &BTreeMap<String, KeptRun>,
    context: &PageContext<'_>,
    folder: &Path,
) -> String {
    let mut found = Vec::new();
    for (is_candidate, name, side) in
        [(false, "before", &comparison.baseline), (true, "after", &comparison.candidate)]
    {
        let of_side = comparison.trials.iter().filter(|trial| trial.is_candidate == is_candidate);
        let of_side: Vec<&KeptRun> = of_side.filter_map(|trial| runs.get(trial.run.as_ref()?)).collect();
        let mut line = format!("{name}: {}", code(&side.command));
        if of_side.is_empty() {
            line += &format!(", {}", plain(&side.device));
            let hash = |what: &str, hash: &Option<String>| {
                hash.as_ref().map_or(String::new(), |hash| format!(", {what} {}", short_hash(hash, 12)))
            };
            line += &hash("recipe", &side.recipe_hash);
            line += &hash("commit", &side.commit);
        }
        found.push(line);
        found.extend(lines(of_side, context));
    }
    found.push(format!(
        "blocks, interval and rule: [{COMPARISON}]({})",
        context.link(&folder.join(COMPARISON))
    ));
    small(&found)
}

/// Returns the commands of both arms of several comparisons, and the origin of their runs.
pub fn series(context: &PageContext<'_>, comparisons: &[&Comparison], all_runs: &[KeptRun]) -> String {
    let mut found = Vec::new();
    for (is_candidate, word) in [(false, "before"), (true, "after")] {
        for comparison in comparisons {
            let side = if is_candidate { &comparison.candidate } else { &comparison.baseline };
            let is_external = side.recipe_hash.is_none();
            let device = if is_external { format!(", {}", plain(&side.device)) } else { String::new() };
            found.push(format!("{word}: {}{device}", code(&side.command)));
        }
    }
    found.dedup();
    found.extend(lines(all_runs, context));
    small(&found)
}

/// Returns the builds and devices of a sweep's cells.
pub fn sweep(sources: &[&Source], cells: &[Attempt], context: &PageContext<'_>) -> String {
    let places = places(cells, |devices, builds| format!("xrun {builds}, {devices}; "));
    let links = sources.iter().map(|sweep| link_to(&sweep.id, &context.link(&sweep.folder.join(LEDGER))));
    let links = links.collect::<Vec<_>>().join(", ");
    format!("<sub>{links}: {places}{BLANK} was not measured</sub>\n")
}

fn small(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("<sub>{line}</sub>")).collect();
    lines.join("<br>\n") + "\n"
}

/// Returns lines with the origin of runs; runs of the same origin share one.
fn lines<'a>(runs: impl IntoIterator<Item = &'a KeptRun>, context: &PageContext<'_>) -> Vec<String> {
    let mut groups: Vec<((String, String), Vec<&KeptRun>)> = Vec::new();
    for run in runs {
        let origin = origin(run);
        match groups.iter_mut().find(|(known, _)| *known == origin) {
            // A run that is in several trials is named once.
            Some((_, of_origin)) if of_origin.iter().any(|other| other.source.id == run.source.id) => {}
            Some((_, of_origin)) => of_origin.push(run),
            None => groups.push((origin, vec![run])),
        }
    }
    let line = |((hash, origin), runs): &((String, String), Vec<&KeptRun>)| {
        let links: Vec<String> = runs.iter().map(|run| link(run, context)).collect();
        let resolved = context.link(&runs[0].source.folder.join(RESOLVED));
        format!("{}: recipe [{}]({resolved}), {origin}", links.join(", "), short_hash(hash, 8))
    };
    groups.iter().map(line).collect()
}

/// Returns the recipe hash of a run, and its program and device in words.
fn origin(run: &KeptRun) -> (String, String) {
    let mut parts = Vec::new();
    if let Some(environment) = run.environment() {
        let build = &environment.build;
        parts.push(match (&build.commit, build.dirty) {
            (Some(commit), Some(true)) => format!("commit {} with changes", short_hash(commit, 12)),
            (Some(commit), _) => format!("commit {}", short_hash(commit, 12)),
            (None, _) => "commit unknown".to_owned(),
        });
        parts.push(plain(build.profile.as_deref().unwrap_or("profile unknown")));
        let instructions: Vec<String> =
            run.environments.iter().map(|process| format!("cpu {}", process.cpu.instructions)).collect();
        parts.push(plain(&match &environment.gpu {
            Some(_) => device(run),
            None => distinct(instructions.iter().map(String::as_str)),
        }));
        match &environment.gpu {
            Some(gpu) => parts.push(of_gpu(gpu)),
            None => parts.push(of_cpu(environment)),
        }
        parts.push(environment.started.strftime("%Y-%m-%d").to_string());
    }
    if run.environments.len() > 1 {
        parts.push(format!("resumed {}×", run.environments.len() - 1));
    }
    (run.summary.recipe_hash.clone(), parts.join(", "))
}

fn of_gpu(gpu: &Gpu) -> String {
    let or_unknown = |value: &Option<String>| value.as_deref().map_or("unknown".to_owned(), plain);
    format!("driver {}, CUDA {}, topology {}", or_unknown(&gpu.driver), or_unknown(&gpu.cuda), topology(gpu))
}

fn of_cpu(environment: &Environment) -> String {
    let model = plain(environment.cpu.model.as_deref().unwrap_or("model unknown"));
    let threads = environment.cpu.threads;
    format!("{model}, {threads} thread{}, no GPU", if threads == 1 { "" } else { "s" })
}

/// Returns the links between the GPUs of a run.
fn topology(gpu: &Gpu) -> String {
    match (&gpu.topology, gpu.links()) {
        (Some(rows), Some(words)) if rows.len() > 1 => format!("{} GPUs by {}", rows.len(), plain(&words)),
        _ => "one GPU".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_is_its_links() {
        let rows = |rows: &[&[&str]]| -> Vec<Vec<String>> {
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
        };
        assert_eq!(topology(&Gpu::default()), "one GPU");
        let matrix = rows(&[&["X", "NV18"], &["NV18", "X"]]);
        assert_eq!(topology(&Gpu { topology: Some(matrix), ..Gpu::default() }), "2 GPUs by NV18");
    }
}
