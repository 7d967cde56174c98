//! What `xrun plan` says of the exchange of ranks.

use crate::plan::{corpus, device};
use xrun::forecast::ExchangeForecast;
use xrun::machine::Machine;
use xrun::model::Programs;
use xrun::plan::Plan;
use xrun::recipe;

fn planned(settings: &[&str], machine: &Machine) -> (Plan, Programs) {
    let overrides: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
    let recipe = recipe::load("dim384".as_ref(), &overrides, std::iter::empty(), machine).unwrap();
    let mut plan = Plan::new(&recipe, &corpus(50_257), machine).unwrap();
    plan.execution.recompute = xrun::policy::Recompute::None;
    let programs = Programs::new(&plan).unwrap();
    (plan, programs)
}

fn exchange(settings: &[&str]) -> Option<ExchangeForecast> {
    let (plan, programs) = planned(settings, &device("h200"));
    ExchangeForecast::new(&plan, &programs)
}

/// Bytes of the state's gradients, and of the embedding's among them.
fn gradients(settings: &[&str]) -> (u64, u64) {
    let (_, programs) = planned(settings, &device("h200"));
    let state = &programs.state;
    let embedding = state.params.iter().find(|param| param.name == "embedding").unwrap();
    (4 * state.flat_len as u64, 4 * embedding.flat().len() as u64)
}

const RANKS: [&str; 4] = ["1", "2", "4", "8"];

#[test]
fn a_rank_alone_exchanges_nothing_nor_do_ranks_that_do_not_communicate() {
    assert_eq!(exchange(&[]), None);
    assert_eq!(exchange(&["parallelism.world_size=2", "engine.communication=off"]), None);
}

/// Of every bucket a rank sends what others own, and each other rank the shard of parameters that it owns
/// itself.
#[test]
fn a_sharded_optimizer_sends_parts_to_owners_and_from_them() {
    for ranks in &RANKS[1..] {
        let world = format!("parallelism.world_size={ranks}");
        let settings = [&*world, "parallelism.shard=optimizer"];
        let found = exchange(&settings).unwrap();
        let (all, embedding) = gradients(&settings);
        let n: f64 = ranks.parse().unwrap();
        assert_eq!(found.transport, "copies");
        // 32 · 256 tokens to each other rank, and to each the rows in bf16 of those that it owns.
        let rows = (n - 1.0) / n * f64::from(32 * 256 * 384 * 2);
        assert_eq!(found.row_bytes, ((n - 1.0) * f64::from(32 * 256 * 4) + rows).round() as u64);
        let buckets = (all - embedding) as f64 * (n - 1.0) / n;
        let rest = found.gradient_bytes as f64 - buckets;
        assert!((0.0..100_000.0).contains(&rest), "losses and partial sums of norms are left: {rest}");
        // In bf16 the copy of all parameters, and vectors, which have fp32 besides.
        let copy = all as f64 / 2.0 * (n - 1.0) / n;
        let rest = found.parameter_bytes as f64 - copy;
        assert!((0.0..200_000.0).contains(&rest), "vectors are left: {rest}");
        let time = found.time.unwrap();
        assert!(0.0 < time.exposed_seconds && time.exposed_seconds < time.seconds / 2.0, "{time:?}");
    }
}

#[test]
fn a_whole_optimizer_sends_gradients_twice_but_for_the_own_part() {
    for ranks in &RANKS[1..] {
        let world = format!("parallelism.world_size={ranks}");
        let settings = [&*world, "parallelism.shard=none", "parallelism.embedding_exchange=false"];
        let found = exchange(&settings).unwrap();
        let n: f64 = ranks.parse().unwrap();
        let want = gradients(&settings).0 as f64 * 2.0 * (n - 1.0) / n;
        assert_eq!((found.transport, found.row_bytes, found.parameter_bytes), ("nccl", 0, 0));
        assert!((found.gradient_bytes as f64 - want).abs() < 100.0, "{} and {want}", found.gradient_bytes);
        assert_eq!(found.time, None, "no link of NCCL was measured");
    }
}

#[test]
fn without_overlap_all_of_it_is_exposed() {
    let settings = ["parallelism.world_size=2", "parallelism.overlap=false"];
    let time = exchange(&settings).unwrap().time.unwrap();
    assert!((time.exposed_seconds - time.seconds).abs() < 1e-12);
}

#[test]
fn the_report_says_what_travels_and_that_the_time_is_a_forecast() {
    let (plan, programs) = planned(&["parallelism.world_size=2"], &device("h200"));
    let needs = xrun::forecast::RunNeeds::new(&plan, &programs, &Machine::none(), true);
    let report = xrun::forecast::Forecast::new(&plan, &programs, needs, &[]).unwrap().to_string();
    let lines: Vec<&str> = report.lines().skip_while(|line| !line.starts_with("Exchange")).take(2).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    Exchange  a rank sends 90.88 MiB of gradients, 3.03 MiB of rows of the embedding's gradient, 63.88 MiB of parameters in a step, by copies between GPUs, or through NCCL where they have no access to each other's memory
      forecast, from what two H200s joined by NVLink reached (300 GB/s each way): 656.9 µs beside the model and 54.6 µs exposed
    ");
}
