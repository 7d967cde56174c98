//! Draws the samples of a sweep: points from the ranges of `[sweep]`.

use super::arguments::Axis;
use super::sobol::{COORDINATES, Coordinate, fraction};
use crate::error::Result;
use crate::format::plural;
use crate::policy::Sampler;
use crate::recipe::{RangeScale, Recipe, Type, find_path, value_text};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Significant digits of a sampled number: enough to tell samples apart, few enough to read.
const DIGITS: usize = 4;

/// The drawn points.
#[derive(Debug, Default)]
pub struct Samples {
    /// The keys, in the order of their ranges, and the points; no key if nothing is drawn.
    pub axis: Axis,
    /// A note for the user.
    pub note: Option<String>,
}

/// The range of a key.
#[derive(Debug)]
struct KeyRange {
    key: String,
    low: f64,
    high: f64,
    scale: RangeScale,
    is_whole: bool,
}

impl KeyRange {
    /// Returns the value at a fraction of the range, as TOML.
    fn value(&self, fraction: f64) -> String {
        // Extend whole numbers by half a unit at both ends, so that each has the same share.
        let margin = if self.is_whole { 0.5 } else { 0.0 };
        let (low, high) = (self.low - margin, self.high + margin);
        let value = match self.scale {
            RangeScale::Linear => low + fraction * (high - low),
            RangeScale::Log => low * (high / low).powf(fraction),
        };
        if self.is_whole {
            // Adding 0.0 avoids a negative zero.
            return format!("{:.0}", value.round().clamp(self.low, self.high) + 0.0);
        }
        let rounded: f64 = format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value);
        value_text(&toml::Value::Float(rounded.clamp(self.low, self.high)))
    }
}

/// Draws the samples of a recipe. Keys that are `set` otherwise are left out; the other keys get the same
/// values as if those were included.
///
/// # Errors
/// If there are ranges but no samples, samples but no ranges, or more ranges than the sampler has
/// coordinates.
pub fn draw(base: &Recipe, set: impl Fn(&str) -> bool) -> Result<Samples> {
    let sweep = &base.values().sweep;
    let ranges: Vec<KeyRange> = [(&sweep.range, RangeScale::Linear), (&sweep.log_range, RangeScale::Log)]
        .into_iter()
        .flat_map(|(table, scale)| table.iter().filter_map(move |(key, ends)| range(key, ends, scale)))
        .collect();
    let ranged = if sweep.range.is_empty() { "sweep.log_range" } else { "sweep.range" };
    match (ranges.is_empty(), sweep.samples) {
        (true, 0) => return Ok(Samples::default()),
        (true, samples) => {
            return Err(base.error(
                &["sweep.samples"],
                format!("{samples} samples but no range to draw from"),
                "give a key its ends in sweep.range or sweep.log_range, or leave sweep.samples out",
            ));
        }
        (false, 0) => {
            return Err(base.error(
                &[ranged],
                "ranges are given but no sample is drawn",
                format!("set sweep.samples, or leave {ranged} out with {ranged}={{}}"),
            ));
        }
        (false, _) => {}
    }
    if ranges.len() > COORDINATES && sweep.sampler == Sampler::Sobol {
        return Err(base.error(
            &[ranged, "sweep.sampler"],
            format!("{} ranges, but the Sobol sequence has {COORDINATES} coordinates", ranges.len()),
            "set sweep.sampler = \"random\", or give fewer ranges",
        ));
    }
    let kept: Vec<usize> = (0..ranges.len()).filter(|&at| !set(&ranges[at].key)).collect();
    if kept.is_empty() {
        return Ok(Samples::default());
    }
    let keys = kept.iter().map(|&at| ranges[at].key.clone()).collect();
    let point = |fractions: Vec<f64>| kept.iter().map(|&at| ranges[at].value(fractions[at])).collect();
    let fractions = fractions(sweep.sampler, sweep.seed, sweep.samples, ranges.len());
    let axis = Axis::new(keys, fractions.into_iter().map(point));
    let different = axis.points.len();
    let note = (different < sweep.samples).then(|| {
        format!(
            "{} samples are {different} different point{}: values are whole numbers, or have {DIGITS} digits",
            sweep.samples,
            plural(different)
        )
    });
    Ok(Samples { axis, note })
}

/// Returns the range of a key; `None` if the recipe's check let something else through.
fn range(key: &str, ends: &toml::Value, scale: RangeScale) -> Option<KeyRange> {
    let is_whole = matches!(find_path(key)?.kind, Type::Count { .. });
    let number = |end: &toml::Value| end.as_float().or_else(|| end.as_integer().map(|n| n as f64));
    let [low, high] = ends.as_array()?.as_slice() else { return None };
    Some(KeyRange { key: key.to_owned(), low: number(low)?, high: number(high)?, scale, is_whole })
}

/// Returns `count` points of the unit cube, with every coordinate above 0 and below 1.
fn fractions(sampler: Sampler, seed: u64, count: usize, coordinates: usize) -> Vec<Vec<f64>> {
    match sampler {
        Sampler::Random => {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            (0..count).map(|_| (0..coordinates).map(|_| fraction(rng.next_u32())).collect()).collect()
        }
        Sampler::Sobol => {
            let all: Vec<Coordinate> =
                (0..coordinates).filter_map(|index| Coordinate::new(index, seed)).collect();
            (0..count as u32).map(|point| all.iter().map(|one| one.value(point)).collect()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::recipe;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn load(sweep: &str) -> Result<Recipe> {
        let text = format!("[sweep]\n{sweep}");
        recipe::load_str(Path::new("r.toml"), &text, &[], std::iter::empty(), &Machine::none())
    }

    fn drawn(sweep: &str) -> Samples {
        draw(&load(sweep).unwrap(), |_| false).unwrap()
    }

    fn numbers(samples: &Samples, at: usize) -> Vec<f64> {
        samples.axis.points.iter().map(|point| point[at].parse().unwrap()).collect()
    }

    const BOTH: &str = "range = { \"lr_scheduler.warmup_steps\" = [0, 200] }\n\
                        log_range = { \"optimizer.lr\" = [1e-4, 1e-2] }\nsamples = 64\n";

    #[test]
    fn sobol_samples_fill_a_linear_and_a_logarithmic_range() {
        let samples = drawn(BOTH);
        assert_eq!(samples.axis.keys, ["lr_scheduler.warmup_steps", "optimizer.lr"]);
        assert_eq!((samples.axis.points.len(), &samples.note), (64, &None));
        let [warmup, rates] = [0, 1].map(|at| numbers(&samples, at));
        assert!(warmup.iter().all(|&steps| steps.fract() == 0.0 && (0.0..=200.0).contains(&steps)));
        // Each decade has half of the rates, and each quarter of the range a quarter of the steps.
        let below = |values: &[f64], end: f64| values.iter().filter(|&&value| value < end).count();
        assert_eq!((below(&rates, 1e-3), below(&rates, 1e-2)), (32, 64));
        assert!(rates.iter().all(|&rate| rate >= 1e-4));
        assert!(below(&warmup, 50.25).abs_diff(16) <= 1, "{warmup:?}");
        for point in &samples.axis.points {
            let digits = point[1].trim_start_matches(['0', '.']).split('e').next().unwrap_or_default();
            assert!(digits.chars().filter(char::is_ascii_digit).count() <= DIGITS, "{point:?}");
        }
    }

    #[test]
    fn random_samples_depend_on_their_seed_alone() {
        let random = |seed: u64| drawn(&format!("{BOTH}sampler = \"random\"\nseed = {seed}")).axis.points;
        assert_eq!(random(1), random(1));
        assert_ne!(random(1), random(2));
        assert_ne!(random(1), drawn(&format!("{BOTH}seed = 1")).axis.points);
        // A larger number of samples begins with the same ones.
        let fewer = BOTH.replace("64", "10");
        assert_eq!(drawn(&fewer).axis.points, drawn(BOTH).axis.points[..10]);
    }

    #[test]
    fn whole_numbers_have_equal_shares_and_repeat_with_a_note() {
        let four = "range = { \"model.n_layers\" = [1, 4] }\nsampler = \"random\"\nsamples = 2000";
        let samples = drawn(four);
        let mut points: Vec<&str> = samples.axis.points.iter().map(|point| point[0].as_str()).collect();
        points.sort_unstable();
        assert_eq!(points, ["1", "2", "3", "4"]);
        let note = samples.note.unwrap();
        assert!(note.starts_with("2000 samples are 4 different points"), "{note}");
        let layers =
            KeyRange { key: String::new(), low: 1.0, high: 4.0, scale: RangeScale::Linear, is_whole: true };
        let mut shares: BTreeMap<String, usize> = BTreeMap::new();
        for at in 0..1000 {
            *shares.entry(layers.value((at as f64 + 0.5) / 1000.0)).or_default() += 1;
        }
        assert_eq!(shares.into_values().collect::<Vec<_>>(), [250; 4]);
        assert_eq!(KeyRange { low: 0.0, ..layers }.value(0.01), "0");
    }

    #[test]
    fn ends_stay_within_their_range() {
        let at = |low: f64, high: f64, fraction: f64| {
            let range = KeyRange { key: String::new(), low, high, scale: RangeScale::Log, is_whole: false };
            range.value(fraction)
        };
        // Rounding to four digits would move them out of the range.
        assert_eq!(at(0.123456, 0.2, 1e-9), "0.1235");
        assert_eq!(at(0.123449, 0.2, 1e-9), "0.123449");
        assert_eq!(at(1e-5, 2.00006e-5, 1.0 - 1e-12), "2e-5");
        assert_eq!(at(1e-5, 1.99996e-5, 1.0 - 1e-12), "1.99996e-5");
    }

    #[test]
    fn a_key_that_is_set_leaves_the_others_as_they_were() {
        let base = load(BOTH).unwrap();
        let all = drawn(BOTH);
        let some = draw(&base, |key| key == "lr_scheduler.warmup_steps").unwrap();
        assert_eq!(some.axis.keys, ["optimizer.lr"]);
        let rates: Vec<String> = all.axis.points.iter().map(|point| point[1].clone()).collect();
        assert_eq!(some.axis.points.concat(), rates);
        assert!(draw(&base, |_| true).unwrap().axis.points.is_empty());
    }

    #[test]
    fn ranges_and_samples_need_each_other() {
        let refused = |sweep: &str| draw(&load(sweep).unwrap(), |_| false).unwrap_err().message().to_owned();
        let none = refused("samples = 3");
        assert!(none.contains("3 samples but no range") && none.contains("r.toml:2"), "{none}");
        let ranges = refused("log_range = { \"optimizer.lr\" = [1e-4, 1e-2] }");
        assert!(ranges.contains("no sample is drawn") && ranges.contains("r.toml:2"), "{ranges}");
        assert!(draw(&load("").unwrap(), |_| false).unwrap().axis.points.is_empty());
    }

    #[test]
    fn wrong_ranges_are_refused_where_they_stand() {
        let refused = |sweep: &str| load(sweep).unwrap_err().message().to_owned();
        for (sweep, says) in [
            ("range = { \"optimizer.lr\" = [1e-2, 1e-4] }", "write [0.0001, 0.01]"),
            ("range = { \"optimizer.lr\" = [1e-2, 1e-2] }", "both ends are the same"),
            ("range = { \"optimizer.lr\" = [nan, 1e-2] }", "not a finite number"),
            ("range = { \"optimizer.lr\" = [1e-2] }", "a list of 1"),
            ("range = { \"optimizer.lr\" = 1e-2 }", "has two ends"),
            ("range = { \"model.n_layers\" = [1.5, 4] }", "not a whole number"),
            ("log_range = { \"lr_scheduler.warmup_steps\" = [0, 200] }", "begin above 0"),
            ("log_range = { \"optimizer.lr\" = [-1e-4, 1e-2] }", "optimizer.lr cannot be"),
            ("range = { \"optimizer.lrr\" = [1e-4, 1e-2] }", "did you mean \"optimizer.lr\"?"),
            ("range = { \"model.norm\" = [1, 2] }", "list its values in sweep.grid"),
            ("range = { \"sweep.seed\" = [1, 2] }", "does not change a run"),
        ] {
            let text = refused(sweep);
            assert!(
                text.contains(says) && text.contains("r.toml:2") && text.contains('^'),
                "{sweep}: {text}"
            );
        }
        let twice = refused(
            "range = { \"optimizer.lr\" = [1e-3, 1e-2] }\nlog_range = { \"optimizer.lr\" = [1e-4, 1e-2] }\n\
             grid = { \"optimizer.lr\" = [1.0] }\npairs = [{ \"optimizer.lr\" = 1.0 }]",
        );
        for other in ["sweep.grid", "sweep.pairs", "sweep.log_range"] {
            assert!(twice.contains(&format!("is in sweep.range and in {other}")), "{other}: {twice}");
        }
        let seeds = refused("seeds = 2\ngrid = { \"training.seed\" = [1, 2] }");
        assert!(seeds.contains("training.seed is in sweep.grid"), "{seeds}");
    }
}
