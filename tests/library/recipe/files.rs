//! Recipes on disk: chains, paths, and what is said when a file is not there or not text.

use std::fs;
use std::path::{Path, PathBuf};
use xrun::error::Result;
use xrun::machine::Machine;
use xrun::policy::CorpusSource;
use xrun::recipe::{self, Layer, Recipe};

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("creates the folder");
    fs::write(&path, text).expect("writes a recipe");
    path
}

fn load(path: &Path, overrides: &[&str]) -> Result<Recipe> {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    recipe::load(path, &overrides, std::iter::empty(), &Machine::none())
}

#[test]
fn a_chain_is_layered_from_its_base() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = write(
        folder.path(),
        "shared/base.toml",
        "extends = \"dim384\"\n[data]\ncorpus = \"text\"\n[training]\nsteps = 7\n[lr_scheduler]\nwarmup_steps = 0\n",
    );
    write(folder.path(), "middle.toml", "extends = \"shared/base.toml\"\n[training]\nsteps = 8\nseed = 5\n");
    let top = write(folder.path(), "top.toml", "extends = \"middle.toml\"\n[training]\nseed = 6\n");
    let recipe = load(&top, &["model.n_layers=2", "data.tokenizer=here.json"]).expect("valid");
    let values = recipe.values();
    assert_eq!((values.model.dim, values.model.n_layers), (384, 2));
    assert_eq!((values.training.steps, values.training.seed), (8, 6));
    assert_eq!(recipe.name(), "top");
    let names: Vec<String> = recipe
        .files()
        .iter()
        .map(|(path, _)| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["built-in:dim384", "base.toml", "middle.toml", "top.toml"]);
    assert_eq!(recipe.layer("data.corpus"), Layer::File { path: base.clone(), line: 3 });
    // A path counts from the file that says it; on the command line, from the current directory.
    assert_eq!(values.data.corpus, CorpusSource::Paths(folder.path().join("shared/text").into()));
    let here = std::env::current_dir().expect("a current folder");
    assert_eq!(Path::new(&values.data.tokenizer), here.join("here.json"));
    assert_eq!(recipe.written().data.corpus, "text".into(), "as it was spelled");
    let absolute = load(&top, &["data.corpus=/absolute"]).expect("valid");
    assert_eq!(absolute.values().data.corpus, "/absolute".into());
}

#[test]
fn a_later_check_can_point_at_any_layer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write(folder.path(), "a.toml", "[training]\nsteps = 8\n");
    let recipe = load(&path, &["model.dim=64"]).expect("valid");
    let error = recipe.error(
        &["training.steps", "model.dim", "data.corpus", "engine.threads"],
        "the corpus is too small",
        "train fewer steps",
    );
    assert_eq!(error.kind(), xrun::error::ErrorKind::Usage);
    let message = error.message().replace(&folder.path().display().to_string(), "");
    insta::assert_snapshot!(message, @r#"
    the corpus is too small
     --> /a.toml:2:9
      |
    2 | steps = 8
      |         ^ training.steps = 8
      |
     ::: command line:1:11
      |
    1 | model.dim=64
      |           -- model.dim = 64
      |
      = note: data.corpus = "stories" by default
      = note: engine.threads is unset
      = help: train fewer steps
    "#);
}

#[test]
fn circles_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let a = write(folder.path(), "a.toml", "extends = \"b.toml\"\n");
    write(folder.path(), "b.toml", "extends = \"./a.toml\"\n");
    let error = load(&a, &[]).expect_err("a circle");
    assert_eq!(error.problems()[0].keys, ["extends"]);
    assert!(
        error.problems()[0].place.as_ref().is_some_and(|place| place.ends_with("b.toml:1:11")),
        "{error}"
    );
    assert!(error.message().contains("in a circle"), "{error}");
}

#[test]
fn sixteen_layers_are_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut top = write(folder.path(), "0.toml", "[training]\nsteps = 3\n");
    for i in 1..=17 {
        top = write(folder.path(), &format!("{i}.toml"), &format!("extends = \"{}.toml\"\n", i - 1));
        let loaded = load(&top, &[]);
        assert_eq!(loaded.is_ok(), i <= 16, "{i}: {loaded:?}");
    }
    assert!(load(&top, &[]).expect_err("too many").message().contains("more than 16"));
}

#[test]
fn missing_recipes_are_told_with_their_neighbours() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write(folder.path(), "baseline.toml", "extends = \"bas.toml\"\n");
    write(folder.path(), "base.toml", "");
    let message = load(&path, &[]).expect_err("missing").message().to_owned();
    assert!(message.contains("baseline.toml:1:11") && message.contains("base.toml?"), "{message}");
    let message = load(&folder.path().join("basline.toml"), &[]).expect_err("missing").message().to_owned();
    assert!(message.contains("did you mean") && message.contains("baseline.toml"), "{message}");
    assert!(load(folder.path(), &[]).is_err(), "a folder is no recipe");
}

#[test]
fn what_is_not_text_is_told_by_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bytes.toml");
    fs::write(&path, b"[model]\ndim = \xff\n").expect("writes");
    let message = load(&path, &[]).expect_err("not UTF-8").message().to_owned();
    assert!(message.contains("line 2 is not UTF-8"), "{message}");
    fs::write(&path, vec![b'#'; (1 << 20) + 1]).expect("writes");
    let message = load(&path, &[]).expect_err("too long").message().to_owned();
    assert!(message.contains("1048577 bytes"), "{message}");
}

#[test]
fn recipes_of_the_log_ask_a_question() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/known-issues");
    let recipes: Vec<PathBuf> =
        fs::read_dir(folder).expect("recipes").map(|entry| entry.expect("a file").path()).collect();
    assert!(recipes.len() > 12, "{recipes:?}");
    for path in recipes {
        let compare = load(&path, &[]).unwrap_or_else(|e| panic!("{e}")).values().compare.clone();
        // Beside a command there is nothing to change; the first lines then say which command.
        let beside_a_command = fs::read_to_string(&path).expect("a text").contains("--before-cmd");
        assert_eq!(compare.change.is_empty(), beside_a_command, "{}: what is compared?", path.display());
        assert!(!compare.hypothesis.is_empty() && compare.predicts.is_some(), "{}", path.display());
        // The changed side is valid too.
        let change = |(key, value): (&String, &toml::Value)| format!("{key}={value}");
        let change: Vec<String> = compare.change.iter().map(change).collect();
        let change: Vec<&str> = change.iter().map(String::as_str).collect();
        load(&path, &change).unwrap_or_else(|e| panic!("{e}"));
    }
}
