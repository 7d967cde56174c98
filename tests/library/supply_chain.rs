//! Licences and duplicate versions of the crates that the binary is built from, held against `deny.toml`.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;

/// Runs `cargo` and returns its standard output.
fn cargo(arguments: &[&str]) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The crates that a build for this machine uses, development dependencies apart: name, version, licence
/// expression.
fn crates() -> Vec<(String, String, String)> {
    let version = cargo(&["--version", "--verbose"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("cargo names its host");
    let platform = ["--filter-platform", host];
    let metadata =
        cargo(&[&["metadata", "--format-version=1", "--locked", "--offline"][..], &platform].concat());
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();

    let nodes: HashMap<String, Value> =
        items(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let mut pending = vec![text(&metadata["resolve"]["root"])];
    let mut used = BTreeSet::new();
    while let Some(id) = pending.pop() {
        if used.insert(id.clone()) {
            let linked = |kind: &Value| kind["kind"].as_str() != Some("dev");
            let dependencies = items(&nodes[&id]["deps"]);
            let linked = dependencies.iter().filter(|d| items(&d["dep_kinds"]).iter().any(linked));
            pending.extend(linked.map(|d| text(&d["pkg"])));
        }
    }
    let packages = items(&metadata["packages"]);
    let packages = packages.iter().filter(|package| used.contains(&text(&package["id"])));
    packages.map(|p| (text(&p["name"]), text(&p["version"]), text(&p["license"]))).collect()
}

fn policy() -> toml::Table {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deny.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Returns true if the terms of an SPDX expression can be met by allowed licences alone.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Crates published before SPDX expressions were required separate alternatives by a slash.
    let parsed = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX);
    parsed
        .is_ok_and(|expression| expression.evaluate(|requirement| allowed.contains(&requirement.to_string())))
}

fn allowed_licences() -> BTreeSet<String> {
    let allow = policy()["licenses"]["allow"].as_array().unwrap().clone();
    allow.iter().map(|licence| licence.as_str().unwrap().to_owned()).collect()
}

#[test]
fn licences_are_permissive() {
    let (allowed, crates) = (allowed_licences(), crates());
    assert!(crates.len() > 100, "{} crates: the graph was not read", crates.len());
    let refused: Vec<_> = crates.iter().filter(|(.., licence)| !is_allowed(licence, &allowed)).collect();
    assert!(refused.is_empty(), "not allowed by deny.toml: {refused:?}");
}

#[test]
fn a_licence_that_is_not_permissive_is_refused() {
    let allowed = allowed_licences();
    for expression in ["GPL-3.0-only", "MIT AND GPL-2.0-only", "", "Proprietary", "LGPL-2.1-or-later"] {
        assert!(!is_allowed(expression, &allowed), "{expression:?}");
    }
    for expression in ["MIT/Apache-2.0", "GPL-3.0-only OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_allowed(expression, &allowed), "{expression:?}");
    }
}

/// Of a crate that is linked in several versions, all but one are named in `deny.toml`, and nothing else is.
#[test]
fn duplicates_are_the_known_ones() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, version, _) in crates() {
        versions.entry(name).or_default().insert(version);
    }
    let known: BTreeSet<String> = policy()["bans"]["skip"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["crate"].as_str().unwrap().to_owned())
        .collect();
    let named = |name: &str, version: &str| known.contains(&format!("{name}@{version}"));
    for (name, versions) in &versions {
        let unnamed: Vec<_> = versions.iter().filter(|version| !named(name, version)).collect();
        assert!(unnamed.len() == 1, "{name} is linked as {versions:?}; not in deny.toml: {unnamed:?}");
    }
    let duplicated = |entry: &&String| {
        let (name, version) = entry.split_once('@').unwrap();
        versions.get(name).is_some_and(|all| all.len() > 1 && all.contains(version))
    };
    let stale: Vec<_> = known.iter().filter(|entry| !duplicated(entry)).collect();
    assert!(stale.is_empty(), "no longer linked twice, delete from deny.toml: {stale:?}");
}
