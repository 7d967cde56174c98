//! Embeds the kernels, and tells the binary what it was built from: commit, compiler, target, profile, versions
//! of what its numbers rest on.
//!
//! `src/device/cuda/sources.rs` includes the list of kernels. `src/results/provenance.rs` reads the rest, and
//! what cannot be found out is left unset: a source package without git builds too.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What goes into the binary. Changes elsewhere, to documents or results, do not make a build dirty.
const SOURCES: [&str; 6] = ["Cargo.toml", "Cargo.lock", "build.rs", "kernels", "src", "recipes"];

/// Crates whose version can change numbers.
const NUMERIC_CRATES: [&str; 4] = ["half", "pulp", "rand_chacha", "tokenizers"];

fn main() {
    if std::env::var_os("CARGO_CFG_UNIX").is_none() {
        println!(
            "cargo::error=xrun needs a Unix system: locks, signals and files without links; on Windows, use WSL"
        );
        return;
    }
    for path in SOURCES.iter().filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    list_kernels();
    for name in ["TARGET", "PROFILE", "OPT_LEVEL"] {
        if let Ok(value) = std::env::var(name) {
            println!("cargo::rustc-env=XRUN_BUILD_{name}={value}");
        }
    }
    set("RUSTC", output(&std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into()), &["--version"]));
    set("CRATES", crate_versions());
    if is_own_repository() {
        set("COMMIT", git(&["rev-parse", "HEAD"]));
        let status: Vec<&str> = ["status", "--porcelain", "--"].into_iter().chain(SOURCES).collect();
        set("DIRTY", git(&status).map(|changes| (!changes.is_empty()).to_string()));
        // The log of HEAD grows with every commit and checkout.
        for file in ["HEAD", "logs/HEAD"] {
            if let Some(path) =
                git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists())
            {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    } else {
        set("COMMIT", packaged_commit());
    }
}

/// Writes the constants `HEADERS` and `SOURCES`: headers with their extension and kernel files without, each with
/// its text.
fn list_kernels() {
    let entries = std::fs::read_dir("kernels").expect("the folder of kernels is part of the sources");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    let constant = |name: &str, extension: &str, keeps_extension: bool| {
        let files = files.iter().filter(|file| file.extension().is_some_and(|e| e == extension));
        let entries = files.map(|file| {
            let name = if keeps_extension { file.file_name() } else { file.file_stem() };
            let (name, file) = (name.unwrap_or_default().to_string_lossy(), file.to_string_lossy());
            format!("({name:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/{file}\"))),\n")
        });
        format!("const {name}: &[(&str, &str)] = &[\n{}];\n", entries.collect::<String>())
    };
    let list = constant("HEADERS", "cuh", true) + &constant("SOURCES", "cu", false);
    let folder = std::env::var_os("OUT_DIR").map(PathBuf::from).expect("cargo sets OUT_DIR");
    std::fs::write(folder.join("kernels.rs"), list).expect("the build's folder can be written");
}

fn set(name: &str, value: Option<String>) {
    if let Some(value) = value {
        println!("cargo::rustc-env=XRUN_BUILD_{name}={value}");
    }
}

/// The standard output of a command that succeeds, trimmed.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    output("git", arguments)
}

/// Whether this folder is the root of a repository. Vendored inside another one, that one's commit says
/// nothing.
fn is_own_repository() -> bool {
    git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix.is_empty())
}

/// The commit that `cargo package` recorded.
fn packaged_commit() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let hash = info.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
    hash.bytes().all(|b| b.is_ascii_hexdigit()).then(|| hash.to_owned())
}

/// `name version` of the numeric crates in the lock file, separated by commas.
fn crate_versions() -> Option<String> {
    let lock = std::fs::read_to_string("Cargo.lock").ok()?;
    let quoted = |line: Option<&str>| Some(line?.split('"').nth(1)?.to_owned());
    let versions: Vec<String> = lock
        .split("[[package]]")
        .filter_map(|package| {
            let mut lines = package.trim().lines();
            let (name, version) = (quoted(lines.next())?, quoted(lines.next())?);
            NUMERIC_CRATES.contains(&name.as_str()).then(|| format!("{name} {version}"))
        })
        .collect();
    Some(versions.join(","))
}
