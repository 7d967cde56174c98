use super::*;
use crate::data::spec::TEXT_EXTENSIONS;
use serde_json::{Value, json};
use std::path::Path;

fn training(vocab: usize) -> Training {
    Training {
        pattern: Pattern::parse(DEFAULT_PATTERN).unwrap(),
        vocab,
        special: vec!["<|endoftext|>".to_owned(), "<|user|>".to_owned()],
        least_count: 2,
        bytes: None,
        most_distinct: MOST_DISTINCT,
    }
}

fn sources(dir: &Path, texts: &[&str]) -> Vec<Source> {
    let reading = Reading { separator: None, extensions: TEXT_EXTENSIONS.map(str::to_owned).to_vec() };
    let write = |(number, text): (usize, &&str)| {
        let path = dir.join(format!("{number}.txt"));
        std::fs::write(&path, text).unwrap();
        Source::open(&path, &reading).unwrap()
    };
    texts.iter().enumerate().map(write).collect()
}

/// HuggingFace's trainer on the same texts.
fn theirs(texts: &[&str], training: &Training) -> tokenizers::Tokenizer {
    use tokenizers::models::TrainerWrapper;
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    let json = Training { vocab: 256 + training.special.len(), ..training.clone() };
    let dir = tempfile::tempdir().unwrap();
    let empty = json.run(&sources(dir.path(), &["-"]), &mut |_| {}).unwrap().tokenizer;
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(empty.to_json()).unwrap();
    tokenizer.with_model(BPE::default());
    let special = training.special.iter().map(|name| tokenizers::AddedToken::from(name.clone(), true));
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(training.vocab)
        .min_frequency(training.least_count)
        .show_progress(false)
        .special_tokens(special.collect())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build()
        .into();
    tokenizer.train(&mut trainer, texts.iter()).unwrap();
    tokenizer
}

fn model(json: &str) -> Value {
    let json: Value = serde_json::from_str(json).unwrap();
    json!({"vocab": json["model"]["vocab"], "merges": json["model"]["merges"]})
}

const TEXTS: [&str; 4] = [
    "It's a test: the tests, the TESTS; 12345 and 1234.\r\n\r\n  Indented\n\tlines — größer, 中文, 中文😀.\n",
    "for i in range(100):\n    print(i, i * i)\n    print('done')\n\n\nfor j in range(200):\n    print(j)\n",
    "aaaaaaaaaaaaaaaaaaaa aaaa aa ------------------------ ----------\n",
    " ",
];

#[test]
fn a_trained_tokenizer_is_that_of_hugging_faces_trainer() {
    for pattern in Pattern::names().chain([r"\d|\w+|\s"]) {
        for vocab in [258, 300, 600] {
            let training = Training { pattern: Pattern::parse(pattern).unwrap(), ..training(vocab) };
            // White space alone is no document here.
            let texts = &TEXTS[..3];
            let dir = tempfile::tempdir().unwrap();
            let trained = training.run(&sources(dir.path(), texts), &mut |_| {}).unwrap();
            let own = trained.tokenizer;
            let theirs = theirs(texts, &training);
            let expected = model(&theirs.to_string(false).unwrap());
            assert_eq!(model(own.to_json()), expected, "{pattern} {vocab}");
            for text in TEXTS {
                let ids = own.encode(text).unwrap();
                assert_eq!(ids, theirs.encode(text, false).unwrap().get_ids(), "{pattern} {vocab}");
                assert_eq!(own.decode(&ids).unwrap(), text);
            }
            assert_eq!(own.end_token(), 0);
            assert!(own.keeps_every_byte());
        }
    }
}

#[test]
fn the_result_does_not_depend_on_threads_even_if_something_is_dropped() {
    let text: String = (0..30_000u32).map(|i| format!(" w{}", i.wrapping_mul(2_654_435_761) >> 19)).collect();
    let dir = tempfile::tempdir().unwrap();
    let sources = sources(dir.path(), &[&text, TEXTS[0]]);
    let training = Training { most_distinct: 1000, least_count: 1, ..training(400) };
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| training.run(&sources, &mut |_| {}).unwrap())
    };
    let one = run(1);
    assert_eq!((one.record.pretokens.prunings, one.record.vocab), (1, 400));
    assert!(one.record.warnings().iter().any(|warning| warning.contains("more than 1000 distinct")));
    for threads in [2, 8] {
        let other = run(threads);
        assert_eq!((other.tokenizer.to_json(), other.record), (one.tokenizer.to_json(), one.record.clone()));
    }
}

#[test]
fn a_text_without_a_pair_gives_the_bytes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let trained = training(1000).run(&sources(dir.path(), &["a"]), &mut |_| {}).unwrap();
    assert_eq!((trained.record.vocab, trained.record.merges, trained.record.smallest_count), (258, 0, None));
    assert!(
        trained.record.warnings()[0].contains("has 258 entries, not 1000"),
        "{:?}",
        trained.record.warnings()
    );
    assert_eq!(trained.tokenizer.encode("ab").unwrap().len(), 2);
}

#[test]
fn a_vocabulary_without_room_for_the_bytes_is_refused() {
    for vocab in [0, 257, MAX_VOCAB + 1] {
        let error = training(vocab).check().unwrap_err();
        assert!(error.message().contains("give 258 (256 bytes and 2 special) to 1048576"), "{error}");
    }
    let few = Training { bytes: Some(3), ..training(300) };
    let dir = tempfile::tempdir().unwrap();
    let error = few.run(&sources(dir.path(), &["some words of text"]), &mut |_| {}).unwrap_err();
    assert!(error.message().contains("allow more bytes"), "{error}");
}
