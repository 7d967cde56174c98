//! Settings as people write them on command lines.

use std::ffi::OsString;

/// Rewrites `--a.b=c` and `--a.b c` in a command line as `a.b=c`, and leaves everything else as it is.
pub fn without_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
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
