//! `xrun model`: checks model texts, and shows the built-in ones.

use super::terminal::{print, print_exact, print_json, stdout_columns};
use super::what::{Results, recipe_path};
use crate::error::{Error, Result};
use crate::format::{Column, Table, plural, thousands};
use crate::machine::Machine;
use crate::model::check_recording;
use crate::model::text::{Beside, TextCost, cost};
use crate::model_text::{FUNCTIONS, Mistake, ModelText, Remark, built_in, element_functions, resolve, texts};
use crate::plan::{CorpusFacts, Model, Plan, corpus_facts};
use crate::policy::DeviceChoice;
use crate::recipe::{self, Recipe, model_text_error};
use crate::regular;
use crate::suggest::nearest;
use crate::train::{MAX_CHECKED_PARAMETERS, ModelChecks, check_model};
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
    /// List the functions that model texts may call.
    Functions,
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
    /// Also compute with the model, in f64 on the CPU: gradients against differences, causality, fused ops
    /// against unfused ones, and generation with a cache against the whole text. With a GPU, unless
    /// `engine.device` is `cpu`, also compare its logits and gradients in fp32 with the CPU's.
    #[arg(long)]
    compute: bool,
    /// Also print what it costs beside another text, such as the one that it extends, and the lines in which
    /// they differ.
    #[arg(long, value_name = "TEXT")]
    beside: Option<PathBuf>,
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
        Command::Functions => functions(),
    }
}

fn check(args: &Check) -> Result<()> {
    let (path, text) = read(&args.text)?;
    let name = path.display();
    let wrong = |mistake: Mistake| model_text_error(&path, &text, mistake);
    let parsed = ModelText::parse(&text).map_err(wrong)?;
    let recipe = recipe_path(&args.recipe, &args.results.folder)?;
    let recipe = recipe::load(&recipe, &args.overrides, recipe::environment(), &Machine::none())?;
    let facts = corpus_facts(&recipe)?;
    let model = Model::from_recipe(&recipe, facts.vocab_size)?;
    let seq_len = recipe.values().training.seq_len;
    let keys = model.keys(seq_len);
    let graph = resolve(&parsed, &keys).map_err(wrong)?;
    let remarks = parsed.remarks(&keys).into_iter();
    let remarks = remarks.map(|Remark { line, statement, text }| format!("line {line}, {statement}: {text}"));
    let cost: TextCost = cost(&parsed, &graph, &model, seq_len);
    let beside = args.beside.as_deref().map(|other| beside(&cost, other, &model, seq_len)).transpose()?;
    let not_run = check_recording(&model, &graph).err().map(|e| e.message().to_owned());
    let checks = match &not_run {
        None if args.compute => Some(compute(&recipe, &parsed, &facts, cost.parameter_count)?),
        _ => None,
    };
    let is_left_out = args.compute && not_run.is_some();
    let passed = !is_left_out && checks.as_ref().is_none_or(ModelChecks::passed);
    let failed = || match is_left_out {
        true => Error::failed(format!("{name} was not computed with")),
        false => Error::failed(format!("{name} fails a check")),
    };
    let report = Report { cost, beside, remarks: remarks.collect(), not_run, checks };
    if args.json {
        print_json(&report)?;
        return if passed { Ok(()) } else { Err(failed()) };
    }
    let Report { cost, beside, remarks, not_run, checks } = report;
    let cost = cost.text(stdout_columns());
    let beside = beside.map_or_else(String::new, |beside| format!("\n{}", beside.text(stdout_columns())));
    let remarks: String = remarks.iter().map(|remark| format!("\nremark: {remark}\n")).collect();
    let checks = checks.map_or_else(String::new, |checks| format!("\n{checks}"));
    let not_run = not_run.map_or_else(String::new, |reason| format!("\n{reason}\n"));
    print(&format!(
        "{name} for {}: {} block{} of width {}, a vocabulary of {}, sequences of {}\n\n\
         {cost}{beside}{remarks}{not_run}{checks}",
        recipe.name(),
        model.n_layers,
        plural(model.n_layers),
        model.dim,
        thousands(model.vocab_size),
        thousands(seq_len)
    ))?;
    if passed { Ok(()) } else { Err(failed()) }
}

/// What `xrun model check` finds, as JSON.
#[derive(serde::Serialize)]
struct Report {
    #[serde(flatten)]
    cost: TextCost,
    /// The difference from another text; `null` if none was named.
    beside: Option<Beside>,
    /// What may not be meant so: values that nothing reads, and branches that no block takes.
    remarks: Vec<String>,
    /// Why the text cannot be run; `null` if it can.
    not_run: Option<String>,
    /// What computing with the model showed; `null` if it was not asked for.
    checks: Option<ModelChecks>,
}

/// Returns what a text costs beside the one in another file, or a built-in one.
fn beside(cost_here: &TextCost, other: &Path, model: &Model, seq_len: usize) -> Result<Beside> {
    let (path, text) = read(other)?;
    let wrong = |mistake: Mistake| model_text_error(&path, &text, mistake);
    let parsed = ModelText::parse(&text).map_err(wrong)?;
    let graph = resolve(&parsed, &model.keys(seq_len)).map_err(wrong)?;
    Ok(Beside::new(cost_here, &cost(&parsed, &graph, model, seq_len), other.display().to_string()))
}

/// Checks a text by computing with it, with the keys of a recipe.
fn compute(recipe: &Recipe, text: &ModelText, facts: &CorpusFacts, parameters: usize) -> Result<ModelChecks> {
    if parameters > MAX_CHECKED_PARAMETERS {
        return Err(Error::usage(format!(
            "--compute takes models of at most {} parameters, and this one has {}: set smaller model.dim, \
             model.n_layers or model.vocab_size",
            thousands(MAX_CHECKED_PARAMETERS),
            thousands(parameters)
        )));
    }
    let definition = format!("model.definition={}", text.text());
    let settings = [definition, "parallelism.world_size=1".to_owned()];
    let recipe = recipe.with_overrides(&settings, &Machine::none())?;
    let here = Machine::here();
    let on_gpu = if here.gpu(0).is_some() && recipe.values().engine.device != DeviceChoice::Cpu {
        let settings = ["engine.device=cuda", "training.dtype=fp32"].map(str::to_owned);
        Some(Plan::new(&recipe.with_overrides(&settings, &here)?, facts, &here)?)
    } else {
        None
    };
    let mut checks = check_model(&Plan::new(&recipe, facts, &Machine::none())?, on_gpu.as_ref())?;
    // The recipe has the canonical text; the table of statements numbers the lines of this one.
    for scale in &mut checks.scales {
        scale.line = text.line_of_canonical(scale.line).unwrap_or(scale.line);
    }
    Ok(checks)
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
    let names: Vec<&str> = texts().map(|(name, _)| name).collect();
    let near = nearest(name, names.iter().copied());
    let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
    let is_path = name.contains(['/', '\\']) || name.ends_with(".model");
    let wrong = match is_path {
        true => format!("cannot read {name}: no such file"),
        false => format!("there is no model text {name}"),
    };
    Error::usage(format!("{wrong}; {near}give a file, or one of {}", names.join(", ")))
}

fn show(name: Option<&str>) -> Result<()> {
    if let Some(name) = name {
        return print_exact(built_in(name).ok_or_else(|| no_such_text(name))?);
    }
    let mut table = Table::new(&[Column::Left; 2]);
    table.row(["TEXT", "DESCRIPTION"]);
    for (name, text) in texts() {
        table.row([name, &description(text)]);
    }
    print(&table.render(0))
}

/// Returns the first sentence of the comment that a text begins with.
fn description(text: &str) -> String {
    let comment: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("# ")).collect();
    let comment = comment.join(" ");
    comment.split_once(". ").map_or(comment.trim_end_matches('.'), |(first, _)| first).to_owned() + "."
}

fn functions() -> Result<()> {
    let mut table = Table::new(&[Column::Left; 2]);
    table.row(["FUNCTION", "GIVES"]);
    for signature in FUNCTIONS {
        table.row([signature.call(), signature.meaning.replace('`', "")]);
    }
    print(&format!(
        "{}\nElement by element, of rows, vectors and numbers: {}.\n",
        table.render(0),
        element_functions().join(", ")
    ))
}
