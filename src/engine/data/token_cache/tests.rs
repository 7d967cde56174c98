//! Tests of the cache of tokens.

use super::super::corpus::Corpus;
use super::super::corpus_files::CorpusFiles;
use super::super::stories::Split;
use super::super::{Dataset, MissingField, Spec, Validation, open};
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

const GIB: u64 = 1 << 30;

/// A temporary folder for texts that are long enough to cache, with a cache in it.
struct Fixture {
    dir: tempfile::TempDir,
    cache: TokenCache,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::new(dir.path().join("cache/tokens"), GIB);
        Self { dir, cache }
    }

    /// Writes a text of many documents, each starting with `first`, and returns its path.
    fn write(&self, name: &str, first: &str) -> String {
        let documents: String = (0..40_000).map(|n| format!("{first} document {n} of all\n##\n")).collect();
        let path = self.dir.path().join(name);
        std::fs::write(&path, documents).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn open(&self, spec: &Spec) -> Dataset {
        open_with_cache(spec, Some(&self.cache))
    }

    fn entries(&self) -> usize {
        self.cache.entries().unwrap().len()
    }
}

fn open_with_cache(spec: &Spec, cache: Option<&TokenCache>) -> Dataset {
    open(spec, 16, None, cache).unwrap()
}

fn spec(path: &str) -> Spec {
    Spec { document_separator: Some("##".to_owned()), ..Spec::new(path, "byte") }
}

/// Everything in a dataset but the files it came from.
fn content(data: &Dataset) -> impl PartialEq + std::fmt::Debug + use<> {
    let tokens = |stream: &crate::data::Stream| stream.tokens(0..stream.len()).unwrap();
    let held: Vec<_> =
        data.held_out().map(|set| (tokens(&set.tokens), set.hash.clone(), set.text.clone())).collect();
    (tokens(&data.train()), held, data.hash.clone(), data.description.clone(), data.warnings.clone())
}

#[test]
fn cached_tokens_equal_the_text_tokens() {
    let place = Fixture::new();
    let (text, held) = (place.write("a.txt", "A"), place.write("held.txt", "held"));
    let one = Spec { document_separator: None, ..spec(&text) };
    let other = Spec { validation: Validation::at(held.clone()), ..spec(&text) };
    let sets = [("news".to_owned(), held.into())].into();
    for (spec, entries) in [(spec(&text), 1), (one, 2), (other, 3), (Spec { sets, ..spec(&text) }, 4)] {
        let expected = content(&open_with_cache(&spec, None));
        let first = place.open(&spec);
        assert_eq!(place.entries(), entries);
        let second = place.open(&spec);
        assert_eq!((content(&first), content(&second)), (expected, content(&first)), "{spec:?}");
    }
}

/// An entry is found by content and everything else the tokens depend on, not by file name.
#[test]
fn another_text_tokenizer_or_split_is_another_entry() {
    let place = Fixture::new();
    let (a, b, c) = (place.write("a.txt", "A"), place.write("b.txt", "B"), place.write("c.txt", "A"));
    place.open(&spec(&a));
    place.open(&spec(&c));
    assert_eq!(place.entries(), 1, "the same content elsewhere");
    let specs = [
        spec(&b),
        Spec { tokenizer: "stories".to_owned(), ..spec(&a) },
        Spec { document_separator: Some("document".to_owned()), ..spec(&a) },
        Spec { validation: Validation::Fraction(0.125), ..spec(&a) },
        Spec { seed: 1, ..spec(&a) },
        Spec { field: "content".to_owned(), ..spec(&a) },
        Spec { missing: MissingField::Skip, ..spec(&a) },
    ];
    for (n, other) in specs.iter().enumerate() {
        let expected = content(&open_with_cache(other, None));
        assert_eq!(content(&place.open(other)), expected);
        assert_eq!(place.entries(), n + 2, "{other:?}");
    }
}

#[test]
fn warnings_name_the_current_path() {
    let place = Fixture::new();
    let end = "<|endoftext|>";
    let (a, b) = (place.write("a.txt", end), place.write("b.txt", end));
    let of = |path: &str| Spec { document_separator: None, ..spec(path) };
    place.open(&of(&a));
    let warnings = place.open(&of(&b)).warnings;
    assert_eq!((place.entries(), warnings.len()), (1, 1));
    assert!(warnings[0].contains("b.txt holds the text"), "{warnings:?}");
}

#[test]
fn a_short_text_is_not_cached() {
    let place = Fixture::new();
    let path = place.dir.path().join("short.txt");
    std::fs::write(&path, "a short text. ".repeat(1000)).unwrap();
    place.open(&Spec::new(path.to_str().unwrap(), "byte"));
    assert!(!place.cache.folder.exists());
}

/// Damages the bytes of an entry.
type Damage<'d> = &'d dyn Fn(&mut Vec<u8>);

#[test]
fn a_damaged_entry_is_reported_and_rebuilt() {
    let place = Fixture::new();
    let spec = spec(&place.write("a.txt", "A"));
    let expected = content(&place.open(&spec));
    let path = place.cache.entries().unwrap()[0].path.clone();
    let good = std::fs::read(&path).unwrap();
    let damage: [Damage<'_>; 6] = [
        &|bytes| bytes.truncate(0),
        &|bytes| bytes.truncate(bytes.len() - 1),
        &|bytes| bytes.push(0),
        &|bytes| bytes[3] ^= 1,
        &|bytes| *bytes.iter_mut().nth_back(50).unwrap() ^= 1,
        &|bytes| bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes()),
    ];
    for (n, damage) in damage.iter().enumerate() {
        let mut bytes = good.clone();
        damage(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let made = place.open(&spec);
        assert!(
            made.warnings.iter().any(|warning| warning.contains("are damaged")),
            "{n}: {:?}",
            made.warnings
        );
        assert_eq!(std::fs::read(&path).unwrap(), good, "{n}");
        assert_eq!(content(&place.open(&spec)), expected, "{n}");
    }
}

/// Changed text is tokenized again even if size and time stay the same.
#[test]
fn a_changed_text_is_never_taken_for_the_one_before() {
    let place = Fixture::new();
    let spec = spec(&place.write("a.txt", "A"));
    let before = place.open(&spec);
    let path = spec.corpus.to_string();
    let path = Path::new(&path);
    let modified = path.metadata().unwrap().modified().unwrap();
    place.write("a.txt", "B");
    File::options().append(true).open(path).unwrap().set_modified(modified).unwrap();
    let after = place.open(&spec);
    assert_ne!(before.hash, after.hash);
    assert_eq!(content(&after), content(&open_with_cache(&spec, None)));
}

#[test]
fn entries_that_were_used_least_are_removed_first() {
    let place = Fixture::new();
    let specs = ["A", "B", "C"].map(|first| spec(&place.write(&format!("{first}.txt"), first)));
    place.open(&specs[0]);
    let bytes = place.cache.entries().unwrap()[0].bytes;
    // Room for two entries; an entry's header counts with its maximum length.
    let small = TokenCache::new(place.cache.folder.to_owned(), 2 * bytes + bytes / 2);
    let texts = || -> Vec<String> {
        let entries = small.entries().unwrap();
        entries.iter().map(|e| e.text.as_deref().unwrap().rsplit('/').next().unwrap().to_owned()).collect()
    };
    let pause = || std::thread::sleep(Duration::from_millis(20));
    pause();
    open_with_cache(&specs[1], Some(&small));
    pause();
    open_with_cache(&specs[0], Some(&small));
    pause();
    open_with_cache(&specs[2], Some(&small));
    assert_eq!(texts(), ["C.txt", "A.txt"]);
    let none = TokenCache::new(place.cache.folder.to_owned(), bytes / 2);
    open_with_cache(&specs[1], Some(&none));
    assert_eq!(texts(), ["C.txt", "A.txt"], "what is larger than the cache is not stored");
    assert_eq!(small.clear().unwrap().0, 2);
    assert_eq!(small.clear().unwrap(), (0, 0));
}

/// Of several processes that need the same tokens, only one tokenizes.
#[test]
fn others_wait_for_the_one_that_tokenizes() {
    let place = Fixture::new();
    let spec = spec(&place.write("a.txt", "A"));
    let tokenizer = Tokenizer::open("byte").unwrap();
    let made = AtomicUsize::new(0);
    let CorpusFiles::Text(text) = CorpusFiles::at(&spec.location().unwrap(), &spec.extensions).unwrap()
    else {
        panic!("a text")
    };
    let tokens = || {
        let key = Key::new(&text, Part::Splits, &spec, &tokenizer).unwrap().unwrap();
        let make = |sink: &mut TokenSink<'_>, _: &mut Journal| {
            made.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(100));
            sink(Split::Train, &[1, 2, 3])?;
            sink(Split::Validation, &[4, 5])?;
            Ok(Header::default())
        };
        let (tokens, _) = place.cache.tokens(&key, &tokenizer, make).unwrap().unwrap();
        [tokens.train, tokens.held_out].map(|stream| stream.tokens(0..stream.len()).unwrap())
    };
    let all: Vec<[Vec<u32>; 2]> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(tokens)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.into_inner(), 1);
    assert!(all.iter().all(|tokens| *tokens == [vec![1, 2, 3], vec![4, 5]]));
}

/// Makes the entry of a spec as far as 600,000 tokens, and returns its key.
fn interrupted(place: &Fixture, spec: &Spec) -> Key {
    let tokenizer = Tokenizer::open("byte").unwrap();
    let CorpusFiles::Text(files) = CorpusFiles::at(&spec.location().unwrap(), &spec.extensions).unwrap()
    else {
        panic!("a text")
    };
    let key = Key::new(&files, Part::Splits, spec, &tokenizer).unwrap().unwrap();
    let mut left = 600_000;
    let stopped = place.cache.tokens(&key, &tokenizer, |sink, journal| {
        let summary = Corpus::find(spec)?.feed_with(spec, &tokenizer, journal, &mut |split, tokens| {
            left = usize::checked_sub(left, tokens.len()).ok_or_else(|| Error::failed("stopped"))?;
            sink(split, tokens)
        });
        summary.map(|_| Header::default())
    });
    assert_eq!(stopped.unwrap_err().message(), "stopped");
    key
}

/// A process that is killed leaves the tokens that it made, and the next one goes on behind them, whatever
/// became of the files meanwhile.
#[test]
fn interrupted_work_goes_on_where_it_was() {
    let place = Fixture::new();
    let spec = spec(&place.write("a.txt", "A"));
    let expected = content(&open_with_cache(&spec, None));
    let key = interrupted(&place, &spec);
    let [unfinished, journal] = [journal::TOKENS_ENDING, journal::JOURNAL_ENDING]
        .map(|ending| place.cache.path(&key).with_extension(ending));
    let (tokens, lines) = (std::fs::read(&unfinished).unwrap(), std::fs::read(&journal).unwrap());
    let damage = |at: usize| {
        let mut damaged = tokens.clone();
        damaged[at] ^= 1;
        damaged
    };
    let cases: [(&[u8], &[u8]); 8] = [
        (&tokens, &lines),
        (&tokens[..700_001], &lines),
        (&damage(600_000), &lines),
        (&damage(3), &lines),
        (&tokens, &lines[..lines.len() - 9]),
        (&tokens, b"{}\n"),
        (&tokens, &lines.repeat(2)),
        (b"", &lines),
    ];
    for (n, (tokens, lines)) in cases.into_iter().enumerate() {
        place.cache.clear().unwrap();
        std::fs::write(&unfinished, tokens).unwrap();
        std::fs::write(&journal, lines).unwrap();
        assert_eq!(content(&place.open(&spec)), expected, "{n}");
        assert_eq!((place.entries(), unfinished.exists(), journal.exists()), (1, false, false), "{n}");
    }
    // Tokens whose hash is right are used: here others, to see that they were.
    place.cache.clear().unwrap();
    let first = lines.split(|byte| *byte == b'\n').next().unwrap();
    let mut group: serde_json::Value = serde_json::from_slice(first).unwrap();
    let mut planted = tokens[..16 + 2 * group["tokens"].as_u64().unwrap() as usize].to_vec();
    planted[16 + 2 * 10] = b'!';
    group["hash"] = blake3::hash(&planted[16..]).to_hex().as_str().into();
    std::fs::write(&unfinished, planted).unwrap();
    std::fs::write(&journal, group.to_string() + "\n").unwrap();
    assert_eq!(place.open(&spec).validation.tokens.tokens(10..11).unwrap(), [u32::from(b'!')]);
}

/// The end of a single document is kept until it is known what is held out, so it is encoded again.
#[test]
fn a_single_document_goes_on_too() {
    let place = Fixture::new();
    let spec = Spec { document_separator: None, ..spec(&place.write("a.txt", "A")) };
    interrupted(&place, &spec);
    assert_eq!(content(&place.open(&spec)), content(&open_with_cache(&spec, None)));
}

#[test]
fn where_nothing_can_be_written_the_text_is_tokenized() {
    let place = Fixture::new();
    let spec = spec(&place.write("a.txt", "A"));
    let file = place.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let nowhere = TokenCache::new(file.join("tokens"), GIB);
    assert_eq!(content(&open_with_cache(&spec, Some(&nowhere))), content(&open_with_cache(&spec, None)));
}

/// Tokens in the cache are read from the disk, and only text that is not cached needs memory.
#[test]
fn cached_tokens_take_no_memory() {
    let place = Fixture::new();
    let spec = Spec { memory_bytes: Some(1000), ..spec(&place.write("a.txt", "A")) };
    assert_eq!(place.open(&spec).memory_bytes(), 0);
    let error = open(&spec, 16, None, None).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::DoesNotFit);
}

/// What a dataset has opened stays as it is when the entry is removed, and a write to the entry is noticed.
#[test]
fn an_entry_in_use_may_be_removed_but_not_changed() {
    let place = Fixture::new();
    let spec = spec(&place.write("a.txt", "A"));
    let data = place.open(&spec);
    let expected = content(&data);
    place.cache.clear().unwrap();
    assert_eq!((content(&data), data.check_unchanged().is_ok(), place.entries()), (expected, true, 0));
    let data = place.open(&spec);
    place.open(&spec).check_unchanged().unwrap();
    data.check_unchanged().unwrap();
    let path = place.cache.entries().unwrap()[0].path.clone();
    File::options().append(true).open(path).unwrap().set_len(100).unwrap();
    assert!(data.check_unchanged().unwrap_err().message().contains("changed while it was in use"));
    assert!(data.train().tokens(0..50).is_err());
}

#[test]
fn the_limit_is_a_size_in_gib() {
    assert_eq!(limit(None).unwrap(), 8 * GIB);
    assert_eq!(limit(Some("0.5")).unwrap(), GIB / 2);
    assert_eq!(limit(Some("0")).unwrap(), 0);
    for wrong in ["-1", "many", "NaN", "inf"] {
        assert!(limit(Some(wrong)).unwrap_err().message().contains(LIMIT_VARIABLE), "{wrong}");
    }
}

/// If the rules changed without a new version, older entries would pass for new ones. If a change fails here,
/// increase `RULES` in `key.rs`, then update the hashes.
#[test]
fn the_rules_by_which_text_becomes_tokens_are_these() {
    let place = Fixture::new();
    let spec =
        Spec { seed: 3, validation: Validation::Fraction(0.25), ..spec(&place.write("a.txt", "A\r\n B")) };
    let hashes = ["byte", "stories", "gpt2"].map(|tokenizer| {
        let tokenizer = tokenizer.to_owned();
        open_with_cache(&Spec { tokenizer, ..spec.clone() }, None).hash[..16].to_owned()
    });
    assert_eq!(hashes, RULES_HASHES);
}

const RULES_HASHES: [&str; 3] = ["02bfa273ac44c234", "799275ae92bb1f7f", "6fa0862cdef83754"];
