//! The names that every text has.

/// Words of the language, which name nothing else.
pub(super) const RESERVED: [&str; 13] =
    ["embed", "block", "head", "model", "if", "then", "else", "and", "or", "not", "true", "false", "none"];

/// The inputs of a model: the tokens up to a row's own, and the rows' positions in their documents.
pub(super) const INPUTS: [&str; 2] = ["tokens", "positions"];

/// Names in the part `block`, besides those of all parts, and their meanings.
pub const BLOCK_NAMES: [(&str, &str); 1] = [("layer", "the index of the block, from 0")];

/// Names of numbers that every text may use, and the recipe's keys that they stand for. Keys that are unset
/// have the values that a plan derives. All other keys are written with `model.` before them, so that a new
/// key takes no name from texts.
pub const KEY_NAMES: [(&str, &str); 9] = [
    ("n_layers", "model.n_layers"),
    ("dim", "model.dim"),
    ("n_heads", "model.n_heads"),
    ("n_kv_heads", "model.n_kv_heads"),
    ("head_dim", "model.head_dim"),
    ("ffn_dim", "model.ffn_dim"),
    ("vocab_size", "model.vocab_size"),
    ("norm_eps", "model.norm_eps"),
    ("seq_len", "training.seq_len"),
];

/// The groups of an optimizer, as recipes call them.
pub const ROLES: [&str; 5] = ["embedding", "positions", "head", "matrix", "vector"];

/// The value that the part `head` must define.
pub(super) const LOGITS: &str = "logits";

/// Returns true if a statement must not give a value this name.
pub(super) fn is_taken(name: &str) -> bool {
    RESERVED.contains(&name)
        || INPUTS.contains(&name)
        || BLOCK_NAMES.iter().any(|(taken, _)| *taken == name)
        || KEY_NAMES.iter().any(|(taken, _)| *taken == name)
}
