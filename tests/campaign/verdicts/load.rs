//! Speeds of one recipe while other processes use the CPU during the trials of one arm.

use super::{Normals, most, trials};
use xrun::compare::judge::contention::one_sided_load;
use xrun::compare::judge::trials::{ratio, verdict};
use xrun::results::experiment::OtherLoad;
use xrun::statistics::Verdict;

const MIN_EFFECT: f64 = 0.01;

/// Makes the blocks of a run, whose speed deviates by 0.3 % from run to run, and the load beside it.
fn run(normals: &mut Normals, load: f64, background: f64) -> (Vec<f64>, OtherLoad) {
    let beside = (load + background * (1.0 + 0.5 * normals.draw())).max(0.0);
    // A single processor in two is what the load takes: threads wait for the slowest.
    let speed = (0.003 * normals.draw()).exp() * (1.0 - load);
    let blocks = (0..10).map(|_| 1000.0 * speed * (0.002 * normals.draw()).exp()).collect();
    (blocks, OtherLoad { processes: beside, stolen: 0.0, processors: 2 })
}

/// Counts trials that end as faster or slower, by the speeds alone and with the rule of one-sided load.
fn different(load: f64, background: f64) -> [usize; 3] {
    let mut normals = Normals::from_seed((1000.0 * load) as u64 + 3);
    let mut counts = [0; 3];
    for _ in 0..trials() {
        let mut arm = |load: f64| -> (Vec<Vec<f64>>, Vec<OtherLoad>) {
            (0..5).map(|_| run(&mut normals, load, background)).unzip()
        };
        let (baseline, candidate) = (arm(0.0), arm(load));
        let interval = ratio(&baseline.0, &candidate.0).unwrap();
        let is_different = matches!(verdict(&interval, MIN_EFFECT), Verdict::Better | Verdict::Worse);
        let reason = one_sided_load(&baseline.1, &candidate.1, Some(interval), MIN_EFFECT);
        counts[0] += usize::from(is_different);
        counts[1] += usize::from(is_different && reason.is_none());
        counts[2] += usize::from(reason.is_some());
    }
    counts
}

#[test]
fn a_load_on_one_arm_makes_no_verdict() {
    println!(
        "5 trials per arm of one recipe: different by speeds alone, with the rule of load, called contended"
    );
    for (load, background) in
        [(0.0, 0.002), (0.0, 0.02), (0.02, 0.005), (0.03, 0.005), (0.05, 0.005), (0.08, 0.02)]
    {
        let [alone, with_rule, contended] = different(load, background);
        println!(
            "  load {load} on the candidate, background {background}: {alone}, {with_rule}, {contended}"
        );
        assert!(with_rule <= most(0.05), "{load}: {with_rule}");
        if load >= 0.03 {
            assert!(alone > trials() * 9 / 10, "without the rule: {alone}");
        }
        if load == 0.0 && background < 0.01 {
            assert!(contended <= most(0.06), "an idle machine: {contended}");
        }
    }
}
