//! Embeds the kernels: writes a list of the files in `kernels`, which `device/cuda/sources.rs` includes.

use std::path::PathBuf;

fn main() {
    if std::env::var_os("CARGO_CFG_UNIX").is_none() {
        println!(
            "cargo::error=xrun needs a Unix system (file locks, signals, unlinked files); on Windows, use WSL"
        );
        return;
    }
    list_kernels();
}

/// Writes the constants `HEADERS` and `SOURCES`: the name and text of every file. Headers keep their
/// extension, as in `#include`; kernel files lose theirs.
fn list_kernels() {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).expect("cargo sets it");
    let kernels = manifest.join("../../kernels").canonicalize().expect("kernels are part of the sources");
    println!("cargo::rerun-if-changed={}", kernels.display());
    let entries = std::fs::read_dir(&kernels).expect("the folder of kernels is readable");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    let constant = |name: &str, extension: &str, keeps_extension: bool| {
        let files = files.iter().filter(|file| file.extension().is_some_and(|e| e == extension));
        let entries = files.map(|file| {
            let name = if keeps_extension { file.file_name() } else { file.file_stem() };
            let name = name.unwrap_or_default().to_string_lossy();
            format!("({name:?}, include_str!({:?})),\n", file.to_string_lossy())
        });
        format!("const {name}: &[(&str, &str)] = &[\n{}];\n", entries.collect::<String>())
    };
    let list = constant("HEADERS", "cuh", true) + &constant("SOURCES", "cu", false);
    let folder = std::env::var_os("OUT_DIR").map(PathBuf::from).expect("cargo sets OUT_DIR");
    std::fs::write(folder.join("kernels.rs"), list).expect("the build's folder can be written");
}
