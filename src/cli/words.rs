//! Words of a command line, before they are parsed: settings with dashes, and the first that is no option.

use std::ffi::OsString;

/// `--a.b=c` and `--a.b c` as `a.b=c`; anything else as it is.
pub(super) fn without_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments.into_iter().peekable();
    let mut spelled = Vec::new();
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().and_then(|text| text.strip_prefix("--")).unwrap_or_default();
        let key = text.split_once('=').map_or(text, |(key, _)| key);
        let is_key = key.contains('.') && !key.contains(char::is_whitespace);
        spelled.push(match arguments.peek() {
            _ if !is_key => argument,
            _ if key.len() < text.len() => text.into(),
            Some(value) if !value.to_string_lossy().starts_with("--") => {
                let mut assignment = OsString::from(format!("{text}="));
                assignment.push(value);
                arguments.next();
                assignment
            }
            _ => argument,
        });
    }
    spelled
}

/// Returns the index of the first argument that is neither an option nor an option's value.
pub(super) fn first_word(arguments: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(argument) = arguments.get(at) {
        let text = argument.to_string_lossy();
        if ["--results", "--seed"].contains(&text.as_ref()) {
            at += 1;
        } else if !text.starts_with('-') {
            return Some(at);
        }
        at += 1;
    }
    None
}
