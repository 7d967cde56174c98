//! Embeds the kernels and the definitions of tasks: writes lists of the files in `kernels`, which
//! `device/cuda/sources.rs` includes, and in `data/tasks`, which `tasks/built_in.rs` includes.

use std::path::{Path, PathBuf};

fn main() {
    if std::env::var_os("CARGO_CFG_UNIX").is_none() {
        println!(
            "cargo::error=xrun needs a Unix system (file locks, signals, unlinked files); on Windows, use WSL"
        );
        return;
    }
    list_kernels();
    list_tasks();
}

/// Writes the constants `HEADERS` and `SOURCES`: the name and text of every file. Headers keep their
/// extension, as in `#include`; kernel files lose theirs.
fn list_kernels() {
    let files = files("../../kernels");
    let headers = constant("HEADERS", &files, "cuh", |path| path.file_name().map(Path::new));
    write("kernels.rs", headers + &constant("SOURCES", &files, "cu", |path| path.file_stem().map(Path::new)));
}

/// Writes the constant `BUILT_IN`: the name and text of every definition.
fn list_tasks() {
    let files = files("../../data/tasks");
    write("tasks.rs", constant("BUILT_IN", &files, "toml", |path| path.file_stem().map(Path::new)));
}

/// Returns the files of a folder of the sources, in the order of their names.
fn files(folder: &str) -> Vec<PathBuf> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).expect("cargo sets it");
    let folder = manifest.join(folder).canonicalize().expect("the folder is part of the sources");
    println!("cargo::rerun-if-changed={}", folder.display());
    let entries = std::fs::read_dir(&folder).expect("the folder is readable");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    files
}

/// Returns a constant with the name and the text of every file that has this extension.
fn constant(
    name: &str,
    files: &[PathBuf],
    extension: &str,
    name_of: impl Fn(&Path) -> Option<&Path>,
) -> String {
    let files = files.iter().filter(|file| file.extension().is_some_and(|e| e == extension));
    let entries = files.map(|file| {
        let name = name_of(file).unwrap_or(file).to_string_lossy();
        format!("({name:?}, include_str!({:?})),\n", file.to_string_lossy())
    });
    format!("const {name}: &[(&str, &str)] = &[\n{}];\n", entries.collect::<String>())
}

fn write(name: &str, list: String) {
    let folder = std::env::var_os("OUT_DIR").map(PathBuf::from).expect("cargo sets OUT_DIR");
    std::fs::write(folder.join(name), list).expect("the build's folder can be written");
}
