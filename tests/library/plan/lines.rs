//! Lines of the model: every node counts in one of them or in the rest, and all add up to the plan.

use crate::plan::{TINY, device, forecast, plan, programs};
use std::sync::Arc;
use xrun::forecast::time::PhaseTime;
use xrun::forecast::{MemoryTimeline, ModelLines, RunNeeds, StepCosts};
use xrun::machine::{CpuPace, Machine, NodeTime};
use xrun::model::text::cost;
use xrun::plan::Plan;

/// Asserts that two sums of one set of numbers in different orders are equal.
fn same(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() <= 1e-9 * b.abs(), "{what}: {a} and {b}");
}

/// Returns the sum of a figure over the lines and the rest.
fn sum(lines: &ModelLines, figure: impl Fn(&StepCosts) -> f64) -> f64 {
    lines.lines.iter().map(|line| &line.costs).chain([&lines.rest]).map(figure).sum()
}

/// Returns the plan of a tiny model with these settings.
fn tiny(settings: &[&str], vocab_size: usize) -> Plan {
    let key = |setting: &str| setting.split('=').next().map(str::to_owned);
    let is_set = |usual: &str| settings.iter().any(|setting| key(setting) == key(usual));
    let usual = TINY.into_iter().filter(|usual| !is_set(usual));
    plan("quickstart", &usual.chain(settings.iter().copied()).collect::<Vec<_>>(), vocab_size)
}

const FORMS: [&[&str]; 9] = [
    &[],
    &["activation_checkpoint.mode=none"],
    &["activation_checkpoint.mode=emitted", "model.tie_embeddings=true"],
    &["activation_checkpoint.mode=full", "training.accumulation=3"],
    &["engine.fused=false", "model.norm=layer_norm"],
    &["model.position=learned", "model.dropout=0.1", "model.window=4"],
    &["parallelism.world_size=2", "optimizer.name=muon"],
    &["model.definition=gated_attention"],
    &["model.definition=gemma2", "training.z_loss=0.001"],
];

#[test]
fn lines_and_the_rest_add_up_to_the_plan() {
    let h200 = device("h200");
    for form in FORMS {
        let plan = tiny(&[&["model.n_layers=2"][..], form].concat(), 511);
        let programs = programs(&plan);
        let found = ModelLines::new(&plan, &programs, std::slice::from_ref(&h200));
        let whole = forecast(&plan, std::slice::from_ref(&h200));
        let step = whole.on[0].step.as_ref().expect("known peaks");
        let phases = |figure: fn(&PhaseTime) -> f64| step.phases.iter().map(figure).sum::<f64>();
        same(sum(&found, |costs| costs.product_flops), phases(|phase| phase.product_flops), "FLOPs");
        same(sum(&found, |costs| costs.bytes), phases(|phase| phase.bytes), "bytes");
        same(sum(&found, |costs| costs.seconds[0]), step.seconds, "seconds");
        assert_eq!(found.on, ["h200"]);
        let parameters: usize = found.lines.iter().map(|line| line.costs.parameters).sum();
        assert_eq!((parameters, found.rest.parameters), (whole.parameters.total, 0), "{form:?}");

        // What is alive after the last node of the forward and needed later.
        let section = &MemoryTimeline::new(&plan, &programs).sections[0];
        let last = section.nodes.iter().rposition(|node| node.phase == "forward").expect("a forward");
        let ends_there: usize =
            section.blocks.iter().filter(|block| block.death == last).map(|block| block.bytes).sum();
        assert_eq!(section.left_out, 0);
        assert_eq!(sum(&found, |costs| costs.kept_bytes as f64) as usize, section.alive[last] - ends_there);

        let total = &found.total;
        same(total.product_flops, phases(|phase| phase.product_flops), "all FLOPs");
        same(total.bytes, phases(|phase| phase.bytes), "all bytes");
        same(total.seconds[0], step.seconds, "all seconds");
        assert_eq!(total.parameters, whole.parameters.total);
        assert_eq!(total.kept_bytes, section.alive[last] - ends_there);
        // The update is in the rest; only Muon multiplies matrices.
        assert!(found.rest.seconds[0] > 0.0);
        assert_eq!(found.rest.product_flops > 0.0, form.contains(&"optimizer.name=muon"), "{form:?}");
    }
}

/// A product has the FLOPs that `xrun model check` counts for it: a gradient belongs to the line of its
/// forward.
#[test]
fn products_count_in_their_lines() {
    let sizes = ["model.n_layers=3", "model.ffn_dim=64", "activation_checkpoint.mode=none"];
    let plan = tiny(&sizes, 512);
    let found = ModelLines::new(&plan, &programs(&plan), &[]);
    let text = plan.model.text();
    let counted = cost(text, &plan.graph, &plan.model, plan.batch.seq_len);
    let tokens = plan.batch.tokens_per_step() as f64;
    // The sum with a product is one op, which counts in the line of the sum.
    for starts in [
        &["qkv = "][..],
        &["gate_up = "],
        &["out = ", "middle = "],
        &["down = ", "x = if model.parallel"],
        &["logits = "],
    ] {
        let of_these = |statement: &str| starts.iter().any(|start| statement.starts_with(start));
        let here = found.lines.iter().filter(|line| of_these(&line.statement));
        let flops: f64 = here.map(|line| line.costs.product_flops).sum();
        let there = counted.lines.iter().filter(|line| of_these(&line.statement));
        let expected: f64 = there.map(|line| line.flops_per_token * tokens).sum();
        assert!(expected > 0.0);
        same(flops, expected, starts[0]);
    }
    let qkv = found.lines.iter().find(|line| line.statement.starts_with("qkv = ")).expect("a line");
    // Rows of queries, keys and values of 3 blocks, in fp32.
    assert_eq!((qkv.blocks, qkv.costs.kept_bytes), (3, 3 * 16 * 96 * 4));
    let canonical: Vec<&str> = text.text().lines().map(str::trim).collect();
    assert!(found.lines.iter().all(|line| canonical[line.line - 1] == line.statement));
}

#[test]
fn times_on_a_cpu_are_those_of_the_run() {
    let plan = tiny(&["engine.device=cpu"], 511);
    let programs = programs(&plan);
    let node = ("linear".to_owned(), NodeTime { work: 1e6, seconds: 1e-4 });
    let machine = Machine::none().with_cpu_pace(Some(Arc::new(CpuPace::new(1, [node]))));
    let found = ModelLines::new(&plan, &programs, std::slice::from_ref(&machine));
    let time = RunNeeds::new(&plan, &programs, &machine, false).time.expect("a known pace");
    same(sum(&found, |costs| costs.seconds[0]), time.step_s, "seconds");
    assert_eq!(found.on, ["this machine"]);
    let unknown = ModelLines::new(&plan, &programs, &[Machine::none(), device("cpu")]);
    assert_eq!(unknown.no_time, ["the speed of the CPU is unknown", "the peaks of cpu are unknown"]);
    let text = unknown.text(Some(80));
    assert!(text.contains("No time is predicted: the speed of the CPU is unknown.\n"), "{text}");
}
