//! Text and tokens: tokenizers, corpora, and the seeded loader that feeds training.
//!
//! A corpus becomes two streams of token ids, one to train on and one held out. In a stream, the end token
//! stands before every document and after the last, and nowhere else. It closes one document and opens the
//! next, so each token of a document, including its end, is predicted exactly once. If documents open with a
//! token of their own (`data.begin_token`), it stands after each end token, and is not predicted.

mod batch;
mod caught;
mod corpus;
mod corpus_facts;
mod corpus_files;
mod dataset;
mod dataset_card;
mod documents;
mod drop;
mod encode;
mod facts;
mod file;
mod file_facts;
mod file_words;
mod generated;
mod growing;
mod held_out;
mod interleave;
pub mod leaks;
mod loader;
mod location;
mod manifest;
mod mixture;
mod named_splits;
mod open;
mod opened;
mod overlap;
mod packing;
mod parallel;
mod part;
mod passed_over;
mod pattern;
mod ramp;
mod row;
mod rows;
mod sample;
mod sampler;
mod shard;
mod source;
mod spec;
mod split;
mod statistics;
pub mod stories;
mod stream;
mod text;
mod text_files;
mod token_cache;
mod token_files;
pub mod tokenizer;
pub mod tokenizer_training;

pub use crate::policy::{MissingField, Packing, PathList, Shuffle, TextFormat, Validation};
pub use batch::{Batch, IGNORED};
pub use corpus::{CorpusSummary, refuse_other_tokenizer};
pub use corpus_facts::{CorpusFacts, SourceFacts, TaskFacts};
pub use corpus_files::is_there;
pub use dataset::{Dataset, OpenedSource, check_window};
use drop::DropList;
pub use facts::facts;
pub use file::FileStamp;
pub use held_out::{HeldOut, TextBytes};
pub use interleave::{MixtureStage, mixture_shares};
pub use loader::{Loader, LoaderSpec, Sequence, ValidationBatches, held_out_batches};
pub use location::CorpusLocation;
pub use manifest::ShardManifest;
pub use open::{feed, open, open_as};
pub use opened::Opening;
pub use packing::Packed;
pub use parallel::collect_in_order;
pub use ramp::Ramp;
pub use row::{Row, RowBudget};
pub use rows::RowFile;
pub use sampler::Windows;
pub use shard::{SHARD_TOKENS, Writer as ShardWriter};
pub use spec::{END_OF_TEXT, HELD_OUT_SHARE, MixtureSource, Reading, Spec, TEXT_EXTENSIONS, TEXT_FIELD};
pub use statistics::{Counts, Statistics};
pub use stream::Stream;
pub use token_cache::{CachedText, LIMIT_VARIABLE, TokenCache};
pub use tokenizer::Tokenizer;
