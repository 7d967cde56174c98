//! The target of a request: the decoded segments of its path and parameters of its query.

/// The parameters of a query: names and values.
pub type Parameters = Vec<(String, String)>;

/// Splits a target such as `/api/run/a%20b?x=1` into decoded segments and parameters. Returns `None` if it is
/// not a path, or its escapes are not UTF-8.
pub fn parse(target: &str) -> Option<(Vec<String>, Parameters)> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let segments = path.strip_prefix('/')?.split('/').map(|segment| decoded(segment, false));
    let parameter = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decoded(name, true)?, decoded(value, true)?))
    };
    let parameters = query.split('&').filter(|pair| !pair.is_empty()).map(parameter);
    Some((segments.collect::<Option<_>>()?, parameters.collect::<Option<_>>()?))
}

/// Decodes `%XX`, and in a query `+` as a space.
fn decoded(text: &str, is_query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            b'+' if is_query => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_decoded_once() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (path, query) = parse("/api/run/a%20b+c/%3Cscript%3E?x=1+2&y=%252e&z").unwrap();
        assert_eq!(path, words(&["api", "run", "a b+c", "<script>"]));
        let pairs: Vec<(&str, &str)> = query.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(pairs, [("x", "1 2"), ("y", "%2e"), ("z", "")]);
        assert_eq!(parse("/").unwrap().0, [""]);
        // An escaped slash separates nothing.
        assert_eq!(parse("/a%2Fb/..%2f").unwrap().0, words(&["a/b", "../"]));
        for wrong in ["", "http://evil.test/", "*", "/%", "/%4", "/%zz", "/%ff", "/?a=%c3"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
