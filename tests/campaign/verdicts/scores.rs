//! Scores of tasks: items that are right or wrong, in models of several seeds.
//!
//! An item is right with the probability of the item, plus what suits the recipe in it, plus the effect of
//! the seed, so the true difference of two recipes is known exactly.

use super::{CONFIDENCE, least, most, trials};
use crate::runner::long;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::f64::consts::{SQRT_2, TAU};
use xrun::statistics::{
    ErrorParts, ModelFigure, Pairing, TaskItems, VariancePart, bonferroni, crossed_difference, deviations,
    mean,
};

/// Items of a task, and of one in which a planned difference is looked for: it must not reach probabilities
/// of 0 or 1.
const ITEMS: usize = 200;
const MANY_ITEMS: usize = 2000;

/// The deviations of seeds in units of the items' error, both of the difference of two models.
const SEED_EFFECTS: [f64; 4] = [0.0, 1.0, 2.0, 4.0];
const SEEDS: [usize; 4] = [2, 3, 4, 8];
/// How far what suits a recipe moves an item's probability, at most.
const SUITS: [f64; 2] = [0.0, 0.15];
const POWER: f64 = 0.8;

/// The probabilities of items lie from here to 1 less this.
const HARDEST: f64 = 0.2;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct Setting {
    items: usize,
    seeds: usize,
    seed_effect: f64,
    suits: f64,
    difference: f64,
}

struct Simulation {
    rng: ChaCha8Rng,
}

impl Simulation {
    fn uniform(&mut self) -> f64 {
        (f64::from(self.rng.next_u32()) + 0.5) / f64::from(u32::MAX)
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos()
    }

    /// Draws the effects of the seeds of both sides.
    fn effects(&mut self, setting: &Setting) -> [Vec<f64>; 2] {
        let deviation = setting.seed_effect * items_error(setting.items) / SQRT_2;
        [0, 1].map(|_| (0..setting.seeds).map(|_| deviation * self.normal()).collect())
    }

    /// Draws a task's items, and returns the figures of both sides.
    fn task(&mut self, setting: &Setting, effects: &[Vec<f64>; 2]) -> [Vec<ModelFigure>; 2] {
        let items: Vec<f64> =
            (0..setting.items).map(|_| HARDEST + (1.0 - 2.0 * HARDEST) * self.uniform()).collect();
        [0, 1].map(|side| {
            let suits: Vec<f64> =
                (0..setting.items).map(|_| setting.suits * (2.0 * self.uniform() - 1.0)).collect();
            let shift = if side == 1 { setting.difference } else { 0.0 };
            let model = |effect: &f64| {
                let right = items
                    .iter()
                    .zip(&suits)
                    .map(|(item, suits)| f64::from(u8::from(self.uniform() < item + suits + shift + effect)));
                figure(&right.collect::<Vec<f64>>())
            };
            effects[side].iter().map(model).collect()
        })
    }
}

/// Returns the items of tasks whose mean is judged.
fn items(count: usize, tasks: usize) -> Vec<TaskItems> {
    let step = 1.0 / (count * tasks) as f64;
    vec![TaskItems { clusters: (0..count).collect(), step }; tasks]
}

fn figure(right: &[f64]) -> ModelFigure {
    ModelFigure { value: mean(right), influences: vec![deviations(right)] }
}

/// The variance of an item around its probability: the mean of p (1 - p).
fn rest() -> f64 {
    let half = 0.5 - HARDEST;
    0.25 - half * half / 3.0
}

/// The standard error over items of the difference of two models.
fn items_error(items: usize) -> f64 {
    (2.0 * rest() / items as f64).sqrt()
}

/// The true variances of a difference.
fn truth(setting: &Setting) -> ErrorParts {
    let Setting { items, seeds, seed_effect, suits, .. } = *setting;
    let count = items as f64;
    let one_model = seed_effect * seed_effect * items_error(items).powi(2) / 2.0 + rest() / count;
    ErrorParts {
        items: VariancePart { variance: 2.0 * suits * suits / 3.0 / count, freedom: count - 1.0 },
        seeds: Some(VariancePart {
            variance: 2.0 * one_model / seeds as f64,
            freedom: 2.0 * (seeds as f64 - 1.0),
        }),
    }
}

/// How often something was claimed, and how often an interval contained the truth.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Sets in which any task was called better or worse.
    claimed: usize,
    /// Sets whose intervals all contain the truth.
    covered: usize,
}

fn simulate(setting: &Setting, tasks: usize, seed: u64) -> Counts {
    let mut simulation = Simulation { rng: ChaCha8Rng::seed_from_u64(seed) };
    let tasks_items = items(setting.items, 1);
    let confidence = bonferroni(CONFIDENCE, tasks);
    let mut counts = Counts::default();
    for _ in 0..trials() {
        let (mut claimed, mut covered) = (false, true);
        for _ in 0..tasks {
            let effects = simulation.effects(setting);
            let [a, b] = simulation.task(setting, &effects);
            let found = crossed_difference([&a, &b], &tasks_items, Pairing::Independent).unwrap();
            let interval = found.interval(confidence);
            claimed |= interval.excludes_zero();
            covered &= interval.low <= setting.difference && setting.difference <= interval.high;
        }
        counts.claimed += usize::from(claimed);
        counts.covered += usize::from(covered);
    }
    counts
}

fn percent(count: usize) -> f64 {
    100.0 * count as f64 / trials() as f64
}

/// Each setting, or the first of a small campaign.
fn settings() -> Vec<Setting> {
    let all = SUITS.iter().flat_map(|&suits| {
        let seeds = SEEDS.iter();
        seeds.flat_map(move |&seeds| {
            SEED_EFFECTS.map(|seed_effect| Setting {
                items: ITEMS,
                seeds,
                seed_effect,
                suits,
                difference: 0.0,
            })
        })
    });
    match long() {
        Some(_) => all.collect(),
        None => vec![Setting { items: ITEMS, seeds: 4, seed_effect: 2.0, suits: 0.15, difference: 0.0 }],
    }
}

/// Of one task and of 20 together, a recipe that is compared with itself is called different in at most one
/// of twenty sets, and planned differences are found.
#[test]
fn seeds_as_units_err_as_seldom_as_they_say() {
    println!(
        "seeds  effect  suits | 1 task: errs, covers | 20 tasks: errs, cover | planned for 80 %: difference, found"
    );
    for (k, setting) in settings().iter().enumerate() {
        let one = simulate(setting, 1, 100 + k as u64);
        let set = if long().is_some() { 20 } else { 3 };
        let many = simulate(setting, set, 200 + k as u64);
        let large = Setting { items: MANY_ITEMS, suits: setting.suits / 3.0, ..*setting };
        let difference = truth(&large).smallest_planned(CONFIDENCE, POWER);
        let two_deviations = SQRT_2 * setting.seed_effect * items_error(MANY_ITEMS);
        let fits = difference + two_deviations + large.suits < HARDEST;
        let found = fits.then(|| simulate(&Setting { difference, ..large }, 1, 300 + k as u64));
        let Setting { seeds, seed_effect, suits, .. } = setting;
        println!(
            "{seeds:5} {seed_effect:7} {suits:6} | {:.2} {:.2} | {:.2} {:.2} | {difference:.4} {}",
            percent(one.claimed),
            percent(one.covered),
            percent(many.claimed),
            percent(many.covered),
            found.map_or_else(String::new, |found| format!(
                "{:.2} {:.2}",
                percent(found.claimed),
                percent(found.covered)
            ))
        );
        for counts in [one, many] {
            assert!(counts.claimed <= most(0.05), "{setting:?}: {counts:?}");
            assert!(counts.covered >= least(0.95), "{setting:?}: {counts:?}");
        }
        if let Some(found) = found {
            assert!(found.claimed >= least(0.78), "{setting:?}: {found:?}");
        }
    }
}

/// With one model a side the interval is right about these two models. About their recipes it errs, and the
/// more so, the more seeds vary.
#[test]
fn items_alone_speak_of_two_models() {
    println!("effect | errs about recipes, about these models");
    let tasks_items = items(ITEMS, 1);
    let effects = if long().is_some() { &SEED_EFFECTS[..] } else { &SEED_EFFECTS[1..2] };
    for (k, &seed_effect) in effects.iter().enumerate() {
        let setting = Setting { items: ITEMS, seeds: 1, seed_effect, suits: 0.0, difference: 0.0 };
        let mut simulation = Simulation { rng: ChaCha8Rng::seed_from_u64(400 + k as u64) };
        let (mut recipes, mut models) = (0, 0);
        for _ in 0..trials() {
            let effects = simulation.effects(&setting);
            let [a, b] = simulation.task(&setting, &effects);
            let found = crossed_difference([&a, &b], &tasks_items, Pairing::Independent).unwrap();
            let interval = found.interval(CONFIDENCE);
            let truth = effects[1][0] - effects[0][0];
            recipes += usize::from(interval.excludes_zero());
            models += usize::from(truth < interval.low || truth > interval.high);
        }
        println!("{seed_effect:6} | {:.2} {:.2}", percent(recipes), percent(models));
        // A sum of a normal effect and a normal error, judged by the error: P(|Z| > 1.96 / √(1 + effect²)).
        let expected = [0.05, 0.1658, 0.3808, 0.6345][if long().is_some() { k } else { 1 }];
        assert!((least(expected)..=most(expected)).contains(&recipes), "{seed_effect}: {recipes}");
        // Clipping at 0 and 1 shortens effects of more than 2 deviations.
        assert!(models <= most(0.06), "{seed_effect}: {models}");
    }
}

/// The mean of tasks that share the effects of their seeds.
#[test]
fn the_error_of_a_mean_is_joint_over_tasks() {
    const TASKS: usize = 5;
    println!("seeds  effect | mean of {TASKS} tasks: errs");
    let tasks_items = items(ITEMS, TASKS);
    for (k, setting) in settings().iter().filter(|setting| setting.suits > 0.0).enumerate() {
        let mut simulation = Simulation { rng: ChaCha8Rng::seed_from_u64(500 + k as u64) };
        let mut claimed = 0;
        for _ in 0..trials() {
            let effects = simulation.effects(setting);
            let tasks: Vec<[Vec<ModelFigure>; 2]> =
                (0..TASKS).map(|_| simulation.task(setting, &effects)).collect();
            let sides = [0, 1].map(|side| {
                let tasks_of_seed = |seed: usize| tasks.iter().map(move |task| &task[side][seed]);
                (0..setting.seeds).map(|seed| mean_of(tasks_of_seed(seed))).collect::<Vec<ModelFigure>>()
            });
            let found =
                crossed_difference([&sides[0], &sides[1]], &tasks_items, Pairing::Independent).unwrap();
            claimed += usize::from(found.interval(CONFIDENCE).excludes_zero());
        }
        println!("{:5} {:7} | {:.2}", setting.seeds, setting.seed_effect, percent(claimed));
        assert!(claimed <= most(0.05), "{setting:?}: {claimed}");
    }
}

fn mean_of<'a>(tasks: impl Iterator<Item = &'a ModelFigure> + Clone) -> ModelFigure {
    let count = tasks.clone().count() as f64;
    let scaled = |one: &ModelFigure| one.influences[0].iter().map(|influence| influence / count).collect();
    ModelFigure {
        value: tasks.clone().map(|one| one.value).sum::<f64>() / count,
        influences: tasks.map(scaled).collect(),
    }
}
