//! Checks the sources of a mixture against each other, the corpus and the phases.

use super::diagnostic::Diagnostic;
use super::loaded::Recipe;
use super::schema::{Data, Values};
use super::source::Origin;
use super::sources::{self, CORPUS, MAX_SOURCES, PATH, WEIGHT};
use crate::format::shortened;
use crate::policy::{CorpusSource, Validation};
use crate::suggest::nearest;

const PHASES: &str = "data.phases";
const SETS: &str = "validation.sets";

/// How sources are written.
const SOURCES_HELP: &str =
    "write [data.sources.NAME] with path = \"PATH\" and weight = NUMBER for each source of a mixture";

/// Longest list of names in a message, in bytes.
const LONGEST_LIST: usize = 200;

/// Reports sources that are incomplete or too many, and a corpus or phases that contradict them.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let data = &recipe.written().data;
    let is_mixture = data.corpus == CorpusSource::Mixture;
    let Some(first) = data.sources.keys().next() else {
        if is_mixture {
            found.push(recipe.diagnostic(
                &[CORPUS],
                "data.corpus is a mixture, but the recipe has no sources",
                format!("{SOURCES_HELP}; a file of this name is \"./mixture\""),
            ));
        }
        if !data.phases.is_empty() {
            found.push(recipe.diagnostic(
                &[PHASES],
                "data.phases changes the weights of sources, but the recipe has no sources",
                format!("{SOURCES_HELP}, or leave data.phases out"),
            ));
        }
        return;
    };
    if !is_mixture {
        found.push(recipe.diagnostic(
            &[CORPUS, &first_key(recipe, first)],
            "a recipe trains on one corpus or on a mixture of sources, and this one has both",
            "leave data.corpus out, or set data.corpus = \"mixture\" where it replaces this value; to train on the \
             corpus alone, leave data.sources out",
        ));
    }
    if let Some(beyond) = data.sources.keys().nth(MAX_SOURCES) {
        found.push(recipe.diagnostic(
            &[&first_key(recipe, beyond)],
            format!(
                "data.sources has {} sources, and a mixture has at most {MAX_SOURCES}",
                data.sources.len()
            ),
            "put the files of similar sources into one folder",
        ));
    }
    held_out_names(recipe, found);
    data.sources.keys().for_each(|name| incomplete(recipe, name, found));
    phases(recipe, data, found);
}

/// Reports a source whose held-out part would have the name of a further held-out set.
fn held_out_names(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let Values { data, validation, .. } = recipe.written();
    if !matches!(data.validation, Validation::Fraction(_)) {
        return;
    }
    for name in data.sources.keys().filter(|name| validation.sets.contains_key(*name)) {
        found.push(recipe.diagnostic(
            &[SETS, &first_key(recipe, name)],
            format!("a source and a set of {SETS} have the name `{name}`, and so would the losses of both"),
            format!("rename one of them: what is held out of a source has the loss val_loss/{name}"),
        ));
    }
}

/// Reports a source without a path, or without a weight beside others.
fn incomplete(recipe: &Recipe, name: &str, found: &mut Vec<Diagnostic>) {
    let sources = &recipe.written().data.sources;
    let Some(source) = sources.get(name) else { return };
    let missing = match source {
        _ if source.path.is_none() => PATH,
        _ if source.weight.is_none() && sources.len() > 1 => WEIGHT,
        _ => return,
    };
    let set = first_key(recipe, name);
    let at = recipe.locate(&set);
    let complete =
        || sources.iter().filter(|(_, other)| other.path.is_some()).map(|(other, _)| other.as_str());
    let field = set.rsplit('.').next().unwrap_or_default();
    let by_env = at.is_some_and(|at| matches!(at.source.origin, Origin::Env(_)));
    let in_other_case = || complete().find(|other| *other != name && other.eq_ignore_ascii_case(name));
    let key = sources::path(name, missing);
    let help = match (missing, nearest(name, complete())) {
        (PATH, _) if by_env && in_other_case().is_some() => format!(
            "names in environment variables are in lower case, so none sets a key of `{}`: set {} on the command line",
            in_other_case().unwrap_or_default(),
            sources::path(in_other_case().unwrap_or_default(), field)
        ),
        (PATH, Some(near)) => {
            format!("did you mean {}? A new source needs {key}", sources::path(near, field))
        }
        (PATH, None) => format!("set {key} to a file or folder of text or token shards"),
        _ => format!("set {key} to its share of the training sequences, relative to the other weights"),
    };
    found.push(recipe.diagnostic(&[&set, &key], format!("the source `{name}` has no {missing}"), help));
}

/// Reports phases that name something else than a source.
fn phases(recipe: &Recipe, data: &Data, found: &mut Vec<Diagnostic>) {
    for (at, phase) in data.phases.iter().enumerate() {
        let names = || data.sources.keys().map(String::as_str);
        let Some(unknown) = phase.weights.keys().find(|name| !data.sources.contains_key(*name)) else {
            continue;
        };
        let help = match nearest(unknown, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => {
                let all = names().collect::<Vec<_>>().join(", ");
                format!("the sources are {}", shortened(&all, LONGEST_LIST))
            }
        };
        found.push(recipe.diagnostic(
            &[PHASES],
            format!("phase {} of {PHASES} has a weight for `{unknown}`, which is not a source", at + 1),
            help,
        ));
    }
}

/// Returns the first key of a source that a layer sets.
fn first_key(recipe: &Recipe, name: &str) -> String {
    let paths = sources::keys_of(name).iter().map(|key| key.path);
    let set = paths.clone().find(|path| recipe.locate(path).is_some());
    set.or(paths.clone().next()).unwrap_or_default().to_owned()
}
