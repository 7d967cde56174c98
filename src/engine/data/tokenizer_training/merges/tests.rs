use super::*;
use crate::data::tokenizer::byte_level;
use crate::data::tokenizer_training::document::FirstEntries;
use proptest::prelude::*;
use std::collections::BTreeMap;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Trainer};

const END: &str = "<|endoftext|>";

fn first() -> FirstEntries {
    FirstEntries::new(&[END.to_owned()]).unwrap()
}

/// Merges of weighted words, each as the texts of both parts, and the whole vocabulary.
type Outcome = (Vec<(String, String)>, BTreeMap<String, u32>);

fn ours(words: &[(&str, u64)], vocab: usize, least: u64) -> Outcome {
    let (first, mut given) = (first(), Words::default());
    words.iter().for_each(|(word, count)| given.push(word.as_bytes(), *count, &first.id_of));
    let wanted = Wanted { first: first.bytes(), vocab, least, forbidden: first.forbidden() };
    let learned = learn(given, wanted, &mut |_| {});
    let chars = crate::data::tokenizer::byte_chars();
    let name = |id: u32| match id {
        0 => END.to_owned(),
        id => byte_level(&learned.entries[id as usize], &chars),
    };
    let merges = learned.merges.iter().map(|merge| (name(merge.left), name(merge.right))).collect();
    (merges, (0..learned.entries.len() as u32).map(|id| (name(id), id)).collect())
}

fn theirs(words: &[(&str, u64)], vocab: usize, least: u64) -> Outcome {
    let chars = crate::data::tokenizer::byte_chars();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocab)
        .min_frequency(least)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from(END, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    // The trainer counts words itself, so each is fed as often as it occurs.
    let repeated = words.iter().flat_map(|(word, count)| std::iter::repeat_n(*word, *count as usize));
    trainer.feed(repeated, |word| Ok(vec![byte_level(word.as_bytes(), &chars)])).unwrap();
    let mut model = BPE::default();
    trainer.train(&mut model).unwrap();
    let vocab: BTreeMap<String, u32> = model.get_vocab().into_iter().collect();
    let json = serde_json::to_value(&model).unwrap();
    let part = |merge: &serde_json::Value, at: usize| merge[at].as_str().unwrap().to_owned();
    let merges = json["merges"].as_array().unwrap().iter().map(|m| (part(m, 0), part(m, 1))).collect();
    (merges, vocab)
}

#[test]
fn merges_and_ids_are_those_of_hugging_faces_trainer() {
    for (what, words) in [
        ("one character", &[("a", 3)][..]),
        ("a repeated byte", &[("aaaaaaa", 3), ("aaaa", 2), ("aa", 5)]),
        ("ties", &[("ab", 2), ("cd", 2), ("bc", 2), ("da", 2), ("abcd", 1)]),
        ("overlaps", &[("abababa", 2), ("babab", 3), ("aabaab", 2)]),
        ("unicode", &[("größe", 3), (" größer", 2), ("中文中文", 4), ("😀😀", 2)]),
        ("line breaks", &[("\r\n", 9), ("\r\n\r\n", 4), ("\n", 5), (" \r", 2)]),
        ("words", &[("low", 5), ("lower", 2), ("newest", 6), ("widest", 3), (" lowest", 1)]),
        ("nothing", &[]),
    ] {
        for (vocab, least) in [(257, 1), (260, 1), (300, 1), (300, 2), (300, 4)] {
            assert_eq!(ours(words, vocab, least), theirs(words, vocab, least), "{what}: {vocab}, {least}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn merges_are_equal_where_ties_are_common(
        words in prop::collection::vec(("[abc]{1,12}", 1u64..4), 1..12),
        vocab in 257usize..300,
        least in 1u64..3,
    ) {
        let words: Vec<(&str, u64)> = words.iter().map(|(word, count)| (&**word, *count)).collect();
        prop_assert_eq!(ours(&words, vocab, least), theirs(&words, vocab, least));
    }
}

#[test]
fn counts_beyond_32_bits_keep_their_order() {
    // In 32 bits, the first count is 0 and the second negative.
    let words = [("ab", 1 << 32), ("cd", (1 << 32) - 1), ("ef", 3)];
    let (merges, _) = ours(&words, 1000, 1);
    assert_eq!(merges, [("a", "b"), ("c", "d"), ("e", "f")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert!(ours(&words, 1000, 1 << 32).0.len() == 1);
}

#[test]
fn no_merge_spells_a_special_token() {
    let first = FirstEntries::new(&[END.to_owned(), "ab".to_owned()]).unwrap();
    let mut words = Words::default();
    words.push(b"abc", 5, &first.id_of);
    let wanted = Wanted { first: first.bytes(), vocab: 300, least: 1, forbidden: first.forbidden() };
    let learned = learn(words, wanted, &mut |_| {});
    assert_eq!(learned.forbidden, 1);
    assert_eq!(learned.entries[258..], [b"bc".to_vec(), b"abc".to_vec()]);
}
