//! Reads the layers: recipe files along `extends`, then the environment, then the command line.

use super::definition::{canonical_definition, canonical_definitions};
use super::diagnostic::{Diagnostic, MAX_SHOWN};
use super::files::follow;
use super::groups;
use super::key::{Key, Type};
use super::lookup::{
    find, find_path, hint, is_table, nearest_key, nearest_keys, nearest_section, other_framework_hint,
    section_keys,
};
use super::names::{name_fault, wrong_name};
use super::scalars::InvalidValue;
use super::schema::SECTIONS;
use super::source::{Location, Origin, Source};
use super::sources;
use super::typed::typed;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Prefix of the environment variables that set a key.
pub(super) const ENV_PREFIX: &str = "XRUN__";

/// A checked value and where it was set.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub value: toml::Value,
    pub at: Location,
}

/// A text and the keys that it sets, by path: a recipe file, an environment variable or a command-line
/// argument.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub source: Arc<Source>,
    pub set: BTreeMap<&'static str, Assignment>,
}

/// The texts of all layers.
#[derive(Debug, Default)]
pub(super) struct Layers {
    /// Every text that sets a key, lowest layer first.
    pub documents: Vec<Document>,
    /// The recipe files, base first.
    pub files: Vec<Arc<Source>>,
    /// All errors found so far.
    pub problems: Vec<Diagnostic>,
}

impl Layers {
    /// Reads the recipe `top` and the recipes that it extends.
    pub fn files(&mut self, top: Arc<Source>) {
        let mut layers = Vec::new();
        let mut chain: Vec<Arc<Source>> = Vec::new();
        let mut next = Some(top);
        while let Some(source) = next.take() {
            let mut layer = Layer::default();
            let extends = layer.file(&source);
            layers.push(layer);
            chain.push(source);
            if let Some((name, span)) = extends {
                match follow(&chain, &name, &span) {
                    Ok(base) => next = Some(base),
                    Err(problem) => self.problems.push(problem),
                }
            }
        }
        for layer in layers.into_iter().rev() {
            self.add(layer);
        }
        chain.reverse();
        self.files = chain;
    }

    /// Reads the variables that start with `XRUN__`, and ignores all others.
    pub fn environment(&mut self, env: impl Iterator<Item = (String, String)>) {
        let mut variables: Vec<_> = env.filter(|(name, _)| name.starts_with(ENV_PREFIX)).collect();
        variables.sort();
        let mut layer = Layer::default();
        for (name, value) in variables {
            let path = name[ENV_PREFIX.len()..].to_lowercase().replace("__", ".");
            let text = format!("{name}={value}");
            let source = Source::new(Origin::Env(name.clone()), text);
            layer.argument(&source, &path, 0..name.len(), name.len() + 1);
        }
        self.add(layer);
    }

    /// Reads `section.key=value` arguments, with or without a leading `--`.
    pub fn command_line(&mut self, overrides: &[String]) {
        let mut layer = Layer::default();
        for text in overrides {
            let source = Source::new(Origin::CommandLine, text.as_str());
            let start = if text.starts_with("--") { 2 } else { 0 };
            match text[start..].find('=') {
                Some(at) => {
                    let key = start..start + at;
                    layer.argument(&source, text[key.clone()].trim(), key, start + at + 1);
                }
                None => layer.problems.push(
                    Diagnostic::new(
                        format!("`{text}` sets nothing"),
                        "write section.key=value, such as training.steps=20",
                    )
                    .key(&text[start..])
                    .mark(&source, start..text.len(), "has no `=`"),
                ),
            }
        }
        self.add(layer);
    }

    fn add(&mut self, layer: Layer) {
        let mut documents: Vec<Document> = Vec::new();
        for (path, assignment) in layer.set {
            let source = Arc::clone(&assignment.at.source);
            let known = documents.iter().position(|document| Arc::ptr_eq(&document.source, &source));
            let at = known.unwrap_or_else(|| {
                documents.push(Document { source, set: BTreeMap::new() });
                documents.len() - 1
            });
            documents[at].set.insert(path, assignment);
        }
        self.documents.extend(documents);
        self.problems.extend(layer.problems);
    }
}

/// One layer: a file, the environment or the command line.
#[derive(Debug, Default)]
struct Layer {
    set: BTreeMap<&'static str, Assignment>,
    problems: Vec<Diagnostic>,
}

impl Layer {
    /// Adds a problem. Problems beyond those shown are only counted: finding the most similar key takes a
    /// while, and a wrong file may have a hundred thousand unknown keys.
    fn report(&mut self, problem: impl FnOnce() -> Diagnostic) {
        let shown = self.problems.len() < MAX_SHOWN;
        self.problems.push(if shown { problem() } else { Diagnostic::new("", "") });
    }

    /// Reads a recipe and returns the value of `extends` with its location.
    fn file(&mut self, source: &Arc<Source>) -> Option<(String, Range<usize>)> {
        let (table, errors) = DeTable::parse_recoverable(&source.text);
        if !errors.is_empty() {
            self.syntax(source, &errors);
            return None;
        }
        let mut extends = None;
        for (name, value) in table.get_ref() {
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("extends", DeValue::String(base)) => extends = Some((base.to_string(), value.span())),
                ("extends", _) => self.problems.push(
                    Diagnostic::new(
                        "extends names one recipe",
                        "write extends = \"dim384\" or \"other.toml\"",
                    )
                    .key("extends")
                    .mark(source, value.span(), "not a string"),
                ),
                (section, value) if SECTIONS.iter().any(|(known, _)| *known == section) => match value {
                    DeValue::Table(table) => self.keys(source, section, "", table),
                    _ => self.problems.push(
                        Diagnostic::new(
                            format!("{section} is a section, not a value"),
                            format!("write [{section}] and its keys below"),
                        )
                        .key(section)
                        .mark(source, name.span(), "not a table"),
                    ),
                },
                (unknown, value) => {
                    self.report(|| report_stray_entry(source, unknown, name.span(), value.is_table()))
                }
            }
        }
        extends
    }

    /// Reports only the first syntax error of each line, because later ones in the line usually follow from
    /// it.
    fn syntax(&mut self, source: &Arc<Source>, errors: &[toml::de::Error]) {
        let mut last = None;
        for e in errors {
            let span = source.clamp(e.span().unwrap_or(0..0));
            let same_line = |at: usize| {
                let between = at.min(span.start)..at.max(span.start);
                !source.text.as_bytes()[between].contains(&b'\n')
            };
            if last.replace(span.start).is_some_and(same_line) {
                continue;
            }
            let help = match e.message() {
                "duplicate key" => "a key is set once: keep one of them",
                _ => "a recipe has [sections] with lines `key = value`; strings are in quotes",
            };
            let title = format!("not TOML: {}", e.message());
            self.report(|| Diagnostic::new(title, help).mark(source, span, ""));
        }
    }

    /// Reads the keys of a section, or of a table within it, whose name with a final dot is `prefix`.
    fn keys(&mut self, source: &Arc<Source>, section: &str, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let path = format!("{prefix}{}", name.get_ref());
            let in_sources = sources::table_name(section, prefix) == Some("");
            if let Some(fault) = name_fault(name.get_ref()).filter(|_| in_sources) {
                let InvalidValue { span, title, label, help } = wrong_name(sources::TABLE, name, fault);
                let key = format!("{section}.{path}");
                self.report(|| Diagnostic::new(title, help).key(key).mark(source, span, label));
                continue;
            }
            match (find(section, &path), value.get_ref()) {
                (Some(key), _) => {
                    let at = Location { source: Arc::clone(source), key: name.span(), value: value.span() };
                    self.assign(key, value, at, 0);
                }
                (None, DeValue::Table(inner)) if is_table(section, &path) => {
                    self.keys(source, section, &format!("{path}."), inner);
                }
                (None, _) => self.report(|| unknown_key(source, section, &path, name.span())),
            }
        }
    }

    /// Reads an environment variable or an override. `path` is the key's path, written at the byte range
    /// `key`; the value starts at byte `start`.
    fn argument(&mut self, source: &Arc<Source>, path: &str, key: Range<usize>, start: usize) {
        let raw = &source.text[start..];
        let Some(known) = find_path(path) else {
            let problem = match path.split_once('.') {
                Some((section, name)) if SECTIONS.iter().any(|(s, _)| *s == section) => {
                    unknown_key(source, section, name, key)
                }
                Some((section, _)) => report_stray_entry(source, section, key, true),
                None => report_stray_entry(source, path, key, false),
            };
            self.problems.push(problem);
            return;
        };
        let textual = known.kind.is_any_text()
            || matches!(known.kind, Type::FractionOrPaths(_) | Type::Prediction | Type::Until);
        let bare = || Spanned::new(0..raw.len(), DeValue::String(raw.into()));
        let value = match DeValue::parse(raw) {
            Ok(value) if value.get_ref().is_str() || !known.kind.is_any_text() => value,
            Ok(value) if value.get_ref().is_array() && known.kind.takes_paths() => value,
            Ok(_) => bare(),
            // A value that starts like a quoted string but is not one is a mistake, not a string that
            // contains a quote.
            Err(e) if textual && raw.trim_start().starts_with(['"', '\'']) => {
                let span = e.span().unwrap_or(0..raw.len());
                self.problems.push(
                    Diagnostic::new(
                        format!("not TOML: {}", e.message()),
                        "close the quotes, or leave them out",
                    )
                    .key(known.path)
                    .mark(source, span.start + start..span.end + start, ""),
                );
                return;
            }
            Err(_) => bare(),
        };
        let span = value.span();
        let at = Location { source: Arc::clone(source), key, value: span.start + start..span.end + start };
        self.assign(known, &value, at, start);
    }

    /// Checks and stores a value whose spans are relative to byte `start` of its source.
    fn assign(&mut self, key: &'static Key, value: &Spanned<DeValue<'_>>, at: Location, start: usize) {
        if let Some(first) = self.set.get(key.path) {
            self.problems.push(
                Diagnostic::new(format!("{} is set twice", key.path), "keep one of them")
                    .key(key.path)
                    .mark(&at.source, at.key.clone(), "again")
                    .mark(&first.at.source, first.at.key.clone(), "first"),
            );
            return;
        }
        let typed = typed(key, value).and_then(|typed| match (key.kind, typed) {
            (Type::ModelText, toml::Value::String(written)) => {
                let raw = &at.source.text[at.value.clone()];
                canonical_definition(&written, at.folder(), (raw, at.value.start - start))
                    .map(toml::Value::String)
            }
            (Type::Settings | Type::Grid, toml::Value::Table(mut settings)) => {
                let raw = &at.source.text[at.value.clone()];
                canonical_definitions(&mut settings, at.folder(), (raw, at.value.start - start))
                    .map(|()| toml::Value::Table(settings))
            }
            (_, typed) => Ok(typed),
        });
        match typed {
            Ok(value) => {
                self.set.insert(key.path, Assignment { value, at });
            }
            Err(InvalidValue { span, title, label, help }) => {
                let span = span.start + start..span.end + start;
                self.problems.push(Diagnostic::new(title, help).key(key.path).mark(&at.source, span, label));
            }
        }
    }
}

fn unknown_key(source: &Arc<Source>, section: &str, name: &str, span: Range<usize>) -> Diagnostic {
    let path = format!("{section}.{name}");
    let plain: Vec<&str> = section_keys(section).filter(|key| !key.is_nested()).map(Key::name).collect();
    if let Some((title, help)) = groups::explain_unknown(name, &plain).filter(|_| section == "optimizer") {
        return Diagnostic::new(title, help).key(path).mark(source, span, "");
    }
    let by_env = matches!(source.origin, Origin::Env(_));
    if let Some((title, help)) = sources::explain_unknown(section, name, by_env) {
        return Diagnostic::new(title, help).key(path).mark(source, span, "");
    }
    let written = |(near, spelling): (&Key, &str)| {
        let home = near.section();
        match &source.origin {
            Origin::Env(_) => format!("{ENV_PREFIX}{}__{}", home.to_uppercase(), spelling.to_uppercase()),
            Origin::CommandLine => format!("{home}.{spelling}"),
            _ if home == section => format!("`{spelling}`"),
            _ => format!("`{spelling}` in [{home}]"),
        }
    };
    let meant: Vec<String> = nearest_keys(section, name).into_iter().map(written).collect();
    let help = match hint(section, name) {
        Some(instead) => instead.to_owned(),
        None if meant.is_empty() => format!("[{section}] has {}", plain.join(", ")),
        None => format!("did you mean {}?", meant.join(" or ")),
    };
    Diagnostic::new(format!("there is no key {path}"), help).key(path).mark(source, span, "unknown key")
}

/// Reports a top-level entry of a recipe that is not a section.
fn report_stray_entry(source: &Arc<Source>, name: &str, span: Range<usize>, is_table: bool) -> Diagnostic {
    let key = nearest_key("", name).filter(|_| !is_table);
    let help = match (key, nearest_section(name)) {
        _ if other_framework_hint(name).is_some() => {
            other_framework_hint(name).unwrap_or_default().to_owned()
        }
        // In a file it is read before this; here it stands on the command line.
        _ if name == "extends" => "only a recipe's file names its base, above its sections".to_owned(),
        (Some((key, spelling)), _) => format!("did you mean {}.{spelling}?", key.section()),
        (None, Some(section)) => format!("did you mean [{section}]?"),
        (None, None) => {
            let names: Vec<_> = SECTIONS.iter().map(|(section, _)| *section).collect();
            format!("the sections are {}", names.join(", "))
        }
    };
    let (title, label) = if is_table {
        (format!("there is no section [{name}]"), "unknown section")
    } else {
        (format!("`{name}` is outside a section"), "no section")
    };
    Diagnostic::new(title, help).key(name).mark(source, span, label)
}
