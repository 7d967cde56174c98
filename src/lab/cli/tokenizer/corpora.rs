//! The texts that commands on tokenizers read.

use crate::data::TEXT_EXTENSIONS;
use crate::data::tokenizer_training::{Reading, Source};
use crate::error::Result;
use crate::recipe::expand_home;
use std::path::Path;

/// The texts that a command reads.
#[derive(clap::Args, Debug)]
pub struct Corpora {
    /// Text files, folders or JSON lines; each is one source of the report.
    #[arg(long = "corpus", value_name = "PATH", required = true, num_args = 1..)]
    paths: Vec<String>,
    /// Text that separates the documents of a text file.
    #[arg(long, value_name = "TEXT")]
    separator: Option<String>,
    /// File name endings to read when a corpus is a folder; an empty one reads files without an ending.
    #[arg(long, value_name = ".EXT", value_delimiter = ',', default_values_t = TEXT_EXTENSIONS.map(str::to_owned))]
    extensions: Vec<String>,
}

impl Corpora {
    /// Opens the sources.
    ///
    /// # Errors
    /// If one is no text.
    pub fn open(&self) -> Result<Vec<Source>> {
        let reading = Reading {
            separator: self.separator.clone(),
            extensions: self.extensions.iter().map(|ending| crate::cli::data::with_dot(ending)).collect(),
        };
        self.paths.iter().map(|path| Source::open(Path::new(&expand_home(path)), &reading)).collect()
    }
}

/// Parses a number above 0, with or without `_` between digits.
pub fn positive(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse::<u64>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("give a whole number above 0".to_owned()),
    }
}
