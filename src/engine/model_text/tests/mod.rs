mod ideas;
mod parse;
mod random;
mod resolve;

use super::*;

/// The built-in texts.
const TEXTS: [&str; 5] = [
    include_str!("../../../../data/models/gpt2.model"),
    include_str!("../../../../data/models/llama.model"),
    include_str!("../../../../data/models/qwen3.model"),
    include_str!("../../../../data/models/nanochat.model"),
    include_str!("../../../../data/models/decoder.model"),
];

/// Returns keys of a small recipe: 2 layers of width 8, 4 query heads and 2 key heads of 2, 12 hidden
/// elements, 16 tokens.
fn keys() -> Keys {
    const NORMS: &[&str] = &["rms_norm", "layer_norm"];
    const DIRECTIONS: &[&str] = &["positive", "negative"];
    let word = |word: &str, words| KeyValue::Word { word: word.into(), words };
    let model = [
        ("dropout", KeyValue::Number(0.0)),
        ("norm", word("rms_norm", NORMS)),
        ("norm_weight", KeyValue::Bool(true)),
        ("norm_bias", KeyValue::Bool(false)),
        ("norm_placement", word("pre", &["pre", "post", "sandwich"])),
        ("embedding_norm", KeyValue::Bool(false)),
        ("parallel_blocks", KeyValue::Bool(false)),
        ("bias", KeyValue::Bool(false)),
        ("position", word("rope", &["rope", "learned", "none"])),
        ("qk_norm", KeyValue::Bool(true)),
        ("qk_norm_place", word("before_rope", &["before_rope", "after_rope"])),
        ("qk_norm_weight", KeyValue::Bool(true)),
        ("rope_theta", KeyValue::Number(1e4)),
        ("rope_fraction", KeyValue::Number(1.0)),
        ("rope_direction", word("positive", DIRECTIONS)),
        ("window", KeyValue::None),
        ("global_interval", KeyValue::None),
        ("score_cap", KeyValue::None),
        ("logit_cap", KeyValue::Number(30.0)),
        ("logit_scale", KeyValue::Number(1.0)),
        ("embedding_scale", KeyValue::Number(1.0)),
        ("head_init", word("normal", &["normal", "zero"])),
        ("tie_embeddings", KeyValue::Bool(false)),
        ("gated", KeyValue::Bool(true)),
    ];
    Keys::new([2.0, 8.0, 4.0, 2.0, 2.0, 12.0, 16.0, 1e-6, 32.0], model, true)
}

/// Returns a text with these statements in its parts, and with an embedding `x` and logits of `x`.
fn text_with(embed: &str, block: &str, head: &str) -> String {
    format!(
        "embed:\n  x = embedding(tokens, dim, name = \"table\")\n{embed}\nblock:\n{block}\nhead:\n{head}\n  \
         logits = linear(x, vocab_size)\n"
    )
}

fn parsed(text: &str) -> ModelText {
    ModelText::parse(text).unwrap_or_else(|mistake| panic!("{text}\n{mistake:?}"))
}

fn graph(text: &str) -> Graph {
    resolve(&parsed(text), &keys()).unwrap_or_else(|mistake| panic!("{text}\n{mistake:?}"))
}

/// Returns what is wrong with a text: what is pointed at, the label and the next step.
fn mistake(text: &str) -> (String, Mistake) {
    let mistake = match ModelText::parse(text) {
        Ok(parsed) => resolve(&parsed, &keys()).expect_err(text),
        Err(mistake) => mistake,
    };
    (text[mistake.at.clone()].to_owned(), mistake)
}
