//! The rates of dropout that can be drawn.

/// Number of dropout rates in 0..1: an element is dropped by 16 random bits, so a rate is rounded to a
/// multiple of 1/65536.
pub const DROPOUT_RATES: f64 = 65_536.0;

/// The most that this rounding may change the share of dropped or of kept elements, relative to that share.
const DROPOUT_ROUNDING: f64 = 0.1;

/// Returns the rate that `rate` would be rounded to, if it is clearly different. Near 0 and 1 that is another
/// rate, dropping nothing, or dropping everything.
pub fn rounded_dropout(rate: f64) -> Option<f64> {
    let rounded = (rate * DROPOUT_RATES).round() / DROPOUT_RATES;
    let kept = (1.0 - rounded) / (1.0 - rate) - 1.0;
    let dropped = if rate > 0.0 { rounded / rate - 1.0 } else { 0.0 };
    (kept.abs().max(dropped.abs()) > DROPOUT_ROUNDING).then_some(rounded)
}
