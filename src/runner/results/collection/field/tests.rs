use super::super::read::{add_set, add_settings, sample};
use super::*;

#[test]
fn numbers_are_finite_and_written_as_such() {
    for (text, expected) in [
        ("3e-4", Some(3e-4)),
        ("0.0003", Some(3e-4)),
        ("1_000", Some(1000.0)),
        ("-1", Some(-1.0)),
        ("nan", None),
        ("inf", None),
        ("-inf", None),
        ("", None),
        ("1k", None),
        ("true", None),
    ] {
        assert_eq!(number(text), expected, "{text}");
    }
}

#[test]
fn names_are_words_figures_or_keys() {
    let collection = sample(&[]);
    let parse = |name: &str| Field::parse(name, &collection).map(|field| field.to_string());
    for name in ["status", "val_loss", "planned_mib", "planned_bytes", "model.dim"] {
        assert_eq!(parse(name).unwrap(), name);
    }
    assert_eq!(parse("val-loss").unwrap(), "val_loss");
    assert_eq!(parse("training.max_steps").unwrap(), "training.steps", "an alias");
    for (name, near) in [
        ("val_los", "val_loss"),
        ("dim", "model.dim"),
        ("optimizer.lrr", "optimizer.lr"),
        ("stauts", "status"),
        ("speed", "tok_s"),
        ("learning_rate", "optimizer.learning_rate"),
    ] {
        let error = parse(name).unwrap_err();
        assert!(error.message().ends_with(&format!("did you mean {near}?")), "{error}");
    }
    assert!(parse("zebra").unwrap_err().message().contains("such as val_loss"));
}

#[test]
fn a_run_has_values_in_the_unit_that_is_named() {
    let collection = sample(&[&[("planned_mib", 3.0 * 1048576.0)], &[]]);
    let field = |name: &str| Field::parse(name, &collection).unwrap();
    let of = |name: &str, at: usize| field(name).value(&collection.runs[at]);
    assert_eq!((of("planned_mib", 0), of("planned_bytes", 0)), (Cell::Number(3.0), Cell::Number(3145728.0)));
    assert_eq!((of("planned_mib", 1), of("tag", 1)), (Cell::Blank, Cell::Blank));
    assert_eq!(of("status", 1), Cell::Text("ok".into()));
    let highest = ["tok_s", "steps", "mfu_pct", "started"].map(|name| field(name).is_highest_first());
    assert_eq!(highest, [true; 4]);
    let lowest = ["val_loss", "step_ms", "wall_s", "planned_mib", "model.dim", "recipe"];
    assert_eq!(lowest.map(|name| field(name).is_highest_first()), [false; 6]);
    assert!(field("val_loss").is_loss() && field("train_loss").is_loss() && !field("tok_s").is_loss());
}

#[test]
fn figures_of_held_out_sets_are_fields_where_a_run_has_the_set() {
    let mut collection = sample(&[&[], &[], &[]]);
    let error = |name: &str, collection: &Collection| {
        Field::parse(name, collection).unwrap_err().message().to_owned()
    };
    let none = error("val_loss/news", &collection);
    assert!(none.ends_with("none of them has a held-out set from validation.sets, or sources"), "{none}");
    add_set(&mut collection.runs[0], "news", &[("val_loss", 1.5), ("bits_per_byte", f64::NAN)]);
    add_set(&mut collection.runs[1], "wiki-2.en", &[]);
    let field = |name: &str| Field::parse(name, &collection).unwrap();
    let of = |name: &str, at: usize| field(name).value(&collection.runs[at]);
    assert_eq!(of("val_loss/news", 0), Cell::Number(1.5));
    assert_eq!((of("val_loss/news", 1), of("bits_per_byte/news", 0)), (Cell::Blank, Cell::Blank));
    assert_eq!(
        (field("val-loss/wiki-2.en").to_string(), of("val_loss/wiki-2.en", 1)),
        ("val_loss/wiki-2.en".to_owned(), Cell::Blank)
    );
    let lowest = ["val_loss/news", "bits_per_byte/news", "bits_per_byte"];
    assert_eq!(lowest.map(|name| field(name).is_highest_first()), [false; 3]);
    assert_eq!(lowest.map(|name| field(name).is_loss()), [true, false, false]);
    for (name, near) in [
        ("val_loss/nws", "val_loss/news"),
        ("val_los/news", "val_loss/news"),
        ("bits_per_byte/wiki2.en", "bits_per_byte/wiki-2.en"),
        ("val_los", "val_loss"),
    ] {
        let said = error(name, &collection);
        assert!(said.ends_with(&format!("did you mean {near}?")), "{said}");
    }
    assert!(error("tok_s/news", &collection).contains("nothing called `tok_s/news`"));
    assert!(Field::parse("val_loss/news", &sample(&[])).is_ok(), "a list without runs");
}

#[test]
fn keys_have_their_stored_or_implied_values() {
    let mut collection = sample(&[&[], &[]]);
    let settings = [("model.dim", Some("64")), ("data.corpus", Some("\"a b\"")), ("engine.threads", None)];
    add_settings(&mut collection.runs[0], &settings);
    let of = |name: &str, at: usize| Field::parse(name, &collection).unwrap().value(&collection.runs[at]);
    assert_eq!(of("model.dim", 0), Cell::Number(64.0));
    assert_eq!(of("data.corpus", 0), Cell::Text("a b".into()));
    assert_eq!((of("engine.threads", 0), of("seeds.init", 0)), (Cell::Unset, Cell::Unset));
    assert_eq!(of("model.norm", 0), Cell::Text("rms_norm".into()), "before it was a key");
    assert_eq!(of("optimizer.lr", 0), Cell::Blank);
    assert_eq!((of("model.dim", 1), of("model.norm", 1)), (Cell::Blank, Cell::Blank), "no resolved.toml");
}
