//! Keywords and attributes of markers, and how messages name a block.

/// Opens a block.
pub const OPEN: &str = "xrun:report";
/// Opens a value in a sentence.
pub const VALUE: &str = "xrun:value";
/// Closes a block or a value.
pub const END: &str = "xrun:end";

/// The default column of a block of curves or configurations.
pub const MEASURED_COLUMN: &str = "val_loss";

/// Names and values, in the order in which they were written.
pub type Attributes = Vec<(String, String)>;

/// Returns the value of an attribute, if it is set.
pub fn get<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a str> {
    attributes.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

/// Returns the name of a block in messages, such as ``block `runs` of `quickstart` ``.
pub fn block_name(attributes: &Attributes) -> String {
    if let (None, Some(column)) = (get(attributes, "kind"), get(attributes, "column")) {
        let of = get(attributes, "select").or(get(attributes, "comparison")).unwrap_or_default();
        return format!("value `{column}` of `{of}`");
    }
    match (get(attributes, "kind"), get(attributes, "select")) {
        (Some(kind), Some(select)) => format!("block `{kind}` of `{select}`"),
        (Some(kind), None) => format!("block `{kind}`"),
        _ => "block".to_owned(),
    }
}

/// Parses `name="value"` pairs.
///
/// # Errors
/// Describes the first part that cannot be parsed.
pub fn parse(text: &str) -> Result<Attributes, String> {
    let mut found = Attributes::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let wrong = || format!("expected name=\"value\" at `{}`", rest.lines().next().unwrap_or_default());
        let (name, after) = rest.split_once('=').ok_or_else(wrong)?;
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let value = after.strip_prefix('"').filter(|_| is_name).ok_or_else(wrong)?;
        let (value, after) = value.split_once('"').ok_or_else(|| format!("`{name}` has no closing quote"))?;
        if !after.is_empty() && !after.starts_with(char::is_whitespace) {
            return Err(format!("no space after the value of `{name}`"));
        }
        if get(&found, name).is_some() {
            return Err(format!("`{name}` is given twice"));
        }
        found.push((name.to_owned(), value.to_owned()));
        rest = after.trim_start();
    }
    Ok(found)
}
