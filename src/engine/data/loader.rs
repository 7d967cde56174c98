//! Loads the micro-batches of a rank, prefetched by a background thread, and the batches of held-out sets.

use super::batch::Batch;
use super::held_out::HeldOut;
use super::interleave::MixtureStage;
use super::marked;
use super::ramp::Ramp;
use super::sampler::{Sampler, StepSequences, global_index};
use super::{Dataset, Shuffle};
use crate::error::{Error, IoContext, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// Micro-batches to prefetch.
const PREFETCH: usize = 4;

/// Defines the micro-batches that a rank reads. Reading has no state but the step.
#[derive(Clone, Debug, PartialEq)]
pub struct LoaderSpec {
    /// Tokens per sequence.
    pub seq_len: usize,
    /// Sequences per micro-batch on one rank.
    pub local_batch_size: usize,
    /// Micro-batches per step, and per global batch of an evaluation.
    pub accumulation: usize,
    /// Batch sizes of the first steps, if they differ; each is a whole number of micro-batches over all
    /// ranks.
    pub ramp: Ramp,
    /// Number of ranks.
    pub world_size: usize,
    /// This rank, below `world_size`.
    pub rank: usize,
    /// True if attention and positions continue across documents.
    pub cross_documents: bool,
    /// Seed for the order of windows.
    pub seed: u64,
    /// Which windows are shuffled with each other.
    pub shuffle: Shuffle,
    /// Weights of the sources of a mixture; empty if the corpus is one source.
    pub mixture: Vec<MixtureStage>,
    /// The first step to read: 0, or the step of a checkpoint.
    pub start_step: u64,
}

impl LoaderSpec {
    fn sampler(&self, dataset: &Dataset) -> Result<Sampler> {
        let global = self.local_batch_size.checked_mul(self.accumulation);
        let global = global.and_then(|b| b.checked_mul(self.world_size)).ok_or_else(|| {
            Error::usage(format!(
                "{} × {} × {} sequences per step are too many to count",
                self.local_batch_size, self.accumulation, self.world_size
            ))
        })?;
        if self.rank >= self.world_size {
            return Err(Error::usage(format!(
                "rank {} is not below the world size of {}",
                self.rank, self.world_size
            )));
        }
        let order = (self.seed, self.shuffle);
        let sampler = Sampler::new(order, &dataset.parts, &self.mixture, self.seq_len, global)?;
        Ok(sampler.with_ramp(self.ramp.clone()))
    }

    /// Reads some sequences of the global batch of a step, as all ranks together train on them. Sequences
    /// beyond the batch are left out.
    ///
    /// # Errors
    /// If the spec does not fit the dataset, or its tokens cannot be read.
    pub fn sequences(&self, dataset: &Dataset, step: u64, indices: Range<usize>) -> Result<Vec<Sequence>> {
        let mut sampler = self.sampler(dataset)?;
        let step = sampler.step(step);
        let vocab = dataset.tokenizer.vocab_size();
        let read = |index| {
            let pieces = step.read(index, vocab)?;
            let pieces = pieces.into_iter().map(|words| SequencePiece::from_words(&words)).collect();
            Ok(Sequence { index, source: step.source(index).to_owned(), pieces })
        };
        (indices.start..indices.end.min(step.len())).map(read).collect()
    }

    /// Returns the number of micro-batches in a step.
    fn micro_batches(&self, step: u64) -> usize {
        let global_micro_batch = self.local_batch_size * self.world_size;
        let full = global_micro_batch * self.accumulation;
        self.ramp.sequences(step, full as u64) as usize / global_micro_batch
    }

    /// Reads micro-batch `micro` of a step.
    fn batch(&self, dataset: &Dataset, step: &StepSequences<'_>, micro: usize) -> Result<Batch> {
        let (vocab, opening_token) = dataset.vocabulary();
        let read = |j| {
            let index = global_index(micro, self.local_batch_size, j, self.rank, self.world_size);
            Ok((index, step.read(index, vocab)?))
        };
        let sequences: Vec<(usize, Vec<Vec<u32>>)> =
            (0..self.local_batch_size).map(read).collect::<Result<_>>()?;
        let batch = if dataset.parts.iter().any(|part| part.rows.is_some()) {
            Batch::from_rows(sequences, self.seq_len, opening_token)
        } else {
            let windows = sequences
                .into_iter()
                .flat_map(|(index, pieces)| pieces.into_iter().map(move |window| (index, window)));
            Batch::from_windows(windows, self.seq_len, opening_token, self.cross_documents)
        };
        let source = |&index: &u32| step.part(index as usize) as u32;
        let sources = batch.sequences.iter().filter(|_| !self.mixture.is_empty()).map(source).collect();
        let pair = |&index: &u32| Ok(step.row(index as usize)? as u32);
        let pairs = batch.sequences.iter().filter(|_| dataset.holds_pairs()).map(pair);
        let pairs = pairs.collect::<Result<_>>()?;
        Ok(Batch { sources, pairs, ..batch })
    }
}

/// A sequence of a global batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Its place in the global batch.
    pub index: usize,
    /// The source that it is taken from; empty if the corpus is one source.
    pub source: String,
    /// Its tokens: one window, or the documents that are packed into a row. The last token of each piece is a
    /// target and no input.
    pub pieces: Vec<SequencePiece>,
}

/// A part of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequencePiece {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Whether each token is a target, where the piece has conversations: of another text, each is.
    pub trained: Option<Vec<bool>>,
}

impl SequencePiece {
    fn from_words(words: &[u32]) -> Self {
        let tokens = words.iter().map(|&word| marked::id(word)).collect();
        let trained = words.iter().any(|&word| marked::is_marked(word));
        let trained = trained.then(|| words.iter().map(|&word| marked::is_trained(word)).collect());
        Self { tokens, trained }
    }
}

/// Yields micro-batches in order, step after step, without end. Dropping the loader stops its thread.
#[derive(Debug)]
pub struct Loader {
    batches: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
}

impl Loader {
    /// Starts reading ahead from `spec.start_step`.
    ///
    /// # Errors
    /// If the training split is shorter than one window, or the rank or batch size is impossible.
    pub fn new(dataset: Arc<Dataset>, spec: LoaderSpec) -> Result<Self> {
        let mut sampler = spec.sampler(&dataset)?;
        let (sender, batches) = sync_channel(PREFETCH);
        let rank = spec.rank;
        let read_ahead = move || {
            for step in spec.start_step.. {
                let sequences = sampler.step(step);
                let step_targets = sequences.targets();
                for micro in 0..spec.micro_batches(step) {
                    let batch = step_targets.clone().and_then(|step_targets| {
                        let step_sequences = sequences.len() as u64;
                        Ok(Batch { step_targets, step_sequences, ..spec.batch(&dataset, &sequences, micro)? })
                    });
                    let failed = batch.is_err();
                    // A send fails once the loader is dropped: nobody waits for batches any more.
                    if sender.send(batch).is_err() || failed {
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("xrun-loader-{rank}"))
            .spawn(read_ahead)
            .at("start the loader of", Path::new("the corpus"))?;
        Ok(Self { batches: Some(batches), thread: Some(thread) })
    }

    /// Returns the next micro-batch.
    ///
    /// # Errors
    /// If the corpus cannot be read or has changed, or the prefetching thread has died.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is not an iterator")]
    pub fn next(&mut self) -> Result<Batch> {
        let batch = self.batches.as_ref().and_then(|b| b.recv().ok());
        batch.unwrap_or_else(|| Err(Error::failed("the data loader's thread stopped; its message is above")))
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // Drop the receiver first: a blocked send then returns, and the thread ends.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook and `next` have already reported it.
            let _ = thread.join();
        }
    }
}

/// Returns the number of global batches of `global` sequences that cover the held-out tokens. The last one
/// may have rows without a window.
pub fn held_out_batches(tokens: usize, seq_len: usize, global: usize) -> usize {
    tokens.saturating_sub(1).div_ceil(seq_len.max(1)).div_ceil(global.max(1))
}

/// Returns `count` evenly spaced numbers below `all`: the middles of `count` equal parts.
fn spread(count: usize, all: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |part| (((2 * part + 1) as u128 * all as u128) / (2 * count) as u128) as usize)
}

/// Walks the held-out tokens window by window, in order, so that each is a target exactly once, or walks
/// evenly spread global batches of them. Windows are assigned to ranks like the sequences of a global batch.
/// In rows without a window every target is [`super::IGNORED`], so all ranks make the same number of batches
/// of the same shape.
#[derive(Debug)]
pub struct ValidationBatches<'d> {
    set: &'d HeldOut,
    vocabulary: (usize, u32),
    /// The token that only opens a document: it is placed, not predicted.
    unpredicted: Option<u32>,
    spec: LoaderSpec,
    windows: usize,
    /// True if the batches of all ranks together predict every token of the set.
    pub takes_all: bool,
    /// The indices of the micro-batches still to make, the last one first.
    left: Vec<usize>,
}

impl<'d> ValidationBatches<'d> {
    /// Takes `limit` global batches of a held-out `set`, spread evenly over its text, or all of it if `limit`
    /// is 0 or exceeds the number of batches. The spec's seed and start step have no effect.
    ///
    /// # Errors
    /// If the rank or batch size is impossible.
    pub fn new(dataset: &Dataset, set: &'d HeldOut, spec: LoaderSpec, limit: usize) -> Result<Self> {
        spec.sampler(dataset)?;
        let windows = (set.tokens.len().saturating_sub(1)).div_ceil(spec.seq_len);
        let all = windows.div_ceil(spec.local_batch_size * spec.world_size);
        let steps = all.div_ceil(spec.accumulation);
        let mut left: Vec<usize> = match limit {
            limit if limit == 0 || limit >= steps => (0..all).collect(),
            limit => spread(limit, steps)
                .flat_map(|step| {
                    (step * spec.accumulation..(step + 1) * spec.accumulation).take_while(|&m| m < all)
                })
                .collect(),
        };
        left.reverse();
        let takes_all = left.len() == all;
        let unpredicted = dataset.tokenizer.opening_after_end();
        Ok(Self { set, vocabulary: dataset.vocabulary(), unpredicted, spec, windows, takes_all, left })
    }
}

impl Iterator for ValidationBatches<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        let micro = self.left.pop()?;
        let Self { set, vocabulary: (vocab, opening_token), ref spec, windows: count, .. } = *self;
        let stream = &set.tokens;
        let read = |j| {
            let window = global_index(micro, spec.local_batch_size, j, spec.rank, spec.world_size);
            if window >= count {
                return Ok((window, Vec::new()));
            }
            let start = window * spec.seq_len;
            let end = stream.len().min(start + spec.seq_len + 1);
            Ok((window, stream.tokens_in_vocab(start..end, vocab)?))
        };
        let windows: Result<Vec<(usize, Vec<u32>)>> = (0..spec.local_batch_size).map(read).collect();
        Some(windows.map(|windows| {
            let mut batch = Batch::from_windows(windows, spec.seq_len, opening_token, spec.cross_documents);
            if let Some(unpredicted) = self.unpredicted {
                batch.ignore_target(unpredicted);
            }
            batch
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.len(), Some(self.left.len()))
    }
}

impl ExactSizeIterator for ValidationBatches<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{IGNORED, MixtureSource, Packed, Packing, Spec, open};
    use std::collections::BTreeMap;

    fn dataset() -> Arc<Dataset> {
        let spec = Spec { train_tokens: 5000, validation_tokens: 700, ..Spec::new("stories", "stories") };
        Arc::new(open(&spec, 32, None, None).unwrap())
    }

    fn packed() -> Arc<Dataset> {
        let packing = Packing::BestFit;
        let generated =
            Spec { train_tokens: 5000, validation_tokens: 700, ..Spec::new("stories", "stories") };
        Arc::new(open(&Spec { packing, ..generated }, 32, None, None).unwrap())
    }

    /// Three texts of different sizes, cut into windows or packed.
    fn mixture(packing: Packing) -> Arc<Dataset> {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = Spec { packing, ..Spec::new("mixture", "byte") };
        for (name, words) in [("code", "fn main() {}"), ("news", "It rains today. "), ("web", "a page; ")] {
            let path = dir.path().join(name).with_extension("jsonl");
            let line = |i: usize| format!("{{\"text\": \"{}{i}\"}}\n", words.repeat(1 + i % 7));
            std::fs::write(&path, (0..60).map(line).collect::<String>()).unwrap();
            spec.sources.insert(name.to_owned(), MixtureSource::at(path));
        }
        Arc::new(open(&spec, 32, None, None).unwrap())
    }

    /// The weights of [`mixture`], which change within the steps that are read.
    fn stages() -> Vec<MixtureStage> {
        let stage = |from, weights: [f64; 3]| MixtureStage { from, weights: weights.to_vec() };
        vec![stage(0, [0.9, 0.07, 0.03]), stage(70, [0.2, 0.0, 0.8])]
    }

    fn spec(local: usize, accumulation: usize, world_size: usize, rank: usize) -> LoaderSpec {
        LoaderSpec {
            seq_len: 32,
            local_batch_size: local,
            accumulation,
            ramp: Ramp::NONE,
            world_size,
            rank,
            cross_documents: true,
            seed: 1,
            shuffle: Shuffle::All,
            mixture: Vec::new(),
            start_step: 0,
        }
    }

    /// Returns every sequence of `steps` steps over all ranks, by (step, global index), with its targets.
    fn sequences(
        data: &Arc<Dataset>,
        local: usize,
        accumulation: usize,
        world_size: usize,
        steps: u64,
    ) -> BTreeMap<(u64, u32), [Vec<u32>; 2]> {
        let mut all = BTreeMap::new();
        let mut targets = vec![(vec![0; data.parts.len()], Vec::new()); steps as usize];
        for rank in 0..world_size {
            let mixture = if data.parts.len() > 1 { stages() } else { Vec::new() };
            let spec = LoaderSpec { mixture, ..spec(local, accumulation, world_size, rank) };
            let mut loader = Loader::new(data.clone(), spec).unwrap();
            for step in 0..steps {
                for _ in 0..accumulation {
                    let batch = loader.next().unwrap();
                    let (counted, said) = &mut targets[step as usize];
                    let sources = batch.sources.iter().copied().chain(std::iter::repeat(0));
                    for (row, source) in batch.targets.chunks(32).zip(sources) {
                        counted[source as usize] += row.iter().filter(|&&t| t != IGNORED).count() as u64;
                    }
                    *said = batch.step_targets;
                    let rows = batch.tokens.chunks(32).zip(batch.targets.chunks(32));
                    for ((row, targets), &index) in rows.zip(&batch.sequences) {
                        assert!(all.insert((step, index), [row.to_vec(), targets.to_vec()]).is_none());
                    }
                }
            }
        }
        assert!(targets.iter().all(|(counted, said)| counted == said), "{targets:?}");
        all
    }

    #[test]
    fn every_split_of_a_global_batch_reads_the_same_sequences() {
        for data in [dataset(), packed(), mixture(Packing::Stream), mixture(Packing::BestFit)] {
            let whole = sequences(&data, 32, 1, 1, 6);
            assert_eq!(whole.len(), 6 * 32);
            for (local, accumulation, world_size) in [(8, 4, 1), (16, 1, 2), (4, 4, 2), (8, 1, 4), (4, 2, 4)]
            {
                let split = sequences(&data, local, accumulation, world_size, 6);
                assert_eq!(split, whole, "{local} {accumulation} {world_size}");
            }
        }
    }

    /// In an epoch of packed documents, every token behind the first is a target once, and nothing else is.
    #[test]
    fn an_epoch_of_packed_documents_holds_each_token_once() {
        let data = packed();
        let Packed { rows, padding, cut, documents } = data.packed.unwrap();
        assert!(documents > 50 && cut > 0 && (0.0..0.1).contains(&padding), "{padding} {cut}");
        let all = sequences(&data, 1, 1, 1, rows as u64);
        let mut found: Vec<u32> = all.values().flat_map(|[_, targets]| targets).copied().collect();
        found.retain(|target| *target != IGNORED);
        let train = data.train();
        let mut expected = train.tokens(1..train.len()).unwrap();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }

    /// The sources of a mixture are parts of one stream, and their held-out text is a set each.
    #[test]
    fn a_mixture_holds_out_text_of_each_source() {
        let data = mixture(Packing::Stream);
        let names: Vec<&str> = data.held_out().map(|set| set.name.as_str()).collect();
        assert_eq!(names, ["", "code", "news", "web"]);
        let end = data.tokenizer.end_token();
        let all = |set: &HeldOut| set.tokens.tokens(0..set.tokens.len()).unwrap();
        let whole = all(&data.validation);
        assert!(whole.windows(2).all(|pair| pair != [end, end]), "one end token between two documents");
        let apart: usize = data.sets.iter().map(|set| set.tokens.len()).sum();
        assert_eq!(whole.len() + 2, apart);
        assert_eq!(
            whole.iter().filter(|token| **token == end).count(),
            1 + 3 * 3,
            "5 % of 60 documents each"
        );
        let facts = data.source_facts();
        assert_eq!(
            facts.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(),
            ["code", "news", "web"]
        );
    }

    #[test]
    fn a_ramp_reads_the_same_sequences_in_batches_of_its_sizes() {
        let data = dataset();
        let read = |spec: LoaderSpec, sizes: &[usize]| -> Vec<Vec<u32>> {
            let ranks: Vec<Vec<Batch>> = (0..spec.world_size)
                .map(|rank| {
                    let spec = LoaderSpec { rank, ..spec.clone() };
                    let mut loader = Loader::new(data.clone(), spec).unwrap();
                    (0..sizes.iter().sum()).map(|_| loader.next().unwrap()).collect()
                })
                .collect();
            // Ordered by index in the global batch, step after step.
            let mut all = Vec::new();
            let mut from = 0;
            for size in sizes {
                let step_batches = ranks.iter().flat_map(|batches| &batches[from..from + size]);
                let rows = step_batches.flat_map(|batch| batch.sequences.iter().zip(batch.tokens.chunks(32)));
                let rows: BTreeMap<u32, Vec<u32>> = rows.map(|(&index, row)| (index, row.to_vec())).collect();
                assert!(rows.keys().copied().eq(0..rows.len() as u32));
                all.extend(rows.into_values());
                from += size;
            }
            all
        };
        let ramp = Ramp::new([(2, 8), (4, 16)]);
        let ramped = LoaderSpec { ramp, ..spec(4, 4, 2, 0) };
        let (plain, sizes) = (read(spec(8, 1, 1, 0), &[1; 14]), [1, 1, 2, 2, 4, 4]);
        assert_eq!(read(ramped.clone(), &sizes), plain);
        let resumed = LoaderSpec { start_step: 3, ..ramped };
        assert_eq!(read(resumed, &sizes[3..]), plain[4 * 8..]);
    }

    #[test]
    fn a_resumed_loader_goes_on_where_the_first_was() {
        let data = dataset();
        let mut first = Loader::new(data.clone(), spec(4, 2, 1, 0)).unwrap();
        let batches: Vec<_> = (0..10).map(|_| first.next().unwrap()).collect();
        let resumed = LoaderSpec { start_step: 3, ..spec(4, 2, 1, 0) };
        let mut second = Loader::new(data, resumed).unwrap();
        for batch in &batches[6..] {
            assert_eq!(&second.next().unwrap(), batch);
        }
    }

    #[test]
    fn impossible_specs_are_refused() {
        let data = dataset();
        for bad in [spec(0, 1, 1, 0), spec(1, 0, 1, 0), spec(1, 1, 1, 1), spec(usize::MAX, 2, 1, 0)] {
            assert!(Loader::new(data.clone(), bad.clone()).is_err());
            assert!(ValidationBatches::new(&data, &data.validation, bad, 0).is_err());
        }
    }

    #[test]
    fn each_held_out_token_is_predicted_once() {
        let data = dataset();
        let held_out = data.validation.tokens.tokens(0..data.validation.tokens.len()).unwrap();
        for world_size in [1, 2, 3] {
            let mut targets: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
            let mut lengths = Vec::new();
            for rank in 0..world_size {
                let batches =
                    ValidationBatches::new(&data, &data.validation, spec(3, 1, world_size, rank), 0).unwrap();
                lengths.push(batches.len());
                for batch in batches.map(Result::unwrap) {
                    assert_eq!(batch.tokens.len(), 3 * 32);
                    for (row, &window) in batch.targets.chunks(32).zip(&batch.sequences) {
                        let counted = row.iter().copied().filter(|&t| t != IGNORED).collect();
                        assert!(targets.insert(window, counted).is_none());
                    }
                }
            }
            assert!(lengths.iter().all(|l| *l == lengths[0]));
            let all: Vec<u32> = targets.into_values().flatten().collect();
            assert_eq!(all, held_out[1..]);
        }
        assert_eq!(ValidationBatches::new(&data, &data.validation, spec(3, 1, 1, 0), 2).unwrap().count(), 2);
    }

    #[test]
    fn some_batches_are_spread_over_the_held_out_text() {
        assert_eq!(spread(1, 40).collect::<Vec<_>>(), [20]);
        assert_eq!(spread(4, 40).collect::<Vec<_>>(), [5, 15, 25, 35]);
        assert_eq!(spread(3, 4).collect::<Vec<_>>(), [0, 2, 3]);
        assert!(spread(7, 7).eq(0..7));
        let data = dataset();
        let all = held_out_batches(data.validation.tokens.len(), 32, 4);
        assert!(all >= 5, "{all}");
        // The same windows are read however a global batch of four sequences is split.
        for (local, accumulation, world) in [(4, 1, 1), (2, 2, 1), (1, 2, 2), (1, 1, 4)] {
            let windows = |limit: usize| {
                let of = |rank| {
                    ValidationBatches::new(
                        &data,
                        &data.validation,
                        spec(local, accumulation, world, rank),
                        limit,
                    )
                    .unwrap()
                };
                let mut windows: Vec<u32> =
                    (0..world).flat_map(of).flat_map(|batch| batch.unwrap().sequences).collect();
                windows.sort_unstable();
                windows
            };
            let expected = spread(2, all).flat_map(|step| 4 * step as u32..4 * step as u32 + 4);
            assert_eq!(windows(2), expected.collect::<Vec<_>>(), "{local} {accumulation} {world}");
            assert_eq!(windows(all), windows(0));
            assert_eq!(windows(all + 9), windows(0));
        }
    }
}
