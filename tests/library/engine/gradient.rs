//! The gradient of a whole model, through every pass, against central differences in f64.

use crate::engine::harness::{Setup, get, set};
use xrun::data::Batch;
use xrun::device::DType;
use xrun::exec::Engine;
use xrun::ir::{BatchSlot, ControlSlot, FlatBuffer, Precision};

const EPSILON: f64 = 1e-6;
const ATOL: f64 = 1e-5;
const RTOL: f64 = 1e-3;

/// Sequences per micro-batch, and tokens per sequence.
const BATCH: usize = 2;
const SEQ_LEN: usize = 16;

/// Elements tried in every parameter: those with the largest gradients, and others from anywhere.
const LARGEST: usize = 2;
const OTHERS: usize = 3;

/// A model in f64 with two micro-batches, so that gradients are both written and added to.
struct Model {
    setup: Setup,
    engine: Engine,
    batches: [Batch; 2],
}

impl Model {
    fn new(overrides: &[&str]) -> Self {
        let sizes = ["model.n_layers=1", "training.local_batch_size=2", "training.accumulation=2"];
        let overrides = [&sizes[..], overrides].concat();
        let setup = Setup::planned(&overrides, |plan| plan.precision = Precision::for_act_dtype(DType::F64));
        let mut engine = setup.engine();
        // Larger than at the start of training, and with differing norm weights, so that every gradient
        // matters.
        for param in &setup.programs.state.params {
            let slot = format!("params.{}", param.name);
            let matrix = param.role.is_matrix();
            let values = get(&engine, &slot).into_iter().enumerate();
            let moved = values.map(|(i, v)| if matrix { 3.0 * v } else { v + 0.3 * (i as f64).sin() });
            set(&mut engine, &slot, &moved.collect::<Vec<_>>());
        }
        let vocab = setup.plan.model.vocab_size;
        Self { setup, engine, batches: [batch(0, vocab), batch(1, vocab)] }
    }

    /// Returns the sum of all losses of a step, including those besides cross-entropy; leaves the gradients
    /// in the state.
    fn run(&mut self) -> f64 {
        for (micro, batch) in self.batches.iter().enumerate() {
            let state = &mut self.engine.state;
            for (name, values) in [
                (BatchSlot::Tokens, &batch.tokens),
                (BatchSlot::Targets, &batch.targets),
                (BatchSlot::Positions, &batch.positions),
                (BatchSlot::Spans, &batch.spans),
                (BatchSlot::Sequences, &batch.sequences),
            ] {
                let slot = state.slot(name).unwrap();
                state.write(slot, values).unwrap();
            }
            self.engine.run(self.setup.programs.micro_step(micro, 2)).unwrap();
        }
        let state = &self.engine.state;
        let terms = [ControlSlot::ZLoss, ControlSlot::SmoothingLoss, ControlSlot::Loss];
        let present = terms.into_iter().filter_map(|slot| state.layout().slot(slot));
        present.map(|slot| state.values(slot).unwrap()[0]).sum::<f64>() * self.tokens()
    }

    fn tokens(&self) -> f64 {
        self.setup.plan.batch.tokens_per_step() as f64
    }

    /// Returns the central difference of the objective at one element of a parameter.
    fn difference(&mut self, slot: &str, values: &[f64], at: usize) -> f64 {
        let mut objective = |shift: f64| {
            let mut moved = values.to_vec();
            moved[at] += shift;
            set(&mut self.engine, slot, &moved);
            self.run()
        };
        let numeric = (objective(EPSILON) - objective(-EPSILON)) / (2.0 * EPSILON);
        set(&mut self.engine, slot, values);
        numeric
    }
}

/// Makes arbitrary tokens, in three documents per sequence.
fn batch(micro: usize, vocab: usize) -> Batch {
    let token = |i: usize| ((i + micro * BATCH * SEQ_LEN) * 7919 % vocab) as u32;
    let mut batch = Batch::default();
    for sequence in 0..BATCH {
        for t in 0..SEQ_LEN {
            let at = sequence * SEQ_LEN + t;
            let start = [0, 5, 11].into_iter().rfind(|&start| start <= t).unwrap_or(0);
            batch.tokens.push(token(at));
            batch.targets.push(token(at + 1));
            batch.positions.push((t - start) as u32);
            batch.spans.extend([start as u32, t as u32 + 1]);
        }
        batch.sequences.push((micro * BATCH + sequence) as u32);
    }
    batch
}

/// Compares the gradient of every parameter with differences.
pub fn check(overrides: &[&str]) {
    let mut model = Model::new(overrides);
    model.run();
    let tokens = model.tokens();
    let params = model.setup.programs.state.params.clone();
    let gradients: Vec<Vec<f64>> =
        params.iter().map(|p| get(&model.engine, &format!("grads.{}", p.name))).collect();
    for (param, gradient) in params.iter().zip(gradients) {
        let grad_slot = model.engine.state.slot(FlatBuffer::Grads.param(&param.name)).unwrap();
        assert!(
            model.engine.state.padding_is_zero(grad_slot).unwrap(),
            "{overrides:?}: padding of {}",
            param.name
        );
        let analytic = |at: usize| gradient[at] * tokens;
        let mut probes: Vec<usize> = (0..gradient.len()).collect();
        probes.sort_by(|&a, &b| gradient[b].abs().total_cmp(&gradient[a].abs()));
        probes.truncate(LARGEST);
        // The probes must not pass only because of the absolute tolerance.
        let largest = analytic(probes[0]).abs();
        assert!(largest > 1e3 * ATOL, "{overrides:?}: the gradient of {} is at most {largest}", param.name);
        probes.extend((0..OTHERS).map(|i| (i * 7919 + 13) % gradient.len()));
        let slot = format!("params.{}", param.name);
        let values = get(&model.engine, &slot);
        for at in probes {
            let numeric = model.difference(&slot, &values, at);
            let error = (analytic(at) - numeric).abs();
            assert!(
                error <= ATOL + RTOL * numeric.abs(),
                "{overrides:?}: {}[{at}] is {}, by differences {numeric}",
                param.name,
                analytic(at)
            );
        }
    }
}

const EVERYTHING: [&str; 2] = ["model.dropout=0.2", "data.cross_documents=false"];

#[test]
fn gradients_of_fused_ops() {
    check(&EVERYTHING);
    check(&[EVERYTHING[0], EVERYTHING[1], "model.tie_embeddings=true", "activation_checkpoint.mode=full"]);
}

#[test]
fn gradients_of_unfused_ops() {
    let unfused = ["engine.fused=false", "engine.attention=unfused"];
    check(&[&EVERYTHING[..], &unfused].concat());
    check(&[&EVERYTHING[..], &unfused, &["model.tie_embeddings=true"]].concat());
}

#[test]
fn gradients_of_other_variants() {
    check(&["model.qk_norm=false", "activation_checkpoint.mode=none"]);
    check(&["engine.attention=unfused", "model.n_kv_heads=1", "model.dropout=0.5"]);
}

#[test]
fn gradients_of_rope_and_qk_norm() {
    check(&["model.qk_norm_place=after_rope", "model.rope_fraction=0.5", "model.rope_direction=negative"]);
    check(&[
        "model.qk_norm_place=after_rope",
        "model.qk_norm_weight=false",
        "activation_checkpoint.mode=full",
    ]);
    check(&["model.qk_norm_weight=false", "model.qk_norm_place=after_rope", "engine.fused=false"]);
    let yarn = ["model.rope_scaling=yarn", "model.rope_factor=4.0", "model.rope_original_context=64"];
    check(&[&yarn[..], &["model.qk_norm_weight=false", "activation_checkpoint.mode=selective"]].concat());
    check(&[&yarn[..], &["model.qk_norm=false", "model.rope_fraction=0.25", "engine.fused=false"]].concat());
}

#[test]
fn gradients_of_layer_norm() {
    check(&["model.norm=layer_norm", "activation_checkpoint.mode=full"]);
    check(&["model.norm=layer_norm", "engine.fused=false"]);
}

#[test]
fn gradients_of_objectives() {
    const OBJECTIVE: [&str; 4] = [
        "model.logit_scale=1.5",
        "model.logit_cap=3.0",
        "training.z_loss=0.05",
        "training.label_smoothing=0.2",
    ];
    check(&OBJECTIVE);
    check(&[&OBJECTIVE[..], &["engine.fused=false", "model.tie_embeddings=true"]].concat());
    check(&[OBJECTIVE[0], OBJECTIVE[2], "activation_checkpoint.mode=full"]);
}

#[test]
fn gradients_of_positions() {
    let learned = ["model.position=learned", "model.embedding_scale=3.0"];
    check(&[&learned[..], &EVERYTHING].concat());
    check(&[&learned[..], &["model.tie_embeddings=true", "activation_checkpoint.mode=full"]].concat());
    check(
        &[&learned[..], &["model.qk_norm=false", "model.embedding_norm=true", "engine.fused=false"]].concat(),
    );
    check(&["model.position=none", "activation_checkpoint.mode=selective"]);
    check(&["model.position=none", "model.qk_norm=false", "engine.fused=false"]);
}

#[test]
fn gradients_of_norms_without_weight_or_bias() {
    for norm in [&["model.norm_weight=false"][..], &["model.norm=layer_norm", "model.norm_bias=false"]] {
        check(norm);
        check(&[norm, &["engine.fused=false"]].concat());
        check(&[norm, &["activation_checkpoint.mode=full"]].concat());
    }
    check(&["model.norm=layer_norm", "model.norm_weight=false", "model.norm_placement=sandwich"]);
}

#[test]
fn gradients_of_activations_and_biases() {
    for activation in ["geglu", "geglu_tanh", "reglu", "gelu", "gelu_tanh", "relu2", "silu"] {
        check(&[&format!("model.activation={activation}"), "model.bias=true"]);
    }
    check(&["model.activation=geglu", "engine.fused=false", "activation_checkpoint.mode=full"]);
    check(&["model.activation=relu2", "model.bias=true", "activation_checkpoint.mode=selective"]);
    check(&["model.bias=true", "model.dropout=0.2", "activation_checkpoint.mode=emitted"]);
}

#[test]
fn gradients_of_norm_placements() {
    for (norm, placement) in [("rms_norm", "post"), ("rms_norm", "sandwich"), ("layer_norm", "post")] {
        let keys = [format!("model.norm={norm}"), format!("model.norm_placement={placement}")];
        check(&keys.each_ref().map(String::as_str));
    }
    check(&["model.norm_placement=sandwich", "model.embedding_norm=true", "activation_checkpoint.mode=full"]);
    check(&["model.norm_placement=post", "model.embedding_norm=true", "engine.fused=false"]);
    check(&["model.parallel_blocks=true", "activation_checkpoint.mode=selective"]);
}
