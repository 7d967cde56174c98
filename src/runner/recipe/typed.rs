//! Checks a value against the type of its key.

use super::key::{Key, NumberRange, RangeScale, Type};
use super::lookup::{find_path, nearest_key};
use super::names::{name_fault, wrong_name};
use super::phases;
use super::prediction::Prediction;
use super::scalars::{InvalidValue, Refusal, number, shown, sort, whole};
use super::schema::TASK_ENDING;
use super::until::Until;
use crate::expression::{Formula, Function, ParseError};
use crate::suggest::nearest;
use std::ops::Range;
use toml::de::{DeArray, DeTable, DeValue};
use toml::{Spanned, Value};

/// Checks a value against its key, and returns it in the form that the structs deserialize (floats for
/// numbers).
///
/// # Errors
/// If the value does not fit: the reason.
pub(super) fn typed(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Value, InvalidValue> {
    let refused = |refusal: Refusal| {
        let expects = format!("{} is {}", key.path, key.kind);
        InvalidValue {
            span: value.span(),
            title: format!("{} cannot be {}", key.path, shown(value.get_ref())),
            label: refusal.label,
            help: refusal.fix.map_or(expects.clone(), |fix| format!("{expects}; {fix}")),
        }
    };
    match (key.kind, value.get_ref()) {
        (
            Type::NameOrPath(_) | Type::NameOrPaths(_) | Type::FractionOrPaths(_) | Type::ModelText,
            DeValue::String(text),
        ) if text.is_empty() => Err(refused(Refusal::new("empty"))),
        (Type::NameOrPaths(names), DeValue::Array(items)) => paths(items, names).map_err(refused),
        (Type::FractionOrPaths(_), DeValue::Array(items)) => paths(items, &[]).map_err(refused),
        (Type::Prediction, DeValue::String(text)) => match text.parse::<Prediction>() {
            Ok(prediction) => Ok(Value::String(prediction.into())),
            Err(reason) => Err(refused(Refusal::new("not a prediction").fix(reason))),
        },
        (Type::Until, DeValue::String(text)) => match text.parse::<Until>() {
            Ok(until) => Ok(Value::String(until.into())),
            Err(reason) => Err(refused(Refusal::new("not a budget").fix(reason))),
        },
        (Type::Bool, DeValue::Boolean(flag)) => Ok(Value::Boolean(*flag)),
        (Type::Word(words), DeValue::String(text)) => word(words, text).map_err(refused),
        (Type::Words(_) | Type::TaskNames, DeValue::Array(items)) if items.is_empty() => {
            Ok(Value::Array(Vec::new()))
        }
        (Type::Words(words), DeValue::Array(items)) => {
            let named = |item: &DeValue<'_>| match item {
                DeValue::String(text) => word(words, text),
                other => Err(Refusal::new(sort(other))),
            };
            distinct_list(items, named).map_err(refused)
        }
        (Type::WordOrFormula(words, scope), DeValue::String(text)) if !words.contains(&text.as_ref()) => {
            Formula::parse(text, scope).map(|formula| Value::String(formula.text().to_owned())).map_err(|e| {
                wrong_formula(key, value, text, e).unwrap_or_else(|| refused(unknown(words, text)))
            })
        }
        (
            Type::Text
            | Type::NameOrPath(_)
            | Type::NameOrPaths(_)
            | Type::FractionOrPaths(_)
            | Type::ModelText
            | Type::WordOrFormula(..),
            DeValue::String(text),
        ) => Ok(Value::String(text.to_string())),
        (Type::CountOrWord { word, .. }, DeValue::String(text)) if text == word => {
            Ok(Value::String(word.to_owned()))
        }
        (Type::Count { min, max } | Type::CountOrWord { min, max, .. }, of) => {
            whole(of, min, max).map_err(|refusal| refused(unquoted(value, refusal)))
        }
        (Type::Counts { max }, DeValue::Array(items)) => {
            distinct_list(items, |item| whole(item, 0, max)).map_err(refused)
        }
        (Type::Stages { max_steps, max }, DeValue::Array(items)) => {
            stages(items, (max_steps, max)).map_err(refused)
        }
        (Type::TaskNames, DeValue::Array(items)) => distinct_list(items, task_name).map_err(refused),
        (Type::TaskNames, DeValue::String(text)) => {
            Err(refused(Refusal::new("a string").fix(format!("write [{text:?}]"))))
        }
        (Type::Extensions, DeValue::Array(items)) => distinct_list(items, extension).map_err(refused),
        (Type::Number(interval) | Type::FractionOrPaths(interval), of) => {
            number(of, interval).map_err(|refusal| refused(unquoted(value, refusal)))
        }
        (Type::Pair(interval), DeValue::Array(items)) => pair(items, interval).map_err(refused),
        (Type::Phases, DeValue::Array(items)) => phases::typed(key, items),
        (Type::NamedPaths, DeValue::Table(table)) => named_paths(key, table).map(Value::Table),
        (Type::Settings, DeValue::Table(table)) => settings(key, table, &mut typed).map(Value::Table),
        (Type::Grid, DeValue::Table(table)) => settings(key, table, &mut listed).map(Value::Table),
        (Type::Ranges(scale), DeValue::Table(table)) => {
            settings(key, table, &mut |key, value| range(key, value, scale)).map(Value::Table)
        }
        (Type::SettingsList, DeValue::Array(items)) => items
            .iter()
            .map(|item| match item.get_ref() {
                DeValue::Table(table) => settings(key, table, &mut typed).map(Value::Table),
                other => Err(InvalidValue { span: item.span(), ..refused(Refusal::new(sort(other))) }),
            })
            .collect::<Result<_, _>>()
            .map(Value::Array),
        (Type::Bool, DeValue::String(text)) if ["true", "false"].contains(&text.as_ref()) => {
            Err(refused(Refusal::new("a string").fix(format!("write {text} without the quotes"))))
        }
        (_, other) => Err(refused(Refusal::new(sort(other)))),
    }
}

fn word(words: &[&str], text: &str) -> Result<Value, Refusal> {
    if words.contains(&text) { Ok(Value::String(text.to_owned())) } else { Err(unknown(words, text)) }
}

/// Words of other programs for values, with ours.
const OTHER_WORDS: [(&str, &str); 16] = [
    ("gpu", "cuda"),
    ("nvidia", "cuda"),
    ("cuda:0", "cuda"),
    ("host", "cpu"),
    ("float32", "fp32"),
    ("float", "fp32"),
    ("fp16", "bf16"),
    ("float16", "bf16"),
    ("half", "bf16"),
    ("bfloat16", "bf16"),
    ("adam", "adamw"),
    ("layernorm", "layer_norm"),
    ("rmsnorm", "rms_norm"),
    ("rotary", "rope"),
    ("absolute", "learned"),
    ("ddp", "process"),
];

fn unknown(words: &[&str], text: &str) -> Refusal {
    let refusal = Refusal::new("unknown value");
    let lower = text.to_lowercase();
    let other = OTHER_WORDS.iter().find(|(other, own)| *other == lower && words.contains(own));
    match other.map(|(_, own)| *own).or_else(|| nearest(text, words.iter().copied())) {
        Some(near) => refusal.fix(format!("did you mean {near:?}?")),
        None => refusal,
    }
}

/// Explains what is wrong with a formula; `None` if the text is rather a misspelled word.
fn wrong_formula(key: &Key, value: &Spanned<DeValue<'_>>, text: &str, e: ParseError) -> Option<InvalidValue> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let is_word =
        matches!(key.kind, Type::WordOrFormula(words, _) if nearest(text, words.iter().copied()).is_some());
    let is_function = Function::ALL.iter().any(|function| function.name() == text);
    if is_name && is_word && !is_function {
        return None;
    }
    let expects = format!("{} is {}", key.path, key.kind);
    Some(InvalidValue {
        span: within(&value.span(), text, &e.at),
        title: format!("{} cannot be {}", key.path, shown(value.get_ref())),
        label: e.label,
        help: match e.help {
            help if help.is_empty() => expects,
            help if is_name => format!("{expects}; {help}"),
            help => help,
        },
    })
}

/// Maps a byte range of a string's text to the source, given the range of the whole value. Returns the whole
/// value if the string has escapes.
fn within(value: &Range<usize>, text: &str, part: &Range<usize>) -> Range<usize> {
    let quotes = value.len().saturating_sub(text.len());
    if !matches!(quotes, 0 | 2) || text.contains(['\\', '\n']) {
        return value.clone();
    }
    let start = value.start + quotes / 2;
    start + part.start..start + part.end
}

fn pair(items: &DeArray<'_>, interval: NumberRange) -> Result<Value, Refusal> {
    if items.len() != 2 {
        return Err(Refusal::new(format!("a list of {}", items.len())));
    }
    items.iter().map(|item| number(item.get_ref(), interval)).collect::<Result<_, _>>().map(Value::Array)
}

/// Returns a list of at least one value, each typed by `value` and all different.
fn distinct_list(
    items: &DeArray<'_>,
    value: impl Fn(&DeValue<'_>) -> Result<Value, Refusal>,
) -> Result<Value, Refusal> {
    let values = items.iter().map(|item| value(item.get_ref())).collect::<Result<Vec<_>, _>>()?;
    if values.is_empty() {
        return Err(Refusal::new("an empty list"));
    }
    match values.iter().enumerate().find(|(i, value)| values[..*i].contains(value)) {
        Some((_, twice)) => Err(Refusal::new(format!("has {twice} twice"))),
        None => Ok(Value::Array(values)),
    }
}

fn stages(items: &DeArray<'_>, (max_steps, max): (u64, u64)) -> Result<Value, Refusal> {
    let mut stages: Vec<Value> = Vec::new();
    let mut before = 0;
    for item in items {
        let DeValue::Array(pair) = item.get_ref() else { return Err(Refusal::new(sort(item.get_ref()))) };
        if pair.len() != 2 {
            return Err(Refusal::new(format!("has a list of {}", pair.len())).fix("write [step, number]"));
        }
        let step = whole(pair[0].get_ref(), 1, max_steps)?;
        let count = whole(pair[1].get_ref(), 1, max)?;
        let at = step.as_integer().unwrap_or_default();
        if at <= before {
            return Err(Refusal::new(format!("has step {at} after step {before}")));
        }
        before = at;
        stages.push(Value::Array(vec![step, count]));
    }
    Ok(Value::Array(stages))
}

/// Returns a name of a task or a set, or a path of a definition. Which names there are is checked where the
/// tasks are read.
fn task_name(item: &DeValue<'_>) -> Result<Value, Refusal> {
    let DeValue::String(text) = item else { return Err(Refusal::new(sort(item))) };
    if text.is_empty() {
        return Err(Refusal::new("has an empty name"));
    }
    if !text.ends_with(TASK_ENDING) && text.contains(['/', '\\']) {
        return Err(Refusal::new(format!("{text:?} is no name of a task"))
            .fix(format!("the path of a definition ends in {TASK_ENDING}")));
    }
    Ok(Value::String(text.to_string()))
}

fn extension(item: &DeValue<'_>) -> Result<Value, Refusal> {
    let DeValue::String(text) = item else { return Err(Refusal::new(sort(item))) };
    match text.strip_prefix('.') {
        // Stands for files without an ending.
        None if text.is_empty() => Ok(Value::String(String::new())),
        Some("") => {
            Err(Refusal::new("a dot is not a file ending").fix("write \"\" for files without an ending"))
        }
        None => Err(Refusal::new(format!("{text:?} has no dot")).fix(format!("write \".{text}\""))),
        Some("bin") => Err(Refusal::new("a folder with .bin files is one of token shards")),
        Some(name) if name.contains('/') || name.split('.').any(str::is_empty) => {
            Err(Refusal::new(format!("{text:?} is not a file ending")))
        }
        Some(_) => Ok(Value::String(text.to_string())),
    }
}

/// Returns a list of different paths; a list of one is the path itself. A list has none of `names`, which
/// stand for something else.
fn paths(items: &DeArray<'_>, names: &[&str]) -> Result<Value, Refusal> {
    let path = |item: &DeValue<'_>| match item {
        DeValue::String(text) if text.is_empty() => Err(Refusal::new("has an empty path")),
        DeValue::String(text) if names.contains(&text.as_ref()) => {
            let fix = format!("a file of this name is \"./{text}\"");
            Err(Refusal::new(format!("{text:?} is no path")).fix(fix))
        }
        DeValue::String(text) => Ok(Value::String(text.to_string())),
        other => Err(Refusal::new(format!("has {}", sort(other)))),
    };
    Ok(match distinct_list(items, path)? {
        Value::Array(mut paths) if paths.len() == 1 => paths.remove(0),
        several => several,
    })
}

/// Returns a table of names, each with a path or a list of paths.
fn named_paths(key: &Key, table: &DeTable<'_>) -> Result<toml::Table, InvalidValue> {
    let mut named = toml::Table::new();
    for (name, value) in table {
        let written = name.get_ref();
        if let Some(fault) = name_fault(written) {
            return Err(wrong_name(key.path, name, fault));
        }
        let found = match value.get_ref() {
            DeValue::String(text) if text.is_empty() => Err(Refusal::new("empty")),
            DeValue::String(text) => Ok(Value::String(text.to_string())),
            DeValue::Array(items) => paths(items, &[]),
            other => Err(Refusal::new(sort(other))),
        };
        let found = found.map_err(|refusal| InvalidValue {
            span: value.span(),
            title: format!("{}.{written} cannot be {}", key.path, shown(value.get_ref())),
            label: refusal.label,
            help: format!(
                "write {written} = \"PATH\", the path of a file or folder of text or token shards, or a list of paths"
            ),
        })?;
        named.insert(written.to_string(), found);
    }
    Ok(named)
}

/// Returns a list of values of `key`, as in a grid.
fn listed(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Value, InvalidValue> {
    match value.get_ref() {
        DeValue::Array(items) if !items.is_empty() => {
            items.iter().map(|item| typed(key, item)).collect::<Result<_, _>>().map(Value::Array)
        }
        other => Err(InvalidValue {
            span: value.span(),
            title: format!("a grid needs a list of values for {}", key.path),
            label: if other.is_array() { "empty" } else { sort(other) }.to_owned(),
            help: format!("write \"{}\" = [{}]", key.path, key.example),
        }),
    }
}

/// Returns the two ends of a range of `key`, lower end first.
fn range(key: &Key, value: &Spanned<DeValue<'_>>, scale: RangeScale) -> Result<Value, InvalidValue> {
    let wrong = |span: Range<usize>, title: String, label: &str, help: String| {
        Err(InvalidValue { span, title, label: label.to_owned(), help })
    };
    if !matches!(key.kind, Type::Count { .. } | Type::Number(_)) {
        let help = format!("list its values in sweep.grid: \"{}\" = [{}]", key.path, key.example);
        return wrong(value.span(), format!("{} has no range", key.path), "not a numeric key", help);
    }
    let ends = match value.get_ref() {
        DeValue::Array(ends) if ends.len() == 2 => ends,
        other => {
            let list = other.as_array().map(|ends| format!("a list of {}", ends.len()));
            let label = list.as_deref().unwrap_or(sort(other));
            let help = "write both ends: [low, high]".to_owned();
            return wrong(value.span(), format!("a range of {} has two ends", key.path), label, help);
        }
    };
    let typed_ends: Vec<Value> = ends.iter().map(|end| typed(key, end)).collect::<Result<_, _>>()?;
    let numbers: Vec<f64> = typed_ends
        .iter()
        .map(|end| end.as_float().or_else(|| end.as_integer().map(|n| n as f64)).unwrap_or(f64::NAN))
        .collect();
    if scale == RangeScale::Log && numbers[0] <= 0.0 {
        let title = format!("a logarithmic range of {} cannot begin at {}", key.path, numbers[0]);
        return wrong(ends[0].span(), title, "not above 0", "begin above 0, or use sweep.range".to_owned());
    }
    if numbers[0] >= numbers[1] {
        let title = format!("the range of {} ends at {}, not above its start", key.path, numbers[1]);
        let (label, help) = match numbers[0] == numbers[1] {
            true => ("both ends are the same", format!("set {} itself, outside of [sweep]", key.path)),
            false => ("reversed", format!("write [{}, {}]", numbers[1], numbers[0])),
        };
        return wrong(value.span(), title, label, help);
    }
    Ok(Value::Array(typed_ends))
}

/// Returns a table of keys and values, each checked by `check`. Keys may be quoted paths or nested tables.
fn settings(owner: &Key, table: &DeTable<'_>, check: &mut Check<'_>) -> Result<toml::Table, InvalidValue> {
    let mut found = toml::Table::new();
    flatten(owner, "", table, check, &mut found)?;
    Ok(found)
}

type Check<'a> = dyn FnMut(&Key, &Spanned<DeValue<'_>>) -> Result<Value, InvalidValue> + 'a;

fn flatten(
    owner: &Key,
    prefix: &str,
    table: &DeTable<'_>,
    check: &mut Check<'_>,
    found: &mut toml::Table,
) -> Result<(), InvalidValue> {
    for (name, value) in table {
        let path = if prefix.is_empty() { name.to_string() } else { format!("{prefix}.{name}") };
        let wrong = |title: String, label: &str, help: String| {
            Err(InvalidValue { span: name.span(), title, label: label.to_owned(), help })
        };
        match (find_path(&path), value.get_ref()) {
            (Some(key), _) if ["job", "sweep", "compare"].contains(&key.section()) => {
                return wrong(
                    format!("{} cannot change {path}", owner.path),
                    "does not change a run",
                    "name a key of another section".to_owned(),
                );
            }
            (Some(key), _) => {
                let typed = check(key, value)?;
                if found.insert(key.path.to_owned(), typed).is_some() {
                    return wrong(
                        format!("{} has {} twice", owner.path, key.path),
                        "again",
                        "leave one of them out".to_owned(),
                    );
                }
            }
            (None, DeValue::Table(inner)) => flatten(owner, &path, inner, check, found)?,
            (None, _) => {
                let (section, name) = path.rsplit_once('.').unwrap_or(("", &path));
                let help = match nearest_key(section, name) {
                    Some((near, spelling)) => format!("did you mean \"{}.{spelling}\"?", near.section()),
                    None => "`xrun schema` prints every key".to_owned(),
                };
                return wrong(format!("{} has an unknown key `{path}`", owner.path), "unknown key", help);
            }
        }
    }
    Ok(())
}

/// Corrects what is said about a value that has no quotes: on the command line, `.001` and `007` are not
/// numbers of TOML, and count as strings.
fn unquoted(value: &Spanned<DeValue<'_>>, refusal: Refusal) -> Refusal {
    let has_quotes = value.get_ref().as_str().is_none_or(|text| value.span().len() > text.len());
    match (&refusal.fix, has_quotes) {
        (Some(fix), false) => {
            let fix = fix.strip_suffix(" without the quotes").unwrap_or(fix).to_owned();
            Refusal::new("not a number as TOML writes it").fix(fix)
        }
        _ => refusal,
    }
}
