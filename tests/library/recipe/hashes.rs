//! Hashes of recipes stay: runs are found by them, and comparisons name them.

use std::fs;
use std::path::{Path, PathBuf};
use xrun::machine::Machine;
use xrun::policy::Recompute;
use xrun::recipe::{self, StoredKeys};

/// The hash of every shipped recipe, as `blake3  path`.
const SHIPPED: &str = include_str!("hashes.txt");

/// Kept runs of earlier versions, whose table of keys was another one, as `blake3  recipe/run`: the hash that
/// their recipe has since then, in place of the one that they recorded.
const OLDER: &str = include_str!("older_hashes.txt");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The hash of a recipe; where it leaves recomputation to the plan, with the mode that was the default
/// before.
fn hash(path: &Path) -> String {
    let recipe = recipe::load(path, &[], std::iter::empty(), &Machine::none());
    recipe.unwrap_or_else(|e| panic!("{}: {e}", path.display())).with_recompute(Recompute::Selective).hash()
}

/// Every file below `folder` whose name ends in `ending`, sorted.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn shipped_recipes_keep_their_hashes() {
    let mut listed: Vec<&str> = Vec::new();
    let mut found = String::new();
    for line in SHIPPED.lines() {
        let (_, path) = line.split_once("  ").expect("a hash and a path");
        found += &format!("{}  {path}\n", hash(&root().join(path)));
        listed.push(path);
    }
    assert_eq!(found, SHIPPED);
    let shipped = files(&root().join("recipes"), ".toml");
    let shipped: Vec<String> = shipped
        .iter()
        .map(|path| path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned())
        .collect();
    assert_eq!(listed, shipped, "every recipe is listed; a changed one gets a new hash here");
}

#[test]
fn kept_runs_keep_their_hashes() {
    let kept = root().join("results/kept");
    let older: Vec<(&str, &str)> =
        OLDER.lines().map(|line| line.split_once("  ").expect("a hash and a run")).collect();
    let runs = files(&kept, "resolved.toml");
    assert!(runs.len() > 50, "{} runs", runs.len());
    for path in runs {
        let folder = path.parent().expect("a folder");
        let summary = fs::read(folder.join("summary.json")).expect("a summary");
        let summary: serde_json::Value = serde_json::from_slice(&summary).expect("JSON");
        let older = older.iter().find(|(_, run)| kept.join(run) == folder).map(|(hash, _)| *hash);
        let recorded = summary["recipe_hash"].as_str().expect("a recorded hash");
        let text = fs::read_to_string(&path).expect("a recipe");
        let possible = StoredKeys::parse(&text).expect("a stored recipe").hashes();
        // Earlier versions hashed whole paths, today's only their last part.
        match text.contains("\ncorpus = \"/") && older.is_none() {
            true => {
                assert!(possible[..2].contains(&hash(&path)), "{}", path.display());
                assert!(possible[2..].iter().any(|hash| hash == recorded), "{}", path.display());
            }
            false => assert_eq!(hash(&path), older.unwrap_or(recorded), "{}", path.display()),
        }
    }
}

/// A hyperparameter that is newer than stored runs leaves their hashes as they are, but a group that sets its
/// default beside another value of the section counts.
#[test]
fn a_newer_hyperparameter_counts_where_it_is_not_its_default() {
    let hash = |settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|setting| format!("optimizer.{setting}")).collect();
        let path = root().join("recipes/dim384-muon.toml");
        recipe::load(&path, &settings, std::iter::empty(), &Machine::none()).unwrap().hash()
    };
    let (plain, polar) = (hash(&[]), hash(&["orthogonalization=polar_express"]));
    assert_eq!(hash(&["orthogonalization=newton_schulz", "neuron_momentum=0.0"]), plain);
    assert_ne!(polar, plain);
    assert_ne!(hash(&["neuron_momentum=0.95"]), plain);
    let group = ["orthogonalization=polar_express", "groups.matrix.orthogonalization=newton_schulz"];
    assert!(![&plain, &polar].contains(&&hash(&group)));
}
