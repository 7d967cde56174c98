//! Checks the table of keys against the structs, and the promises made for every key.

use super::lookup::{find, find_path, nearest_key, nearest_keys};
use super::toml_text::values;
use super::*;
use crate::error::Result;
use crate::machine::Machine;
use crate::policy::{CorpusSource, PathList, SeedScheme};
use std::collections::BTreeSet;
use std::path::Path;

fn load_text(text: &str) -> Result<Recipe> {
    load_str(Path::new("test.toml"), text, &[], std::iter::empty(), &Machine::none())
}

fn load_resolved_text(text: &str) -> Result<Recipe> {
    load_resolved(Path::new("test.toml"), text, &[], &Machine::none())
}

fn load_over(text: &str, overrides: &[&str], env: &[(&str, &str)]) -> Result<Recipe> {
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    load_str(Path::new("test.toml"), text, &overrides, env, &Machine::none())
}

#[test]
fn the_table_and_the_structs_have_the_same_keys() {
    let recipe = serde_json::to_value(Values::default()).expect("serializes");
    let sections = recipe.as_object().expect("a recipe is an object");
    let mut in_structs: Vec<String> = sections
        .iter()
        .flat_map(|(section, keys)| {
            keys.as_object()
                .expect("a section is an object")
                .keys()
                .map(move |key| format!("{section}.{key}"))
        })
        .collect();
    let source = serde_json::to_value(DataSource::default()).expect("serializes");
    let in_source = source.as_object().expect("a source is an object").keys();
    let in_source = in_source.map(|key| sources::path(sources::ANY_NAME, key));
    let at = in_structs.iter().position(|key| key == "data.sources").expect("the table of sources");
    in_structs.splice(at..=at, in_source);
    let in_table: Vec<String> = KEYS.iter().map(|key| key.path.to_owned()).collect();
    assert_eq!(in_structs, in_table, "same keys, in the same order");
    let listed: Vec<&str> = SECTIONS.iter().map(|(section, _)| *section).collect();
    assert_eq!(sections.keys().collect::<Vec<_>>(), listed);
}

#[test]
fn names_and_aliases_are_unique_in_their_section() {
    let mut seen = BTreeSet::new();
    for key in KEYS.iter() {
        for name in std::iter::once(key.name()).chain(key.aliases.iter().copied()) {
            assert!(seen.insert((key.section(), name)), "{}.{name} twice", key.section());
            assert_eq!(find(key.section(), name).map(|k| k.path), Some(key.path));
        }
    }
}

#[test]
fn unset_is_explained_exactly_where_there_is_no_default() {
    for (key, default) in values(&Values::default()) {
        assert_eq!(default.is_none(), !key.unset.is_empty(), "{}", key.path);
    }
}

#[test]
fn defaults_pass_their_own_checks() {
    for (key, default) in values(&Values::default()) {
        if let Some(default) = default {
            let recipe = load_text(&format!("{} = {default}", key.path)).expect(key.path);
            assert_eq!(*recipe.written(), Values::default(), "{}", key.path);
        }
    }
}

/// Returns the settings that the example of a key needs besides the defaults.
fn required_settings(key: &Key) -> Vec<&'static str> {
    match key.path {
        "model.n_heads" => vec!["model.head_dim=32"],
        "adapter.kind" | "model.init_optimizer" => vec!["model.init_from=model"],
        "ema.evaluate" => vec!["ema.decay=0.9"],
        "engine.devices" => vec!["parallelism.world_size=2"],
        "training.global_batch_size" => vec!["training.local_batch_size=8"],
        "model.global_interval" => vec!["model.window=4"],
        "model.parametrization" => vec!["model.base_dim=128"],
        "model.rope_factor" => vec!["model.rope_scaling=linear"],
        "model.rope_scaling" => vec!["model.rope_factor=4.0", "model.rope_original_context=64"],
        "model.rope_original_context" => vec!["model.rope_scaling=yarn", "model.rope_factor=4.0"],
        "model.rope_beta_fast" | "model.rope_beta_slow" | "model.rope_attention_factor" => {
            vec!["model.rope_scaling=yarn", "model.rope_factor=4.0", "model.rope_original_context=64"]
        }
        "model.rope_low_freq_factor" | "model.rope_high_freq_factor" => {
            vec!["model.rope_scaling=llama3", "model.rope_factor=4.0", "model.rope_original_context=64"]
        }
        "data.sources.NAME.split"
        | "data.sources.NAME.document_separator"
        | "data.sources.NAME.field"
        | "data.sources.NAME.missing"
        | "data.sources.NAME.format"
        | "data.sources.NAME.extensions"
        | "data.sources.NAME.weight"
        | "data.sources.NAME.epochs"
        | "data.sources.NAME.card" => {
            vec!["data.sources.NAME.path=web"]
        }
        "evaluation.tasks" => vec!["evaluation.data=tasks"],
        "evaluation.data" => vec!["evaluation.tasks=[\"hellaswag\"]"],
        "evaluation.interval" | "evaluation.limit" | "evaluation.shots" => {
            vec!["evaluation.tasks=[\"hellaswag\"]", "evaluation.data=tasks"]
        }
        "data.phases" => vec!["data.sources.code.path=code"],
        path => {
            let positions = path.starts_with("optimizer.groups.positions");
            let position = positions.then_some("model.position=learned");
            optimizer::owner_setting(key).into_iter().chain(position).collect()
        }
    }
}

#[test]
fn every_example_is_valid_and_every_alias_sets_its_key() {
    for key in KEYS.iter() {
        let expected = load_over(&format!("{} = {}", key.path, key.example), &required_settings(key), &[])
            .expect(key.path);
        assert_ne!(*expected.written(), Values::default(), "the example of {} is its default", key.path);
        for alias in key.aliases {
            let text = format!("[{}]\n{alias} = {}", key.section(), key.example);
            let aliased = load_over(&text, &required_settings(key), &[]).expect(alias);
            assert_eq!(aliased.written(), expected.written(), "{alias}");
        }
    }
}

#[test]
fn every_key_can_be_set_from_every_layer() {
    for key in KEYS.iter() {
        let expected = load_over(&format!("{} = {}", key.path, key.example), &required_settings(key), &[])
            .expect(key.path);
        let argument = format!("{}={}", key.path, key.example);
        let flag = format!("--{argument}");
        let var = format!("XRUN__{}", key.path.to_uppercase().replace('.', "__"));
        let with = |extra: &str| {
            required_settings(key).into_iter().chain([extra]).map(str::to_owned).collect::<Vec<_>>()
        };
        for overrides in [with(&argument), with(&flag)] {
            let recipe =
                load_str(Path::new("test.toml"), "", &overrides, std::iter::empty(), &Machine::none())
                    .expect(key.path);
            assert_eq!(recipe.written(), expected.written(), "{argument}");
            assert!(matches!(recipe.layer(key.path), Layer::CommandLine { .. }));
        }
        // The names of variables are read in lower case, and so are those of sources.
        let lower = |setting: &str| setting.replace("sources.NAME", "sources.name");
        let required: Vec<String> = required_settings(key).into_iter().map(lower).collect();
        let required: Vec<&str> = required.iter().map(String::as_str).collect();
        let path = lower(key.path);
        let expected = load_over(&format!("{path} = {}", key.example), &required, &[]).expect(key.path);
        let recipe = load_over("", &required, &[(&var, key.example)]).expect(key.path);
        assert_eq!(recipe.written(), expected.written(), "{var}");
        assert_eq!(recipe.layer(&path), Layer::Env { var });
    }
}

#[test]
fn resolved_text_reads_back_to_the_same_recipe() {
    for name in builtin::names() {
        let recipe = load(Path::new(name), &[], std::iter::empty(), &Machine::none()).expect(name);
        let again = load_resolved_text(&recipe.to_toml()).expect(name);
        assert_eq!(again.values(), recipe.values());
        assert_eq!(again.hash(), recipe.hash());
    }
    for key in KEYS.iter() {
        let recipe = load_over(&format!("{} = {}", key.path, key.example), &required_settings(key), &[])
            .expect(key.path);
        let again = load_resolved_text(&recipe.to_toml()).expect(key.path);
        assert_eq!(again.values(), recipe.values(), "{}", key.path);
    }
}

/// A stored recipe without a key was written by a version that did what the key's implied value stands for,
/// whatever the key's default is today.
#[test]
fn a_stored_recipe_without_a_key_has_its_implied_value() {
    let defaults = values(&Values::default());
    let is_other = |(key, default): &&(&Key, Option<String>)| {
        let implied = key.implied.filter(|implied| *implied != UNSET);
        implied.is_some_and(|implied| Some(implied) != default.as_deref())
    };
    let other: Vec<&str> = defaults.iter().filter(is_other).map(|(key, _)| key.path).collect();
    assert_eq!(other, ["seeds.scheme"], "keys whose default differs from the behavior before they existed");
    let scheme = |recipe: Recipe| recipe.values().seeds.scheme;
    assert_eq!(scheme(load_text("").unwrap()), SeedScheme::Name);
    let stored = load_resolved_text("").unwrap();
    assert!(!stored.to_toml().contains("scheme"), "{}", stored.to_toml());
    assert_eq!(stored.hash(), load_text("seeds.scheme = \"index\"").unwrap().hash());
    assert_eq!(
        scheme(stored.with_overrides(&["model.dim=64".to_owned()], &Machine::none()).unwrap()),
        SeedScheme::Index
    );
    assert_eq!(scheme(stored.to_stored().load().unwrap()), SeedScheme::Index);
    assert_eq!(scheme(load_resolved_text("seeds.scheme = \"name\"").unwrap()), SeedScheme::Name);
}

/// Checkpoints are named after their step alone, so their run is part of what a recipe names.
#[test]
fn a_checkpoint_is_hashed_with_its_run_and_wherever_it_lies() {
    let hash = |path: &str| load_over("", &[&format!("model.init_from={path}")], &[]).expect("valid").hash();
    let own = hash("/a/tiny/first/checkpoint/step-000004");
    assert_eq!(own, hash("/b/c/first/checkpoint/step-000004"));
    for other in ["/a/tiny/second/checkpoint/step-000004", "/a/tiny/first/checkpoint/step-000008"] {
        assert_ne!(own, hash(other), "{other}");
    }
    assert_eq!(hash("/a/first/model"), hash("/a/second/model"), "a folder has a name of its own");
}

#[test]
fn the_hash_follows_what_runs_and_nothing_else() {
    let base = load_text("").expect("defaults");
    for key in KEYS.iter() {
        let changed = load_over(&format!("{} = {}", key.path, key.example), &required_settings(key), &[])
            .expect(key.path);
        let differs = diff(base.written(), changed.written());
        let matters = differs.iter().any(|change| change.class.is_hashed());
        assert_eq!(base.hash() != changed.hash(), matters, "{}", key.path);
    }
    assert_eq!(base.hash().len(), 64);
}

#[test]
fn later_layers_win() {
    let text = "[optimizer]\nlr = 1e-4\n[training]\nsteps = 5\nseed = 3";
    let env =
        [("XRUN__TRAINING__STEPS", "6"), ("XRUN__TRAINING__SEED", "4"), ("XRUN_HOME", "somebody else's")];
    let recipe = load_over(text, &["training.seed=5", "data.corpus=random"], &env).expect("valid");
    assert_eq!(recipe.written().optimizer.lr, 1e-4);
    assert_eq!(recipe.written().training.steps, 6);
    assert_eq!(recipe.written().training.seed, 5);
    assert_eq!(recipe.written().data.corpus, CorpusSource::Random);
    assert_eq!(recipe.layer("optimizer.lr"), Layer::File { path: "test.toml".into(), line: 2 });
    assert_eq!(recipe.layer("training.steps"), Layer::Env { var: "XRUN__TRAINING__STEPS".into() });
    assert_eq!(recipe.layer("training.seed"), Layer::CommandLine { text: "training.seed=5".into() });
    assert_eq!(recipe.layer("model.dim"), Layer::Default);
    assert_eq!(recipe.explain().len(), KEYS.len());
}

#[test]
fn bare_texts_on_the_command_line_need_no_quotes() {
    let recipe = load_over(
        "",
        &["job.description=2024-01-01", "data.tokenizer=\"byte\"", "data.validation=held"],
        &[],
    )
    .expect("valid");
    assert_eq!(recipe.written().job.description, "2024-01-01");
    assert_eq!(recipe.written().data.tokenizer, "byte");
    assert_eq!(recipe.written().data.validation, Validation::at("held"));
    assert!(load_over("", &["data.corpus=\"half"], &[]).is_err());
}

#[test]
fn paths_may_be_lists() {
    let load = |overrides: &[&str]| load_over("", overrides, &[]).expect("valid");
    let one = load(&["data.corpus=x/a", "data.validation=h"]);
    let list = load(&["data.corpus=[\"x/a\"]", "data.validation=['h']"]);
    assert_eq!((one.hash(), one.values()), (list.hash(), list.values()), "a list of one is the path");
    let two = load(&["data.corpus=['x/a', \"y/b\"]", "validation.sets={ n = ['a', 'b'] }"]);
    let moved = load(&["data.corpus=['/z/a', '/z/b']", "validation.sets={ n = ['a', 'b'] }"]);
    assert_eq!((two.hash() == moved.hash(), two.hash() == one.hash()), (true, false));
    assert_ne!(two.hash(), load(&["data.corpus=['x/b', 'x/a']"]).hash(), "the order is hashed");
    let here = std::env::current_dir().expect("a current folder");
    let paths: Vec<_> = PathList::from(two.values().data.corpus.clone()).iter().map(Path::to_owned).collect();
    assert_eq!(paths, [here.join("x/a"), here.join("y/b")]);
    let again = load_over(&two.to_toml(), &[], &[]).expect("valid");
    assert_eq!((again.hash(), again.values()), (two.hash(), two.values()));
    let changes = diff(two.values(), moved.values());
    assert!(changes.len() == 1 && changes[0].is_of_paths() && changes[0].keeps_hash(), "{changes:?}");
    assert_eq!(changes[0].old_paths(), paths);
    for (argument, says) in [
        ("data.corpus=['a', 'stories']", "\"./stories\""),
        ("data.corpus=['a', 'a']", "has \"a\" twice"),
        ("data.corpus=[]", "an empty list"),
        ("data.validation=['a', 0.5]", "has a number"),
        ("data.corpus=['']", "has an empty path"),
        ("data.tokenizer=['a', 'b']", "a path, in quotes"),
        ("validation.sets={ n = ['a', 3] }", "or a list of paths"),
    ] {
        let error = load_over("", &[argument], &[]).err().map(|e| e.message().to_owned());
        assert!(error.as_ref().is_none_or(|e| e.contains(says)), "{argument}: {error:?}");
        assert_eq!(
            error.is_none(),
            argument.starts_with("data.tokenizer"),
            "{argument}: quotes may be left out"
        );
    }
}

#[test]
fn a_grid_takes_quoted_paths_and_nested_tables() {
    let quoted = load_text("[sweep.grid]\n\"model.dim\" = [64, 128]").expect("valid").written().clone();
    let nested = load_text("[sweep.grid]\nmodel.hidden_size = [64, 128]").expect("valid").written().clone();
    assert_eq!(quoted, nested);
    assert_eq!(quoted.sweep.grid["model.dim"].as_array().map(Vec::len), Some(2));
    for wrong in
        ["\"model.dim\" = 64", "\"model.dim\" = []", "\"model.dmi\" = [1]", "\"job.description\" = [\"x\"]"]
    {
        assert!(load_text(&format!("[sweep.grid]\n{wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn splitting_the_same_global_batch_otherwise_is_execution() {
    let load = |text: &str| load_text(text).expect("valid").written().clone();
    let one = load("[training]\nglobal_batch_size = 32\nlocal_batch_size = 32");
    let two = load("[training]\nglobal_batch_size = 32\nlocal_batch_size = 8\naccumulation = 4");
    assert!(diff(&one, &two).iter().all(|change| change.class == Class::Execution));
    let three = load("[training]\nlocal_batch_size = 8");
    assert!(diff(&two, &three).iter().all(|change| change.class == Class::Training));
    assert_eq!(diff(&one, &one), []);
    let unset = &diff(&one, &two)[1];
    assert_eq!((unset.key, unset.old.as_str(), unset.new.as_str()), ("training.accumulation", "unset", "4"));
}

#[test]
fn words_for_the_same_thing_lead_to_the_key() {
    let nearest = |section, name| nearest_key(section, name).map(|(key, _)| key.path);
    assert_eq!(nearest("training", "lr"), Some("optimizer.lr"));
    assert_eq!(nearest("model", "n_layer_s"), Some("model.n_layers"));
    assert_eq!(nearest("lr_scheduler", "wamup"), Some("lr_scheduler.warmup_steps"));
    assert_eq!(nearest("training", "batch_size"), Some("training.local_batch_size"));
    assert_eq!(nearest("training", "batch"), Some("training.local_batch_size"));
    assert_eq!(nearest("model", "zzz"), None);
    let all = |section, name| -> Vec<&str> {
        nearest_keys(section, name).into_iter().map(|(key, _)| key.path).collect()
    };
    assert_eq!(all("lr_scheduler", "warmup"), ["lr_scheduler.warmup_steps", "lr_scheduler.warmup_ratio"]);
    assert_eq!(all("training", "batch"), ["training.local_batch_size"]);
    assert_eq!(all("training", "batch_size"), ["training.local_batch_size"]);
    assert_eq!(all("training", "lr"), ["optimizer.lr"]);
    assert_eq!(find_path("model.hidden_size").map(|key| key.path), Some("model.dim"));
}

#[test]
fn the_schema_knows_every_key_and_alias() {
    let schema = json_schema();
    for key in KEYS.iter() {
        let at = |name: &str| {
            let name = name.replace('.', "/properties/");
            schema.pointer(&format!("/properties/{}/properties/{name}", key.section())).expect("a key")
        };
        let own = at(key.name());
        assert_eq!(own["description"].as_str().map(|d| d.starts_with(key.meaning)), Some(true));
        for alias in key.aliases {
            let target = at(alias)["$ref"].as_str().and_then(|t| t.strip_prefix('#')).expect("a reference");
            assert_eq!(schema.pointer(target), Some(own));
        }
    }
    assert_eq!(schema["properties"]["model"]["additionalProperties"], false);
}

#[test]
fn the_optimizer_of_a_later_layer_brings_its_own_keys() {
    let text = "[optimizer]\nlr = 0.1\nbetas = [0.8, 0.9]\nweight_decay = 0.5";
    let sgd = load_over(text, &["optimizer.name=sgd"], &[]).expect("betas belong to the file's optimizer");
    let toml = sgd.to_toml();
    let section = toml.split("[optimizer]\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    assert_eq!(section, Some("name = \"sgd\"\nlr = 0.1\nweight_decay = 0.5\nmomentum = 0.9"));
    assert_eq!(load_text(&toml).expect("it reads back").values(), sgd.values());
    // Recipes from before this choice existed keep their meaning.
    let adamw = load_text(text).expect("valid");
    let written = "[optimizer]\nlr = 0.1\nbetas = [0.8, 0.9]\neps = 1e-8\nweight_decay = 0.5\n";
    assert!(adamw.to_toml().contains(written));
    assert_eq!(adamw.hash(), load_over(text, &["optimizer.name=adamw"], &[]).expect("valid").hash());
    assert!(load_over(text, &["optimizer.name=sgd", "optimizer.eps=1e-6"], &[]).is_err());
    // A hyperparameter's default depends on the chosen optimizer.
    let bare = load_text("[optimizer]\nname = \"sgd\"").expect("valid");
    assert_eq!(bare.values().optimizer.values.number("weight_decay"), 0.0);
}

#[test]
fn hyperparameters_of_one_name_have_one_form() {
    for entry in crate::optim::OPTIMIZERS {
        for hyperparameter in entry.hyperparameters {
            let key = find("optimizer", hyperparameter.name).expect(hyperparameter.name);
            assert_eq!(optimizer::key(hyperparameter).kind, key.kind, "{}", key.path);
        }
    }
}

#[test]
fn unset_widths_follow_from_the_stream() {
    let widths = |settings: &[&str]| {
        let recipe = load_over("", settings, &[]).expect("valid");
        let model = &recipe.values().model;
        let found = (derived::n_heads(model), derived::head_dim(model), derived::ffn_dim(model));
        assert_eq!((model.n_heads, model.ffn_dim), (Some(found.0), Some(found.2)), "settled");
        found
    };
    assert_eq!(widths(&[]), (4, 32, 384));
    assert_eq!(widths(&["model.dim=64"]), (2, 32, 192));
    assert_eq!(widths(&["model.dim=512"]), (16, 32, 1536));
    assert_eq!(widths(&["model.dim=100"]), (2, 50, 320), "three heads do not divide 100");
    assert_eq!(widths(&["model.dim=66"]), (1, 66, 256), "two heads of 33 are odd");
    assert_eq!(widths(&["model.dim=16"]), (1, 16, 64));
    assert_eq!(widths(&["model.dim=256", "model.head_dim=64"]), (4, 64, 768));
    assert_eq!(widths(&["model.dim=16", "model.head_dim=64"]), (1, 64, 64));
    assert_eq!(widths(&["model.dim=256", "model.n_heads=2", "model.ffn_dim=100"]), (2, 128, 100));
    // The hash covers derived values.
    let hash = |settings: &[&str]| load_over("", settings, &[]).expect("valid").hash();
    assert_eq!(hash(&[]), hash(&["model.n_heads=4", "model.ffn_dim=384"]));
    assert_eq!(hash(&["model.dim=64"]), hash(&["model.dim=64", "model.n_heads=2", "model.ffn_dim=192"]));
    let base = load(Path::new("quickstart"), &[], std::iter::empty(), &Machine::none()).expect("built in");
    let narrow = base.with_overrides(&["model.dim=64".to_owned()], &Machine::none()).expect("valid");
    assert_eq!(narrow.values().model.ffn_dim, Some(192), "a cell of a sweep derives anew");
    let odd = load_over("", &["model.dim=65"], &[]).expect_err("odd");
    assert_eq!(odd.problems()[0].keys, ["model.n_heads", "model.dim"], "{odd}");
    let two = load_over("", &["model.dim=64", "model.n_kv_heads=4"], &[]).expect_err("two heads");
    assert_eq!(two.problems()[0].keys, ["model.n_kv_heads", "model.dim"], "{two}");
}

#[test]
fn a_warm_up_as_a_share_follows_the_steps() {
    let steps = |text: &str, settings: &[&str]| {
        let recipe = load_over(text, settings, &[]).expect("valid");
        let scheduler = &recipe.values().lr_scheduler;
        assert_eq!(scheduler.warmup_ratio, None, "settled");
        scheduler.warmup_steps.expect("settled")
    };
    assert_eq!(steps("", &[]), 0);
    let share = "[lr_scheduler]\nwarmup_ratio = 0.1";
    assert_eq!(steps(share, &["training.steps=700"]), 70);
    assert_eq!(steps(share, &["training.steps=12"]), 1);
    assert_eq!(steps(share, &["training.steps=1"]), 0);
    // The higher layer wins.
    assert_eq!(steps(share, &["lr_scheduler.warmup_steps=7"]), 7);
    assert_eq!(steps("[lr_scheduler]\nwarmup_steps = 7", &["lr_scheduler.warmup_ratio=0.2"]), 200);
    let both = load_text(&format!("{share}\nwarmup_steps = 7")).expect_err("twice");
    assert_eq!(both.problems()[0].keys, ["lr_scheduler.warmup_steps", "lr_scheduler.warmup_ratio"], "{both}");
    assert_eq!(both.problems()[0].place.as_deref(), Some("test.toml:3:16"));
    let hash = |text: &str| load_text(text).expect("valid").hash();
    assert_eq!(hash(share), hash("[lr_scheduler]\nwarmup_steps = 100"), "the hash covers derived values");
    for name in builtin::names() {
        let short = ["training.steps=12".to_owned()];
        let recipe = load(Path::new(name), &short, std::iter::empty(), &Machine::none());
        assert_eq!(recipe.expect(name).values().lr_scheduler.warmup_steps, Some(1), "{name}");
    }
}

#[test]
fn names_of_other_frameworks_lead_to_what_is_meant() {
    let refused = |text: &str| load_text(text).expect_err("unknown").message().to_owned();
    assert!(refused("[model]\nmlp_ratio = 4").contains("model.ffn_dim = ratio · model.dim"));
    assert!(refused("epochs = 3").contains("training.steps counts optimizer steps"));
    let argument = load_over("", &["training.num_train_epochs=3"], &[]).expect_err("unknown");
    assert!(argument.message().contains("training.steps counts"), "{argument}");
    assert!(refused("[job]\nname = \"a\"").contains("job.label is what tables"));
    let argument = load_over("", &["extends=base.toml"], &[]).expect_err("not a key");
    assert!(argument.message().contains("only a recipe's file names its base"), "{argument}");
}

#[test]
fn endings_have_a_dot_and_are_hashed_where_they_are_not_the_first_default() {
    let hash = |text: &str| load_text(text).expect("valid").hash();
    assert_eq!(hash(""), hash("[data]\nextensions = [\".txt\", \".md\"]"));
    assert_ne!(hash(""), hash("[data]\nextensions = [\".py\"]"));
    assert_eq!(
        load_text("data.extensions = [\".txt.gz\"]").expect("valid").values().data.extensions,
        [".txt.gz"]
    );
    assert_eq!(load_text("data.extensions = [\"\"]").expect("valid").values().data.extensions, [""]);
    for (wrong, why) in [
        ("[\"py\"]", "write \".py\""),
        ("[]", "an empty list"),
        ("[\".a\", \".a\"]", "twice"),
        ("[\".txt..gz\"]", "is not a file ending"),
        ("[\".\"]", "write \"\" for files without an ending"),
        ("[\".a/b\"]", "is not a file ending"),
        ("[\".bin\"]", "token shards"),
        ("\".py\"", "a string"),
        ("[3]", "a number"),
    ] {
        let error = load_text(&format!("[data]\nextensions = {wrong}")).expect_err(wrong);
        assert!(error.message().contains(why), "{wrong}: {error}");
    }
}

#[test]
fn explanations_show_what_is_derived() {
    let recipe = load_over("", &["model.dim=64"], &[]).expect("valid");
    let explained = recipe.explain();
    let ffn = explained.iter().find(|(key, ..)| key.path == "model.ffn_dim").expect("a row");
    assert_eq!((ffn.1.as_deref(), ffn.2.to_string()), (Some("192"), format!("unset: {}", ffn.0.unset)));
}

#[test]
fn the_recipe_of_a_copied_run_is_called_as_what_was_run() {
    let dir = tempfile::tempdir().unwrap();
    let name = |summary: &str| {
        std::fs::write(dir.path().join("summary.json"), summary).unwrap();
        ["recipe.toml", "resolved.toml"].map(|file| load::stem(&dir.path().join(file)))
    };
    let run_summary = r#"{"recipe": "notes", "run": "20261126T200452Z-623d1658", "status": "ok"}"#;
    assert_eq!(name(run_summary), ["notes", "notes"]);
    // Another program's summary beside a recipe is ignored.
    for other in ["{", r#"{"recipe": "soup", "run": "long"}"#] {
        assert_eq!(name(other), ["recipe", "resolved"], "{other}");
    }
}

#[test]
fn a_recipe_has_the_name_of_its_file_without_the_ending_and_a_built_in_one_its_own() {
    let name = |path: &str| load::stem(Path::new(path));
    assert_eq!(name("qwen3-0.6b"), "qwen3-0.6b");
    assert_eq!(name("recipes/qwen3-0.6b.toml"), "qwen3-0.6b");
    assert_eq!(name("recipes/mine.toml"), "mine");
}

#[test]
fn the_decay_phase_of_the_higher_layer_holds_and_must_fit() {
    let decay_steps = |text: &str, overrides: &[&str]| {
        let recipe = load_over(text, overrides, &[]).expect("valid");
        recipe.values().lr_scheduler.decay_steps
    };
    let wsd = "[lr_scheduler]\ndecay = \"wsd\"\n";
    assert_eq!(decay_steps(&format!("{wsd}decay_steps = 30\ndecay_ratio = 0.1"), &[]), Some(30));
    assert_eq!(decay_steps(&format!("{wsd}decay_steps = 30"), &["lr_scheduler.decay_ratio=0.1"]), None);
    assert_eq!(decay_steps(&format!("{wsd}decay_ratio = 0.1"), &["lr_scheduler.decay_steps=30"]), Some(30));
    let keys = |text: &str| load_text(text).expect_err(text).problems()[0].keys.clone();
    let long = keys(&format!("{wsd}warmup_steps = 1\ndecay_steps = 1000"));
    assert_eq!(long, ["lr_scheduler.decay_steps", "lr_scheduler.warmup_steps", "training.steps"]);
    for decay in ["decay = \"exponential\"", "decay = \"wsd\"\ncooldown = \"exponential\""] {
        let zero = keys(&format!("[lr_scheduler]\nmin_lr_ratio = 0.0\n{decay}"));
        assert_eq!(zero[0], "lr_scheduler.min_lr_ratio", "{zero:?}");
    }
}
