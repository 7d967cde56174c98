//! Checks that both arms measure the same thing: the same text, in the same tokens, with enough evaluations.

use crate::error::{Error, Result};
use crate::evaluation;
use crate::plan::held_out_loss;
use crate::recipe::{Change, Recipe, Validation};
use crate::results::measure::{Measure, MeasuredMetric};
use crate::suggest::nearest;
use crate::tasks;

/// Checks that both arms produce a measure, and from the same text.
///
/// # Errors
/// A usage error that names the key that differs or is missing.
pub fn check(arms: [&Recipe; 2], changes: &[Change], measure: &Measure) -> Result<()> {
    if let Some(Change { key, old, new, .. }) = otherwise_measured(changes, measure) {
        return Err(Error::usage(format!(
            "{measure} cannot be compared between these arms: {key} is {old} and {new}, which decides when it is \
             measured; set the same in both arms"
        )));
    }
    if measure.is_speed() {
        return Ok(());
    }
    arms.into_iter().try_for_each(|recipe| check_measured(recipe, measure))?;
    match difference(arms, changes, measure) {
        Some(why) => Err(Error::usage(format!("{measure} cannot be compared between these arms: {why}"))),
        None => Ok(()),
    }
}

/// Returns the change of a key that decides when a measure is taken, without a change of what is trained. The
/// arm that is evaluated more often reaches a target sooner and averages later losses, and the one with more
/// steps of warm-up leaves out more of the slow ones.
pub fn otherwise_measured<'a>(changes: &'a [Change], measure: &Measure) -> Option<&'a Change> {
    let key = match measure {
        _ if measure.is_speed() => "metrics.warmup",
        Measure::Until { .. } => interval_key(measure),
        Measure::Final { metric, last: Some(2..), .. } if metric.has_evaluations() => interval_key(measure),
        Measure::Final { .. } | Measure::LossCurves => return None,
    };
    changes.iter().find(|change| change.key == key)
}

/// Returns the key of the steps between the evaluations of a measure.
fn interval_key(measure: &Measure) -> &'static str {
    if measure.task().is_some() { "evaluation.interval" } else { "validation.interval" }
}

/// Checks that a recipe scores the task of a measure.
fn check_task(recipe: &Recipe, measure: &Measure, task: &str) -> Result<()> {
    let named = &recipe.values().evaluation.tasks;
    let known: Vec<String> =
        tasks::select(named.iter().map(String::as_str))?.into_iter().map(|known| known.name).collect();
    if known.iter().any(|known| known == task) {
        return Ok(());
    }
    let hint = match nearest(task, known.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("set evaluation.tasks = [{task:?}] and evaluation.data in both arms"),
    };
    let message = format!("{measure}: {} is not scored on a task {task}", recipe.name());
    Err(recipe.error(&["evaluation.tasks"], message, hint))
}

/// Checks that a recipe has the validation set, the source, the task and the evaluations that a measure
/// needs.
fn check_measured(recipe: &Recipe, measure: &Measure) -> Result<()> {
    let values = recipe.values();
    if let Some(set) = measure.set()
        && !recipe.held_out_sets().contains(set)
    {
        let hint = match nearest(set, recipe.held_out_sets()) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "add it to [validation.sets] with a file or folder of text".to_owned(),
        };
        return Err(recipe.error(
            &["validation.sets"],
            format!("{measure}: {} has no held-out set {set}", recipe.name()),
            hint,
        ));
    }
    if let Some(source) = measure.source()
        && !values.data.sources.contains_key(source)
    {
        let hint = match nearest(source, values.data.sources.keys().map(String::as_str)) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "name the sources of a mixture as [data.sources.NAME]".to_owned(),
        };
        let first = values.data.sources.keys().next();
        let key = first.map_or("data.corpus".to_owned(), |name| format!("data.sources.{name}.path"));
        return Err(recipe.error(
            &[&key],
            format!("{measure}: {} has no source {source}", recipe.name()),
            hint,
        ));
    }
    if let Some(task) = measure.task() {
        check_task(recipe, measure, task)?;
    }
    let is_average = matches!(
        measure.metric(),
        MeasuredMetric::EmaValLoss | MeasuredMetric::Score { is_average: true, .. }
    );
    if is_average && !values.ema.evaluate {
        return Err(recipe.error(
            &["ema.evaluate"],
            format!("{measure}: {} does not evaluate the moving average of its weights", recipe.name()),
            "set ema.decay and ema.evaluate = true in both arms",
        ));
    }
    if let MeasuredMetric::Task(figure) = measure.metric()
        && !evaluation::tasks(held_out_loss(recipe), &values.validation.tasks)
            .iter()
            .any(|task| task.figures().contains(&figure.name))
    {
        if figure.is_of_pairs() {
            return Err(recipe.error(
                &["data.format"],
                format!("{measure}: {} holds out no pairs of answers", recipe.name()),
                "set data.format = \"preference\" in both arms",
            ));
        }
        return Err(recipe.error(
            &["validation.tasks"],
            format!("{measure}: no task in validation.tasks of {} measures {}", recipe.name(), figure.name),
            "set validation.tasks in both arms",
        ));
    }
    let interval = match measure.task() {
        Some(_) => values.evaluation.interval,
        None => values.validation.interval,
    };
    let steps = values.training.steps;
    // Runs evaluate after every interval and after the last step.
    let evaluations = if interval == 0 { 1 } else { steps.div_ceil(interval) };
    let needed = match measure {
        Measure::Final { metric: MeasuredMetric::TrainLoss, last: Some(last), .. } if *last > steps => {
            return Err(recipe.error(
                &["training.steps"],
                format!("{measure} asks for more steps than training.steps = {steps}"),
                "raise training.steps",
            ));
        }
        Measure::Final { metric: MeasuredMetric::TrainLoss, .. } | Measure::LossCurves => 0,
        Measure::Final { last, .. } => last.unwrap_or(1),
        // If only the last evaluation can reach the target, the result says nothing about when.
        Measure::Until { .. } => 2,
    };
    if needed > evaluations {
        return Err(recipe.error(
            &[interval_key(measure), "training.steps"],
            format!("{measure} takes {needed} evaluations or more, but a run has {evaluations}"),
            format!("set {}, such as to a tenth of training.steps", interval_key(measure)),
        ));
    }
    Ok(())
}

/// Returns why the arms would evaluate different parts of the held-out text: they take some of its batches,
/// and their batches differ in size.
fn held_out_mismatch(arms: [&Recipe; 2]) -> Option<String> {
    let steps = arms[0].values().validation.steps;
    let sizes = arms.map(|recipe| Some([recipe.batch().ok()?.global, recipe.values().training.seq_len]));
    let [Some([old, old_length]), Some([new, new_length])] = sizes else { return None };
    let differs = steps > 0 && [old, old_length] != [new, new_length];
    differs.then(|| {
        format!(
            "validation.steps = {steps} takes {steps} batches, but a batch has {old} sequences of \
             {old_length} tokens in the baseline and {new} of {new_length} in the candidate; set \
             validation.steps = 0 in both arms to evaluate the whole text"
        )
    })
}

/// Returns true for a key of the corpus that leaves the held-out text of a measure as it is.
fn is_of_training_alone(key: &str, measure: &Measure) -> bool {
    // What is held out is chosen before documents are dropped, packed or mixed.
    if ["data.drop", "data.packing", "data.phases", "data.shuffle"].contains(&key) {
        return true;
    }
    match key.strip_prefix("data.sources.").and_then(|key| key.split_once('.')) {
        // A source's own text does not depend on the others.
        Some((source, "path")) => measure.set().is_some_and(|set| set != source),
        Some((_, "weight" | "epochs")) => true,
        _ => false,
    }
}

/// Returns why the arms measure different text, or count it in different tokens.
fn difference(arms: [&Recipe; 2], changes: &[Change], measure: &Measure) -> Option<String> {
    let in_words = |change: &Change| format!("{} is {} and {}", change.key, change.old, change.new);
    let changed = |key: &str| changes.iter().find(|change| change.key == key);
    if measure.task().is_some() {
        // A token of one tokenizer is not one of another; answers and their bytes are the same.
        let is_by_token = measure.metric().as_str() == "token_perplexity";
        let keys = ["evaluation.data", "evaluation.limit", "evaluation.shots"];
        let change = keys.into_iter().find_map(changed);
        return change.or_else(|| changed("data.tokenizer").filter(|_| is_by_token)).map(in_words);
    }
    if measure.metric() != MeasuredMetric::BitsPerByte
        && let Some(change) = changed("data.tokenizer")
    {
        return Some(format!(
            "{}, so the losses are per different tokens; compare bits_per_byte",
            in_words(change)
        ));
    }
    let is_held_out = measure.metric().is_held_out();
    if is_held_out && let Some(change) = changed("validation.steps") {
        return Some(in_words(change));
    }
    if is_held_out && let Some(why) = held_out_mismatch(arms) {
        return Some(why);
    }
    let [baseline, candidate] = arms.map(Recipe::values);
    if let Some(set) = measure.set().filter(|set| !baseline.data.sources.contains_key(*set)) {
        let differs = baseline.validation.sets.get(set) != candidate.validation.sets.get(set);
        return differs.then(|| format!("validation.sets has different text for {set}"));
    }
    // Held-out text in its own files does not depend on the corpus.
    let has_own_text = is_held_out && matches!(baseline.data.validation, Validation::Paths(_));
    let changes_text = |change: &&Change| {
        let changes_corpus = change.key.starts_with("data.")
            && !["data.tokenizer", "data.cross_documents"].contains(&change.key)
            && !(is_held_out && is_of_training_alone(change.key, measure));
        changes_corpus && (!has_own_text || change.key == "data.validation")
    };
    let change = changes.iter().find(changes_text)?;
    Some(format!("{}; hold out a separate text with data.validation", in_words(change)))
}
