//! The origin of numbers in one line: device, driver, program and date, with a link to the commands that made
//! them.

use super::kept::KeptRun;
use super::page_context::PageContext;
use super::text::{distinct, link_to, plain};
use crate::results::experiment::Arm;
use crate::results::keep::README;
use crate::results::ledger::Attempt;
use crate::results::provenance::Environment;
use std::collections::BTreeSet;
use std::path::Path;

/// Returns the device class that a run was measured on, such as `NVIDIA H200`, `2 × NVIDIA H200 by NV18` or
/// `cpu avx512`.
pub fn device(run: &KeptRun) -> String {
    distinct(run.environments.iter().map(Environment::device_class)).join(" then ")
}

/// Returns a link to a run's folder.
pub fn link(run: &KeptRun, context: &PageContext<'_>) -> String {
    link_to(run.name(), &context.link(&run.source.folder))
}

/// Returns the line for a block of these runs, and of comparison arms without kept runs. `folders` are the
/// kept folders that the block shows: a single one is linked here, several are linked in the table above.
pub fn line(context: &PageContext<'_>, runs: &[&KeptRun], arms: &[&Arm], folders: &[&Path]) -> String {
    let environments = || runs.iter().flat_map(|run| &run.environments);
    let mut parts = Vec::new();
    let devices: Vec<String> = environments().map(short_device).collect();
    let arm_devices = arms.iter().filter_map(|arm| arm.device.as_deref());
    let devices = devices.into_iter().chain(arm_devices.map(|device| plain(&short_class(device))));
    parts.push(list("", devices));
    let drivers = environments().filter_map(|environment| environment.gpu.as_ref()?.driver.as_ref());
    parts.push(list("driver ", drivers.map(|driver| plain(driver))));
    parts.push(list("xrun ", environments().map(commit)));
    let days = || environments().map(|environment| environment.started.strftime("%Y-%m-%d").to_string());
    parts.extend(match (days().min(), days().max()) {
        (Some(first), Some(last)) if first != last => Some(format!("{first} to {last}")),
        (first, _) => first,
    });
    parts.retain(|part| !part.is_empty());
    let more = match folders {
        [folder] => format!("[runs and commands]({})", context.link(&readme_or_folder(folder))),
        _ => "runs and commands behind the links above".to_owned(),
    };
    format!("<sub>{} · {more}</sub>\n", parts.join(", "))
}

/// Returns the README of a kept folder, or the folder itself if it has none.
pub fn readme_or_folder(folder: &Path) -> std::path::PathBuf {
    let readme = folder.join(README);
    if readme.is_file() { readme } else { folder.to_owned() }
}

/// Joins values without repetitions, after a word.
fn list(word: &str, values: impl Iterator<Item = String>) -> String {
    let values = distinct(values);
    if values.is_empty() { String::new() } else { format!("{word}{}", values.join(", ")) }
}

/// Names a GPU by its model and links, such as `2 × H200 (NV18)`, or a CPU by its model, instruction set and
/// threads.
fn short_device(environment: &Environment) -> String {
    match &environment.gpu {
        Some(gpu) => plain(&short_class(&gpu.class())),
        None => {
            let cpu = &environment.cpu;
            let model = plain(cpu.model.as_deref().unwrap_or("model unknown"));
            let plural = if cpu.threads == 1 { "" } else { "s" };
            format!("{model} ({}), {} thread{plural}", plain(&cpu.instructions), cpu.threads)
        }
    }
}

/// Returns a device class without the vendor, and with links in parentheses.
fn short_class(class: &str) -> String {
    let class = class.replace("NVIDIA ", "");
    match class.split_once(" by ") {
        Some((devices, links)) => format!("{devices} ({links})"),
        None => class,
    }
}

/// Returns the commit that a process was built from.
fn commit(environment: &Environment) -> String {
    let build = &environment.build;
    let commit =
        build.commit.as_deref().map_or("of an unknown commit", |commit| commit.get(..7).unwrap_or(commit));
    let changes = if build.dirty == Some(true) { " with changes" } else { "" };
    // Speeds of debug builds must be marked as such.
    let profile = build.profile.as_deref().filter(|profile| !profile.starts_with("release"));
    let profile = profile.map_or(String::new(), |profile| format!(" ({})", plain(profile)));
    format!("{}{changes}{profile}", plain(commit))
}

/// Returns the devices and builds of cells, ending in a separator for what follows. Empty if no cell was
/// planned for a device.
pub fn places(cells: &[Attempt]) -> String {
    let all = |of: fn(&Attempt) -> &str| {
        let values: BTreeSet<&str> = cells.iter().filter(|cell| cell.has_device()).map(of).collect();
        values.into_iter().map(plain).collect::<Vec<_>>().join(", ")
    };
    let devices = all(|cell| &cell.device);
    if devices.is_empty() { devices } else { format!("{devices}, xrun {}; ", all(|cell| &cell.build)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_shown_without_their_vendor() {
        assert_eq!(short_class("NVIDIA H200"), "H200");
        assert_eq!(short_class("2 × NVIDIA H200 by NV18"), "2 × H200 (NV18)");
        assert_eq!(short_class("cpu avx512"), "cpu avx512");
    }

    #[test]
    fn values_are_listed_once() {
        assert_eq!(list("driver ", ["a", "b", "a"].map(str::to_owned).into_iter()), "driver a, b");
        assert_eq!(list("driver ", std::iter::empty()), "");
    }

    #[test]
    fn changes_of_device_are_listed_in_order() {
        assert_eq!(distinct(["a", "a", "b", "a"]).join(" then "), "a then b");
    }
}
