//! `xrun compare`: speed in alternating trials, quality in pairs with the same seed, or stored scores on
//! tasks.

use super::cluster::{ClusterArgs, TaskArgs};
use super::terminal::{eprint_line, print, print_json, seconds};
use super::what::{Results, Seed, recipe_path};
use crate::compare::{
    self, Arms, ArmsRequest, ComparisonRequest, EndedTask, FinishedComparison, Options, Question,
    ScoresRequest, Setting,
};
use crate::error::{Error, Result};
use crate::executor::TaskSettings;
use crate::executor::batch_system::BatchSystem;
use crate::forecast::{Planned, RunNeeds, TotalNeeds};
use crate::format::plural;
use crate::machine::Machine;
use crate::plan::corpus_facts;
use crate::ranks::environment;
use crate::recipe::Recipe;
use crate::results::experiment::{Design, Experiment, ExperimentRun};
use crate::statistics::Verdict;
use crate::train::cpu_pace;
use std::path::Path;
use std::time::Duration;

/// Arguments of `xrun compare`.
///
/// `--on speed`, the default, compares speed in alternating trials. `--on val_loss` and other measures
/// compare pairs of runs with the same seed. `--evaluations` compares scores that `xrun eval` stored.
///
/// Exit codes: 0 if both arms were measured, whatever the verdict, except 3: the candidate is slower by more
/// than the smallest difference that counts, its curve failed the loss gate, or its quality is worse; 1 if a
/// trial failed or took too long; 2 for an invalid command line or recipe; 75 if a signal stopped it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Both arms.
    #[command(flatten)]
    arms: ArmsRequest,
    /// What is judged.
    #[command(flatten)]
    options: Options,
    /// Stop a trial that takes longer than this, and the comparison with it.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, conflicts_with = "runs")]
    timeout: Option<Duration>,
    /// Runs at once on the CPU; on a GPU runs go one at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Repeat a stored comparison with seeds that it has not used.
    #[arg(long, value_name = "COMPARISON")]
    #[arg(conflicts_with_all = ["recipe", "on", "runs", "common", "min_effect", "confidence", "sequential", "seed", "plan"])]
    #[arg(conflicts_with_all = ["before_bin", "before_rev", "before_cmd", "repeats", "tolerance"])]
    confirm: Option<String>,
    /// Compare stored scores on tasks: folders that `xrun eval` wrote, of the baseline, then of the
    /// candidate. Join several seeds of a recipe with commas; with one on each side, the verdict is on these
    /// two checkpoints only. --on chooses tasks.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"])]
    #[arg(conflicts_with_all = ["recipe", "candidate", "runs", "common", "before_bin", "before_rev", "before_cmd", "timeout"])]
    #[arg(conflicts_with_all = ["jobs", "confirm", "plan", "pilot", "seed", "repeats", "tolerance", "hypothesis", "predicts"])]
    #[arg(conflicts_with_all = ["name", "seeds", "sequential"])]
    evaluations: Option<Vec<String>>,
    /// Print how small a difference each number of pairs can detect, and the cost; run only the pilot.
    #[arg(long)]
    plan: bool,
    /// First run this many pilot pairs to estimate the spread between pairs; no verdict uses them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(3..=1000))]
    pilot: Option<u16>,
    /// The seed of both arms; with --on, the seed of the first pair.
    #[command(flatten)]
    seed: Seed,
    /// Where results are.
    #[command(flatten)]
    results: Results,
    /// Print the comparison as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl Args {
    fn setting(&self) -> Setting<'_> {
        Setting {
            results: self.results.folder.as_path(),
            machine: environment::machine(),
            jobs: self.jobs.into(),
            timeout: self.timeout,
            pilot: self.pilot.unwrap_or(0).into(),
            batch: None,
            algorithms_from: None,
        }
    }

    /// Returns what the arms are, with the paths of their recipes.
    fn arms_request(&self) -> Result<ArmsRequest> {
        let results = self.results.folder.as_path();
        let mut request = self.arms.clone();
        if let Some(recipe) = &mut request.recipe {
            *recipe = recipe_path(recipe, results)?;
        }
        if let Some(second) = request.candidate.first_mut().filter(|first| !first.contains('=')) {
            *second = recipe_path(Path::new(second.as_str()), results)?.to_string_lossy().into_owned();
        }
        request.common = self.seed.on(&request.common);
        Ok(request)
    }

    fn arms(&self) -> Result<Arms> {
        Arms::new(&self.arms_request()?, &self.results.folder)
    }

    /// Returns the first given option that applies only to new pairs of runs, so neither to stored runs nor
    /// to trials.
    fn pair_option(&self) -> Option<&'static str> {
        let given = [("--jobs", self.jobs > 1), ("--plan", self.plan), ("--pilot", self.pilot.is_some())];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// Returns the first given option that does not apply to pairs of stored runs.
    fn new_run_option(&self) -> Option<&'static str> {
        let given = [
            ("--seed", self.seed.is_set()),
            ("--seeds", self.options.seeds.is_some()),
            ("--sequential", self.options.sequential),
            ("--predicts", self.options.predicts.is_some()),
        ];
        let given = given.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
        self.pair_option().or(given)
    }
}

/// Prints what the trials need before they begin. Leaves out what is unknown, such as the time of an external
/// command.
fn say_needs(question: &Question) {
    let here = Machine::here();
    let recipes: Vec<Recipe> =
        question.arms.both().into_iter().filter_map(|arm| arm.recipe_for_trials(&here)).collect();
    let mut total = TotalNeeds::default();
    for recipe in &recipes {
        // If the plan cannot be made, the trial itself reports why.
        let planned = corpus_facts(recipe).and_then(|corpus| Planned::new(recipe, &corpus, &here));
        let Ok(Planned { plan, programs, .. }) = planned else { continue };
        let here = here.clone().with_cpu_pace(cpu_pace(&plan, &here, eprint_line));
        let needs = RunNeeds::new(&plan, &programs, &here, recipe.values().metrics.plots);
        total.add(&needs, question.design.max_pairs());
    }
    if let Some(words) = total.in_words() {
        eprint_line(&words);
    }
}

/// Runs the command.
///
/// # Errors
/// If the question is invalid or a run fails. Exits with 3 if the candidate is slower or worse, or fails the
/// loss gate.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let options = &args.options;
    if args.cluster.looks() {
        return look_at_submitted(args);
    }
    if let Some((settings, system)) = args.cluster.batch_system()? {
        return submit(args, &settings, system.as_ref());
    }
    if let Some([baseline, candidate]) = args.evaluations.as_deref() {
        return compare_evaluations(args, [baseline, candidate]);
    }
    if let Some(confirmed) = &args.confirm {
        let question = compare::confirm(results, confirmed, options)?;
        return conclude(results, compare::run(&question, args.setting())?, args.json);
    }
    if let Some([baseline, candidate]) = args.arms.runs.as_deref() {
        let given = if options.on.is_some() { args.new_run_option() } else { None };
        if let Some(option) = given.or(args.seed.is_set().then_some("--seed")) {
            return Err(Error::usage(format!(
                "{option} is for new runs, and --runs compares stored ones; leave one out"
            )));
        }
        if options.on.as_deref().is_some_and(|on| on.trim() != compare::SPEED_OF_TRIALS) {
            let finished = compare::compare_stored(results, [baseline, candidate], options)?;
            return conclude(results, finished, args.json);
        }
    }
    let question = Question::new(args.arms()?, options)?;
    let has_trials = matches!(question.design, Design::Trials { .. });
    if has_trials && let Some(option) = args.pair_option() {
        return Err(Error::usage(format!(
            "{option} applies only to pairs of runs with the same seed; name a measure, such as --on val_loss"
        )));
    }
    if args.plan {
        let planned = compare::plan_pairs(&question, &args.setting())?;
        return if args.json { print_json(&planned) } else { Ok(()) };
    }
    if has_trials {
        if question.arms.are_equal() {
            eprint_line("changed     nothing: both arms are the same recipe (an A/A test)");
        }
        say_needs(&question);
    }
    conclude(results, compare::run(&question, args.setting())?, args.json)
}

/// Submits the comparison to a batch system.
fn submit(args: &Args, settings: &TaskSettings, system: &dyn BatchSystem) -> Result<()> {
    let local = [
        ("--evaluations", args.evaluations.is_some()),
        ("--jobs", args.jobs > 1),
        ("--plan", args.plan),
        ("--pilot", args.pilot.is_some()),
        ("--json", args.json),
    ];
    if let Some((option, _)) = local.iter().find(|(_, given)| *given) {
        return Err(Error::usage(format!(
            "{option} is for runs on this machine; leave it out, or --executor"
        )));
    }
    let request = ComparisonRequest {
        arms: args.arms_request()?,
        options: args.options.clone(),
        confirmed: args.confirm.clone(),
        timeout: args.timeout,
    };
    let ssh_command = args.cluster.ssh_command()?;
    let submitted = compare::submit(&request, &args.results.folder, settings, (system, &ssh_command))?;
    print(&format!("{}\n", submitted.in_words()))
}

/// Prints how far a submitted comparison is, or cancels it.
fn look_at_submitted(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let name = args.arms.recipe.as_ref().map(|name| name.to_string_lossy());
    let name =
        name.ok_or_else(|| Error::usage("name the submitted comparison, as in xrun compare --status NAME"))?;
    let ssh_command = args.cluster.ssh_command()?;
    if args.cluster.status {
        return print(&compare::status(results, &name, &ssh_command)?);
    }
    let count = compare::cancel(results, &name, &ssh_command)?;
    print(&format!("ended {count} task{}\n", plural(count)))
}

/// Runs a task of a submitted comparison.
///
/// # Errors
/// If [`compare::run_task`] fails, or as for [`run`] if the task answers the question.
pub fn run_task(args: &TaskArgs) -> Result<()> {
    match compare::run_task(&args.submission, args.task)? {
        EndedTask::Runs => Ok(()),
        EndedTask::Answered { results, comparison } => conclude(&results, *comparison, false),
    }
}

/// Compares stored scores.
///
/// # Errors
/// If they cannot be compared. Exits with 3 if the candidate is worse in a task.
fn compare_evaluations(args: &Args, sides: [&str; 2]) -> Result<()> {
    let Options { on, confidence, min_effect, .. } = &args.options;
    let tasks: Option<Vec<String>> =
        on.as_ref().map(|on| on.split(',').map(|task| task.trim().to_owned()).collect());
    let number = |text: &String| {
        let number: Option<f64> = text.parse().ok();
        number.filter(|x| x.is_finite() && *x >= 0.0).ok_or_else(|| {
            Error::usage(format!(
                "--min-effect {text}: give a number from 0 on, in the unit of the tasks' figures: 0.01 is a point of \
                 accuracy"
            ))
        })
    };
    let compared = compare::compare_scores(&ScoresRequest {
        results: args.results.folder.as_path(),
        sides,
        tasks: tasks.as_deref(),
        confidence: confidence.unwrap_or(compare::SCORES_CONFIDENCE),
        min_effect: min_effect.as_ref().map(number).transpose()?.unwrap_or(0.0),
    })?;
    if args.json {
        print_json(&compared)?;
    } else {
        print(&compared.to_string())?;
    }
    match compared.worse().as_slice() {
        [] => Ok(()),
        worse => Err(Error::finding(format!("the candidate is worse in {}", worse.join(", ")))),
    }
}

/// Prints a finished comparison and turns it into the exit code.
///
/// # Errors
/// Exits with 3 if the candidate is slower or worse, or fails the loss gate. Fails with the error that ended
/// the comparison, or if a run neither completed nor diverged.
fn conclude(results: &Path, finished: FinishedComparison, as_json: bool) -> Result<()> {
    let FinishedComparison { folder, experiment, failed } = finished;
    if as_json {
        print_json(&experiment)?;
    } else {
        print(&compare::report(&experiment))?;
    }
    eprint_line(&format!("results in {}", folder.display()));
    if experiment.prediction.is_some() {
        let counted = compare::Calibration::read(results)?;
        counted.in_words().iter().for_each(|words| eprint_line(words));
    }
    if experiment.curves().is_some_and(|curves| curves.holds() == Some(false)) {
        return Err(Error::finding("the loss gate fails"));
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if experiment.verdict() != Verdict::Worse {
        return check_runs(&experiment);
    }
    if experiment.has_trials() {
        return Err(Error::finding("the candidate is slower"));
    }
    let worse = experiment.findings.iter().filter(|finding| finding.verdict == Verdict::Worse);
    let findings: Vec<String> = worse.map(|finding| format!("{} is worse", finding.measure)).collect();
    Err(Error::finding(findings.join(", ")))
}

/// Checks that every run either completed or diverged.
///
/// # Errors
/// Names the first run that did neither.
fn check_runs(experiment: &Experiment) -> Result<()> {
    let is_result = |status: &str| ["ok", "diverged"].contains(&status);
    let runs = experiment.runs.iter();
    let faulty: Vec<&ExperimentRun> =
        runs.filter(|run| run.status.as_deref().is_some_and(|status| !is_result(status))).collect();
    let Some(first) = faulty.first() else { return Ok(()) };
    Err(Error::failed(format!(
        "{} run{} did not end well, the first with the seed {}: {}: {}; the same command runs them again",
        faulty.len(),
        plural(faulty.len()),
        first.seed.unwrap_or_default(),
        first.status.as_deref().unwrap_or_default(),
        first.reason.as_deref().unwrap_or("no reason is known")
    )))
}
