//! The tokens that begin and end texts and turns.

use super::facts::Facts;
use crate::data::tokenizer::{GuardedTokenizer, special_tokens};
use crate::error::Result;
use crate::model::hf_export::Export;
use crate::model::hugging_face::{SETTINGS, TOKEN_MAP};

/// Names of tokens at which llama.cpp stops, whatever a file says.
const KNOWN: [&str; 9] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<eos>",
];

/// The tokens that begin and end texts and turns, by id.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// Begins a text if `add_bos`; otherwise only chat templates use it.
    pub bos: u32,
    /// Texts begin with `bos`.
    pub add_bos: bool,
    /// Ends a text.
    pub eos: u32,
    /// Ends a turn, and a message within a turn.
    pub turns: Vec<(&'static str, u32)>,
    /// Stands for unknown text and fills rows.
    pub others: Vec<(&'static str, u32)>,
    /// Tokens at which llama.cpp does not stop, in a sentence.
    pub remarks: Vec<String>,
}

impl Ends {
    /// Collects the tokens of a model. llama.cpp begins texts as they began in training.
    ///
    /// # Errors
    /// If the tokenizer or its settings cannot be read.
    pub fn new(export: &Export, facts: &Facts, tokenizer_json: &str) -> Result<Self> {
        let tokenizer = GuardedTokenizer::parse(tokenizer_json)?;
        let named = special_tokens(export.companions.get(SETTINGS), export.companions.get(TOKEN_MAP))?;
        let id = |key: &str| named.get(key).and_then(|name| tokenizer.token_to_id(name));
        let (eos, begin) = (export.end_token_id, export.begin_token_id());
        let mut stops = Vec::new();
        for stop in id("eos_token").into_iter().chain(facts.stops.iter().copied()) {
            if stop != eos && !stops.contains(&stop) && (stop as usize) < export.model.vocab_size {
                stops.push(stop);
            }
        }
        if stops.is_empty() && facts.chat_template.is_some() {
            stops.push(eos);
        }
        let keys = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
        let name = |id: u32| tokenizer.id_to_token(id).unwrap_or_default();
        let unknown = stops.iter().skip(keys.len()).filter(|stop| !KNOWN.contains(&name(**stop).as_str()));
        let remarks = unknown.map(|&stop| {
            format!(
                "llama.cpp does not stop at token {stop} ({:?}): a file names two besides the end token",
                name(stop)
            )
        });
        let others = [
            ("unk_token", "tokenizer.ggml.unknown_token_id"),
            ("pad_token", "tokenizer.ggml.padding_token_id"),
        ];
        Ok(Self {
            bos: begin.or_else(|| id("bos_token")).unwrap_or(eos),
            add_bos: begin.is_some(),
            eos,
            remarks: remarks.collect(),
            turns: keys.into_iter().zip(stops).collect(),
            others: others.into_iter().filter_map(|(name, key)| Some((key, id(name)?))).collect(),
        })
    }
}
