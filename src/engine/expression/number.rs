//! The numbers that a formula may contain: those in the range of fp32, in which kernels compute.

/// Returns what is wrong with a number, if it is not finite or outside the range of fp32.
pub(crate) fn range_error(value: f64) -> Option<&'static str> {
    let size = value.abs();
    if value.is_nan() {
        Some("is not a number")
    } else if size > f64::from(f32::MAX) {
        Some("is beyond the numbers of fp32, which end at 3.4e38")
    } else if size > 0.0 && size < f64::from(f32::MIN_POSITIVE) {
        Some("is below the numbers of fp32, which begin at 1.2e-38")
    } else {
        None
    }
}

/// Writes a number, without a sign if it is positive. Parsing the text gives the same number.
pub(crate) fn text(value: f64) -> String {
    const LONGEST_PLAIN: usize = 8;
    let (plain, scientific) = (format!("{value}"), format!("{value:e}"));
    if plain.len() <= LONGEST_PLAIN.max(scientific.len()) { plain } else { scientific }
}
