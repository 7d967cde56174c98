//! `xrun data`: tokenizes a corpus into shards and prints its statistics.

use super::terminal::{eprint_line, print, print_json};
use super::{data_cache, data_check, data_questions, data_show};
use crate::data::chat::Renderer;
use crate::data::stories::Split;
use crate::data::{
    self, Counts, HELD_OUT_SHARE, MissingField, Packing, PathList, SHARD_TOKENS, ShardManifest, ShardWriter,
    Shuffle, Spec, Statistics, TEXT_EXTENSIONS, TEXT_FIELD, TextFormat, Tokenizer, Validation,
};
use crate::error::{Error, IoContext, Result};
use crate::policy::CorpusSource;
use crate::recipe::expand_home;
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Arguments of `xrun data`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Subcommand>,
    /// "stories", "random", or text files, folders, JSON lines, Parquet tables or token shards, one after
    /// another.
    #[arg(long, value_name = "PATH", num_args = 1.., required_unless_present_any = CACHE)]
    corpus: Vec<String>,
    /// The split to take of each folder, such as "train".
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// "gpt2", "byte", "stories" or the path of a tokenizer.json.
    #[arg(long, default_value = "gpt2")]
    tokenizer: String,
    /// The token that every document begins with, if it is not the end token (`data.begin_token`).
    #[arg(long, value_name = "TOKEN")]
    begin_token: Option<String>,
    /// Folder for the shards and tokenizer.json; created if missing, refused if it already holds shards.
    #[arg(long, value_name = "DIR", required_unless_present_any = CACHE)]
    out: Option<PathBuf>,
    /// Text that separates the documents of a text file.
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,
    /// The field of a JSON object, or the column of a table, that holds the text of a document.
    #[arg(long, value_name = "NAME", default_value = TEXT_FIELD)]
    field: String,
    /// What happens to a document that lacks the field or has null there: "error" or "skip".
    #[arg(long, value_name = "WORD", default_value_t = MissingField::Error, value_parser = missing)]
    missing: MissingField,
    /// What the files are, where their endings and first bytes do not say it.
    #[arg(long, value_name = "WORD", default_value_t = TextFormat::Auto, value_parser = format)]
    format: TextFormat,
    /// File name endings to read when the corpus is a folder; an empty one reads files without an ending.
    #[arg(long, value_name = ".EXT", value_delimiter = ',', default_values_t = TEXT_EXTENSIONS.map(str::to_owned))]
    extensions: Vec<String>,
    /// Held-out data: a fraction of the corpus, or the paths of another corpus.
    #[arg(long, value_name = "SHARE|PATH", num_args = 1.., default_values_t = [HELD_OUT_SHARE.to_string()])]
    validation: Vec<String>,
    /// The split that is held out, of the folders of the corpus or of --validation.
    #[arg(long, value_name = "NAME")]
    validation_split: Option<String>,
    /// Tokens per shard.
    #[arg(long, value_name = "N", default_value_t = SHARD_TOKENS, value_parser = count)]
    shard_tokens: usize,
    /// Tokens to generate, for a generated corpus.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = count)]
    train_tokens: usize,
    /// Held-out tokens to generate, for a generated corpus.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = count)]
    validation_tokens: usize,
    /// Seed of the generator and of the choice of held-out documents.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// List the texts whose tokens are cached for runs, most recently used first.
    #[arg(long, conflicts_with_all = ["corpus", "out"])]
    cached: bool,
    /// Remove all cached tokens.
    #[arg(long, conflicts_with_all = ["corpus", "out", "cached", "json"])]
    clear_cached: bool,
    /// Print the statistics, or the list, as JSON.
    #[arg(long)]
    json: bool,
}

/// What `xrun data` does besides tokenizing.
#[derive(clap::Subcommand, Debug)]
enum Subcommand {
    /// Look for held-out text in the training text of a recipe, and for near duplicates.
    Check(Box<data_check::Args>),
    /// Write questions about generated stories, as conversations to fine-tune on, and unseen ones to ask.
    Questions(data_questions::Args),
    /// Show the sources of a recipe's corpus, and what a step trains on.
    Show(Box<data_show::Args>),
}

/// The options that manage the cache and need no corpus.
const CACHE: [&str; 2] = ["cached", "clear_cached"];

/// Parses a number of tokens, with or without `_` between digits.
fn count(text: &str) -> Result<usize, String> {
    match text.replace('_', "").parse::<usize>() {
        Ok(n) if (1..=u32::MAX as usize).contains(&n) => Ok(n),
        _ => Err(format!("give a number of tokens between 1 and {}", u32::MAX)),
    }
}

/// Parses the word of `data.format`.
fn format(word: &str) -> Result<TextFormat, String> {
    let known = TextFormat::ALL.iter().find(|known| known.word() == word);
    known.copied().ok_or_else(|| format!("choose one of {}", TextFormat::WORDS.join(", ")))
}

/// Parses the word of `data.missing`.
fn missing(word: &str) -> Result<MissingField, String> {
    let known = MissingField::ALL.iter().find(|known| known.word() == word);
    known.copied().ok_or_else(|| format!("choose one of {}", MissingField::WORDS.join(", ")))
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Some(Subcommand::Check(args)) => return data_check::run(args),
        Some(Subcommand::Questions(args)) => return data_questions::run(args),
        Some(Subcommand::Show(args)) => return data_show::run(args),
        None => {}
    }
    match (paths(&args.corpus), &args.out) {
        (Some(corpus), Some(out)) => tokenize(args, corpus.into(), out),
        _ if args.clear_cached => data_cache::clear(),
        _ => data_cache::list(args.json),
    }
}

/// Returns the paths of an option; `None` without one.
fn paths(values: &[String]) -> Option<PathList> {
    PathList::new(values.iter().map(|path| expand_home(path).into()).collect())
}

/// Writes a corpus as shards into a folder.
fn tokenize(args: &Args, corpus: CorpusSource, out: &Path) -> Result<()> {
    let share = match args.validation.as_slice() {
        [share] => share.parse().ok(),
        _ => None,
    };
    let validation = match (share, paths(&args.validation)) {
        (None, Some(paths)) => Validation::Paths(paths),
        (share, _) => Validation::Fraction(share.unwrap_or(HELD_OUT_SHARE)),
    };
    let spec = Spec {
        corpus,
        split: args.split.clone(),
        sources: BTreeMap::new(),
        tokenizer: expand_home(&args.tokenizer),
        begin_token: args.begin_token.clone(),
        document_separator: args.separator.clone(),
        field: args.field.clone(),
        missing: args.missing,
        format: args.format,
        extensions: args.extensions.iter().map(|ending| with_dot(ending)).collect(),
        held_out_reading: None,
        table: "data".to_owned(),
        validation,
        validation_split: args.validation_split.clone(),
        sets: BTreeMap::new(),
        drop: None,
        train_tokens: args.train_tokens,
        validation_tokens: args.validation_tokens,
        seed: args.seed,
        packing: Packing::Stream,
        shuffle: Shuffle::All,
        memory_bytes: None,
        chat_template: None,
        row_len: 0,
        renderer: Renderer::Child,
    };
    let tokenizer = Arc::new(Tokenizer::open_for(&spec.tokenizer, spec.begin_token.as_deref())?);
    data::refuse_other_tokenizer(&spec, &tokenizer)?;
    let expected = data::facts(&spec, 1, Some(&tokenizer), None)?;
    prepare(out)?;
    ShardManifest::begin(out, &tokenizer)?;
    let bar = progress((expected.train_tokens + expected.validation_tokens) as u64);
    let vocab = tokenizer.vocab_size();
    let shards = |name| ShardWriter::new(out, name, vocab, args.shard_tokens);
    let (mut train, mut held_out) = (shards("tokens_train"), shards("tokens_val"));
    let (mut train_counts, mut held_counts) = (Counts::new(&tokenizer), Counts::new(&tokenizer));
    let fed = data::feed(&spec, &tokenizer, &mut |split, tokens| {
        let (writer, counts) = match split {
            Split::Train => (&mut train, &mut train_counts),
            Split::Validation => (&mut held_out, &mut held_counts),
        };
        counts.add(tokens)?;
        writer.push(tokens)?;
        bar.inc(tokens.len() as u64);
        Ok(())
    })?;
    let shards = train.finish()?.len() + held_out.finish()?.len();
    tokenizer.write(out)?;
    ShardManifest::new(&tokenizer, fed.lost, fed.held_out_lost).write(out)?;
    bar.finish_and_clear();
    let lost = fed.lost_warning();
    fed.warnings.iter().chain(&lost).for_each(|w| eprint_line(&format!("warning: {w}")));
    let statistics = Statistics::new(&train_counts, &held_counts, &fed, shards);
    eprint_line(&format!("{}; tokenizer {}", fed.description, args.tokenizer));
    eprint_line(&format!("wrote {shards} shards and tokenizer.json to {}", out.display()));
    if args.json { print_json(&statistics) } else { print(&statistics.to_string()) }
}

/// Returns an ending with its dot; the empty one has none.
pub(super) fn with_dot(ending: &str) -> String {
    match ending.trim_start_matches('.') {
        "" => String::new(),
        ending => format!(".{ending}"),
    }
}

/// Creates the folder. Refuses one that already holds shards, so that two corpora never mix.
fn prepare(out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).at("make", out)?;
    for entry in std::fs::read_dir(out).at("list", out)? {
        let path = entry.at("list", out)?.path();
        if path.extension().is_some_and(|x| x == "bin") {
            return Err(Error::usage(format!(
                "{} already holds {}; name another --out, or remove it first",
                out.display(),
                path.file_name().unwrap_or_default().display()
            )));
        }
    }
    Ok(())
}

/// Shows a progress bar on stderr, if stderr is a terminal.
fn progress(expected: u64) -> ProgressBar {
    let bar = ProgressBar::new(expected);
    if let Ok(style) = ProgressStyle::with_template(
        "{bar:30} {human_pos} of about {human_len} tokens, {per_sec}, {eta} left",
    ) {
        bar.set_style(style);
    }
    bar
}
