//! Tells the binary what it was built from: commit, compiler, target, profile, versions of the crates that can
//! change numbers. `src/main.rs` reads it. A fact that cannot be found is left unset: sources without git build
//! too.

use std::path::Path;
use std::process::Command;

/// What goes into the binary. Changes elsewhere, to documents or results, do not make a build dirty.
const SOURCES: [&str; 6] = ["Cargo.toml", "Cargo.lock", "build.rs", "kernels", "src", "recipes"];

/// Crates whose version can change numbers.
const NUMERIC_CRATES: [&str; 4] = ["half", "pulp", "rand_chacha", "tokenizers"];

fn main() {
    for path in SOURCES.iter().filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
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
