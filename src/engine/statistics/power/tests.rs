//! Tests power and numbers of pairs against published and independently computed values.

use super::*;

/// n for the two-sided one-sample t test: R's `power.t.test(type = "paired")`, G*Power and Cohen,
/// "Statistical Power Analysis for the Behavioral Sciences", 1988.
#[test]
fn planned_pairs_are_the_published_ones() {
    let table = [
        (0.5, 0.95, 0.9, 44),
        (1.0, 0.95, 0.9, 13),
        (2.0, 0.95, 0.9, 5),
        (0.2, 0.95, 0.9, 265),
        (0.2, 0.95, 0.8, 199),
        (0.5, 0.95, 0.8, 34),
        (0.8, 0.95, 0.8, 15),
        (0.5, 0.99, 0.9, 63),
    ];
    for (effect, confidence, power, pairs) in table {
        assert_eq!(pairs_to_see(effect, confidence, power), Some(pairs), "{effect} {confidence} {power}");
        assert_eq!(pairs_to_see(-effect, confidence, power), Some(pairs), "whichever the direction");
    }
}

/// SciPy 1.17's noncentral t distribution: `nct.sf(t.isf(0.025, n - 1), n - 1, effect * n**0.5)`.
#[test]
fn power_is_that_of_the_noncentral_t_distribution() {
    let table = [
        (1.0, 8, 0.680_830_149_55),
        (1.0, 13, 0.910_708_422_83),
        (0.5, 44, 0.900_030_496_49),
        (2.0, 4, 0.754_983_839_72),
        (3.0, 2, 0.260_770_565_29),
    ];
    for (effect, pairs, power) in table {
        assert!((power_to_see(effect, pairs, 0.95) - power).abs() < 1e-8, "{effect} {pairs}");
    }
    assert!((power_to_see(0.0, 9, 0.95) - 0.025).abs() < 1e-8, "no effect: the level of one side");
}

/// The same probability by quadrature in SciPy, over the χ² distribution.
#[test]
fn pairs_for_equivalence_leave_room_for_the_whole_interval() {
    for (effect, pairs, at, below) in [
        (1.0, 16, 0.923_770_525_4, 0.898_175_674_0),
        (0.5, 54, 0.900_424_047_5, 0.893_054_653_5),
        (0.2, 327, 0.900_234_092_0, 0.899_086_947_3),
    ] {
        assert_eq!(pairs_to_show_equivalence(effect, 0.95, 0.9), Some(pairs));
        assert!((power_to_show_equivalence(effect, pairs, 0.95) - at).abs() < 1e-6, "{effect}");
        assert!((power_to_show_equivalence(effect, pairs - 1, 0.95) - below).abs() < 1e-6, "{effect}");
    }
}

#[test]
fn the_effect_seen_is_the_inverse_of_the_power() {
    for pairs in [2, 3, 4, 8, 13, 44, 1000] {
        let effect = effect_seen(pairs, 0.95, 0.9).unwrap();
        assert!((power_to_see(effect, pairs, 0.95) - 0.9).abs() < 1e-6, "{pairs}: {effect}");
    }
    assert!((effect_seen(8, 0.95, 0.9).unwrap() - 1.341_802_48).abs() < 1e-7, "SciPy 1.17, by its root");
    assert_eq!(effect_seen(1, 0.95, 0.9), None);
    assert_eq!((power_to_see(9.0, 1, 0.95), power_to_show_equivalence(9.0, 0, 0.95)), (0.0, 0.0));
}

#[test]
fn what_takes_too_many_pairs_is_not_planned() {
    assert_eq!(pairs_to_see(1e-3, 0.95, 0.9), None);
    let many = pairs_to_see(0.01146, 0.95, 0.9);
    assert!(many.is_some_and(|pairs| (65_537..=100_000).contains(&pairs)), "{many:?}");
    assert_eq!(pairs_to_see(0.0, 0.95, 0.9), None);
    assert_eq!(pairs_to_show_equivalence(f64::NAN, 0.95, 0.9), None);
    assert_eq!(pairs_to_see(1e3, 0.95, 0.9), Some(2));
}

#[test]
fn the_bound_of_the_deviation_is_that_of_chi_square() {
    for (freedom, factor) in [(7, 1.353_272_9), (15, 1.206_369_5)] {
        let deviation = Deviation { estimate: 2.0, freedom };
        assert!((deviation.upper_bound() / 2.0 - factor).abs() < 1e-6, "{freedom}");
    }
    assert_eq!(Deviation { estimate: 1.0, freedom: 0 }.upper_bound(), f64::INFINITY);
    let pilot = Deviation::from_differences(&[1.0, 2.0, 6.0]).unwrap();
    assert_eq!((pilot.estimate, pilot.freedom), (7f64.sqrt(), 2));
    assert_eq!(Deviation::from_differences(&[1.0]), None);
    assert_eq!(Deviation::from_differences(&[1.0, f64::NAN]), None);
}

#[test]
fn a_plan_says_what_pairs_see() {
    let deviation = Deviation { estimate: 0.01 / 1.353_272_9, freedom: 7 };
    let plan = PowerPlan::new(deviation, 0.01, 0.95, Some(8), Looks::Once).unwrap();
    assert_eq!((plan.pairs_to_see, plan.pairs_to_show_equivalence), (Some(13), Some(16)));
    let given = plan.given.unwrap();
    assert!((given.power_to_see - 0.680_830).abs() < 1e-5);
    assert!((given.effect_seen / 0.01 - effect_seen(8, 0.95, 0.9).unwrap()).abs() < 1e-6);
    assert_eq!(
        plan.words("nats"),
        [
            "deviation of a paired difference: 0.007389 nats from 7 degrees of freedom, planned with its upper 80 % \
             bound, 0.01 nats",
            "to see a true difference of 0.01 nats in 90 % of cases: 13 pairs",
            "to show no difference that matters, where there is none, in 90 % of cases: 16 pairs",
            "8 pairs see a true difference of 0.01342 nats in 90 % of cases, one of 0.01 nats in 68 %, and show none \
             that matters in 41 %",
        ]
    );
    let hopeless =
        PowerPlan::new(Deviation { estimate: 1.0, freedom: 7 }, 1e-6, 0.95, None, Looks::Once).unwrap();
    assert!(hopeless.words("")[1].ends_with("more than 100,000 pairs"), "{:?}", hopeless.words(""));
}

#[test]
fn there_is_no_plan_without_its_figures() {
    let deviation = Deviation { estimate: 0.01, freedom: 7 };
    assert!(PowerPlan::new(deviation, 0.0, 0.95, None, Looks::Once).is_none());
    assert!(PowerPlan::new(deviation, f64::NAN, 0.95, None, Looks::Once).is_none());
    assert!(PowerPlan::new(deviation, 0.01, 1.0, None, Looks::Once).is_none());
    assert!(PowerPlan::new(deviation, 0.01, 0.95, Some(1), Looks::Once).is_none());
    assert!(PowerPlan::new(Deviation { freedom: 0, ..deviation }, 0.01, 0.95, None, Looks::Once).is_none());
    assert!(
        PowerPlan::new(Deviation { estimate: 0.0, ..deviation }, 0.01, 0.95, None, Looks::Once).is_none()
    );
}

/// A look after every pair finds a little less than one at the end: the plan says how much, and asks for more
/// pairs.
#[test]
fn a_plan_with_looks_has_their_power() {
    let deviation = Deviation { estimate: 0.01 / 1.353_272_9, freedom: 7 };
    let plan = |looks| PowerPlan::new(deviation, 0.01, 0.95, Some(13), looks).unwrap();
    let (once, looks) = (plan(Looks::Once), plan(Looks::EveryPair));
    let [one, other] = [&once, &looks].map(|plan| plan.given.unwrap());
    assert!(one.power_to_see > 0.91 && (0.85..0.895).contains(&other.power_to_see), "{other:?}");
    assert!(other.effect_seen > one.effect_seen && other.effect_seen < 1.1 * one.effect_seen, "{other:?}");
    assert!(other.power_to_show_equivalence < one.power_to_show_equivalence, "{other:?}");
    let maximum = looks.pairs_to_see.unwrap();
    assert!((14..=15).contains(&maximum), "{maximum}");
    assert!(looks.pairs_to_show_equivalence > once.pairs_to_show_equivalence);
    assert!(
        looks.words("nats")[1].contains(&format!("at most {maximum} pairs")),
        "{:?}",
        looks.words("nats")
    );
    let json = serde_json::to_value(&looks).unwrap();
    assert_eq!(json["looks"], "every_pair");
    assert!(serde_json::to_value(&once).unwrap().get("looks").is_none(), "as records of single looks are");
    assert_eq!(plan(Looks::EveryPair), looks, "equal plans are equal");
}
