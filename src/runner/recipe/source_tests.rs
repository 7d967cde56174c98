//! Sources of a mixture and their phases: layers, names, round trips and contradictions.

use super::*;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::policy::CorpusSource;
use std::path::Path;

/// Two sources, one of them inline.
const TWO: &str = "[data.sources.web]\npath = \"web\"\nweight = 0.75\n\
                   [data.sources]\ncode-2 = { path = \"/texts/code\", weight = 1, epochs = 4 }\n";

fn load_over(text: &str, overrides: &[&str], env: &[(&str, &str)]) -> Result<Recipe> {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    load_str(Path::new("dir/r.toml"), text, &overrides, env, &Machine::none())
}

fn two(overrides: &[&str]) -> Recipe {
    load_over(TWO, overrides, &[]).expect("valid")
}

fn refused(text: &str, overrides: &[&str], env: &[(&str, &str)]) -> Error {
    load_over(text, overrides, env).expect_err("refused")
}

#[test]
fn layers_set_single_keys_of_a_source() {
    let recipe = load_over(
        TWO,
        &["data.sources.code-2.weight=0.5"],
        &[("XRUN__DATA__SOURCES__WEB__EPOCHS", "2"), ("XRUN__DATA__SOURCES__NEWS__PATH", "news")],
    );
    assert!(recipe.expect_err("news has no weight").message().contains("the source `news` has no weight"));
    let env = [("XRUN__DATA__SOURCES__WEB__EPOCHS", "2")];
    let recipe = load_over(TWO, &["data.sources.code-2.weight=0.5"], &env).expect("valid");
    let source = |path: &str, weight, epochs| DataSource {
        path: Some(path.into()),
        weight,
        epochs,
        ..DataSource::default()
    };
    let expected = [
        ("code-2".to_owned(), source("/texts/code", Some(0.5), Some(4.0))),
        ("web".to_owned(), source("web", Some(0.75), Some(2.0))),
    ];
    assert_eq!(recipe.written().data.sources, expected.clone().into());
    assert_eq!(recipe.written().data.corpus, CorpusSource::Mixture);
    let web = recipe.values().data.sources["web"].path.clone().expect("a path");
    let web = web.single().expect("one path");
    assert!(web.is_absolute() && web.ends_with("dir/web"), "relative to the recipe: {}", web.display());
    assert_eq!(recipe.values().data.sources["code-2"].path, Some("/texts/code".into()));
    assert_eq!(
        recipe.layer("data.sources.code-2.epochs"),
        Layer::File { path: "dir/r.toml".into(), line: 5 }
    );
    assert!(matches!(recipe.layer("data.sources.code-2.weight"), Layer::CommandLine { .. }));
    let explained: Vec<String> = recipe
        .explain()
        .into_iter()
        .filter(|(key, value, _)| {
            value.is_some() && (key.path.starts_with("data.sources.") || key.path == "data.corpus")
        })
        .map(|(key, value, layer)| format!("{} = {} ({layer})", key.path, value.unwrap_or_default()))
        .collect();
    assert_eq!(
        explained,
        [
            "data.corpus = \"mixture\" (unset: follows from data.sources)",
            "data.sources.code-2.path = \"/texts/code\" (dir/r.toml:5)",
            "data.sources.code-2.weight = 0.5 (command line: data.sources.code-2.weight=0.5)",
            "data.sources.code-2.epochs = 4.0 (dir/r.toml:5)",
            "data.sources.web.path = \"web\" (dir/r.toml:2)",
            "data.sources.web.weight = 0.75 (dir/r.toml:3)",
            "data.sources.web.epochs = 2.0 (XRUN__DATA__SOURCES__WEB__EPOCHS)",
        ]
    );
}

#[test]
fn mixtures_read_back_and_are_hashed_without_folders() {
    let recipe = two(&["data.phases=[{ from = 0.8, weights = { web = 0.5 } }]", "training.seed=3"]);
    let resolved = load_resolved(Path::new("r.toml"), &recipe.to_toml(), &[], &Machine::none()).unwrap();
    let copied = load_over(recipe.copy(), &[], &[]).unwrap();
    let stored = recipe.to_stored().load().unwrap();
    for again in [&resolved, &copied, &stored] {
        assert_eq!((again.values(), again.hash()), (recipe.values(), recipe.hash()));
    }
    let keys = StoredKeys::parse(&recipe.to_toml()).unwrap();
    assert_eq!(keys.hashes()[0], recipe.hash());
    assert_eq!(keys.value("data.sources.web.weight"), Some("0.75"));
    assert_eq!(keys.recorded("data.sources.web.epochs"), Some(UNSET), "left out at its implied value");
    assert_eq!(
        settings_outside_files(recipe.copy()).into_iter().map(|set| set.key).collect::<Vec<_>>(),
        ["training.seed", "data.phases"]
    );
    let moved = two(&["data.sources.web.path=/else/where/web"]);
    assert_eq!(moved.hash(), two(&[]).hash());
    assert_eq!(two(&["data.sources.web.path=other"]).settled_hash(), two(&[]).settled_hash());
    let mut hashes = vec![two(&[]).hash(), load_over("", &[], &[]).unwrap().hash()];
    for change in [
        "data.sources.web.weight=0.5",
        "data.sources.web.epochs=2",
        "data.sources.web.path=other",
        "data.phases=[{ from = 0.5, weights = { web = 1 } }]",
        "data.sources.code-2.epochs=3",
    ] {
        hashes.push(two(&[change]).hash());
    }
    let all = hashes.len();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), all, "every key of a mixture is hashed");
}

#[test]
fn differences_name_the_keys_of_sources_that_only_one_recipe_has() {
    let three =
        two(&["data.sources.news.path=/news", "data.sources.news.weight=2", "data.sources.web.weight=1"]);
    let shown = |a: &Recipe, b: &Recipe| -> Vec<String> {
        diff(a.written(), b.written()).iter().map(|c| format!("{} {} {}", c.key, c.old, c.new)).collect()
    };
    let expected = [
        "data.sources.news.path unset \"/news\"",
        "data.sources.news.weight unset 2.0",
        "data.sources.web.weight 0.75 1.0",
    ];
    assert_eq!(shown(&two(&[]), &three), expected);
    let back = ["data.sources.news.path \"/news\" unset", "data.sources.news.weight 2.0 unset"];
    assert_eq!(shown(&three, &two(&["data.sources.web.weight=1"])), back);
    let keys = |recipe: &Recipe| StoredKeys::parse(&recipe.to_toml()).unwrap();
    let stored = stored_diff(&keys(&three), &keys(&two(&[])));
    assert_eq!(
        stored.iter().map(|change| (change.key.as_str(), change.class)).collect::<Vec<_>>(),
        expected.map(|line| (line.split(' ').next().unwrap(), Some(Class::Training)))
    );
    let moved = diff(two(&[]).written(), two(&["data.sources.web.path=/b/web"]).written());
    assert!(moved[0].is_of_paths() && moved[0].keeps_hash(), "{moved:?}");
    assert_eq!(moved[0].old_paths(), [Path::new("web")]);
}

#[test]
fn weights_are_axes_and_changes() {
    let text = format!(
        "{TWO}[sweep.grid]\ndata.sources.web.weight = [0.25, 0.5]\n\
         [compare]\nchange = {{ \"data.sources.code-2.weight\" = 0.2 }}\n"
    );
    let recipe =
        load_over(&text, &["sweep.log_range={ data.sources.web.epochs = [1, 8] }"], &[]).expect("valid");
    let written = recipe.written();
    assert_eq!(written.sweep.grid["data.sources.web.weight"].as_array().map(Vec::len), Some(2));
    assert_eq!(written.compare.change["data.sources.code-2.weight"].as_float(), Some(0.2));
    assert!(written.sweep.log_range.contains_key("data.sources.web.epochs"));
    let (key, value) = setting("data.sources.web.weight=2").expect("a setting");
    assert_eq!((key.path, key.class, value.as_str()), ("data.sources.web.weight", Class::Training, "2.0"));
}

#[test]
fn wrong_sources_are_refused_at_their_place() {
    let one = "[data.sources.Web]\npath = \"a\"\nweight = 1\n";
    let many: String =
        (0..65).map(|i| format!("[data.sources.s{i:02}]\npath = \"a\"\nweight = 1\n")).collect();
    let mut wrong = Vec::new();
    for (text, overrides, env, place, says) in [
        ("[data.sources.\"a b\"]\npath = \"a\"\n", &[][..], &[][..], "1:15", "a name has letters"),
        ("[data.sources.\"a.b\"]\npath = \"a\"\n", &[], &[], "1:15", "has '.'"),
        ("[data.sources.\"\"]\npath = \"a\"\n", &[], &[], "1:15", "empty"),
        (&*format!("[data.sources.{}]\npath = \"a\"\n", "n".repeat(65)), &[], &[], "1:15", "longer than 64"),
        ("[data]\nsources.web = 3\n", &[], &[], "2:9", "data.sources.web is a table, not a value"),
        ("[data]\nsources = 3\n", &[], &[], "2:1", "data.sources is a table of sources"),
        ("[data.sources.web]\npaht = \"a\"\n", &[], &[], "2:1", "did you mean data.sources.web.path?"),
        (&*format!("{one}epochs = 0\n"), &[], &[], "4:10", "0 < value ≤ 1000000"),
        (one, &["data.sources.Web.weight=1e7"], &[], "", "out of range"),
        (one, &["data.sources.w/b.weight=1"], &[], "", "has '/'"),
        ("[data.sources.web]\nweight = 2\n", &[], &[], "2:10", "the source `web` has no path"),
        (&*format!("{one}[data.sources.b]\npath = \"b\"\n"), &[], &[], "5:8", "the source `b` has no weight"),
        (TWO, &["data.sources.wbe.weight=1"], &[], "", "did you mean data.sources.web.weight?"),
        (&*format!("data.corpus = \"t\"\n{one}"), &[], &[], "1:15", "one corpus or on a mixture"),
        (one, &["validation.sets={ Web = 't' }"], &[], "", "rename one of them"),
        (one, &["data.corpus=random"], &[], "", "set data.corpus = \"mixture\""),
        ("data.corpus = \"mixture\"\n", &[], &[], "1:15", "the recipe has no sources"),
        (many.as_str(), &[], &[], "194:8", "65 sources, and a mixture has at most 64"),
        (
            one,
            &[],
            &[("XRUN__DATA__SOURCES__WEB__WEIGHT", "2")],
            "",
            "set data.sources.Web.weight on the command line",
        ),
        (one, &[], &[("XRUN__DATA__SOURCES__A__B__WEIGHT", "2")], "", "on the command line"),
    ] {
        let error = refused(text, overrides, env);
        let at = error.problems()[0].place.clone().unwrap_or_default();
        let is_argument = ["command line:", "environment:"].iter().any(|layer| at.starts_with(layer));
        let is_there = if place.is_empty() { is_argument } else { at == format!("dir/r.toml:{place}") };
        if !is_there || !error.message().contains(says) {
            wrong.push(format!("{says}: {at}\n{error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let apart = ["validation.sets={ Web = 't' }", "data.validation=held"];
    assert!(load_over(one, &apart, &[]).is_ok(), "nothing is held out of sources");
    let replaced = load_over(&format!("data.corpus = \"t\"\n{one}"), &["data.corpus=mixture"], &[]);
    assert_eq!(replaced.expect("a higher layer").written().data.corpus, CorpusSource::Mixture);
}

#[test]
fn phases_are_checked_at_their_place() {
    let phase = "[[data.phases]]\nfrom = 0.5\nweights = { web = 1, code-2 = 0 }\n";
    let recipe =
        load_over(&format!("{TWO}{phase}{}", phase.replace("0.5", "0.75")), &[], &[]).expect("valid");
    let expected =
        |from| Phase { from, weights: [("code-2".to_owned(), 0.0), ("web".to_owned(), 1.0)].into() };
    assert_eq!(recipe.values().data.phases, [expected(0.5), expected(0.75)]);
    assert_eq!(recipe.remarks(false), [""; 0]);
    for (change, wrong, place, says) in [
        ("0.5", "0", "7:8", "from cannot be 0"),
        ("0.5", "1.0", "7:8", "0 < value < 1"),
        ("0.5", "\"half\"", "7:8", "a string"),
        ("from = 0.5", "form = 0.5", "7:1", "did you mean `from`?"),
        ("from = 0.5\n", "", "6:1", "phase 1 of data.phases has no `from`"),
        ("weights = { web = 1, code-2 = 0 }\n", "", "6:1", "has no `weights`"),
        ("web = 1, code-2 = 0", "web = 0", "8:11", "no weight above 0"),
        ("web = 1, code-2 = 0", "", "8:11", "no weight above 0"),
        ("web = 1", "web = -1", "8:19", "the weight of web cannot be -1"),
        ("web = 1", "\"a b\" = 1", "8:13", "cannot have the name"),
        ("{ web = 1, code-2 = 0 }", "[1, 2]", "8:11", "a list"),
        ("web = 1", "wbe = 1", "", "phase 1 of data.phases has a weight for `wbe`, which is not a source"),
        ("web = 1", "wbe = 1", "", "did you mean `web`?"),
    ] {
        let error = refused(&format!("{TWO}{}", phase.replace(change, wrong)), &[], &[]);
        assert!(error.message().contains(says), "{says}: {error}");
        let at = error.problems()[0].place.clone().unwrap_or_default();
        assert!(place.is_empty() || at == format!("dir/r.toml:{place}"), "{says}: {at}\n{error}");
    }
    let reversed = refused(&format!("{TWO}{phase}{phase}"), &[], &[]);
    assert!(reversed.message().contains("phase 2 of data.phases begins at 0.5, not after 0.5"), "{reversed}");
    assert!(refused(phase, &[], &[]).message().contains("the recipe has no sources"));
    let flat = refused(TWO, &["data.phases=[0.5]"], &[]);
    assert!(flat.message().contains("phase 1 of data.phases is not a table"), "{flat}");
}

#[test]
fn weights_of_a_single_source_are_said_to_have_no_effect() {
    let one = "[data.sources.web]\npath = \"a\"\n";
    assert_eq!(load_over(one, &[], &[]).expect("valid").remarks(false), [""; 0]);
    let phases = "data.phases=[{ from = 0.5, weights = { web = 2 } }]";
    let recipe = load_over(one, &["data.sources.web.weight=2", phases], &[]).expect("valid");
    assert_eq!(
        recipe.remarks(false),
        ["data.phases", "data.sources.web.weight"]
            .map(|key| format!("`{key}` has no effect because `data.sources` has only one source"))
    );
    let late =
        two(&["training.steps=5", "data.phases=[{ from = 0.9, weights = { web = 1 } }]"]).remarks(false);
    assert_eq!(
        late,
        ["`data.phases` has no effect because the phases begin after the last of `training.steps`"]
    );
    let tokens = load_over(one, &["data.train_tokens=5"], &[]).expect("valid").remarks(false);
    assert_eq!(tokens, ["`data.train_tokens` has no effect with `data.corpus = \"mixture\"`"]);
}
