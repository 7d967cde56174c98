//! Derives problems from findings without accessing the machine, so that tests can cover machines that are
//! not available.

use super::super::libraries::PATH_VARIABLE;
use super::{CAPABILITY, Card, GpuStatus, Library, Report, SetupProblem};

/// Lowest version of CUDA that the driver must support.
const DRIVER: (i32, i32) = (12, 8);

/// Bytes of shared memory that NCCL may use between processes on one machine; containers have 64 MiB by
/// default.
const SHARED_MEMORY: u64 = 1 << 30;

/// Free memory that a context and a small run need on a GPU, in bytes.
const FREE: u64 = 2 << 30;

impl Report {
    /// Fills in the problems and the overall result.
    pub(super) fn judge(&mut self) {
        let mut problems = Vec::new();
        if self.gpus.is_empty() {
            self.judge_absence(&mut problems);
        } else {
            self.judge_driver(&mut problems);
            self.judge_libraries(&mut problems);
            self.judge_compiler(&mut problems);
            self.gpus.iter().for_each(|card| judge_card(card, &mut problems));
            self.judge_shared_memory(&mut problems);
        }
        // The cache matters only with a compiler.
        if self.compiles_for.is_some() {
            self.judge_cache(&mut problems);
        }
        problems.sort_by_key(|p| !p.fatal);
        let there = !self.gpus.is_empty() || self.cards_on_the_bus > 0;
        self.verdict = match (there, problems.iter().any(|p| p.fatal)) {
            (false, _) => GpuStatus::NoGpu,
            (true, false) => GpuStatus::Works,
            (true, true) => GpuStatus::Fails,
        };
        self.problems = problems;
    }

    fn library(&self, name: &str) -> Option<&Library> {
        self.libraries.iter().find(|library| library.name == name)
    }

    /// Returns how to install a library version that this driver supports. Python wheels without a suffix are
    /// for CUDA 13.
    fn remedy(&self, library: &Library) -> String {
        let wheel = library.remedy.starts_with("pip install");
        if wheel && self.driver_cuda.is_some_and(|(major, _)| major == 12) {
            return format!("{}-cu12", library.remedy.trim_end_matches("-cu13"));
        }
        library.remedy.to_owned()
    }

    fn judge_absence(&self, problems: &mut Vec<SetupProblem>) {
        let driver = self.library("driver");
        if let Some(driver) = driver.filter(|d| self.cards_on_the_bus > 0 && d.files.is_empty()) {
            let what = format!(
                "{} NVIDIA cards on the bus, but no driver that this process can use",
                self.cards_on_the_bus
            );
            problems.push(fatal(what, driver.remedy));
        } else if self.cards_on_the_bus > 0 {
            let what = "the driver works but shows this process no GPU";
            problems.push(fatal(what, "nvidia-smi; unset CUDA_VISIBLE_DEVICES"));
        }
    }

    fn judge_driver(&self, problems: &mut Vec<SetupProblem>) {
        let Some(cuda) = self.driver_cuda else { return };
        if cuda < DRIVER {
            let (major, minor) = cuda;
            problems.push(fatal(
                format!("the driver supports CUDA {major}.{minor}, but {}.{} is needed", DRIVER.0, DRIVER.1),
                "install a driver of version 570 or newer (https://www.nvidia.com/drivers)",
            ));
        }
        // Within one major version libraries run on older drivers; across them they do not.
        for name in ["NVRTC", "cuBLASLt"] {
            let Some(library) = self.library(name) else { continue };
            let Some(version) = &library.version else { continue };
            let major = version.split('.').next().and_then(|text| text.parse::<i32>().ok());
            if major.is_some_and(|major| major > cuda.0) {
                problems.push(fatal(
                    format!("{name} {version} is for a newer CUDA than the driver's {}.{}", cuda.0, cuda.1),
                    &format!(
                        "{} and name its folder in {PATH_VARIABLE}, or install a newer driver",
                        self.remedy(library)
                    ),
                ));
            }
        }
    }

    fn judge_libraries(&self, problems: &mut Vec<SetupProblem>) {
        for library in &self.libraries {
            let found = library.files.len();
            let matters = library.needed || library.name != "NCCL" || self.gpus.len() > 1;
            if found == 0 && matters {
                let what = format!("{}, which {}, is missing", library.name, library.purpose);
                let command = self.remedy(library);
                problems.push(SetupProblem { fatal: library.needed, what, command });
            } else if found > 1 {
                let files: Vec<String> = library.files.iter().map(|f| f.display().to_string()).collect();
                problems.push(warning(
                    format!("{} is loaded more than once, from {}", library.name, files.join(" and ")),
                    "remove all but one of the folders from LD_LIBRARY_PATH",
                ));
            }
        }
    }

    fn judge_compiler(&self, problems: &mut Vec<SetupProblem>) {
        let remedy = self.library("NVRTC").map(|nvrtc| self.remedy(nvrtc)).unwrap_or_default();
        let known = self.compiles_for.iter().flatten().max();
        let newest = self.gpus.iter().map(|card| card.capability.0 * 10 + card.capability.1).max();
        if let (Some(known), Some(newest)) = (known, newest)
            && known < &newest
        {
            let what = format!("NVRTC compiles up to sm_{known}, but a GPU here is sm_{newest}");
            problems.push(fatal(what, &format!("{remedy} --upgrade")));
        } else if let Some(complaint) = &self.trial_error {
            let first: Vec<&str> =
                complaint.lines().map(str::trim).filter(|l| !l.is_empty()).take(2).collect();
            problems.push(fatal(format!("a trial kernel: {}", first.join(" ")), &remedy));
        }
    }

    fn judge_cache(&self, problems: &mut Vec<SetupProblem>) {
        match (&self.cache.folder, &self.cache.unwritable) {
            (None, _) => problems.push(warning(
                "there is no folder to cache compiled kernels in, so every run compiles them",
                "export XRUN_CACHE=DIR",
            )),
            (Some(folder), Some(reason)) => problems.push(warning(
                format!("compiled kernels cannot be cached in {}: {reason}", folder.display()),
                "export XRUN_CACHE=DIR, with a writable folder",
            )),
            _ => {}
        }
    }

    fn judge_shared_memory(&self, problems: &mut Vec<SetupProblem>) {
        let Some(bytes) = self.shared_memory_bytes.filter(|&bytes| bytes < SHARED_MEMORY) else { return };
        if self.gpus.len() > 1 {
            problems.push(warning(
                format!("/dev/shm holds {} MiB, which NCCL may exceed", bytes >> 20),
                "docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm",
            ));
        }
    }
}

fn judge_card(card: &Card, problems: &mut Vec<SetupProblem>) {
    let Card { ordinal, name, capability: (major, minor), .. } = card;
    if card.capability < CAPABILITY {
        problems.push(fatal(
            format!(
                "GPU {ordinal} ({name}) has compute capability {major}.{minor}, but kernels need {}.{}",
                CAPABILITY.0, CAPABILITY.1
            ),
            "choose another in CUDA_VISIBLE_DEVICES, or set engine.device = \"cpu\"",
        ));
    } else if let Some(reason) = &card.refuses {
        problems.push(fatal(format!("GPU {ordinal} ({name}) cannot be opened: {reason}"), "nvidia-smi"));
    }
    let others = card.processes.as_ref().map_or(0, Vec::len);
    let free = card.free_bytes.map_or(String::new(), |free| format!(", with {} MiB free", free >> 20));
    let command = "wait for them to end, or choose another GPU in engine.devices";
    if others > 0 {
        let who = if others == 1 { "a process computes" } else { "several processes compute" };
        let what = format!("{who} on GPU {ordinal}{free}: measurements there are contended");
        problems.push(warning(what, command));
    } else if card.free_bytes.is_some_and(|free| free < FREE) {
        problems.push(warning(format!("another process holds memory of GPU {ordinal}{free}"), command));
    }
}

fn fatal(what: impl Into<String>, command: &str) -> SetupProblem {
    SetupProblem { fatal: true, what: what.into(), command: command.to_owned() }
}

fn warning(what: impl Into<String>, command: &str) -> SetupProblem {
    SetupProblem { fatal: false, ..fatal(what, command) }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Cache, Process};
    use super::*;
    use std::path::PathBuf;

    /// Returns a machine without problems.
    pub fn healthy_report() -> Report {
        let library = |name, needed, version: &str| Library {
            name,
            purpose: "does its work",
            needed,
            files: vec![PathBuf::from(format!("/lib/{name}.so"))],
            version: Some(version.to_owned()),
            remedy: "get it",
        };
        let mut report = Report {
            verdict: GpuStatus::NoGpu,
            driver: Some("580.82.07".to_owned()),
            driver_cuda: Some((13, 0)),
            libraries: vec![
                library("driver", true, "580.82.07"),
                library("NVRTC", true, "13.0"),
                library("cuBLASLt", true, "13.0.2"),
                library("NCCL", false, "2.27.3"),
                library("NVML", false, "13.580.82.07"),
            ],
            compiles_for: Some(vec![75, 80, 90, 100]),
            trial_error: None,
            gpus: (0..2)
                .map(|ordinal| Card {
                    ordinal,
                    name: "NVIDIA H200".to_owned(),
                    capability: (9, 0),
                    memory_bytes: 140 << 30,
                    free_bytes: Some(139 << 30),
                    processes: Some(Vec::new()),
                    refuses: None,
                })
                .collect(),
            cards_on_the_bus: 2,
            topology: Some(vec![
                vec!["X".to_owned(), "NV18".to_owned()],
                vec!["NV18".to_owned(), "X".to_owned()],
            ]),
            cache: Cache { folder: Some(PathBuf::from("/cache")), ..Cache::default() },
            shared_memory_bytes: Some(16 << 30),
            problems: Vec::new(),
        };
        report.judge();
        report
    }

    /// Returns the overall result and the problems after a change.
    fn changed(change: impl FnOnce(&mut Report)) -> (GpuStatus, Vec<String>) {
        let mut report = healthy_report();
        change(&mut report);
        report.judge();
        (report.verdict, report.problems.iter().map(|p| format!("{} → {}", p.what, p.command)).collect())
    }

    #[test]
    fn neither_a_good_machine_nor_one_without_a_gpu_has_problems() {
        assert_eq!(changed(|_| {}), (GpuStatus::Works, vec![]));
        let none = |r: &mut Report| {
            r.gpus.clear();
            r.cards_on_the_bus = 0;
            r.libraries.iter_mut().for_each(|l| l.files.clear());
            r.compiles_for = None;
            r.driver_cuda = None;
            r.cache.unwritable = Some("no".to_owned());
        };
        assert_eq!(changed(none), (GpuStatus::NoGpu, vec![]));
    }

    #[test]
    fn a_failing_setup_is_fatal_and_names_the_command() {
        type Change = fn(&mut Report);
        let cases: [(Change, &str); 9] = [
            (|r| r.driver_cuda = Some((12, 4)), "supports CUDA 12.4, but 12.8 is needed → install a driver"),
            (|r| r.libraries[2].files.clear(), "cuBLASLt, which does its work, is missing → get it"),
            (|r| r.compiles_for = Some(vec![75, 80]), "up to sm_80, but a GPU here is sm_90 → get it"),
            (|r| r.trial_error = Some("no builtins\nfile".into()), "trial kernel: no builtins file → get it"),
            (|r| r.gpus[1].capability = (7, 5), "GPU 1 (NVIDIA H200) has compute capability 7.5"),
            (|r| r.gpus[0].refuses = Some("exclusive".into()), "cannot be opened: exclusive → nvidia-smi"),
            (|r| r.gpus.clear(), "shows this process no GPU → nvidia-smi; unset CUDA_VISIBLE_DEVICES"),
            (
                |r| r.driver_cuda = Some((12, 9)),
                "NVRTC 13.0 is for a newer CUDA than the driver's 12.9 → get it",
            ),
            (
                |r| {
                    r.gpus.clear();
                    r.libraries[0].files.clear();
                },
                "2 NVIDIA cards on the bus, but no driver",
            ),
        ];
        for (change, said) in cases {
            let (verdict, problems) = changed(change);
            assert_eq!(verdict, GpuStatus::Fails, "{said}");
            assert!(problems[0].contains(said), "{problems:?}");
        }
    }

    #[test]
    fn costly_problems_are_not_failures() {
        type Change = fn(&mut Report);
        let cases: [(Change, &str); 6] = [
            (
                |r| r.cache.unwritable = Some("read-only".into()),
                "cached in /cache: read-only → export XRUN_CACHE",
            ),
            (|r| r.cache = Cache::default(), "no folder to cache compiled kernels in"),
            (|r| r.shared_memory_bytes = Some(64 << 20), "/dev/shm holds 64 MiB"),
            (|r| r.libraries[3].files.clear(), "NCCL, which does its work, is missing"),
            (|r| r.libraries[1].files.push("/opt/NVRTC.so".into()), "loaded more than once"),
            (
                |r| r.gpus[0].processes = Some(vec![Process { pid: 1, bytes: None, name: None }]),
                "a process computes on GPU 0, with 142336 MiB free: measurements",
            ),
        ];
        for (change, said) in cases {
            let (verdict, problems) = changed(change);
            assert_eq!(verdict, GpuStatus::Works, "{said}");
            assert!(problems.len() == 1 && problems[0].contains(said), "{problems:?}");
        }
    }

    #[test]
    fn one_gpu_needs_neither_nccl_nor_shared_memory() {
        let one = |r: &mut Report| {
            r.gpus.truncate(1);
            r.libraries[3].files.clear();
            r.shared_memory_bytes = Some(64 << 20);
        };
        assert_eq!(changed(one), (GpuStatus::Works, vec![]));
    }
}
