//! The mode of recomputation that `"auto"` stands for.

use crate::plan::{corpus, device};
use xrun::forecast::Planned;
use xrun::forecast::memory::peak_bytes;
use xrun::machine::Machine;
use xrun::policy::Recompute;
use xrun::recipe::{self, Recipe};

fn named(name: &str, settings: &[&str]) -> Recipe {
    let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
    recipe::load(name.as_ref(), &settings, std::iter::empty(), &Machine::none()).unwrap()
}

fn recipe(settings: &[&str]) -> Recipe {
    named("v8-dim1024", settings)
}

fn planned(settings: &[&str], machine: &Machine) -> Planned {
    Planned::new(&recipe(settings), &corpus(50_257), machine).unwrap()
}

fn mode(settings: &[&str], machine: &Machine) -> Recompute {
    planned(settings, machine).plan.execution.recompute
}

/// The memory of a rank with a mode, in GiB.
fn gib(mode: &str) -> f64 {
    let planned = planned(&[&format!("activation_checkpoint.mode={mode}")], &device("h200"));
    peak_bytes(&planned.plan, &planned.programs) as f64 / f64::from(1 << 30)
}

#[test]
fn nothing_is_recomputed_where_memory_is_ample() {
    let found = planned(&[], &device("h200"));
    assert_eq!(found.plan.execution.recompute, Recompute::None);
    let choice = found.plan.execution.recompute_choice.as_ref().unwrap();
    assert_eq!(choice.modes[0].peak_bytes, peak_bytes(&found.plan, &found.programs));
    assert_eq!(choice.modes.len(), Recompute::ALL.len());
    assert!(choice.modes[1..].iter().all(|other| other.seconds > choice.modes[0].seconds * 1.01));
}

#[test]
fn what_gradients_emit_is_dropped_where_that_costs_less_than_a_hundredth() {
    let of = |name: &str| Planned::new(&named(name, &[]), &corpus(50_257), &device("h200")).unwrap();
    let chosen = |name: &str| of(name).plan.execution.recompute;
    assert_eq!(chosen("qwen3-0.6b-shape"), Recompute::Emitted);
    assert_eq!(chosen("dim768"), Recompute::None);
}

#[test]
fn the_fastest_that_fits_the_limit_is_taken() {
    let (none, emitted, selective, full) = (gib("none"), gib("emitted"), gib("selective"), gib("full"));
    assert!(none > emitted && emitted > selective && selective > full);
    let within = |gib: f64| mode(&[&format!("engine.memory_limit_gib={gib}")], &device("h200"));
    assert_eq!(within(none + 0.01), Recompute::None);
    assert_eq!(within(none - 0.01), Recompute::Emitted);
    assert_eq!(within(emitted + 0.01), Recompute::Emitted);
    assert_eq!(within(emitted - 0.01), Recompute::Selective);
    assert_eq!(within(selective + 0.01), Recompute::Selective);
    assert_eq!(within(selective - 0.01), Recompute::Full);
    // It does not fit, and the refusal names the least that it needs.
    assert_eq!(within(full - 0.01), Recompute::Full);
}

#[test]
fn a_small_gpu_recomputes() {
    let large = ["training.local_batch_size=160"];
    assert_eq!(mode(&large, &device("h200")), Recompute::None);
    assert_eq!(mode(&large, &device("rtx4090")), Recompute::Selective);
}

#[test]
fn ranks_of_one_computer_share_its_memory() {
    let total = gib("none") * f64::from(1 << 30);
    let host = |ranks: usize| Machine {
        memory_bytes: Some((2.2 * total) as u64),
        local_ranks: Some(ranks),
        ..Machine::none()
    };
    assert_ne!(mode(&[], &host(1)), Recompute::Full);
    assert_eq!(mode(&[], &host(2)), Recompute::Full);
}

#[test]
fn the_hash_is_that_of_the_recipe_that_fixes_the_mode() {
    let auto = planned(&[], &device("h200")).recipe;
    let fixed = |mode: &str| recipe(&[&format!("activation_checkpoint.mode={mode}")]);
    assert_eq!(auto.hash(), fixed("none").hash());
    assert_eq!(auto.to_toml(), fixed("none").to_toml());
    assert_ne!(auto.hash(), fixed("selective").hash());
    assert_eq!(fixed("full").with_recompute(Recompute::None).hash(), fixed("full").hash());
    let further = ["training.steps=7".to_owned()];
    let changed = recipe(&["activation_checkpoint.mode=none", "training.steps=7"]);
    assert_eq!(auto.hash_with(&further).unwrap(), changed.hash());
}
