use super::*;
use crate::data::{Dataset, Loader, LoaderSpec, MixtureSource, MixtureStage, Ramp, Validation, open_as};
use crate::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};

const SEQ_LEN: usize = 32;

struct Fixture {
    dir: tempfile::TempDir,
    cache: TokenCache,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let cache = TokenCache::new(dir.path().join("cache"), 1 << 30);
        Self { dir, cache }
    }

    /// Writes documents of nearly 2 MB in all, which are several groups.
    fn write(&self, name: &str, of: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        let line = |i: usize| format!("{{\"text\": \"{} {i}\"}}\n", of.repeat(10 + i % 100));
        std::fs::write(&path, (0..3000).map(line).collect::<String>()).unwrap();
        path
    }

    fn open(&self, spec: &Spec, opening: Opening) -> Result<Arc<Dataset>> {
        open_as(spec, SEQ_LEN, None, Some(&self.cache), opening).map(Arc::new)
    }

    /// Leaves what a process leaves that is interrupted after `tokens` tokens.
    fn interrupt(&self, spec: &Spec, tokens: usize) {
        let tokenizer = Tokenizer::open("byte").unwrap();
        let Corpus::Files(CorpusFiles::Text(text)) = Corpus::find(spec).unwrap() else { panic!("a text") };
        let key = Key::new(&text, Part::Splits, spec, &tokenizer).unwrap().unwrap();
        let mut left = tokens;
        let made = self.cache.tokens(&key, &tokenizer, |sink, journal| {
            let made = Corpus::find(spec)?.feed_with(spec, &tokenizer, journal, &mut |split, tokens| {
                left = usize::checked_sub(left, tokens.len()).ok_or_else(|| Error::failed("stopped"))?;
                sink(split, tokens)
            });
            made.map(|_| unreachable!("it stops"))
        });
        assert_eq!(made.unwrap_err().message(), "stopped");
    }

    /// Locks all entries, as another process does that makes them. The locks end with the files.
    fn lock(&self) -> Vec<File> {
        let lock = |i: usize| {
            let file = File::create(self.cache.folder.join(format!("lock-{i:02x}"))).unwrap();
            file.lock().unwrap();
            file
        };
        std::fs::create_dir_all(&self.cache.folder).unwrap();
        (0..256).map(lock).collect()
    }

    /// The cache without its entries.
    fn clear(&self) {
        self.cache.clear().unwrap();
    }
}

fn spec(path: &Path) -> Spec {
    Spec { shuffle: Shuffle::Blocks, ..Spec::new(&path.display().to_string(), "byte") }
}

fn loader(data: &Arc<Dataset>, sources: usize) -> Loader {
    let spec = LoaderSpec {
        seq_len: SEQ_LEN,
        local_batch_size: 8,
        accumulation: 1,
        ramp: Ramp::NONE,
        world_size: 1,
        rank: 0,
        cross_documents: true,
        seed: 1,
        shuffle: Shuffle::Blocks,
        mixture: (sources > 0)
            .then(|| MixtureStage { from: 0, weights: vec![1.0; sources] })
            .into_iter()
            .collect(),
        start_step: 0,
    };
    Loader::new(Arc::clone(data), spec).unwrap()
}

fn batches(data: &Arc<Dataset>, sources: usize, count: usize) -> Vec<Vec<u32>> {
    let mut loader = loader(data, sources);
    (0..count).map(|_| loader.next().unwrap().tokens).collect()
}

/// Waits until all text is tokenized and stored, which may be after its last token was read.
fn finish(data: &Dataset) {
    for part in &data.parts {
        if let PartTokens::Growing { corpus, .. } = &part.tokens {
            while corpus.loaded().unwrap().is_none() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}

fn held_out(data: &Dataset) -> Vec<u32> {
    data.validation.tokens.tokens(0..data.validation.tokens.len()).unwrap()
}

/// A run that begins before its text is tokenized reads what any other run reads, into the second epoch.
#[test]
fn a_growing_corpus_is_read_like_a_whole_one() {
    let place = Fixture::new();
    let one = spec(&place.write("one.jsonl", "One text. "));
    let held = place.write("held.jsonl", "Held out. ");
    let apart = Spec { validation: Validation::at(&held), ..one.clone() };
    let mut mixture = Spec { shuffle: Shuffle::Blocks, ..Spec::new("mixture", "byte") };
    for (name, counted) in [("a", false), ("b", false), ("c", true)] {
        let path = place.write(&format!("{name}.jsonl"), &format!("Text of {name}. "));
        mixture.sources.insert(name.to_owned(), MixtureSource { counted, ..MixtureSource::at(path) });
    }
    for (spec, sources, estimates) in [(one, 0, 1), (apart, 0, 1), (mixture, 3, 2)] {
        let whole = place.open(&spec, Opening::Tokenized).unwrap();
        let count = whole.train().len() / SEQ_LEN / 8 + 10;
        let expected = batches(&whole, sources, count);
        place.clear();
        let growing = place.open(&spec, Opening::WhileTokenized).unwrap();
        let read = batches(&growing, sources, count);
        assert!(read == expected, "{sources} sources");
        assert_eq!((&growing.hash, held_out(&growing)), (&whole.hash, held_out(&whole)));
        let (tokens, exact) = growing.train_tokens();
        let (all, _) = whole.train_tokens();
        // A small text may be tokenized before the corpus is open.
        assert!(exact || tokens.abs_diff(all) * 20 < all, "{tokens} for {all}");
        let estimated = growing.parts.iter().filter(|part| part.tokens.whole().is_none()).count();
        assert!(estimated <= estimates);
        finish(&growing);
        assert_eq!(
            place.cache.entries().unwrap().len(),
            whole.parts.len().max(1) + usize::from(sources == 0 && spec.held_out().is_some())
        );
        place.clear();
    }
}

/// While another process makes the tokens, this one reads what has arrived, and goes on with the work if the
/// other one ends.
#[test]
fn what_another_process_tokenized_is_read_before_the_rest() {
    let place = Fixture::new();
    let spec = spec(&place.write("text.jsonl", "Some words. "));
    let whole = place.open(&spec, Opening::Tokenized).unwrap();
    let all = whole.train().len();
    let expected = batches(&whole, 0, all / SEQ_LEN / 8 + 3);
    place.clear();
    place.interrupt(&spec, all / 2);
    let other = place.lock();
    let growing = place.open(&spec, Opening::WhileTokenized).unwrap();
    assert_eq!((growing.train_tokens().1, held_out(&growing)), (false, held_out(&whole)));
    assert_eq!(growing.hash, whole.hash);
    let mut loader = loader(&growing, 0);
    // A quarter of the tokens is there, whatever the last groups are, and the loader reads ahead.
    for expected in &expected[..all / 4 / SEQ_LEN / 8] {
        assert_eq!(loader.next().unwrap().tokens, *expected);
    }
    assert!(growing.late_warnings().is_empty() && place.cache.entries().unwrap().is_empty());
    drop(other);
    for expected in &expected[all / 4 / SEQ_LEN / 8..] {
        assert_eq!(loader.next().unwrap().tokens, *expected);
    }
    finish(&growing);
    assert_eq!(place.cache.entries().unwrap().len(), 1);
}

/// The end of a single document is held out, and is known only at its end, so a run waits for it.
#[test]
fn a_single_document_is_tokenized_first() {
    let place = Fixture::new();
    let path = place.dir.path().join("one.txt");
    std::fs::write(&path, "One document of many words. ".repeat(80_000)).unwrap();
    let spec = spec(&path);
    let whole = place.open(&spec, Opening::Tokenized).unwrap();
    place.clear();
    let opened = place.open(&spec, Opening::WhileTokenized).unwrap();
    assert_eq!((opened.train_tokens(), held_out(&opened)), (whole.train_tokens(), held_out(&whole)));
    assert_eq!(opened.hash, whole.hash);
}

/// An error in the text ends the run when its loader comes there, and a run that ends before leaves what was
/// tokenized.
#[test]
fn errors_and_ends_reach_the_reader() {
    let place = Fixture::new();
    let path = place.write("text.jsonl", "Some words. ");
    let spec = spec(&path);
    let whole = place.open(&spec, Opening::Tokenized).unwrap();
    let all = whole.train().len();
    place.clear();
    place.interrupt(&spec, all / 2);
    let other = place.lock();
    let growing = place.open(&spec, Opening::WhileTokenized).unwrap();
    let text = std::fs::read(&path).unwrap();
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    drop(other);
    let mut loader = loader(&growing, 0);
    let failed = (0..all).find_map(|_| loader.next().err()).unwrap();
    assert!(failed.message().contains("text.jsonl"), "{failed}");
    drop((loader, growing));
    // Back as it was, the text is tokenized from where the first process was.
    std::fs::write(&path, &text).unwrap();
    assert_eq!(place.open(&spec, Opening::Tokenized).unwrap().hash, whole.hash);
    place.clear();
    place.interrupt(&spec, all / 2);
    let other = place.lock();
    let growing = place.open(&spec, Opening::WhileTokenized).unwrap();
    drop(growing);
    drop(other);
    let unfinished = |ending: &str| {
        let files = std::fs::read_dir(&place.cache.folder).unwrap();
        files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == ending)).count()
    };
    assert_eq!(unfinished("journal"), 1);
}
