//! `xrun data check`: looks for held-out text in the training text of a recipe.

use super::terminal::{eprint_line, print, print_json};
use super::what::RecipeArguments;
use crate::data::leaks::{self, Options, Report};
use crate::error::Result;
use crate::eval::{Contamination, TaskItems};
use crate::format::{Column, Table, plural, thousands};
use crate::machine::Machine;
use crate::plan::data_spec;
use crate::tasks::select;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};

/// Arguments of `xrun data check`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    what: RecipeArguments,
    /// Further files to look for in the training text.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    against: Vec<PathBuf>,
    /// The field of a JSON object, or the column of a table, with the text of the files of --against, if it
    /// is not `data.field`.
    #[arg(long, value_name = "NAME", requires = "against")]
    field: Option<String>,
    /// Tasks whose items are looked for too: names, sets, or paths of definitions ending in .toml.
    #[arg(long, value_name = "TASK,…", value_delimiter = ',', requires = "data")]
    tasks: Vec<String>,
    /// The folder with the tasks' files, each task in the folder of its data set.
    #[arg(long, value_name = "DIR", requires = "tasks")]
    data: Option<PathBuf>,
    /// Write which items of the tasks the training text has, for `xrun eval --contaminated`.
    #[arg(long, value_name = "FILE", requires = "tasks")]
    items: Option<PathBuf>,
    /// Write what was found: a line of JSON for each training document and held-out passage.
    #[arg(long, value_name = "FILE")]
    spans: Option<PathBuf>,
    /// Write a list of the training documents with held-out text, for `data.drop`.
    #[arg(long, value_name = "FILE")]
    drop: Option<PathBuf>,
    /// Do not look for near duplicates within the training text, which takes 132 bytes of memory per
    /// document.
    #[arg(long)]
    no_duplicates: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let spec = data_spec(&args.what.load(&machine)?, &machine);
    let definitions = select(args.tasks.iter().map(String::as_str))?;
    let data = args.data.clone().unwrap_or_default();
    let tasks = definitions.iter().map(|definition| TaskItems::read(definition, &data));
    let tasks: Vec<TaskItems> = tasks.collect::<Result<_>>()?;
    let options = Options {
        against: args.against.iter().map(PathBuf::as_path).collect(),
        field: args.field.as_deref(),
        duplicates: !args.no_duplicates,
        lists: tasks.iter().map(TaskItems::texts).collect(),
    };
    let bar = progress();
    let report = leaks::check(&spec, &options, &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    report.warnings.iter().for_each(|warning| eprint_line(&format!("warning: {warning}")));
    if let Some(path) = &args.items {
        Contamination::new(spec.corpus.to_string(), &tasks, &report).write(path)?;
        eprint_line(&format!(
            "wrote the items that the training text has to {path}; xrun eval --contaminated {path} marks them",
            path = path.display()
        ));
    }
    if let Some(path) = &args.spans {
        report.write_spans(path)?;
        eprint_line(&format!("wrote what was found to {}", path.display()));
    }
    if let Some(path) = &args.drop {
        let listed = report.write_drop_list(path)?;
        eprint_line(&dropped(listed, path));
    }
    match args.json {
        true => print_json(&report),
        false => print(&in_words(&report, args)),
    }
}

fn dropped(listed: usize, path: &Path) -> String {
    let path = path.display();
    format!(
        "wrote the hashes of {} text{} to {path}; data.drop={path} leaves their documents out",
        thousands(listed),
        plural(listed)
    )
}

fn in_words(report: &Report, args: &Args) -> String {
    let mut sides = vec![Column::Left];
    sides.resize(7, Column::Right);
    let mut table = Table::new(&sides);
    table.row(["HELD OUT", "DOCUMENTS", "WORDS", "COPIED", "OVERLAP", "NEAR DUPLICATE", "COMMON ONLY"]);
    for set in &report.held_out {
        let counts =
            [set.documents, set.words as usize, set.copied, set.overlapping, set.near_duplicates, set.common];
        let mut row = vec![set.set.clone()];
        row.extend(counts.map(thousands));
        table.row(row);
    }
    let training = &report.training;
    let mut text = table.render(0);
    text += &format!(
        "training text: {} document{} of {} words; {} with held-out text{}\n",
        thousands(training.documents),
        plural(training.documents),
        thousands(training.words as usize),
        thousands(training.with_leaks),
        training.near_duplicates.map_or(String::new(), |count| {
            format!(", {} near duplicate{} of earlier ones", thousands(count), plural(count))
        })
    );
    if training.with_leaks > 0 && args.spans.is_none() && args.drop.is_none() {
        text += "--spans FILE lists what was found; --drop FILE makes a list for data.drop, which leaves it out\n";
    }
    text
}

/// Shows progress on stderr, if stderr is a terminal.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bytes} looked through, {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar
}
