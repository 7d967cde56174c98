//! Numbers as JSON, which cannot hold values that are not finite.

use serde_json::Value;

/// Returns a JSON number, or a text if the value is not finite.
pub fn number(value: f64) -> Value {
    match value {
        value if value.is_nan() => "NaN".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        value => value.into(),
    }
}

/// Returns a number of a row with the digits of its file. A value that was an f32 gets the shortest digits of
/// that f32.
pub fn row_number(value: f64) -> Value {
    let narrow = value as f32;
    match f64::from(narrow) == value {
        true => number(narrow.to_string().parse().unwrap_or(value)),
        false => number(value),
    }
}

/// Returns a number, or `null` for `None`.
pub fn or_null(value: Option<f64>) -> Value {
    value.map_or(Value::Null, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits_and_what_they_are() {
        let shown = |value: f64| row_number(value).to_string();
        assert_eq!(
            (shown(f64::from(2.3f32)), shown(2.3), shown(0.001)),
            ("2.3".into(), "2.3".into(), "0.001".into())
        );
        assert_eq!((shown(1e10), shown(f64::NAN)), ("10000000000.0".into(), "\"NaN\"".into()));
        assert_eq!([f64::INFINITY, f64::NEG_INFINITY].map(number), ["inf", "-inf"].map(Value::from));
        assert_eq!((or_null(None), or_null(Some(-0.5))), (Value::Null, (-0.5).into()));
    }
}
