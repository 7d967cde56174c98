//! Rebuilds GPT-2's tokenizer without the network. Tiktoken's ranks are the vocabulary in merge order; the
//! merge that made an entry is found by byte-pair encoding it with only the entries before it.

use super::builtin::{byte_chars, byte_level, document};
use crate::data::END_OF_TEXT;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Id of `<|endoftext|>`, after 256 bytes and 50,000 merges.
pub const END: u32 = 50_256;

/// Returns the tokenizer.json of GPT-2.
pub fn json() -> String {
    let bpe = tiktoken_rs::r50k_base_singleton();
    let entries: Vec<Vec<u8>> = (0..END)
        .map(|id| bpe.decode_bytes(&[id]).expect("r50k_base has an entry at every id below its end token"))
        .collect();
    let chars = byte_chars();
    let vocab: Map<String, Value> =
        entries.iter().zip(0u32..).map(|(e, id)| (byte_level(e, &chars), id.into())).collect();
    let merges = merges(&entries)
        .into_iter()
        .map(|(a, b)| json!([byte_level(a, &chars), byte_level(b, &chars)]))
        .collect();
    let split =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    document(vocab, merges, split, false, &[(END, END_OF_TEXT)])
}

/// Returns the two parts that each entry of more than one byte is merged from, in rank order.
fn merges(entries: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    let ranks: HashMap<&[u8], usize> = entries.iter().enumerate().map(|(r, e)| (e.as_slice(), r)).collect();
    let multiple = entries.iter().enumerate().filter(|(_, e)| e.len() > 1);
    multiple.map(|(rank, entry)| parts(entry, rank, &ranks)).collect()
}

/// Byte-pair encodes `entry` with the merges of lower rank, which leaves two parts.
fn parts<'e>(entry: &'e [u8], rank: usize, ranks: &HashMap<&[u8], usize>) -> (&'e [u8], &'e [u8]) {
    let mut borders: Vec<usize> = (0..=entry.len()).collect();
    while borders.len() > 3 {
        let (_, at) = borders
            .windows(3)
            .enumerate()
            .filter_map(|(at, w)| ranks.get(&entry[w[0]..w[2]]).map(|&r| (r, at)))
            .filter(|&(r, _)| r < rank)
            .min()
            .expect("an entry of r50k_base is made of two earlier entries");
        borders.remove(at + 1);
    }
    entry.split_at(borders[1])
}
