//! Templates of task definitions: texts that are made of the fields of an item.
//!
//! A definition may come from someone else, so rendering is bounded: an interpreter without files, without
//! variables that could grow and without products of texts, a number of instructions, and a size for every
//! text. Nothing in a template can therefore double a text more often than the template is long.

use super::python;
use crate::error::{Error, Result};
use crate::format::{printable, shortened};
use fancy_regex::Regex;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, from_args};
use minijinja::{Environment, ErrorKind, State, UndefinedBehavior};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

/// Longest template, in bytes.
pub(super) const MAX_TEMPLATE_BYTES: usize = 8 << 10;

/// Longest text that a template or a filter makes, in bytes: a hundred times the longest passage in use.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Instructions of one rendering. Templates in use need some 20.
const FUEL: u64 = 50_000;

/// Depth of nested calls.
const MAX_DEPTH: usize = 32;

/// Characters of an error that are shown.
const SHOWN: usize = 300;

/// The statements that a template may use. Others keep values, and values can grow.
const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];

/// The compiled templates of a definition, by the keys that hold them.
#[derive(Debug)]
pub(super) struct Templates {
    environment: Environment<'static>,
}

impl Templates {
    /// Compiles templates, given by their keys.
    ///
    /// # Errors
    /// If a template is too long, is no valid one, or uses what is not allowed. The message names the key.
    pub fn new<'t>(sources: impl IntoIterator<Item = (String, &'t str)>) -> Result<Self> {
        let mut environment = Environment::empty();
        // A line break at the end of a template stays, as in the reference harness.
        let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::failed(e.to_string()))?);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.set_unknown_method_callback(method);
        add_filters(&mut environment);
        for (key, source) in sources {
            check(&key, source)?;
            environment
                .add_template_owned(key.clone(), source.to_owned())
                .map_err(|e| Error::usage(format!("{key} = {:?}: {}", shown(source), in_words(&e))))?;
        }
        Ok(Self { environment })
    }

    /// Renders the template of a key.
    ///
    /// # Errors
    /// If a field is missing, the template fails, or exceeds a limit. The message names the key.
    pub fn render(&self, key: &str, values: &Value) -> Result<String> {
        let mut text = Bounded(Vec::new());
        let template = self.environment.get_template(key);
        let rendered = template.and_then(|template| template.render_captured_to(values, &mut text).map(drop));
        let wrong = |what: String| Error::usage(format!("{key}: {what}"));
        match rendered {
            Ok(()) => {}
            Err(_) if text.0.len() > MAX_TEXT_BYTES => {
                return Err(wrong(format!(
                    "the template makes a text of more than {MAX_TEXT_BYTES} bytes; shorten it"
                )));
            }
            Err(e) => return Err(wrong(in_words(&e))),
        }
        String::from_utf8(text.0).map_err(|e| wrong(e.to_string()))
    }
}

/// Text of a limited size. One byte too many marks that the limit was exceeded.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = MAX_TEXT_BYTES.saturating_sub(self.0.len());
        if bytes.len() > left {
            self.0.resize(MAX_TEXT_BYTES + 1, b' ');
            return Err(std::io::Error::other("the text is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn shown(text: &str) -> String {
    shortened(&printable(text), SHOWN)
}

fn in_words(error: &minijinja::Error) -> String {
    match error.kind() {
        ErrorKind::OutOfFuel => {
            format!("the template does not finish within {FUEL} instructions; it loops over too much")
        }
        ErrorKind::UndefinedError => {
            let what = error.detail().map_or(String::new(), |detail| format!(" ({})", shown(detail)));
            format!("the template uses a field that the item does not have{what}")
        }
        kind => {
            let detail = error.detail().map_or(String::new(), |detail| format!(": {}", shown(detail)));
            format!("the template fails: {kind}{detail}")
        }
    }
}

/// Checks what the interpreter allows and xrun does not: statements that keep values, and products, which
/// may repeat a text.
fn check(key: &str, source: &str) -> Result<()> {
    let wrong = |what: String| Err(Error::usage(format!("{key} = {:?}: {what}", shown(source))));
    if source.len() > MAX_TEMPLATE_BYTES {
        return wrong(format!(
            "{} bytes are too many for a template (at most {MAX_TEMPLATE_BYTES})",
            source.len()
        ));
    }
    let mut rest = source;
    while let Some(at) = rest.find(['{']) {
        let inside = &rest[at..];
        let end = match inside.get(..2) {
            Some("{{") => "}}",
            Some("{%") => "%}",
            _ => {
                rest = &inside[1..];
                continue;
            }
        };
        let code = code_until(&inside[2..], end);
        if end == "%}" {
            let statement = code.trim_start_matches(['-', '+']).trim_start();
            let word =
                statement.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
            if !STATEMENTS.contains(&word) {
                return wrong(format!(
                    "the statement {word:?} is not available; a template may use {}",
                    STATEMENTS.join(", ")
                ));
            }
            if code.split_whitespace().any(|word| word == "recursive") {
                return wrong("a loop must not be recursive".to_owned());
            }
        }
        if code.contains('*') {
            return wrong("products are not available in templates".to_owned());
        }
        rest = &inside[2..];
    }
    Ok(())
}

/// Returns the code up to `end`, without the texts in quotes.
fn code_until(source: &str, end: &str) -> String {
    let (mut code, mut quote, mut is_escaped) = (String::new(), None, false);
    for (at, c) in source.char_indices() {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if source[at..].starts_with(end) => break,
            None if c == '"' || c == '\'' => quote = Some(c),
            None => code.push(c),
        }
    }
    code
}

/// Returns a JSON value as templates see it.
pub(super) fn seen(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(is) => Value::from(*is),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (.., number) => Value::from(number.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(entries) => entries.iter().map(seen).collect(),
        serde_json::Value::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, value)| (name.as_str(), seen(value))))
        }
    }
}

type Called<T> = std::result::Result<T, minijinja::Error>;

fn fails<T>(what: impl Into<String>) -> Called<T> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, what.into()))
}

fn bounded(text: String) -> Called<String> {
    if text.len() > MAX_TEXT_BYTES { fails("a text is too long") } else { Ok(text) }
}

/// Replaces a text, if what comes out is not too long.
fn replace(text: &str, old: &str, new: &str) -> Called<String> {
    if old.is_empty() {
        return fails("replace needs a text to look for");
    }
    let count = text.matches(old).count();
    let length = count.checked_mul(new.len()).and_then(|added| added.checked_add(text.len()));
    match length {
        Some(length) if length <= MAX_TEXT_BYTES => Ok(text.replace(old, new)),
        _ => fails("a text is too long"),
    }
}

/// Returns the place of a value in a list.
fn index(list: &Value, value: &Value) -> Called<usize> {
    let place = list.try_iter()?.position(|entry| entry == *value);
    match place {
        Some(place) => Ok(place),
        None => {
            fails(format!("{} is not in the list {}", shown(&value.to_string()), shown(&list.to_string())))
        }
    }
}

fn join(list: &Value, separator: &str) -> Called<String> {
    let mut text = String::new();
    for (i, entry) in list.try_iter()?.enumerate() {
        if i > 0 {
            text += separator;
        }
        text += &entry.to_string();
        text = bounded(text)?;
    }
    Ok(text)
}

fn split(text: &str, separator: &str) -> Called<Vec<String>> {
    match separator {
        "" => fails("split needs a separator"),
        _ => Ok(text.split(separator).map(str::to_owned).collect()),
    }
}

fn add_filters(environment: &mut Environment<'static>) {
    environment.add_filter("strip", |text: &str| python::strip(text).to_owned());
    environment.add_filter("capitalize", |text: &str| python::capitalize(text));
    environment.add_filter("lower", |text: &str| text.to_lowercase());
    environment.add_filter("upper", |text: &str| text.to_uppercase());
    environment.add_filter("replace", |text: &str, old: &str, new: &str| replace(text, old, new));
    environment.add_filter("join", |list: Value, separator: &str| join(&list, separator));
    environment.add_filter("length", |value: Value| value.len().map_or_else(|| fails("no length"), Ok));
    environment.add_filter("int", |value: Value| match value.as_str() {
        Some(text) => {
            python::strip(text).parse::<i64>().or_else(|_| fails(format!("{} is no integer", shown(text))))
        }
        None => i64::try_from(value),
    });
    // A definition has few expressions, and each is compiled once.
    let known: Arc<Mutex<BTreeMap<String, Arc<Regex>>>> = Arc::default();
    environment.add_filter("regex_replace", move |text: &str, pattern: &str, new: &str| {
        let mut known = crate::lock::lock(&known);
        let regex = match known.get(pattern) {
            Some(regex) => Arc::clone(regex),
            None => {
                let made = Regex::new(pattern).or_else(|e| fails(shown(&e.to_string())))?;
                Arc::clone(known.entry(pattern.to_owned()).or_insert(Arc::new(made)))
            }
        };
        drop(known);
        let (mut replaced, mut end) = (String::new(), 0);
        for found in regex.find_iter(text) {
            // Backtracking is limited, so an expression that would take for ever is an error.
            let found = found.or_else(|e| fails(shown(&e.to_string())))?;
            replaced = bounded(replaced + &text[end..found.start()] + new)?;
            end = found.end();
        }
        bounded(replaced + &text[end..])
    });
}

/// The methods of Python's strings and lists that templates of the reference harness call.
fn method(_: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Called<Value> {
    let unknown = || Err(minijinja::Error::from(ErrorKind::UnknownMethod));
    match (value.as_str(), name) {
        (Some(text), "strip" | "lstrip" | "rstrip" | "capitalize" | "lower" | "upper") => {
            let () = from_args(arguments)?;
            Ok(Value::from(match name {
                "strip" => python::strip(text).to_owned(),
                "lstrip" => text.trim_start_matches(python::is_space).to_owned(),
                "rstrip" => text.trim_end_matches(python::is_space).to_owned(),
                "capitalize" => python::capitalize(text),
                "lower" => text.to_lowercase(),
                _ => text.to_uppercase(),
            }))
        }
        (Some(text), "replace") => {
            let (old, new): (&str, &str) = from_args(arguments)?;
            replace(text, old, new).map(Value::from)
        }
        (Some(text), "split") => {
            let (separator,): (&str,) = from_args(arguments)?;
            split(text, separator).map(Value::from)
        }
        (Some(text), "find") => {
            let (part,): (&str,) = from_args(arguments)?;
            let place = text.find(part).map(|at| text[..at].chars().count());
            Ok(Value::from(place.map_or(-1, |place| place as i64)))
        }
        (None, "index") => {
            let (entry,): (Value,) = from_args(arguments)?;
            index(value, &entry).map(Value::from)
        }
        _ => unknown(),
    }
}
