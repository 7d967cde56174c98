//! `xrun plan`: forecasts a run without running it.

use super::terminal::{eprint_line, print, print_json, print_value, stdout_columns};
use super::what::RecipeArguments;
use crate::error::{Error, Result};
use crate::forecast::listing::listing;
use crate::forecast::{
    Budget, FitRow, Forecast, ModelLines, Planned, RunNeeds, fit_local_batch, fit_table, with_steps_of_budget,
};
use crate::format::{Column, Table, binary};
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::{Plan, corpus_facts};
use crate::policy::Batching;
use crate::recipe::{self, Recipe};
use crate::train::{
    check_initial_optimizer, check_initial_weights, check_planned_prompt, cpu_fallback_warning, cpu_pace,
    with_begun_run,
};
use serde_json::json;
use std::slice;

/// The only key that `--fit` can search.
const FIT: &str = "training.local_batch_size";

/// Arguments of `xrun plan`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe to plan.
    #[command(flatten)]
    pub what: RecipeArguments,
    /// Devices to plan for, such as h200,rtx5090; exit code 4 if the plan does not fit.
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Find the largest value of this key that fits, per dtype and recompute mode, on the devices of --on or
    /// else on this machine. Only training.local_batch_size can be searched.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["program", "explain", "model"])]
    pub fit: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Print all programs instead, or the first whose name begins with SECTION; with --on, with the GPU's
    /// kernels.
    #[arg(
        long,
        value_name = "SECTION",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with_all = ["json", "explain", "model"]
    )]
    pub program: Option<Option<String>>,
    /// Print the text of the model instead, and what each line takes in a step: FLOPs, bytes, and the
    /// predicted time on the devices of --on or else on this machine.
    #[arg(long, conflicts_with = "explain")]
    pub model: bool,
    /// Print every key instead, with its value and the layer that set it.
    #[arg(long)]
    pub explain: bool,
}

/// Runs the command.
///
/// # Errors
/// Fails with a usage error if the recipe, a device or a key is invalid, and with
/// [`DoesNotFit`](crate::error::ErrorKind::DoesNotFit), after printing the report, if the plan does not fit.
pub fn run(args: &Args) -> Result<()> {
    let here = if args.explain || !args.on.is_empty() { Machine::none() } else { Machine::here() };
    let recipe = args.what.load(&here)?;
    if args.explain {
        let recipe = if recipe.awaits_clock() { recipe } else { with_steps_of_budget(recipe, &here)? };
        return explain(&recipe, args.json);
    }
    let recipe = with_begun_run(recipe, &args.what.results.folder, &here)?;
    let machines: Vec<Machine> = args.on.iter().map(|name| Machine::named(name)).collect::<Result<_>>()?;
    let corpus = corpus_facts(&recipe)?;
    let Planned { recipe, plan, programs } =
        Planned::new(&recipe, &corpus, machines.first().unwrap_or(&here))?;
    if let Some(key) = &args.fit {
        let on = if machines.is_empty() { slice::from_ref(&here) } else { &machines };
        return fit(&recipe, &plan, on, key, args.json);
    }
    if let Some(section) = &args.program {
        let gpu = machines.first().and_then(Machine::properties);
        return print(&listing(&programs, section.as_deref(), gpu.as_ref())?);
    }
    if args.model {
        return model_lines(&plan, &programs, machines, here, args.json);
    }
    check_planned_prompt(&recipe, &plan)?;
    if let Some(base) = check_initial_weights(&recipe, &plan)? {
        check_initial_optimizer(&recipe, &base, &programs.state)?;
        eprint_line(&format!("begins with the weights of {}", base.path().display()));
    }
    let own = plan.unreached_tokens().into_iter().chain(cpu_fallback_warning(&recipe, &plan, &here));
    for warning in plan.corpus.warnings.iter().cloned().chain(own) {
        eprint_line(&format!("warning: {warning}"));
    }
    let pace = cpu_pace(&plan, &here, eprint_line);
    let here = if machines.is_empty() { here.with_cpu_pace(pace) } else { Machine::none() };
    let needs = RunNeeds::new(&plan, &programs, &here, recipe.values().metrics.plots);
    let forecast =
        Forecast::new(&plan, &programs, needs, &machines)?.with_fit_here(&plan, &programs, &here)?;
    let forecast = forecast.with_remarks(
        recipe.remarks(plan.execution.gpu.is_none()).into_iter().chain(plan.batch.remark()).collect(),
    );
    print_value(&forecast, args.json)?;
    let refusals: Vec<&str> = forecast.refusals().map(|v| v.on).collect();
    if refusals.is_empty() {
        return Ok(());
    }
    let peak = forecast.memory.peak_bytes;
    Err(Error::does_not_fit(format!(
        "{} needs {}, more than {}",
        plan.name,
        binary(peak),
        refusals.join(" and ")
    )))
}

/// Prints the text of a plan's model, with what each line takes on some devices or else on this machine.
fn model_lines(
    plan: &Plan,
    programs: &Programs,
    mut machines: Vec<Machine>,
    here: Machine,
    as_json: bool,
) -> Result<()> {
    if machines.is_empty() {
        let pace = cpu_pace(plan, &here, eprint_line);
        machines.push(here.with_cpu_pace(pace));
    }
    let lines = ModelLines::new(plan, programs, &machines);
    if as_json { print_json(&lines) } else { print(&lines.text(stdout_columns())) }
}

fn fit(recipe: &Recipe, plan: &Plan, machines: &[Machine], key: &str, json: bool) -> Result<()> {
    if recipe::find_path(key).is_none_or(|key| key.path != FIT) {
        return Err(Error::usage(format!("--fit {key} cannot be searched; it takes {FIT}")));
    }
    if recipe.values().engine.batching == Batching::Looped {
        return Err(recipe.error(
            &["engine.batching"],
            "with looped batching, memory holds one sequence at a time, whatever the batch",
            "set engine.batching = \"batched\"",
        ));
    }
    let budgets: Vec<Budget> = machines.iter().map(|machine| Budget::new(plan, machine)).collect();
    if let Some(unknown) = budgets.iter().find(|budget| budget.bytes.is_none()) {
        let memory = match unknown.hardware {
            Some(device) => format!("the memory of \"{}\"", device.name),
            None => unknown.name.to_owned(),
        };
        return Err(Error::usage(format!(
            "{memory} is not known; set engine.memory_limit_gib, or name a GPU with --on"
        )));
    }
    let table = |budget: Budget| fit_local_batch(plan, &budget).map(|rows| (budget, rows));
    let tables: Vec<(Budget, Vec<FitRow>)> = budgets.into_iter().map(table).collect::<Result<_>>()?;
    if json {
        let tables: Vec<_> = tables
            .iter()
            .map(|(b, rows)| json!({"on": b.name, "budget_bytes": b.bytes, "reserve_bytes": b.reserve, "rows": rows}))
            .collect();
        print_json(&json!({"fit": FIT, "tables": tables}))?;
    } else {
        let texts: Vec<String> = tables.iter().map(|(budget, rows)| fit_table(rows, budget)).collect();
        print(&texts.join("\n"))?;
    }
    let nothing = tables.iter().find(|(_, rows)| rows.iter().all(|row| row.local_batch_size == 0));
    match nothing {
        Some((budget, _)) => Err(Error::does_not_fit(format!(
            "not even one sequence of {} fits on {}",
            plan.name, budget.name
        ))),
        None => Ok(()),
    }
}

/// Prints every key with its value, class and layer.
fn explain(recipe: &Recipe, json: bool) -> Result<()> {
    // Most recipes have no parameter groups, so keys nested in them are listed only when set.
    let keys = recipe.explain().into_iter().filter(|(key, value, _)| value.is_some() || !key.is_nested());
    if json {
        let rows: Vec<_> = keys
            .map(|(key, value, layer)| {
                json!({"key": key.path, "value": value, "class": key.class.to_string(), "layer": layer.to_string()})
            })
            .collect();
        return print_json(&rows);
    }
    let mut table = Table::new(&[Column::Left, Column::Left, Column::Left, Column::Left]);
    table.row(["KEY", "VALUE", "CLASS", "FROM"]);
    for (key, value, layer) in keys {
        let value = value.unwrap_or_else(|| match key.unset {
            "" => "unset: another optimizer has it".to_owned(),
            unset => format!("unset: {unset}"),
        });
        table.row([key.path.to_owned(), value, key.class.to_string(), layer.to_string()]);
    }
    print(&table.render(0))
}
