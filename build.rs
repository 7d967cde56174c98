//! Records what the binary was built from: commit, compiler, target, profile, and the versions of crates that
//! can change numerical results. `src/main.rs` reads these variables. A fact that cannot be found stays
//! unset, so sources without git build too.

use std::path::Path;
use std::process::Command;

/// The paths that the binary is built from. Changes elsewhere, in docs or results, do not make a build dirty.
const SOURCES: [&str; 6] = ["Cargo.toml", "Cargo.lock", "build.rs", "kernels", "src", "recipes"];

/// Crates whose version can change numerical results.
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
        // The HEAD log grows with every commit and checkout.
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

/// Returns a command's trimmed standard output, if the command succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn git(arguments: &[&str]) -> Option<String> {
    output("git", arguments)
}

/// Returns whether this folder is the root of a git repository. If the sources are vendored in another
/// repository, its commit says nothing about them.
fn is_own_repository() -> bool {
    git(&["rev-parse", "--show-prefix"]).is_some_and(|prefix| prefix.is_empty())
}

/// Returns the commit that `cargo package` recorded.
fn packaged_commit() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let hash = info.split("\"sha1\"").nth(1)?.split('"').nth(1)?;
    hash.bytes().all(|b| b.is_ascii_hexdigit()).then(|| hash.to_owned())
}

/// Returns `name version` of each of `NUMERIC_CRATES` in the lock file, separated by commas.
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
