//! `xrun model`: checks model texts, and shows the built-in ones.

use super::terminal::{print, print_exact, print_json};
use super::what::{Results, recipe_path};
use crate::error::{Error, Result};
use crate::format::{Column, Table, plural, thousands};
use crate::machine::Machine;
use crate::model::check_recording;
use crate::model::text::{TextCost, cost};
use crate::model_text::{BUILT_IN, Mistake, ModelText, built_in, resolve};
use crate::plan::{Model, corpus_facts};
use crate::recipe::{self, text_error};
use crate::regular;
use crate::suggest::nearest;
use std::path::{Path, PathBuf};

/// Arguments of `xrun model`.
#[derive(clap::Args, Debug)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Find the mistakes in a model text, and print the parameters and FLOPs of each line.
    Check(Check),
    /// Print a built-in model text; without a name, list them.
    Show(Show),
}

/// Arguments of `xrun model check`.
#[derive(clap::Args, Debug)]
struct Check {
    /// A file with a model text, or the name of a built-in one.
    #[arg(value_name = "TEXT")]
    text: PathBuf,
    /// The recipe whose keys the text reads.
    #[arg(long, value_name = "RECIPE", default_value = "quickstart")]
    recipe: PathBuf,
    /// Keys of the recipe to change, as `section.key=value`.
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    #[command(flatten)]
    results: Results,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `xrun model show`.
#[derive(clap::Args, Debug)]
struct Show {
    /// The name of a built-in model text.
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// If the text cannot be read, it describes no model for the recipe, or the recipe is invalid.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Check(args) => check(args),
        Command::Show(args) => show(args.name.as_deref()),
    }
}

fn check(args: &Check) -> Result<()> {
    let (path, text) = read(&args.text)?;
    let name = path.display();
    let wrong = |mistake: Mistake| {
        let title = match mistake.layer {
            Some(layer) => format!("{name} describes no model: block {layer} is wrong"),
            None => format!("{name} describes no model"),
        };
        text_error((&path, &text), &title, (mistake.at, &mistake.label), &mistake.help)
    };
    let parsed = ModelText::parse(&text).map_err(wrong)?;
    let recipe = recipe_path(&args.recipe, &args.results.folder)?;
    let recipe = recipe::load(&recipe, &args.overrides, recipe::environment(), &Machine::none())?;
    let model = Model::from_recipe(&recipe, corpus_facts(&recipe)?.vocab_size)?;
    let seq_len = recipe.values().training.seq_len;
    let graph = resolve(&parsed, &model.keys(seq_len)).map_err(wrong)?;
    let cost: TextCost = cost(&parsed, &graph, &model, seq_len);
    let runs = check_recording(&model, &graph);
    if args.json {
        return print_json(&cost);
    }
    print(&format!(
        "{name} for {}: {} block{} of width {}, a vocabulary of {}, sequences of {}\n\n{cost}{}",
        recipe.name(),
        model.n_layers,
        plural(model.n_layers),
        model.dim,
        thousands(model.vocab_size),
        thousands(seq_len),
        runs.map_or_else(|e| format!("\n{}\n", e.message()), |()| String::new())
    ))
}

/// Returns the path and the text of a file or of a built-in model.
fn read(argument: &Path) -> Result<(PathBuf, String)> {
    let name = argument.to_str().unwrap_or_default();
    if !argument.exists() {
        if let Some(text) = built_in(name) {
            return Ok((format!("built-in:{name}").into(), text.to_owned()));
        }
        return Err(no_such_text(&argument.display().to_string()));
    }
    let bytes = regular::read_through_link(argument, regular::MAX_TEXT)?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::usage(format!("{} is not UTF-8 from byte {at} on; save it as UTF-8", argument.display()))
    })?;
    Ok((argument.to_owned(), text))
}

fn no_such_text(name: &str) -> Error {
    let names = || BUILT_IN.iter().map(|(name, _)| *name);
    let near = nearest(name, names()).map_or(String::new(), |near| format!("did you mean {near}? "));
    Error::usage(format!(
        "there is no model text {name}; {near}give a file, or one of {}",
        names().collect::<Vec<_>>().join(", ")
    ))
}

fn show(name: Option<&str>) -> Result<()> {
    if let Some(name) = name {
        return print_exact(built_in(name).ok_or_else(|| no_such_text(name))?);
    }
    let mut table = Table::new(&[Column::Left; 2]);
    table.row(["TEXT", "DESCRIPTION"]);
    for (name, text) in BUILT_IN {
        let first = text.lines().next().unwrap_or_default();
        table.row([name, first.trim_start_matches("# ")]);
    }
    print(&table.render(0))
}
