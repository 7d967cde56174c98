//! JSON as Python's `json.dumps` writes it, which is what templates expect of `tojson` in transformers: a
//! space behind each comma and colon, no escapes for HTML, characters beyond ASCII as they are.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io;

/// Most spaces of an indentation.
const MAX_INDENT: usize = 16;

/// Writes a space behind each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The filter `tojson`, with the argument `indent` and those that do not matter here.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut text = Vec::new();
    let written = match indent {
        Some(indent) if indent > MAX_INDENT => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson indents by at most {MAX_INDENT}"),
            ));
        }
        Some(indent) => {
            let spaces = " ".repeat(indent);
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, pretty))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    String::from_utf8(text).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;
    use serde_json::json;

    /// The texts are those of Python's `json.dumps(…, ensure_ascii=False)`.
    #[test]
    fn values_are_written_as_python_writes_them() {
        let value = Value::from(Serde(json!({"name": "a<b>&'é", "of": [1, 2.5, null, true], "none": {}})));
        let text = tojson(&value, Kwargs::from_iter(std::iter::empty::<(&str, Value)>())).unwrap();
        assert_eq!(text, r#"{"name": "a<b>&'é", "of": [1, 2.5, null, true], "none": {}}"#);
        let indented = tojson(&value, Kwargs::from_iter([("indent", Value::from(2))])).unwrap();
        assert!(indented.starts_with("{\n  \"name\": \"a<b>&'é\",\n  \"of\": [\n    1,\n"), "{indented}");
        assert!(tojson(&value, Kwargs::from_iter([("indent", Value::from(1000))])).is_err());
    }
}
