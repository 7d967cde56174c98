//! Finds NVIDIA's libraries where they are usually installed: the loader's path, a toolkit, a conda
//! environment, Python wheels.
//!
//! After a library has been opened here by its full path, later calls of `dlopen` find it under its plain
//! name, because the loader identifies libraries by their SONAME.

use crate::error::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::env;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The environment variable that names a folder, or several as in `PATH`, to search before all others.
pub const PATH_VARIABLE: &str = "XRUN_CUDA_PATH";

/// One of NVIDIA's libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nvidia {
    /// The driver.
    Driver,
    /// The run-time compiler for kernels (NVRTC).
    Nvrtc,
    /// Matrix products (cuBLASLt).
    CublasLt,
    /// Collectives (NCCL).
    Nccl,
    /// Management: clocks, power, temperature (NVML).
    Nvml,
}

impl Nvidia {
    /// All libraries.
    pub const ALL: [Nvidia; 5] =
        [Nvidia::Driver, Nvidia::Nvrtc, Nvidia::CublasLt, Nvidia::Nccl, Nvidia::Nvml];

    /// Returns the file names under which the library may be installed, preferred first.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Nvidia::Driver => &["libcuda.so.1", "libcuda.so"],
            Nvidia::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Nvidia::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Nvidia::Nccl => &["libnccl.so.2", "libnccl.so"],
            Nvidia::Nvml => &["libnvidia-ml.so.1", "libnvidia-ml.so"],
        }
    }

    /// Returns prefixes of libraries in the same folder that must be opened first, because the library's own
    /// search may miss them.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Nvidia::Nvrtc => &["libnvrtc-builtins.so"],
            _ => &[],
        }
    }

    /// Returns how to install the library.
    pub fn remedy(self) -> &'static str {
        match self {
            Nvidia::Driver | Nvidia::Nvml => {
                "install NVIDIA's driver (https://www.nvidia.com/drivers), or pass the GPU into the container \
                 (docker run --gpus all)"
            }
            Nvidia::Nvrtc => "pip install nvidia-cuda-nvrtc",
            Nvidia::CublasLt => "pip install nvidia-cublas",
            Nvidia::Nccl => "pip install nvidia-nccl-cu13",
        }
    }

    /// Opens the library, or says how to get it.
    ///
    /// # Errors
    /// If the library is not found. The message contains `name`, how to install it, and the variable for its
    /// folder.
    pub fn require(self, name: &str) -> Result<&'static Path> {
        self.open().ok_or_else(|| {
            let remedy = self.remedy();
            Error::failed(format!(
                "{name} is not found; try: {remedy}. Its folder can be given in {PATH_VARIABLE}"
            ))
        })
    }

    /// Opens the library, once per process. Returns its path; `None` if it is not found.
    pub fn open(self) -> Option<&'static Path> {
        static FOUND: [OnceLock<Option<PathBuf>>; 5] = [const { OnceLock::new() }; 5];
        FOUND[self as usize].get_or_init(|| open(self)).as_deref()
    }
}

fn open(library: Nvidia) -> Option<PathBuf> {
    // Search order: the variable's folders, the loader's own search, the usual folders.
    let (chosen, usual) = (chosen_folders(), usual_folders());
    let in_folder = |folder: &PathBuf| {
        library.names().iter().map(|name| folder.join(name)).find(|path| path.exists() && load(library, path))
    };
    let by_loader = || library.names().iter().map(PathBuf::from).find(|name| load(library, name));
    chosen.iter().find_map(in_folder).or_else(by_loader).or_else(|| usual.iter().find_map(in_folder))
}

/// Opens a library for the rest of the process.
fn load(library: Nvidia, path: &Path) -> bool {
    let open = |path: &Path| {
        // SAFETY: opening NVIDIA's libraries runs only their own initialization.
        let opened = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        opened.map(std::mem::forget).is_ok()
    };
    if let Some(folder) = path.parent().filter(|folder| folder.is_dir()) {
        for needed in library.needs() {
            // A failure here is not reported: the library itself reports what it is missing.
            let _ = matching(folder, needed).iter().any(|path| open(path));
        }
    }
    open(path)
}

fn chosen_folders() -> Vec<PathBuf> {
    let set = env::var_os(PATH_VARIABLE).unwrap_or_default();
    env::split_paths(&set)
        .filter(|p| !p.as_os_str().is_empty())
        .flat_map(|p| [p.join("lib64"), p.join("lib"), p])
        .collect()
}

/// Returns the library folders of the Python environment that this program is installed in, of toolkits, of
/// conda environments, and of the Python interpreters on the `PATH`.
fn usual_folders() -> Vec<PathBuf> {
    // A program from a wheel is in its environment's `bin`, next to the other wheels installed there.
    let own = env::current_exe().ok().and_then(|program| Some(program.parent()?.parent()?.to_path_buf()));
    let mut folders: Vec<PathBuf> = own.iter().flat_map(|prefix| wheel_folders(prefix)).collect();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        folders.extend(env::var_os(variable).map(|p| PathBuf::from(p).join("lib64")));
    }
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    let mut prefixes: Vec<PathBuf> =
        ["CONDA_PREFIX", "VIRTUAL_ENV"].iter().filter_map(env::var_os).map(PathBuf::from).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let with_python = env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    prefixes.extend(with_python.filter_map(|bin| bin.parent().map(Path::to_path_buf)));
    folders.extend(prefixes.iter().map(|prefix| prefix.join("lib")));
    folders.extend(prefixes.iter().flat_map(|prefix| wheel_folders(prefix)));
    folders.retain(|folder| folder.is_dir());
    folders
}

/// Returns the library folders of NVIDIA's wheels in the Python environment at `prefix`.
fn wheel_folders(prefix: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for python in matching(&prefix.join("lib"), "python3") {
        for site in [python.join("site-packages"), python.join("dist-packages")] {
            folders.extend(matching(&site.join("nvidia"), "").into_iter().map(|p| p.join("lib")));
        }
    }
    folders
}

/// Returns the entries of a folder whose names have a prefix, in order.
fn matching(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix)).map(|e| e.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_of_an_environment_are_found() {
        let prefix = tempfile::tempdir().unwrap();
        for folder in [
            "lib/python3.11/site-packages/nvidia/cu13/lib",
            "lib/python3.11/site-packages/nvidia/nccl/lib",
            "lib/python3/dist-packages/nvidia/cu12/lib",
            "lib/perl5/site-packages/nvidia/cu13/lib",
        ] {
            std::fs::create_dir_all(prefix.path().join(folder)).unwrap();
        }
        let found: Vec<_> = wheel_folders(prefix.path())
            .iter()
            .map(|f| f.strip_prefix(prefix.path()).unwrap().to_owned())
            .collect();
        let expected = [
            "lib/python3/dist-packages/nvidia/cu12/lib",
            "lib/python3.11/site-packages/nvidia/cu13/lib",
            "lib/python3.11/site-packages/nvidia/nccl/lib",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(wheel_folders(&prefix.path().join("none")).is_empty());
    }
}
