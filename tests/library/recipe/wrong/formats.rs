//! Numbers that the format in which they are used would turn into others: each key of numbers with each of
//! them.

use std::collections::BTreeMap;
use xrun::machine::Machine;
use xrun::optim::GroupRole;
use xrun::recipe::{self, KEYS, Key, NumberFormat, NumberRange, Type};

/// Numbers below, at the lower end of, and beyond fp32, and the neighbours of 1 in fp64.
fn probes() -> Vec<f64> {
    let subnormal = f64::from(f32::MIN_POSITIVE) / 10.0;
    let near_one = [1e-17, 1e-12, 1e-9].into_iter().flat_map(|gap| [1.0 - gap, 1.0 + gap]);
    let tiny = [f64::MIN_POSITIVE, 1e-50, 1e-45, 1e-39, subnormal, 1e-30];
    let huge = [1e38, 1e39, 1e300, f64::MAX];
    tiny.into_iter().chain(huge).chain(near_one).chain([1.0f64.next_down(), 1.0f64.next_up()]).collect()
}

fn range(key: &Key) -> Option<(NumberRange, bool)> {
    match key.kind {
        Type::Number(range) | Type::FractionOrPaths(range) => Some((range, false)),
        Type::Pair(range) => Some((range, true)),
        _ => None,
    }
}

/// Settings that make a key's optimizer, group or table exist.
fn needed(key: &Key) -> Vec<&'static str> {
    let mut settings = Vec::new();
    if key.path.contains("momentum") {
        settings.push("optimizer.name=muon");
    }
    if key.path.contains(".positions.") {
        settings.push("model.position=learned");
    }
    settings.extend(match key.path {
        "model.rope_factor" | "model.rope_beta_fast" | "model.rope_beta_slow" => YARN,
        "model.rope_attention_factor" => YARN,
        "model.rope_low_freq_factor" | "model.rope_high_freq_factor" => LLAMA,
        _ => &[],
    });
    settings.retain(|setting| !setting.starts_with(&format!("{}=", key.path)));
    settings
}

const YARN: &[&str] =
    &["model.rope_scaling=yarn", "model.rope_factor=4.0", "model.rope_original_context=1024"];
const LLAMA: &[&str] =
    &["model.rope_scaling=llama3", "model.rope_factor=4.0", "model.rope_original_context=1024"];

/// Every number key refuses every number that would vanish, overflow, or leave its range in the format in
/// which the run uses it, wherever the number is written; and takes those that its format keeps.
#[test]
fn numbers_are_checked_in_the_format_in_which_they_are_used() {
    let mut tried: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for key in KEYS.iter() {
        let Some((range, is_pair)) = range(key) else { continue };
        for x in probes() {
            let kept = match range.used_as {
                NumberFormat::Fp64 => x,
                NumberFormat::Fp32 => {
                    let used = x as f32;
                    if used.is_normal() || used == 0.0 { f64::from(used) } else { f64::NAN }
                }
                NumberFormat::Whole { per_unit, .. } => (x * per_unit as f64).floor() / per_unit as f64,
            };
            let changes = !range.contains(kept) || (kept == 0.0 && x != 0.0);
            let value = if is_pair { format!("[{x:e}, {x:e}]") } else { format!("{x:e}") };
            let mut settings: Vec<String> = needed(key).into_iter().map(str::to_owned).collect();
            settings.push(format!("{}={value}", key.path));
            let loaded =
                recipe::load_str("r.toml".as_ref(), "", &settings, std::iter::empty(), &Machine::none());
            let names_key = |e: &xrun::Error| e.message().contains(key.path);
            let is_refused = loaded.as_ref().is_err_and(names_key);
            *tried.entry(key.path).or_default() += 1;
            if (changes || !range.contains(x)) && !is_refused {
                wrong.push(format!("{}={value} is taken: {:?}", key.path, loaded.err()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried.len() > 40 && GroupRole::ALL.len() == 5, "{tried:?}");
}

#[test]
fn values_in_sweeps_and_ranges_are_checked_too() {
    for setting in [
        "sweep.grid={ \"optimizer.eps\" = [1e-8, 1e-50] }",
        "sweep.log_range={ \"optimizer.lr\" = [1e-50, 1e-2] }",
        "sweep.pairs=[{ \"model.logit_scale\" = 1e-42 }]",
        "compare.change={ \"ema.decay\" = 0.9999999999999 }",
    ] {
        let settings = [setting.to_owned()];
        let loaded = recipe::load_str("r.toml".as_ref(), "", &settings, std::iter::empty(), &Machine::none());
        let message = loaded.expect_err(setting).message().to_owned();
        assert!(message.contains("fp32"), "{setting}: {message}");
    }
}

/// Rates are products: the smallest of a schedule must be a number in fp32 too.
#[test]
fn rates_that_vanish_are_refused() {
    for settings in [
        &["optimizer.lr=1e-30", "lr_scheduler.min_lr_ratio=1e-20"][..],
        &["optimizer.lr=1e-36", "lr_scheduler.warmup_steps=100"],
        &["optimizer.groups.matrix.lr=1e-37", "lr_scheduler.min_lr_ratio=1e-3"],
    ] {
        let overrides: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let loaded =
            recipe::load_str("r.toml".as_ref(), "", &overrides, std::iter::empty(), &Machine::none());
        let message = loaded.expect_err("a rate of 0").message().to_owned();
        assert!(message.contains("vanishes in fp32"), "{settings:?}: {message}");
    }
}
