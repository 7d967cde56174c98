//! `xrun tokenizer show`.

use crate::cli::terminal::print_value;
use crate::data::Tokenizer;
use crate::data::tokenizer::{Entry, escaped};
use crate::error::{Error, Result};
use crate::format::{BLANK, Column, Table, plural, thousands};
use crate::recipe::expand_home;
use serde::Serialize;
use std::fmt;
use std::io::Read;

/// Most bytes of text on stdin.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Arguments of `xrun tokenizer show`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// "gpt2", "byte", "stories" or the path of a tokenizer.json.
    #[arg(value_name = "TOKENIZER")]
    tokenizer: String,
    /// The text to tokenize; "-" reads it from stdin.
    #[arg(value_name = "TEXT|-", allow_hyphen_values = true)]
    text: Option<String>,
    /// Print the tokens as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// If the tokenizer cannot be read, or cannot encode the text.
pub fn run(args: &Args) -> Result<()> {
    let tokenizer = Tokenizer::open(&expand_home(&args.tokenizer))?;
    match &args.text {
        None => print_value(&Facts::new(&tokenizer), args.json),
        Some(text) if text == "-" => print_value(&Shown::new(&tokenizer, &stdin()?)?, args.json),
        Some(text) => print_value(&Shown::new(&tokenizer, text)?, args.json),
    }
}

/// Reads the text on stdin.
fn stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| Error::failed(format!("cannot read stdin: {e}")))?;
    if bytes.len() as u64 > MAX_TEXT_BYTES {
        return Err(Error::usage(format!(
            "the text on stdin has more than {MAX_TEXT_BYTES} bytes; `xrun tokenizer report` measures whole corpora"
        )));
    }
    String::from_utf8(bytes)
        .map_err(|e| Error::usage(format!("the text on stdin is not UTF-8: {}", e.utf8_error())))
}

/// A tokenizer in numbers.
#[derive(Serialize)]
struct Facts {
    entries: usize,
    end_token: u32,
    end_token_name: String,
    keeps_every_byte: bool,
    hash: String,
}

impl Facts {
    fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            entries: tokenizer.vocab_size(),
            end_token: tokenizer.end_token(),
            end_token_name: tokenizer.token_name(tokenizer.end_token()).unwrap_or_default(),
            keeps_every_byte: tokenizer.keeps_every_byte(),
            hash: tokenizer.hash(),
        }
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeps = if self.keeps_every_byte { "yes" } else { "not known" };
        writeln!(f, "entries            {}", thousands(self.entries))?;
        writeln!(f, "end token          {} {:?}", self.end_token, self.end_token_name)?;
        writeln!(f, "keeps every byte   {keeps}")?;
        writeln!(f, "hash               {}", self.hash)
    }
}

/// The tokens of a text.
#[derive(Serialize)]
struct Shown {
    bytes: usize,
    count: usize,
    /// Bytes of the text per token; `None` without tokens.
    bytes_per_token: Option<f64>,
    tokens: Vec<ShownToken>,
}

#[derive(Serialize)]
struct ShownToken {
    id: u32,
    /// The text of the token. Bytes that are not UTF-8 are escaped, so that the text is not unique.
    text: String,
    /// Bytes that it stands for; `None` if they are not always the same.
    bytes: Option<usize>,
}

impl Shown {
    fn new(tokenizer: &Tokenizer, text: &str) -> Result<Self> {
        let ids = tokenizer.encode(text)?;
        let entries = tokenizer.entries(&ids)?;
        let token = |(&id, entry): (&u32, Entry)| match entry {
            Entry::Bytes(bytes) => ShownToken { id, text: escaped(&bytes), bytes: Some(bytes.len()) },
            Entry::Special(name) => ShownToken { id, text: name, bytes: Some(0) },
            Entry::Text(text) => ShownToken { id, text: escaped(text.as_bytes()), bytes: None },
        };
        let tokens: Vec<_> = ids.iter().zip(entries).map(token).collect();
        let bytes_per_token = (!ids.is_empty()).then(|| text.len() as f64 / ids.len() as f64);
        Ok(Self { bytes: text.len(), count: ids.len(), bytes_per_token, tokens })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&[Column::Right, Column::Right, Column::Left]);
        table.row(["ID", "BYTES", "TEXT"]);
        for token in &self.tokens {
            let bytes = token.bytes.map_or_else(|| BLANK.to_owned(), |bytes| bytes.to_string());
            table.row([token.id.to_string(), bytes, token.text.clone()]);
        }
        f.write_str(&table.render(0))?;
        let per_token =
            self.bytes_per_token.map_or_else(String::new, |ratio| format!(", {ratio:.3} bytes per token"));
        writeln!(
            f,
            "{} token{}, {} byte{}{per_token}",
            self.count,
            plural(self.count),
            self.bytes,
            plural(self.bytes)
        )
    }
}
