//! Compares the conditions of two runs: everything besides the recipe that their bits may depend on.

use crate::results::provenance::{Build, Environment, Gpu};
use serde::{Serialize, Serializer};

/// Digits of a commit that messages show.
const DIGITS: usize = 8;

/// How the conditions of a recorded run and a new run differ, in words. Equal parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Sources, compiler, target, profile and crates.
    pub build: Vec<String>,
    /// The instruction set, and the versions of the GPU's libraries.
    pub machine: Vec<String>,
    /// The device class: a CPU instead of a GPU, or another model of GPU.
    pub device: Option<String>,
}

impl Conditions {
    /// Finds the differences between the environments of two runs.
    pub fn between(recorded: &Environment, new: &Environment) -> Self {
        let mut machine = Vec::new();
        differ(
            &mut machine,
            "instruction set",
            Some(&recorded.cpu.instructions),
            Some(&new.cpu.instructions),
        );
        let device = match (&recorded.gpu, &new.gpu) {
            (None, None) => None,
            (Some(old), Some(now)) if old.name == now.name => {
                gpu_libraries(&mut machine, old, now);
                None
            }
            _ => Some(format!("device: recorded {}, here {}", recorded.device_class(), new.device_class())),
        };
        Self { build: build_differences(&recorded.build, &new.build), machine, device }
    }

    /// Returns true if the runs should give the same bits.
    pub fn are_same(&self) -> bool {
        self.build.is_empty() && self.machine.is_empty() && self.device.is_none()
    }

    /// Returns all differences, the device first.
    pub fn in_words(&self) -> Vec<String> {
        self.device.iter().chain(&self.build).chain(&self.machine).cloned().collect()
    }
}

impl Serialize for Conditions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.in_words().serialize(serializer)
    }
}

/// Returns how two builds differ. Uncommitted changes count as a difference even on both sides, because they
/// may not be the same.
pub fn build_differences(recorded: &Build, new: &Build) -> Vec<String> {
    let mut found = Vec::new();
    let short = |commit: &Option<String>| commit.as_ref().map(|commit| commit.chars().take(DIGITS).collect());
    let (old, now): (Option<String>, Option<String>) = (short(&recorded.commit), short(&new.commit));
    differ(&mut found, "commit", old.as_ref(), now.as_ref());
    match (recorded.dirty.unwrap_or(false), new.dirty.unwrap_or(false)) {
        (false, false) => {}
        (true, false) => found.push("the recorded sources had uncommitted changes".to_owned()),
        (false, true) => found.push("the sources here have uncommitted changes".to_owned()),
        (true, true) => {
            found.push("both the recorded sources and the sources here have uncommitted changes".to_owned())
        }
    }
    differ(&mut found, "version", Some(&recorded.version), Some(&new.version));
    differ(&mut found, "compiler", recorded.rustc.as_ref(), new.rustc.as_ref());
    differ(&mut found, "target", recorded.target.as_ref(), new.target.as_ref());
    differ(&mut found, "profile", recorded.profile.as_ref(), new.profile.as_ref());
    let names =
        recorded.crates.keys().chain(new.crates.keys().filter(|name| !recorded.crates.contains_key(*name)));
    for name in names {
        differ(&mut found, &format!("crate {name}"), recorded.crates.get(name), new.crates.get(name));
    }
    found
}

fn gpu_libraries(found: &mut Vec<String>, old: &Gpu, now: &Gpu) {
    differ(found, "driver", old.driver.as_ref(), now.driver.as_ref());
    differ(found, "NVRTC", old.nvrtc.as_ref(), now.nvrtc.as_ref());
    differ(found, "cuBLASLt", old.cublaslt.as_ref(), now.cublaslt.as_ref());
    let nccl = |gpu: &Gpu| gpu.nccl.as_ref().map(|nccl| (nccl.version.clone(), nccl.algorithm.clone()));
    if nccl(old) != nccl(now) {
        let words = |gpu: &Gpu| {
            nccl(gpu).map_or("none".to_owned(), |(version, algorithm)| {
                [version, algorithm].into_iter().flatten().collect::<Vec<_>>().join(" ")
            })
        };
        found.push(format!("NCCL: recorded {}, here {}", words(old), words(now)));
    }
    let (old, now) = (old.links(), now.links());
    differ(found, "links between GPUs", old.as_ref(), now.as_ref());
}

fn differ(found: &mut Vec<String>, what: &str, old: Option<&String>, now: Option<&String>) {
    if old != now {
        let or_none = |value: Option<&String>| value.map_or("unknown", String::as_str).to_owned();
        found.push(format!("{what}: recorded {}, here {}", or_none(old), or_none(now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        let mut here = Environment::detect(2, "2026-11-02T03:04:05Z".parse().unwrap());
        here.build.commit = Some("0123456789".to_owned());
        here.build.dirty = Some(false);
        here.build.rustc = Some("rustc 1.91.0".to_owned());
        here
    }

    fn gpu(name: &str) -> Option<Gpu> {
        Some(Gpu { name: name.to_owned(), cublaslt: Some("130100".to_owned()), ..Gpu::default() })
    }

    #[test]
    fn equal_conditions_promise_the_same_bits() {
        assert!(Conditions::between(&environment(), &environment()).are_same());
        let mut threads = environment();
        (threads.cpu.threads, threads.cpu.model) = (7, Some("another".to_owned()));
        assert!(Conditions::between(&environment(), &threads).are_same(), "bits do not depend on threads");
    }

    #[test]
    fn each_part_of_a_build_counts() {
        type Change = fn(&mut Build);
        let changes: [(&str, Change); 6] = [
            ("commit: recorded 01234567, here fedcba98", |build| {
                build.commit = Some("fedcba9876".to_owned())
            }),
            ("the sources here have uncommitted changes", |build| build.dirty = Some(true)),
            ("profile: ", |build| build.profile = Some("other".to_owned())),
            ("compiler: ", |build| build.rustc = None),
            ("target: ", |build| build.target = Some("other".to_owned())),
            ("crate zebra: recorded unknown, here 1.0", |build| {
                build.crates.insert("zebra".to_owned(), "1.0".to_owned());
            }),
        ];
        for (said, change) in changes {
            let mut new = environment();
            change(&mut new.build);
            let found = Conditions::between(&environment(), &new);
            assert!(found.build.len() == 1 && found.build[0].starts_with(said), "{said}: {found:?}");
            assert!(!found.are_same() && found.in_words() == found.build);
        }
        let mut changed = environment();
        changed.build.dirty = Some(true);
        assert!(
            !Conditions::between(&changed, &changed).are_same(),
            "nobody knows whether it is the same change"
        );
    }

    #[test]
    fn another_instruction_set_library_or_device_counts() {
        let mut other = environment();
        other.cpu.instructions = "scalar".to_owned();
        assert_eq!(Conditions::between(&environment(), &other).machine.len(), 1);
        let with = |gpu: Option<Gpu>| Environment { gpu, ..environment() };
        let between = |old: Option<Gpu>, now: Option<Gpu>| Conditions::between(&with(old), &with(now));
        assert!(between(gpu("H"), gpu("H")).are_same());
        assert!(between(gpu("H"), None).device.unwrap().starts_with("device: recorded H, here cpu "));
        assert!(between(None, gpu("H")).device.is_some());
        assert_eq!(between(gpu("H"), gpu("A")).device.as_deref(), Some("device: recorded H, here A"));
        let newer = gpu("H").map(|gpu| Gpu { cublaslt: Some("130200".to_owned()), ..gpu });
        assert_eq!(between(gpu("H"), newer).machine, ["cuBLASLt: recorded 130100, here 130200"]);
    }
}
