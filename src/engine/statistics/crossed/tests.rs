use super::*;
use crate::statistics::{deviations, effect_seen, paired_difference};

/// Makes the figure of a model that answers these items, all of one task.
fn answers(right: &[f64]) -> ModelFigure {
    ModelFigure { value: mean(right), influences: vec![deviations(right)] }
}

fn apart(items: usize) -> Vec<TaskItems> {
    vec![TaskItems { clusters: (0..items).collect(), step: 0.0 }]
}

/// A table with known mean squares: recipe A's seeds at 0.1 and -0.1 around 0.5, and so on, with a part of
/// each item.
fn table(recipe: f64, seeds: &[f64], items: &[f64], rest: &[&[f64]]) -> Vec<ModelFigure> {
    let model = |(seed, rest): (&f64, &&[f64])| {
        let values: Vec<f64> =
            items.iter().zip(*rest).map(|(item, rest)| recipe + seed + item + rest).collect();
        answers(&values)
    };
    seeds.iter().zip(rest).map(model).collect()
}

#[test]
fn one_model_a_side_has_the_paired_error_over_items() {
    let [a, b] = [[1.0, 0.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]];
    let found =
        crossed_difference([&[answers(&a)], &[answers(&b)]], &apart(6), Pairing::Independent).unwrap();
    let differences: Vec<f64> = b.iter().zip(a).map(|(b, a)| b - a).collect();
    let paired = paired_difference(&differences, 0.95).unwrap();
    assert!((found.estimate - paired.mean).abs() < 1e-15 && found.parts.seeds.is_none());
    assert!((found.interval(0.95).low - paired.interval.low).abs() < 1e-12);
    assert!((found.p() - paired.p).abs() < 1e-9, "{} {}", found.p(), paired.p);
    // Two items of a passage that always agree count as one.
    let twice = |values: &[f64]| answers(&values.iter().flat_map(|x| [*x; 2]).collect::<Vec<_>>());
    let clusters = [TaskItems { clusters: (0..6).flat_map(|cluster| [cluster; 2]).collect(), step: 0.0 }];
    let clustered =
        crossed_difference([&[twice(&a)], &[twice(&b)]], &clusters, Pairing::Independent).unwrap();
    assert!((clustered.parts.error() - found.parts.error()).abs() < 1e-12);
}

/// Of 20 items that are right or wrong, those that differ lie all on one side.
#[test]
fn few_differing_items_prove_nothing() {
    let items = [TaskItems { clusters: (0..20).collect(), step: 1.0 / 20.0 }];
    let compared = |differing: usize| {
        let right: Vec<f64> = (0..20).map(|item| f64::from(u8::from(item < differing))).collect();
        crossed_difference([&[answers(&[0.0; 20])], &[answers(&right)]], &items, Pairing::Independent)
            .unwrap()
    };
    let none = compared(0);
    assert!((none.parts.error() - 0.05).abs() < 1e-15 && none.p() == 1.0 && none.interval(0.95).high > 0.1);
    assert!(none.parts.smallest_seen(0.95, 0.8) > 0.14);
    // Exactly, six of six are less likely than 1 in 20 (1 in 32), and five of five are not.
    assert!(compared(4).p() > 0.05 && compared(6).p() < 0.05);
    let seeds = [answers(&[0.0; 20]), answers(&[0.0; 20])];
    let same = crossed_difference([&seeds, &seeds], &items, Pairing::Independent).unwrap();
    assert!((same.parts.error() - 0.05 / 2f64.sqrt()).abs() < 1e-15 && !same.interval(0.95).excludes_zero());
}

/// The parts of a table without noise of its own come out as the mean squares that it was made with.
#[test]
fn items_and_seeds_have_their_own_parts() {
    let items = [0.3, -0.3, 0.1, -0.1];
    let none: &[f64] = &[0.0; 4];
    let a = table(0.5, &[0.1, -0.1], &[0.0; 4], &[none, none]);
    let b = table(0.7, &[0.2, -0.2], &items, &[none, none]);
    let found = crossed_difference([&a, &b], &apart(4), Pairing::Independent).unwrap();
    assert!((found.estimate - 0.2).abs() < 1e-12);
    // Item × recipe: the variance of the items of the second side, over 4.
    assert!((found.parts.items.variance - variance(&items) / 4.0).abs() < 1e-12);
    // Seeds: 0.02 / 2 and 0.08 / 2, with Welch's degrees of freedom.
    let seeds = found.parts.seeds.unwrap();
    assert!((seeds.variance - 0.05).abs() < 1e-12);
    assert!((seeds.freedom - 0.05f64.powi(2) / (0.01f64.powi(2) + 0.04f64.powi(2))).abs() < 1e-9);
    // What a seed does to both sides cancels in pairs: differences of 0.1 and -0.1 around the mean.
    let paired = crossed_difference([&a, &b], &apart(4), Pairing::SameSeeds).unwrap();
    let seeds = paired.parts.seeds.unwrap();
    assert!((seeds.variance - 0.01).abs() < 1e-12 && seeds.freedom == 1.0);
    assert_eq!(paired.parts.items, found.parts.items);
    // The rest is in both and is counted once: with the same recipe on both sides, items add nothing.
    let [up, down]: [&[f64]; 2] = [&[0.2, -0.2, 0.2, -0.2], &[-0.2, 0.2, -0.2, 0.2]];
    let rest = table(0.5, &[0.1, -0.1], &items, &[up, down]);
    let same = crossed_difference([&rest, &rest], &apart(4), Pairing::Independent).unwrap();
    assert_eq!(same.parts.items.variance, 0.0);
    assert!((same.parts.seeds.unwrap().variance - 0.02).abs() < 1e-12);
}

#[test]
fn p_agrees_with_intervals_and_tasks_add_up() {
    let parts = ErrorParts {
        items: VariancePart { variance: 4e-4, freedom: 999.0 },
        seeds: Some(VariancePart { variance: 9e-4, freedom: 2.3 }),
    };
    for confidence in [0.5, 0.95, 0.9975, 1.0 - 1e-9] {
        let end = parts.reach(confidence);
        assert!((parts.p(end) / (1.0 - confidence) - 1.0).abs() < 1e-6, "{confidence} {}", parts.p(end));
    }
    assert_eq!(parts.p(0.0), 1.0);
    for freedom in [0.5, 1.0, 2.3, 50.0, 1e3, 1e6] {
        for estimate in [1e-9, 0.1, 1.0, 1e6, f64::INFINITY] {
            for items in [0.0, 1e-12, 4e-4] {
                let items = VariancePart { variance: items, freedom };
                let p = ErrorParts { items, ..parts }.p(estimate);
                assert!((0.0..=1.0).contains(&p), "{freedom} {estimate}: {p}");
            }
            let alone = ErrorParts { items: VariancePart { variance: 1e-4, freedom }, seeds: None };
            assert!((0.0..=1.0).contains(&alone.p(estimate)), "{freedom} {estimate}");
        }
    }
    let none = ErrorParts { items: VariancePart { variance: 0.0, freedom: 5.0 }, seeds: None };
    assert_eq!(
        [none.p(0.0), none.p(0.1), none.reach(0.95), none.smallest_seen(0.95, 0.8)],
        [1.0, 0.0, 0.0, 0.0]
    );
    // Two tasks: their variances add up, with one correction for few clusters each.
    let influences = [vec![0.5, -0.5], vec![0.2, -0.1, -0.1]];
    let each: f64 = influences.iter().map(|one| variance(one) / one.len() as f64).sum();
    let found = error_over_items(&influences, &[apart(2), apart(3)].concat()).unwrap();
    assert!((found.variance - each).abs() < 1e-15 && found.freedom > 1.0 && found.freedom < 3.0);
}

#[test]
fn a_set_sees_what_its_size_allows() {
    // Of one sample, what the plan of pairs says.
    let parts = |deviation: f64, n: usize| ErrorParts {
        items: VariancePart { variance: deviation * deviation / n as f64, freedom: n as f64 - 1.0 },
        seeds: None,
    };
    for n in [5, 100, 2000] {
        let seen = parts(0.5, n).smallest_seen(0.95, 0.8);
        assert!((seen / (0.5 * effect_seen(n, 0.95, 0.8).unwrap()) - 1.0).abs() < 1e-8, "{n}");
    }
    let with_seeds = |variance: f64, freedom: f64| ErrorParts {
        seeds: Some(VariancePart { variance, freedom }),
        ..parts(0.5, 2000)
    };
    let alone = parts(0.5, 2000).smallest_seen(0.95, 0.8);
    assert!((with_seeds(0.0, 2.0).smallest_seen(0.95, 0.8) - alone).abs() < 1e-9);
    let [few, many] = [2.0, 14.0].map(|freedom| with_seeds(1e-4, freedom).smallest_seen(0.95, 0.8));
    assert!(alone < many && many < few, "{alone} {many} {few}");
}

#[test]
fn what_has_no_difference_has_none() {
    let good = answers(&[1.0, 0.0, 1.0]);
    let bad = ModelFigure { value: f64::NAN, ..good.clone() };
    let nan = ModelFigure { value: 0.5, influences: vec![vec![f64::NAN, 0.0, 0.0]] };
    let short = answers(&[1.0, 0.0]);
    let two = [good.clone(), answers(&[0.0, 0.0, 1.0])];
    let one = std::slice::from_ref(&good);
    let clusters = apart(3);
    for (a, b) in [
        (&[][..], one),
        (one, &two[..]),
        (one, std::slice::from_ref(&bad)),
        (one, std::slice::from_ref(&nan)),
        (one, std::slice::from_ref(&short)),
        (&two[..], &[good.clone(), bad.clone()]),
        (&two[..], &[good.clone(), nan.clone()]),
        (&two[..], &[good.clone(), short.clone()]),
    ] {
        assert_eq!(crossed_difference([a, b], &clusters, Pairing::Independent), None, "{a:?} {b:?}");
    }
    assert_eq!(
        crossed_difference(
            [one, one],
            &[TaskItems { clusters: vec![0, 0, 0], step: 0.0 }],
            Pairing::Independent
        ),
        None,
        "one cluster"
    );
    assert_eq!(crossed_difference([one, one], &[], Pairing::Independent), None);
    let three = [good.clone(), good.clone(), good];
    assert_eq!(crossed_difference([&two, &three], &clusters, Pairing::SameSeeds), None);
    assert!(crossed_difference([&two, &three], &clusters, Pairing::Independent).is_some());
}
