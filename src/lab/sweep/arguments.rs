//! Reads the arguments of a sweep: values of keys, and keys that change together.

use crate::error::{Error, Result};
use crate::format::plural;
use crate::recipe::{self, Key, Type, find_path};
use crate::results::configurations::Settings;

/// Command-line arguments, by their effect.
#[derive(Debug, Default)]
pub struct Arguments {
    /// Arguments that set keys of `[sweep]`, verbatim.
    pub sweep: Vec<String>,
    /// Keys with one value, which every cell gets.
    pub fixed: Settings,
    /// Keys with several values, alone or changing together.
    pub axes: Vec<Axis>,
}

/// Keys that change together; usually a single key.
#[derive(Debug, Default)]
pub struct Axis {
    /// The keys.
    pub keys: Vec<String>,
    /// The points; each has a value for every key.
    pub points: Vec<Vec<String>>,
}

impl Axis {
    /// Creates an axis of these points, each of them once.
    pub fn new(keys: Vec<String>, points: impl IntoIterator<Item = Vec<String>>) -> Self {
        let mut axis = Self { keys, points: Vec::new() };
        for point in points {
            if !axis.points.contains(&point) {
                axis.points.push(point);
            }
        }
        axis
    }
}

impl Arguments {
    /// Parses `section.key=value`, `section.key=value,value…`, and for keys that change together
    /// `section.key,section.key=value:value,value:value…`.
    ///
    /// # Errors
    /// A usage error for an argument that a recipe would reject, or for a key that is set twice.
    pub fn read(arguments: &[String]) -> Result<Self> {
        let mut read = Self::default();
        for argument in arguments {
            let (paths, raw) = argument.split_once('=').unwrap_or((argument, ""));
            let keys: Option<Vec<&'static Key>> =
                paths.split(',').map(|path| find_path(path.trim())).collect();
            let Some(keys) = keys.filter(|_| argument.contains('=')) else {
                // Without a value or a known key, let the recipe report the error.
                let unknown = paths.split(',').find(|path| find_path(path.trim()).is_none());
                let wrong = unknown.map(|path| format!("{path}{}", &argument[paths.len()..]));
                recipe::setting(wrong.as_ref().unwrap_or(argument))?;
                continue;
            };
            if keys.iter().any(|key| key.section() == "sweep") {
                recipe::setting(argument)?;
                read.sweep.push(argument.clone());
                continue;
            }
            for (at, key) in keys.iter().enumerate() {
                let before = keys[..at].iter().any(|known| known.path == key.path);
                if before || read.sets(key.path) {
                    return Err(Error::usage(format!("{} is set twice; keep one of them", key.path)));
                }
            }
            let points = points(&keys, raw)?;
            let mut axis = Axis::new(keys.iter().map(|key| key.path.to_owned()).collect(), points);
            if axis.points.len() == 1 {
                read.fixed.extend(axis.keys.into_iter().zip(axis.points.remove(0)));
            } else {
                read.axes.push(axis);
            }
        }
        Ok(read)
    }

    /// Returns true if an argument sets the key at `path`.
    pub fn sets(&self, path: &str) -> bool {
        self.fixed.contains_key(path) || self.varies(path)
    }

    /// Returns true if an argument gives the key at `path` several values.
    pub fn varies(&self, path: &str) -> bool {
        self.axes.iter().flat_map(|axis| &axis.keys).any(|key| key == path)
    }
}

/// Parses the points of an argument. Each point has a value for every key.
fn points(keys: &[&'static Key], raw: &str) -> Result<Vec<Vec<String>>> {
    if let [key] = keys {
        return Ok(values(key, raw)?.into_iter().map(|value| vec![value]).collect());
    }
    let point = |text: &str| {
        let parts = split(text, ':');
        if parts.len() != keys.len() {
            let paths: Vec<&str> = keys.iter().map(|key| key.path).collect();
            let example: Vec<&str> = keys.iter().map(|key| key.example).collect();
            return Err(Error::usage(format!(
                "`{text}` has {} value{} for {} keys that change together; write a value for each, joined by \
                 colons: {}={}",
                parts.len(),
                plural(parts.len()),
                keys.len(),
                paths.join(","),
                example.join(":")
            )));
        }
        keys.iter().zip(parts).map(|(key, part)| value(key, part, raw)).collect()
    };
    split(raw, ',').into_iter().map(point).collect()
}

/// Parses one value of a key and returns it as TOML. `raw` is the argument's whole value, for messages.
fn value(key: &Key, text: &str, raw: &str) -> Result<String> {
    if text.trim().is_empty() {
        return Err(Error::usage(format!(
            "{}={raw} has an empty value; write {}={}, or put the text in quotes",
            key.path, key.path, key.example
        )));
    }
    recipe::setting(&format!("{}={}", key.path, text.trim())).map(|(_, value)| value)
}

/// Parses the values of a key.
fn values(key: &'static Key, raw: &str) -> Result<Vec<String>> {
    let one = |text: &str| recipe::setting(&format!("{}={text}", key.path)).map(|(_, value)| value);
    let is_a_list = matches!(
        key.kind,
        Type::Counts { .. }
            | Type::Stages { .. }
            | Type::Pair(_)
            | Type::Extensions
            | Type::Phases
            | Type::TaskNames
    );
    let inside = raw.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let parts = match (split(raw, ',').as_slice(), inside) {
        ([_], Some(_)) if is_a_list && one(raw).is_ok() => return Ok(vec![one(raw)?]),
        ([_], Some(inside)) => split(inside, ','),
        (parts, _) => parts.to_vec(),
    };
    parts.into_iter().map(|part| value(key, part, raw)).collect()
}

/// Splits at a separator, but not inside quotes, brackets or parentheses.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut depth, mut quote, mut escaped, mut start) = (0usize, None, false, 0);
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some('"'), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') if text[start..at].trim().is_empty() || depth > 0 => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, '(') if text[at..].contains(')') => depth += 1,
            (None, ']' | '}' | ')') => depth = depth.saturating_sub(1),
            (None, c) if c == separator && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_divide_outside_of_quotes_brackets_and_parentheses() {
        let read = |argument: &str| {
            let read = Arguments::read(&[argument.to_owned()]).unwrap();
            let axes = read.axes.into_iter().flat_map(|axis| axis.points.into_iter().flatten());
            axes.chain(read.fixed.into_values()).collect::<Vec<_>>()
        };
        assert_eq!(read("optimizer.betas=[0.9,0.95]"), ["[0.9, 0.95]"]);
        assert_eq!(read("optimizer.betas=[0.9,0.95],[0.9,0.99]"), ["[0.9, 0.95]", "[0.9, 0.99]"]);
        assert_eq!(read("optimizer.betas=[[0.9,0.95],[0.9,0.99]]"), ["[0.9, 0.95]", "[0.9, 0.99]"]);
        assert_eq!(read("engine.devices=[0,1]"), ["[0, 1]"]);
        assert_eq!(read("model.dim=[32, 64]"), ["32", "64"]);
        assert_eq!(read("engine.placement=arena,naive"), ["\"arena\"", "\"naive\""]);
        assert_eq!(read("generation.prompt=\"a, b\""), ["\"a, b\""]);
        assert_eq!(read("generation.prompt=\"a, b\",it's"), ["\"a, b\"", "\"it's\""]);
        assert_eq!(read("data.corpus=a.txt,b.txt"), ["\"a.txt\"", "\"b.txt\""]);
        assert_eq!(read("model.n_heads=2"), ["2"]);
        assert_eq!(read("model.activation=relu2,max(x,0)^2"), ["\"relu2\"", "\"max(x, 0)^2\""]);
        assert_eq!(read("generation.prompt=:(,a"), ["\":(\"", "\"a\""]);
    }
}
