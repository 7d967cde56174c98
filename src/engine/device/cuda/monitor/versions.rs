//! Versions of NVIDIA's libraries, and the files they were loaded from.

use super::super::compiler;
use super::super::cublaslt::library_version;
use super::super::libraries::Nvidia;
use super::nvml;
use libloading::os::unix::Library;
use std::path::{Path, PathBuf};

/// Returns the version of a library in NVIDIA's notation; `None` if it is missing or does not report one.
pub fn version(library: Nvidia) -> Option<String> {
    let path = library.open()?;
    match library {
        Nvidia::Driver => nvml::driver_version(),
        Nvidia::Nvml => nvml::library()?.sys_nvml_version().ok(),
        Nvidia::Nvrtc => compiler::version().ok().map(|(major, minor)| format!("{major}.{minor}")),
        Nvidia::CublasLt => Some(dotted(library_version())),
        Nvidia::Nccl => nccl(path).map(dotted),
    }
}

/// Formats the version encoding of NVIDIA's libraries: 22703 becomes `2.27.3`.
fn dotted(number: u64) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

// SAFETY: callers pass the address of an integer, which is all that the function requires.
type AskVersion = unsafe extern "C" fn(*mut i32) -> i32;

/// Returns NCCL's version number.
fn nccl(path: &Path) -> Option<u64> {
    let mut number: i32 = 0;
    // SAFETY: NCCL is already open, so opening it again runs nothing. In every version, its function of this
    // name fills in one integer and returns 0 on success.
    let status = unsafe {
        let library = Library::new(path).ok()?;
        let ask = library.get::<AskVersion>(b"ncclGetVersion\0").ok()?;
        ask(&raw mut number)
    };
    u64::try_from(number).ok().filter(|_| status == 0)
}

/// Returns the files from which a library is loaded in this process. More than one means that different
/// search paths found two copies, and calls may reach either.
pub fn files(library: Nvidia) -> Vec<PathBuf> {
    let Some(opened) = library.open() else { return Vec::new() };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let found = mapped(&maps, library);
    if found.is_empty() { vec![opened.to_path_buf()] } else { found }
}

/// Returns the files of a library listed in the contents of `/proc/self/maps`.
fn mapped(maps: &str, library: Nvidia) -> Vec<PathBuf> {
    let stem = library.names().last().copied().unwrap_or_default();
    let mut found: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(stem)))
        .collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_dots() {
        assert_eq!(dotted(22_703), "2.27.3");
        assert_eq!(dotted(130_002), "13.0.2");
    }

    #[test]
    fn a_library_is_where_it_is_mapped_from() {
        let maps = "7f00-7f01 r-xp 0 00:1 5   /usr/lib/libcuda.so.580.82.07\n\
                    7f01-7f02 rw-p 0 00:1 5   /usr/lib/libcuda.so.580.82.07\n\
                    7f03-7f04 r-xp 0 00:1 6   /opt/my libs/libnvrtc.so.13\n\
                    7f05-7f06 r-xp 0 00:1 7   /opt/my libs/libnvrtc-builtins.so.13.0\n\
                    7f07-7f08 rw-p 0 00:0 0\n";
        assert_eq!(mapped(maps, Nvidia::Driver), [PathBuf::from("/usr/lib/libcuda.so.580.82.07")]);
        assert_eq!(mapped(maps, Nvidia::Nvrtc), [PathBuf::from("/opt/my libs/libnvrtc.so.13")]);
        assert!(mapped(maps, Nvidia::Nccl).is_empty());
    }
}
