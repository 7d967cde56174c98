//! `xrun tokenizer train`.

use super::corpora::{Corpora, positive};
use crate::atomic;
use crate::cli::terminal::{eprint_line, print, print_json};
use crate::data::END_OF_TEXT;
use crate::data::Tokenizer;
use crate::data::tokenizer::{ADDED_TOKENS, SETTINGS, TOKEN_MAP, settings_with_end};
use crate::data::tokenizer_training::{
    Compression, DEFAULT_PATTERN, MOST_DISTINCT, Pattern, Progress, Record, SAMPLE_BYTES, Source, Training,
};
use crate::error::{Error, Result};
use crate::recipe::expand_home;
use crate::regular;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `xrun tokenizer train`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    corpora: Corpora,
    /// Entries of the vocabulary: special tokens, the 256 bytes and merges.
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = positive)]
    vocab: u64,
    /// The tokenizer.json to write; its record, NAME.training.json, is written beside it.
    #[arg(long, value_name = "FILE")]
    out: String,
    /// What splits text before merges are learned: gpt2, gpt4, gpt4o, qwen2 or a regular expression.
    #[arg(long, value_name = "NAME|REGEX", default_value = DEFAULT_PATTERN)]
    pattern: String,
    /// A special token; repeat the option for several. The first one ends documents.
    #[arg(long, value_name = "TOKEN", default_value = END_OF_TEXT)]
    special: Vec<String>,
    /// Merge only pairs of tokens that occur at least this often.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = positive)]
    min_count: u64,
    /// Train on at most this many bytes of text, spread evenly over it [default: all].
    #[arg(long, value_name = "N", value_parser = positive)]
    bytes: Option<u64>,
    /// Hold at most this many distinct pre-tokens; if there are more, the rarest are dropped. 8,000,000 take
    /// at most 2 GiB.
    #[arg(long, value_name = "N", default_value_t = MOST_DISTINCT as u64, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    distinct: u64,
    /// Replace files that exist.
    #[arg(long)]
    force: bool,
    /// Print the record and the report as JSON.
    #[arg(long)]
    json: bool,
}

/// What the command stores beside the tokenizer and prints.
#[derive(Serialize)]
struct Report<'a> {
    training: &'a Record,
    bytes_per_token: &'a Compression,
}

/// Runs the command.
///
/// # Errors
/// If an argument is wrong, a file exists and `--force` is not given, a corpus cannot be read, or a file
/// cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let training = Training {
        pattern: Pattern::parse(&args.pattern)?,
        vocab: usize::try_from(args.vocab).unwrap_or(usize::MAX),
        special: args.special.clone(),
        least_count: args.min_count,
        bytes: args.bytes,
        most_distinct: args.distinct as usize,
    };
    training.check()?;
    let settings = settings_with_end(&args.special[0]);
    let files = Files::at(Path::new(&expand_home(&args.out)), settings, args.force)?;
    let sources = args.corpora.open()?;
    let bar = Bar::new(&training, &sources);
    let trained = training.run(&sources, &mut |progress| bar.show(progress))?;
    bar.0.finish_and_clear();
    let warnings = sources.iter().flat_map(Source::warnings).cloned().chain(trained.record.warnings());
    warnings.for_each(|warning| eprint_line(&format!("warning: {warning}")));
    let compression = Compression::measure(&trained.tokenizer, &sources, SAMPLE_BYTES)?;
    let report = Report { training: &trained.record, bytes_per_token: &compression };
    files.write(&trained.tokenizer, &report)?;
    eprint_line(&format!("wrote {}", files.tokenizer.display()));
    match args.json {
        true => print_json(&report),
        false => print(&format!("{}\n{compression}", trained.record)),
    }
}

/// The files that the command writes.
struct Files {
    tokenizer: PathBuf,
    record: PathBuf,
    /// The file of settings and its text; `None` if it is there already.
    settings: Option<(PathBuf, String)>,
    force: bool,
}

impl Files {
    /// Names the files, before the work begins.
    ///
    /// # Errors
    /// If the folder does not exist, a file exists with another content and `force` is false, or a file beside
    /// it would change the tokenizer for transformers.
    fn at(tokenizer: &Path, settings: String, force: bool) -> Result<Self> {
        let shown = tokenizer.display();
        if tokenizer.extension().is_none_or(|ending| ending != "json") {
            return Err(Error::usage(format!(
                "--out {shown}: name a file that ends in .json, such as tokenizer.json"
            )));
        }
        let folder = tokenizer.parent().filter(|folder| !folder.as_os_str().is_empty());
        if !folder.unwrap_or(Path::new(".")).is_dir() {
            return Err(Error::usage(format!("cannot write {shown}: there is no such folder")));
        }
        let record = tokenizer.with_extension("training.json");
        let beside = tokenizer.with_file_name(SETTINGS);
        let is_there = regular::is_file(&beside)
            && regular::read_text_through_link(&beside).is_ok_and(|text| text == settings);
        let settings = (!is_there).then_some((beside, settings));
        let written =
            [tokenizer, &record].into_iter().chain(settings.as_ref().map(|(path, _)| path.as_path()));
        for path in written {
            if !force && !regular::is_missing(path) {
                return Err(Error::usage(format!(
                    "{} already exists; choose another --out, or add --force to replace it",
                    path.display()
                )));
            }
        }
        for path in [TOKEN_MAP, ADDED_TOKENS].map(|name| tokenizer.with_file_name(name)) {
            if !regular::is_missing(&path) {
                return Err(Error::usage(format!(
                    "{} belongs to another tokenizer, and would change this one for transformers; choose a folder without \
                     it for --out",
                    path.display()
                )));
            }
        }
        Ok(Self { tokenizer: tokenizer.to_owned(), record, settings, force })
    }

    /// Writes the files, the tokenizer.json last.
    fn write(&self, tokenizer: &Tokenizer, report: &Report<'_>) -> Result<()> {
        let record = serde_json::to_string_pretty(report)
            .map_err(|e| Error::failed(format!("cannot write JSON: {e}")))?;
        let write = if self.force { atomic::write } else { atomic::write_new };
        if let Some((path, text)) = &self.settings {
            write(path, text.as_bytes())?;
        }
        write(&self.record, (record + "\n").as_bytes())?;
        write(&self.tokenizer, tokenizer.to_json().as_bytes())
    }
}

/// The line on stderr that shows how far the training is, if stderr is a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new(training: &Training, sources: &[Source]) -> Self {
        let bytes: u64 = sources.iter().map(Source::bytes).sum();
        let bar = ProgressBar::new(training.bytes.map_or(bytes, |limit| limit.min(bytes)));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg} {human_pos} of {human_len}") {
            bar.set_style(style);
        }
        bar.set_message("bytes counted:");
        bar.tick();
        Self(bar)
    }

    fn show(&self, progress: Progress) {
        match progress {
            Progress::Read(bytes) => self.0.inc(bytes),
            Progress::Merging { vocab } => {
                self.0.set_message("entries:");
                self.0.set_length(vocab as u64);
                self.0.set_position(0);
            }
            Progress::Entries(entries) => self.0.set_position(entries as u64),
        }
    }
}
