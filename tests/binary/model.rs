//! `xrun model`: texts that describe models, right and wrong, and their page.

use crate::place::Place;
use serde_json::Value;

const PAGE: &str = include_str!("../../docs/model-texts.md");

/// Returns the blocks of the page in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGE.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A text that is right for two layers and wrong for a third.
const THIRD: &str = "embed:\n  x = embedding(tokens, dim)\nblock:\n  h = linear(x, dim)\n  \
                     x = if layer > 1 then h + linear(h, 3) else h\nhead:\n  logits = linear(x, vocab_size)\n";

#[test]
fn a_text_is_checked_for_a_recipe_and_its_keys() {
    let place = Place::new();
    let shown = place.xrun(&["model", "check", "qwen3", "--recipe", "tiny.toml"]).succeeds().stdout;
    let squeezed = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    // 1 block of width 32 with 2 heads of 16, 64 hidden elements; the embedding is the head.
    for line in [
        "built-in:qwen3 for tiny: 1 block of width 32, a vocabulary of",
        "10 qkv = linear(n, q_width, kv_width, kv_width) rows of 96 1 3,072 18.43 k",
        "blocks.*.qkv (32 + 32 + 32) × 32 matrix normal(0.1021)",
        "final_norm 32 vector 1 32",
    ] {
        assert!(squeezed.contains(line), "no `{line}` in\n{shown}");
    }
    let json =
        place.xrun(&["model", "check", "qwen3", "--recipe", "tiny.toml", "model.n_layers=3", "--json"]);
    let cost: Value = serde_json::from_str(&json.succeeds().stdout).unwrap();
    let qkv = cost["lines"].as_array().unwrap().iter().find(|line| line["line"] == 10).unwrap();
    assert_eq!((&qkv["blocks"], &qkv["parameters"]), (&3.into(), &(3 * 3072).into()));
    let plan = place.xrun(&["plan", "tiny.toml", "model.n_layers=3", "model.tie_embeddings=true", "--json"]);
    let plan: Value = serde_json::from_str(&plan.succeeds().stdout).unwrap();
    assert_eq!(cost["parameter_count"], plan["parameters"]["total"], "{plan}");
    assert_eq!(cost["flops_per_token"], plan["flops"]["per_token"], "{plan}");
}

#[test]
fn a_text_that_is_printed_can_be_changed_and_checked() {
    let place = Place::new();
    let listed = place.xrun(&["model", "show"]).succeeds().stdout;
    let names: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names[..6], ["decoder", "gpt2", "llama", "qwen3", "nanochat", "gemma2"]);
    assert!(listed.contains("capped scores and logits.\n"), "{listed}");
    let idea = place.xrun(&["model", "show", "gated_attention"]).succeeds().stdout;
    assert_eq!(idea, include_str!("../../data/models/ideas/gated_attention.model"));
    place.xrun(&["plan", "tiny.toml", "model.definition=gated_attention"]).succeeds();
    let functions = place.xrun(&["model", "functions"]).succeeds().stdout;
    assert!(functions.contains("shift(x, n)") && functions.contains("silu(u)"), "{functions}");
    let text = place.xrun(&["model", "show", "qwen3"]).succeeds().stdout;
    place.write("mine.model", text.replace("silu", "softplus").as_bytes());
    let hash = |text: &str| {
        let shown = place.xrun(&["model", "check", text, "--recipe", "tiny.toml"]).succeeds().stdout;
        shown.lines().last().unwrap().to_owned()
    };
    assert_ne!(hash("mine.model"), hash("qwen3"));
    place.write("mine.model", format!("# A comment.\n\n{}", text.replace(", ", ",")).as_bytes());
    assert_eq!(hash("mine.model"), hash("qwen3"));
}

#[test]
fn mistakes_are_shown_with_their_place_and_the_next_step() {
    let place = Place::new();
    let check = |bytes: &[u8], says: &[&str]| {
        place.write("mine.model", bytes);
        place
            .xrun(&["model", "check", "mine.model", "--recipe", "tiny.toml", "model.n_layers=3"])
            .ended(2)
            .says(says);
    };
    check(
        THIRD.as_bytes(),
        &[
            "error: mine.model describes no model: block 2 is wrong",
            " --> mine.model:5:25",
            "^^^^^^^^^^^^^^^^ rows of 32 beside rows of 3",
        ],
    );
    place
        .xrun(&["plan", "tiny.toml", "model.n_layers=3", "model.definition=mine.model"])
        .ended(2)
        .says(&["model.definition:5:25", "lines count the canonical text, and `xrun model check"]);
    check(b"embed:\n  x = 2 \x1b[31m", &["mine.model:2:9", "not part of a model text"]);
    check(b"embed:\n  x = \xff", &["mine.model is not UTF-8 from byte 13 on"]);
    check(&[b'#'; 70_000], &["mine.model:1:1", "70000 bytes", "at most 65536 bytes"]);
    place.write("third.model", THIRD.as_bytes());
    place.xrun(&["model", "check", "third.model", "--recipe", "tiny.toml", "model.n_layers=2"]).succeeds();
    place.xrun(&["model", "check", "qwen"]).ended(2).says(&["no model text qwen; did you mean qwen3?"]);
    place.xrun(&["model", "show", "qwen"]).ended(2).says(&["no model text qwen; did you mean qwen3?"]);
    place
        .xrun(&["model", "check", "none.model"])
        .ended(2)
        .says(&["cannot read none.model: no such file; ", "qwen3"]);
    place
        .xrun(&["plan", "third.model"])
        .ended(2)
        .says(&["third.model is a model text", "model.definition=third.model"]);
    place.xrun(&["compare", "tiny.toml", "third.model"]).ended(2).says(&["model.definition=third.model"]);
    place.xrun(&["plan", "qwen3"]).ended(2).says(&["qwen3 is a model text", "model.definition=qwen3"]);
    place.xrun(&["model", "check", "qwen3", "model.dim=0"]).ended(2).says(&["model.dim cannot be 0"]);
}

#[test]
fn the_texts_of_the_page_are_right_and_its_message_is_the_programs() {
    let place = Place::new();
    let examples = blocks("text");
    place.write("mine.model", examples[0].as_bytes());
    let shown = place.xrun(&["model", "check", "mine.model", "--recipe", "tiny.toml"]).succeeds().stdout;
    assert!(!shown.contains("remark"), "{shown}");
    let beside = ["model", "check", "mine.model", "--recipe", "tiny.toml", "--beside", "llama"];
    let shown = place.xrun(&beside).succeeds().stdout;
    assert!(shown.contains("beside llama: parameters +") && shown.contains("ONLY IN ONE TEXT"), "{shown}");
    // The conditions, as the last statements of a block.
    let (before, head) = THIRD.split_once("head:").unwrap();
    let before = before.replace("h + linear(h, 3)", "h");
    let conditions = format!("{before}{}head:{head}", examples[1]);
    place.write("mine.model", conditions.as_bytes());
    place
        .xrun(&["model", "check", "mine.model", "--recipe", "tiny.toml", "--compute", "model.n_layers=2"])
        .succeeds();
    let wrong = examples[0]
        .replace("# Llama's block, with a gate on what attention adds.\n\n", "")
        .replace("(tokens,", "(token,");
    let shown = examples.iter().find(|block| block.starts_with("error: ")).unwrap();
    place.write("mine.model", format!("\n{wrong}").as_bytes());
    place.xrun(&["model", "check", "mine.model"]).ended(2).says(&[shown]);
}

/// A gate of its own width and a second feed-forward layer, with forms that ops compute.
const RUNS: &str = "embed:
  x = embedding(tokens, dim, name = \"embedding\")
block:
  n = rms_norm(x)
  qkv = linear(n, dim, dim, dim)
  q = rope(heads(slice(qkv, 0, dim), n_heads))
  k = rope(heads(slice(qkv, dim, 2 * dim), n_heads))
  v = heads(slice(qkv, 2 * dim, 3 * dim), n_heads)
  gate = 2 * sigmoid(linear(linear(n, 5, name = \"narrow\"), dim))
  x = x + gate * linear(attention(q, k, v), dim, init = \"residual\", name = \"out\")
  y = linear(rms_norm(x), 48)
  x = x + linear(relu(y)^2, dim, init = \"residual\", name = \"down\")
head:
  logits = linear(rms_norm(x + block[0].x), vocab_size)
";

#[test]
fn a_text_is_trained_sampled_and_resumed_without_its_file() {
    let place = Place::new();
    place.write("mine.model", RUNS.as_bytes());
    let run = place.xrun(&[
        "tiny.toml",
        "model.definition=mine.model",
        "model.n_layers=2",
        "model.norm=layer_norm",
    ]);
    run.succeeds()
        .says(&["`model.norm` has no effect because the text of `model.definition` does not read it"]);
    std::fs::remove_file(place.path().join("mine.model")).unwrap();
    let run = place.run();
    for file in ["recipe.toml", "resolved.toml"] {
        assert!(run.text(file).contains("gate = 2 * sigmoid("), "{file}");
    }
    place.xrun(&["sample", run.name()]).succeeds();
    place.xrun(&[&format!("{}/recipe.toml", run.name())]).succeeds();
    place.xrun(&["export", run.name(), "--to", "hf"]).ended(2).says(&["model.definition"]);
}

#[test]
fn a_text_is_computed_with_or_refused_with_its_line() {
    let place = Place::new();
    place.write("mine.model", RUNS.as_bytes());
    let check = ["model", "check", "mine.model", "--recipe", "tiny.toml", "--compute", "model.n_layers=2"];
    let shown = place.xrun(&check).succeeds().stdout;
    assert_eq!(shown.matches("\nok ").count(), 5, "{shown}");
    assert!(shown.contains("RMS BEFORE TRAINING") && shown.contains("gate "), "{shown}");
    // Both tables number the lines of the file, and a plan quotes the statement.
    place.write(
        "mine.model",
        format!("# A comment.\n\n{RUNS}").replace("head:", "  z = 2 * x\nhead:").as_bytes(),
    );
    let shown = place.xrun(&check).succeeds().stdout;
    let squeezed = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed.contains("6 n = rms_norm(x) rows of") && squeezed.contains(" 6 n 1"), "{shown}");
    assert!(shown.contains("remark: line 15, z = 2 * x: nothing reads this value"), "{shown}");
    let plan = place.xrun(&["plan", "tiny.toml", "model.n_layers=2", "model.definition=mine.model"]);
    let plan = plan.succeeds().stdout;
    let plan = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plan.contains("model text, z = 2 * x: nothing reads this value"), "{plan}");
    place.write("mine.model", RUNS.as_bytes());
    let json = place.xrun(&[&check[..], &["--json"]].concat()).succeeds().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["not_run"], &json["checks"]["seeing_rows"]), (&Value::Null, &0.into()), "{json}");
    place.write(
        "mine.model",
        RUNS.replace(
            "x + block[0].x",
            "x * concat(scalar(1, name = \"a\"), vector(dim - 1, 1, name = \"b\"))",
        )
        .as_bytes(),
    );
    let says = ["line 14, logits = …: no op computes this"];
    let ended = place.xrun(&check).ended(1).says(&["was not computed with"]);
    assert!(ended.stdout.contains(says[0]));
    assert!(place.xrun(&check[..5]).succeeds().stdout.contains(says[0]));
    place.xrun(&["plan", "tiny.toml", "model.definition=mine.model"]).ended(2).says(&says);
    place
        .xrun(&["model", "check", "qwen3", "--compute", "model.vocab_size=10_000_000"])
        .ended(2)
        .says(&["16,777,216"]);
}
