//! Where a number comes from: run, recipe, commit, device, driver, topology, date.

use super::Scene;
use super::kept::KeptRun;
use super::text::{plain, short_hash};
use crate::results::folder::RESOLVED;
use crate::results::provenance::{Environment, Gpu};

/// Values without repetitions, in order, as `a then b`.
pub fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen.join(" then ")
}

/// Returns the device class that a run was measured on; a resumed run may have several.
pub fn device(run: &KeptRun) -> String {
    let classes: Vec<String> = run.environments.iter().map(Environment::device_class).collect();
    distinct(classes.iter().map(String::as_str))
}

/// A link to a run's folder.
pub fn link(run: &KeptRun, scene: &Scene<'_>) -> String {
    format!("[{}]({})", run.name(), scene.link(&run.source.folder))
}

/// Lines that say where runs' numbers come from; runs of the same origin share one.
pub fn lines<'a>(runs: impl IntoIterator<Item = &'a KeptRun>, scene: &Scene<'_>) -> Vec<String> {
    let mut groups: Vec<((String, String), Vec<&KeptRun>)> = Vec::new();
    for run in runs {
        let origin = origin(run);
        match groups.iter_mut().find(|(known, _)| *known == origin) {
            // A run that stands for several turns is named once.
            Some((_, of_origin)) if of_origin.iter().any(|other| other.source.id == run.source.id) => {}
            Some((_, of_origin)) => of_origin.push(run),
            None => groups.push((origin, vec![run])),
        }
    }
    let line = |((hash, origin), runs): &((String, String), Vec<&KeptRun>)| {
        let links: Vec<String> = runs.iter().map(|run| link(run, scene)).collect();
        let resolved = scene.link(&runs[0].source.folder.join(RESOLVED));
        format!("{}: recipe [{}]({resolved}), {origin}", links.join(", "), short_hash(hash, 8))
    };
    groups.iter().map(line).collect()
}

/// What a run was made from and on, besides its recipe; runs of different recipes are of different origin.
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
        parts.push(plain(&device(run)));
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

/// The commits that a run was measured at.
pub fn commits(run: &KeptRun) -> impl Iterator<Item = String> {
    run.environments.iter().filter_map(|environment| environment.build.commit.clone())
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

/// How the GPUs of a run are joined.
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

    #[test]
    fn what_changes_on_the_way_is_told() {
        assert_eq!(distinct(["a", "a", "b", "a"].into_iter()), "a then b");
    }
}
