//! The text form of the report.

use super::{Card, GpuStatus, Report};
use std::fmt::{self, Display, Formatter};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let blank = || "-".to_owned();
        for library in &self.libraries {
            let version = library.version.clone().unwrap_or_else(blank);
            write!(f, "{:<11} ", library.name)?;
            match library.files.as_slice() {
                [] => writeln!(f, "missing ({})", library.purpose)?,
                [first, ..] => writeln!(f, "{version:<14} {}", first.display())?,
            }
        }
        if let Some((major, minor)) = self.driver_cuda {
            writeln!(f, "supports    CUDA {major}.{minor}")?;
        }
        if let Some(known) = &self.compiles_for {
            let names: Vec<String> = known.iter().map(|sm| format!("sm_{sm}")).collect();
            writeln!(f, "compiles    for {}", names.join(" "))?;
        }
        if self.compiles_for.is_some() {
            let does = if self.trial_error.is_none() { "compiles" } else { "does not compile" };
            writeln!(f, "trial       a kernel {does}")?;
        }
        match &self.cache.folder {
            None => writeln!(f, "cache       none")?,
            Some(folder) => writeln!(
                f,
                "cache       {} ({} kernels, {:.1} MiB; {} tokenized texts, {:.1} MiB)",
                folder.display(),
                self.cache.kernels,
                self.cache.bytes as f64 / f64::from(1 << 20),
                self.cache.texts,
                self.cache.text_bytes as f64 / f64::from(1 << 20)
            )?,
        }
        if let Some(bytes) = self.shared_memory_bytes {
            writeln!(f, "/dev/shm    {} MiB", bytes >> 20)?;
        }
        for card in &self.gpus {
            write!(f, "{card}")?;
        }
        if let Some(topology) = &self.topology {
            writeln!(f, "topology")?;
            for (ordinal, row) in topology.iter().enumerate() {
                let cells: Vec<String> = row.iter().map(|joined| format!("{joined:<5}")).collect();
                writeln!(f, "{}", format!("  GPU {ordinal:<3} {}", cells.join(" ")).trim_end())?;
            }
        }
        writeln!(f)?;
        for problem in &self.problems {
            let grade = if problem.fatal { "problem" } else { "remark" };
            writeln!(f, "{grade}: {} → {}", problem.what, problem.command)?;
        }
        match self.verdict {
            GpuStatus::NoGpu => writeln!(f, "no GPU: runs use the CPU"),
            GpuStatus::Works => writeln!(f, "a run on the GPU works"),
            GpuStatus::Fails => writeln!(f, "a run on the GPU would fail"),
        }
    }
}

impl Display for Card {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let free = self.free_bytes.map_or_else(String::new, |bytes| format!(", {} free", mib(bytes)));
        let (major, minor) = self.capability;
        let memory = mib(self.memory_bytes as u64);
        writeln!(
            f,
            "GPU {:<7} {}, compute capability {major}.{minor}, {memory}{free}",
            self.ordinal, self.name
        )?;
        for process in self.processes.iter().flatten() {
            let bytes = process.bytes.map_or_else(|| "unknown memory".to_owned(), mib);
            let name = process.name.as_deref().unwrap_or("unknown program");
            writeln!(f, "              process {} ({name}): {bytes}", process.pid)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Process;
    use super::super::problems::tests::healthy_report;

    #[test]
    fn a_report_reads_as_documented() {
        let mut report = healthy_report();
        report.gpus[1].processes =
            Some(vec![Process { pid: 4711, bytes: Some(3 << 30), name: Some("python3".to_owned()) }]);
        report.libraries[3].files.clear();
        report.judge();
        insta::assert_snapshot!(report.to_string(), @r"
        driver      580.82.07      /lib/driver.so
        NVRTC       13.0           /lib/NVRTC.so
        cuBLASLt    13.0.2         /lib/cuBLASLt.so
        NCCL        missing (does its work)
        NVML        13.580.82.07   /lib/NVML.so
        supports    CUDA 13.0
        compiles    for sm_75 sm_80 sm_90 sm_100
        trial       a kernel compiles
        cache       /cache (0 kernels, 0.0 MiB; 0 tokenized texts, 0.0 MiB)
        /dev/shm    16384 MiB
        GPU 0       NVIDIA H200, compute capability 9.0, 143360 MiB, 142336 MiB free
        GPU 1       NVIDIA H200, compute capability 9.0, 143360 MiB, 142336 MiB free
                      process 4711 (python3): 3072 MiB
        topology
          GPU 0   X     NV18
          GPU 1   NV18  X

        remark: NCCL, which does its work, is missing → get it
        remark: a process computes on GPU 1, with 142336 MiB free: measurements there are contended → wait for them to end, or choose another GPU in engine.devices
        a run on the GPU works
        ");
    }
}
