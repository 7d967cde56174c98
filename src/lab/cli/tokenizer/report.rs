//! `xrun tokenizer report`.

use super::corpora::{Corpora, positive};
use crate::cli::terminal::{eprint_line, print_value};
use crate::data::Tokenizer;
use crate::data::tokenizer_training::{Compression, SAMPLE_BYTES, Source};
use crate::error::Result;
use crate::recipe::expand_home;

/// Arguments of `xrun tokenizer report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// "gpt2", "byte", "stories" or the path of a tokenizer.json.
    #[arg(value_name = "TOKENIZER")]
    tokenizer: String,
    #[command(flatten)]
    corpora: Corpora,
    /// Tokenize at most this many bytes of each corpus, spread evenly over it.
    #[arg(long, value_name = "N", default_value_t = SAMPLE_BYTES, value_parser = positive)]
    bytes: u64,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// If the tokenizer or a corpus cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let tokenizer = Tokenizer::open(&expand_home(&args.tokenizer))?;
    let sources = args.corpora.open()?;
    let warnings = sources.iter().flat_map(Source::warnings);
    warnings.for_each(|warning| eprint_line(&format!("warning: {warning}")));
    print_value(&Compression::measure(&tokenizer, &sources, args.bytes)?, args.json)
}
