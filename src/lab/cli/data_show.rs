//! `xrun data show`: what a step of a recipe trains on, with the source of each sequence.

use super::terminal::{eprint_line, print, print_json};
use super::what::RecipeArguments;
use crate::data::{self, CorpusFacts, Dataset, Sequence, SequencePiece, TokenCache, Tokenizer};
use crate::error::{Error, Result};
use crate::forecast::Planned;
use crate::format::{Column, Table, percent, printable, thousands};
use crate::machine::Machine;
use crate::plan::{Plan, PlannedSource, data_spec};
use serde::Serialize;

/// Arguments of `xrun data show`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    what: RecipeArguments,
    /// The step to show, from 1 on.
    #[arg(long, value_name = "STEP", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    step: u64,
    /// The first sequence of the global batch to show, from 0 on.
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: usize,
    /// Number of sequences to show.
    #[arg(long, value_name = "N", default_value_t = 4)]
    sequences: usize,
    /// Characters to show of each piece of a sequence; 0 shows all.
    #[arg(long, value_name = "N", default_value_t = 160)]
    characters: usize,
    /// Print JSON, with all text and the token ids.
    #[arg(long)]
    json: bool,
}

/// What the command prints as JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    corpus: &'a str,
    sources: Vec<SourceRow>,
    step: u64,
    sequences: Vec<ShownSequence>,
}

/// A source of the corpus.
#[derive(Debug, Serialize)]
struct SourceRow {
    name: String,
    tokens: usize,
    /// UTF-8 bytes per token of the first tokens; `None` if the tokenizer's tokens have no fixed bytes.
    bytes_per_token: Option<f64>,
    /// Share of the sequences of a run, from 0 to 1.
    share: f64,
    /// Passes over the source in a run.
    epochs: f64,
}

/// A sequence with its text.
#[derive(Debug, Serialize)]
struct ShownSequence {
    index: usize,
    #[serde(skip_serializing_if = "String::is_empty")]
    source: String,
    pieces: Vec<ShownPiece>,
}

/// A window, or a packed document.
#[derive(Debug, Serialize)]
struct ShownPiece {
    text: String,
    tokens: Vec<u32>,
    /// Whether each token is trained on, where there are conversations.
    #[serde(skip_serializing_if = "Option::is_none")]
    trained: Option<Vec<bool>>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let recipe = args.what.load(&machine)?;
    let (spec, seq_len) = (data_spec(&recipe, &machine), recipe.values().training.seq_len);
    let dataset = data::open(&spec, seq_len, None, TokenCache::user()?.as_ref())?;
    let Planned { plan, .. } = Planned::new(&recipe, &CorpusFacts::from_dataset(&dataset), &machine)?;
    if args.step > plan.steps as u64 {
        return Err(Error::usage(format!("the run has {} steps; give --step a smaller one", plan.steps)));
    }
    let indices = args.from..args.from.saturating_add(args.sequences);
    let sequences = plan.loader(0, 0).sequences(&dataset, args.step - 1, indices)?;
    if sequences.is_empty() {
        return Err(Error::usage(format!(
            "step {} has {} sequences, from 0 on; give --from and --sequences others",
            args.step,
            plan.batch.tokens_in_step(args.step) / plan.batch.seq_len
        )));
    }
    dataset.warnings.iter().for_each(|warning| eprint_line(&format!("warning: {warning}")));
    let shown = Shown {
        corpus: &dataset.description,
        sources: source_rows(&plan, &dataset)?,
        step: args.step,
        sequences: sequences
            .into_iter()
            .map(|sequence| with_text(&dataset.tokenizer, sequence))
            .collect::<Result<_>>()?,
    };
    if args.json { print_json(&shown) } else { print(&in_words(&shown, args.characters)) }
}

fn with_text(tokenizer: &Tokenizer, Sequence { index, source, pieces }: Sequence) -> Result<ShownSequence> {
    let piece = |SequencePiece { tokens, trained }| {
        Ok(ShownPiece { text: tokenizer.decode(&tokens)?, tokens, trained })
    };
    Ok(ShownSequence { index, source, pieces: pieces.into_iter().map(piece).collect::<Result<_>>()? })
}

/// Returns a row for each source of a mixture, or one for the whole corpus.
fn source_rows(plan: &Plan, dataset: &Dataset) -> Result<Vec<SourceRow>> {
    let rates = dataset.bytes_per_token()?;
    if plan.sources.is_empty() {
        let (name, tokens) = ("corpus".to_owned(), plan.corpus.train_tokens);
        let bytes_per_token = rates.first().copied().flatten();
        return Ok(vec![SourceRow { name, tokens, bytes_per_token, share: 1.0, epochs: plan.passes() }]);
    }
    let row = |(source, bytes_per_token): (&PlannedSource, _)| SourceRow {
        name: source.facts.name.clone(),
        tokens: source.facts.train_tokens,
        bytes_per_token,
        share: source.share,
        epochs: source.epochs,
    };
    Ok(plan.sources.iter().zip(rates).map(row).collect())
}

fn in_words(shown: &Shown<'_>, characters: usize) -> String {
    use Column::{Left, Right};
    let mut table = Table::new(&[Left, Right, Right, Right, Right]);
    table.row(["SOURCE", "TOKENS", "BYTES/TOKEN", "SHARE", "PASSES"]);
    for source in &shown.sources {
        table.row([
            source.name.clone(),
            thousands(source.tokens),
            source.bytes_per_token.map_or("-".to_owned(), |rate| format!("{rate:.2}")),
            percent(source.share),
            format!("{:.2}", source.epochs),
        ]);
    }
    let mut text = table.render(0);
    for sequence in &shown.sequences {
        let source = match sequence.source.as_str() {
            "" => String::new(),
            source => format!(" of {source}"),
        };
        text += &format!("\nstep {}, sequence {}{source}\n", shown.step, sequence.index);
        for piece in &sequence.pieces {
            let count = piece.text.chars().count();
            let cut = if characters == 0 { count } else { characters };
            let start: String = piece.text.chars().take(cut).collect();
            let more = match count - count.min(cut) {
                0 => String::new(),
                more => format!(" … {} characters more", thousands(more)),
            };
            // A line per piece, whatever its text has.
            text += &format!("  {}{more}\n", printable(&start.replace('\n', "\\n")));
        }
    }
    text
}
