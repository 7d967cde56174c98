//! Numbers as JSON, which has none that are not finite.

use serde_json::Value;

/// Returns a number; one that is not finite is a text.
pub fn number(value: f64) -> Value {
    match value {
        value if value.is_nan() => "NaN".into(),
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        value => value.into(),
    }
}

/// Returns a number of a row with the digits that its file has: one that was an f32 with the shortest digits
/// of that.
pub fn number_of_row(value: f64) -> Value {
    let narrow = value as f32;
    match f64::from(narrow) == value {
        true => number(narrow.to_string().parse().unwrap_or(value)),
        false => number(value),
    }
}

/// Returns a number, `null` where there is none.
pub fn or_null(value: Option<f64>) -> Value {
    value.map_or(Value::Null, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_digits_and_what_they_are() {
        let shown = |value: f64| number_of_row(value).to_string();
        assert_eq!(
            (shown(f64::from(2.3f32)), shown(2.3), shown(0.001)),
            ("2.3".into(), "2.3".into(), "0.001".into())
        );
        assert_eq!((shown(1e10), shown(f64::NAN)), ("10000000000.0".into(), "\"NaN\"".into()));
        assert_eq!([f64::INFINITY, f64::NEG_INFINITY].map(number), ["inf", "-inf"].map(Value::from));
        assert_eq!((or_null(None), or_null(Some(-0.5))), (Value::Null, (-0.5).into()));
    }
}
