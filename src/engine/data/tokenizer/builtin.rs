//! tokenizer.json for the two small tokenizers: bytes alone, and bytes with the words of the stories.

use crate::data::END_OF_TEXT;
use crate::data::stories::{FIRST_WORD, grammar};
use serde_json::{Map, Value, json};

/// The end token of both tokenizers: the first id after the bytes.
pub const END: u32 = 256;

/// Matches a word with its optional leading space, another character with its optional leading space, or one
/// character of white space.
const STORY_PIECES: &str = r" ?\p{L}+| ?[^\s\p{L}]|\s";

/// Returns the character that represents each byte in byte-level vocabularies (Radford et al. 2019, GPT-2):
/// printable bytes represent themselves, the others take the code points from 256 on, in order.
pub fn byte_chars() -> [char; 256] {
    let mut next = 256..;
    std::array::from_fn(|byte| {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { Some(byte as u32) } else { next.next() };
        code.and_then(char::from_u32).expect("code points below 512 are characters")
    })
}

/// Writes bytes as the characters that represent them in a byte-level vocabulary.
pub fn byte_level(bytes: &[u8], chars: &[char; 256]) -> String {
    bytes.iter().map(|&b| chars[b as usize]).collect()
}

/// Returns the byte tokenizer: 256 bytes, whose ids are their values, and the end token.
pub fn byte_json() -> String {
    let split =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    document(byte_vocab(), vec![], split, false, &[(END, END_OF_TEXT)])
}

/// Returns the stories tokenizer: the bytes, the end token, then one entry per word of the story grammar.
/// Words are looked up whole (`ignore_merges`), and any other text falls back to bytes, so every text
/// survives the round trip.
pub fn stories_json() -> String {
    let mut vocab = byte_vocab();
    let chars = byte_chars();
    for (id, piece) in (FIRST_WORD..).zip(grammar().pieces()) {
        vocab.insert(byte_level(piece.as_bytes(), &chars), id.into());
    }
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": STORY_PIECES}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    ]});
    document(vocab, vec![], split, true, &[(END, END_OF_TEXT)])
}

fn byte_vocab() -> Map<String, Value> {
    byte_chars().iter().zip(0u32..).map(|(c, id)| (c.to_string(), id.into())).collect()
}

/// Returns a byte-level BPE tokenizer.json. The special tokens are added to the vocabulary.
pub fn document(
    mut vocab: Map<String, Value>,
    merges: Vec<Value>,
    pre_tokenizer: Value,
    ignore_merges: bool,
    special: &[(u32, &str)],
) -> String {
    vocab.extend(special.iter().map(|&(id, name)| (name.to_owned(), id.into())));
    let flags = |&(id, name): &(u32, &str)| {
        json!({
            "id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    let document = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": special.iter().map(flags).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges,
        },
    });
    document.to_string()
}
