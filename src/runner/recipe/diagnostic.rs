//! Messages about a recipe: the error, its place in the file, and the next step.

use super::source::{Origin, Source};
use crate::error::{Error, RecipeProblem};
use annotate_snippets::{AnnotationKind, Element, Level, Renderer, Snippet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Most messages that one error shows.
pub(super) const MAX_SHOWN: usize = 10;

/// One message about a recipe.
#[derive(Clone, Debug)]
pub(super) struct Diagnostic {
    title: String,
    keys: Vec<String>,
    marks: Vec<Mark>,
    notes: Vec<String>,
    help: String,
}

#[derive(Clone, Debug)]
struct Mark {
    source: Arc<Source>,
    span: Range<usize>,
    label: String,
}

impl Diagnostic {
    /// Creates a diagnostic: `title` names the value and what is wrong with it; `help` is the next step.
    pub(super) fn new(title: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            keys: Vec::new(),
            marks: Vec::new(),
            notes: Vec::new(),
            help: help.into(),
        }
    }

    /// Adds a key that is at fault; the first is the one to change.
    pub(super) fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Marks a location; the first mark is the primary one.
    pub(super) fn mark(mut self, source: &Arc<Source>, span: Range<usize>, label: impl Into<String>) -> Self {
        self.marks.push(Mark { source: Arc::clone(source), span, label: label.into() });
        self
    }

    /// Adds a fact without a location, such as a default.
    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    fn problem(&self) -> RecipeProblem {
        let place = self.marks.first().map(|mark| mark.source.place(mark.span.start));
        RecipeProblem { keys: self.keys.clone(), place }
    }

    fn render(&self) -> String {
        let annotation = |(i, mark): (usize, &'_ Mark)| {
            let kind = if i == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
            let annotation = kind.span(mark.source.clamp(mark.span.clone()));
            if mark.label.is_empty() { annotation } else { annotation.label(mark.label.clone()) }
        };
        let mut sources: Vec<&Arc<Source>> = Vec::new();
        for mark in &self.marks {
            if !sources.iter().any(|source| Arc::ptr_eq(source, &mark.source)) {
                sources.push(&mark.source);
            }
        }
        let snippet = |source: &Arc<Source>| -> Element<'static> {
            let own = self.marks.iter().enumerate().filter(|(_, mark)| Arc::ptr_eq(&mark.source, source));
            let snippet = Snippet::source(source.text.clone()).path(source.name());
            snippet.annotations(own.map(annotation)).into()
        };
        let mut elements: Vec<Element<'_>> = sources.into_iter().map(snippet).collect();
        elements.extend(self.notes.iter().map(|note| Level::NOTE.message(note.as_str()).into()));
        elements.push(Level::HELP.message(self.help.as_str()).into());
        Renderer::plain().render(&[Level::ERROR.primary_title(self.title.as_str()).elements(elements)])
    }
}

/// Returns all messages as one usage error. The caller prints `error: ` before the first.
pub(super) fn error(diagnostics: &[Diagnostic]) -> Error {
    let shown = &diagnostics[..diagnostics.len().min(MAX_SHOWN)];
    let mut text = shown.iter().map(Diagnostic::render).collect::<Vec<_>>().join("\n\n");
    if diagnostics.len() > MAX_SHOWN {
        text.push_str(&format!("\n\n… and {} more", diagnostics.len() - MAX_SHOWN));
    }
    let problems = shown.iter().map(Diagnostic::problem).collect();
    Error::usage(text.strip_prefix("error: ").unwrap_or(&text)).with_problems(problems)
}

/// Returns the usage error about a place in a text that recipes refer to, such as a model text, shown as
/// mistakes in recipes are. `title` names the text and what is wrong, `label` is what is wrong at `at`, a
/// range of bytes, and `help` is the next step.
pub(super) fn text_error(
    (path, text): (&Path, &str),
    title: &str,
    (at, label): (Range<usize>, &str),
    help: &str,
) -> Error {
    let source = Source::new(Origin::File(path.to_owned()), text);
    error(&[Diagnostic::new(title, help).mark(&source, at, label)])
}
