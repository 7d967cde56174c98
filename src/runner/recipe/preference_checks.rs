//! Checks what training on pairs of answers needs, and what it cannot be combined with.

use super::diagnostic::Diagnostic;
use super::loaded::Recipe;
use super::schema::Values;
use crate::policy::{CorpusSource, Packing, TextFormat};

const FORMAT: &str = "data.format";

/// Reports contradictions of `data.format = "preference"`.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let Values { model, training, data, validation, .. } = recipe.values();
    let mut report = |key: &str, says: &str, help: &str| {
        found.push(recipe.diagnostic(&[FORMAT, key], says, help));
    };
    let of_source = data.sources.values().any(|source| source.format == Some(TextFormat::Preference));
    if data.format != TextFormat::Preference {
        if of_source {
            report(
                "data.sources",
                "a source of a mixture has no pairs of answers: their loss is another one",
                "train on pairs with data.corpus and data.format = \"preference\", in a run of its own",
            );
        }
        return;
    }
    match data.corpus {
        CorpusSource::Paths(_) => {}
        CorpusSource::Mixture => report(
            "data.corpus",
            "pairs of answers are no mixture",
            "put the files of all pairs into one folder",
        ),
        CorpusSource::Stories | CorpusSource::Random => report(
            "data.corpus",
            "a generated corpus has no pairs of answers",
            "set data.corpus to a file or folder of them",
        ),
    }
    if model.init_from.is_none() {
        report(
            "model.init_from",
            "the loss of pairs compares the model with the one that the run begins with, which is not trained",
            "set model.init_from to the folder of a trained model or to a run",
        );
    }
    if data.packing != Packing::Document {
        report("data.packing", "a row of a batch has one pair of answers", "set data.packing = \"document\"");
    }
    for (key, value) in
        [("training.z_loss", training.z_loss), ("training.label_smoothing", training.label_smoothing)]
    {
        if value != 0.0 {
            report(key, "the loss of pairs has no further terms", &format!("leave {key} out"));
        }
    }
    if validation.documents {
        report(
            "validation.documents",
            "the held-out loss is one of pairs, not of documents",
            "leave validation.documents out",
        );
    }
}
