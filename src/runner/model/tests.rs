//! Snapshots of the programs of a one-layer model, before and after every pass.
//!
//! Passes are shown as differences: `+` in the first column for a new line, `-` for a removed one, `…` for
//! unchanged lines. Within a line (`ir/print.rs`):
//!
//! - `%12` is a transient tensor, and `%12+64B` a view of it that begins 64 bytes into it.
//! - `24→64` is a dimension of 24 that is padded to 64.
//! - `+` before an output means that the node adds to it instead of overwriting it.
//! - `@` names the part of the model.
//! - `∇` marks the backward, `↻` recomputation, `⇄` communication and `◆` the optimizer.
//! - `‖comm` marks a node on the communication stream.

use super::layout;
use super::programs::{Programs, loss_views, record};
use crate::device::ProductPrecision;
use crate::ir::{BatchSlot, Builder, ControlSlot, Program, Slot, SlotId, State, TensorId, Upstream};
use crate::machine::Machine;
use crate::ops::copy::Copy;
use crate::ops::cross_entropy::Objective;
use crate::ops::cross_entropy::RowFactor;
use crate::ops::head_loss::{HeadGradients, HeadLoss};
use crate::ops::sort_tokens::RankInterleaved;
use crate::ops::sum::{Factor, SumGrad};
use crate::passes::buckets::Bucket;
use crate::passes::{
    MemoryPlan, differentiate, exchange_rows, fuse_quantize, insert_all_reduces, observe_products,
    quantize_products, recompute, unfuse,
};
use crate::plan::{CorpusFacts, Plan};
use crate::policy::{Fp8Scaling, Recompute};
use crate::recipe;
use insta::assert_snapshot;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A small model that most passes change: bf16, grouped queries, dropout, and a vocabulary and an FFN width
/// that need padding. Two ranks reduce whole gradients, the embedding's too, in buckets small enough that
/// there are three.
const RECIPE: &str = r#"
[model]
dim = 16
n_layers = 1
n_heads = 2
n_kv_heads = 1
head_dim = 8
ffn_dim = 24
dropout = 0.1

[training]
seq_len = 4
local_batch_size = 2
steps = 3
dtype = "bf16"

[parallelism]
world_size = 2
bucket_mib = 0.006
embedding_exchange = false

[generation]
samples = 2
"#;

fn plan(overrides: &[&str]) -> Plan {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let recipe =
        recipe::load_str("one.toml".as_ref(), RECIPE, &overrides, std::iter::empty(), &Machine::here())
            .unwrap();
    let corpus = CorpusFacts {
        vocab_size: 50,
        train_tokens: 1000,
        exact: true,
        validation_tokens: 100,
        ..CorpusFacts::default()
    };
    let mut plan = Plan::new(&recipe, &corpus, &Machine::here()).unwrap();
    if recipe.values().activation_checkpoint.mode.fixed().is_none() {
        // Replaces the automatic choice by the mode in which most passes have an effect.
        plan.execution.recompute = Recompute::Selective;
    }
    plan
}

/// Products of the feed-forward layer read 8-bit floats, which takes 16 rows.
const FP8: [&str; 3] =
    ["training.dtype=fp8", "training.local_batch_size=4", "fp8.products=[\"feed_forward\"]"];

/// Makes ranks exchange the rows of the embedding's gradient instead of reducing all of it.
const BY_ROWS: &str = "parallelism.embedding_exchange=true";

/// The program of a micro-step that is both the first and the last of its step, for one pass at a time.
struct Passes {
    plan: Plan,
    state: Arc<State>,
    buckets: Vec<Bucket>,
    recorded: Program,
    losses: TensorId,
}

impl Passes {
    fn new(overrides: &[&str]) -> Self {
        let plan = plan(overrides);
        let (state, buckets) = layout::state(&plan).unwrap();
        let state = Arc::new(state);
        let (recorded, losses) = record(&plan, &state, (true, true)).unwrap();
        Self { plan, state, buckets, recorded, losses }
    }

    fn differentiated(&self, program: Program) -> Program {
        let seeds = loss_views(&program, self.losses);
        differentiate(program, &seeds, true).unwrap()
    }

    fn exchanged(&self, program: Program) -> Program {
        let slot = self.state.param("embedding").unwrap().grad;
        let layout = layout::rank_interleaving(&self.plan).unwrap();
        let divided = layout::divided_rows(&self.plan, &self.state).unwrap();
        exchange_rows(program, slot, layout, divided.as_ref()).unwrap()
    }

    fn recomputed(&self, policy: Recompute) -> Program {
        recompute(self.differentiated(self.recorded.clone()), policy).unwrap()
    }
}

/// Returns the lines that a pass removed, then the new program, with ` …` for unchanged lines. A line that
/// only moved counts as unchanged.
fn changes(before: &Program, after: &Program) -> String {
    let lines = |program: &Program| program.to_string().lines().map(str::to_owned).collect::<Vec<_>>();
    let (before, after) = (lines(before), lines(after));
    let gone = before.iter().filter(|line| !after.contains(line)).map(|line| format!("-{line}"));
    let mut text: Vec<String> = gone.collect();
    for line in &after {
        if !before.contains(line) {
            text.push(format!("+{line}"));
        } else if text.last().is_none_or(|last| last != " …") {
            text.push(" …".to_owned());
        }
    }
    text.join("\n")
}

#[test]
fn a_block_has_one_matrix_per_product() {
    let (state, _) = layout::state(&plan(&[])).unwrap();
    let matrices = |name: &str| -> Vec<_> {
        let param = state.param(name).unwrap();
        // Logical shape, allocated shape, and index of the first element in the parameter.
        param.matrices().iter().map(|m| (m.shape, m.alloc, m.start - param.start)).collect()
    };
    let [q, kv] = [[16, 16], [8, 16]];
    assert_eq!(matrices("blocks.0.qkv"), [(q, q, 0), (kv, kv, 256), (kv, kv, 384)]);
    assert_eq!(matrices("blocks.0.out"), [(q, q, 0)]);
    let up = [[24, 16], [64, 16]];
    assert_eq!(matrices("blocks.0.gate_up"), [(up[0], up[1], 0), (up[0], up[1], 1024)]);
    assert_eq!(matrices("blocks.0.down"), [([16, 24], [16, 64], 0)]);
    assert!(matrices("blocks.0.attention_norm").is_empty());
}

#[test]
fn as_recorded() {
    assert_snapshot!(Passes::new(&[]).recorded, @r"
    program micro(first=true, last=true) (16 nodes)
      %2:bf16[8,16] = embedding(batch.tokens, compute_copy.embedding)  @embedding
      %5:bf16[8,16] = dropout(%2, batch.sequences, control.step) p=0.1 site=0  @embedding
      %7:bf16[8,16] = rms_norm(%5, params.blocks.0.attention_norm) eps=1e-6  @embedding
      %9:bf16[8,32] = linear(%7, compute_copy.blocks.0.qkv)  @blocks.0
      %13:bf16[8,32] = qk_norm_rope(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0
      %14:bf16[8,16], %15:f32[8,2] = flash_attention(%13, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0
      %17:bf16[8,16] = linear(%14, compute_copy.blocks.0.out)  @blocks.0
      %18:bf16[8,16] = dropout(%17, batch.sequences, control.step) p=0.1 site=2  @blocks.0
      %20:bf16[8,16], %21:bf16[8,16] = residual_norm(%5, %18, params.blocks.0.ffn_norm) eps=1e-6  @blocks.0
      %23:bf16[8,2,24→64] = linear(%21, compute_copy.blocks.0.gate_up)  @blocks.0
      %24:bf16[8,24→64] = swiglu(%23)  @blocks.0
      %26:bf16[8,16] = linear(%24, compute_copy.blocks.0.down)  @blocks.0
      %27:bf16[8,16] = dropout(%26, batch.sequences, control.step) p=0.1 site=3  @blocks.0
      %29:bf16[8,16], %30:bf16[8,16] = residual_norm(%20, %27, params.final_norm) eps=1e-6  @blocks.0
      %33+0B, %40:bf16[8,50→64], %34+0B, grads.head = head_loss(%30+0B, compute_copy.head, batch.targets+0B) scale=6.25e-2  @head
      control.loss = sum(%33) scale=6.25e-2  @head
    ");
}

#[test]
fn unfused() {
    let passes = Passes::new(&["engine.attention=unfused"]);
    assert_snapshot!(changes(&passes.recorded, &unfuse(passes.recorded.clone()).unwrap()), @r"
    -program micro(first=true, last=true) (19 nodes)
    -  %13:bf16[8,32] = qk_norm_rope(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0
    -  %23:bf16[8,16], %24:bf16[8,16] = residual_norm(%5, %21, params.blocks.0.ffn_norm) eps=1e-6  @blocks.0
    -  %27:bf16[8,24→64] = swiglu(%26)  @blocks.0
    -  %32:bf16[8,16], %33:bf16[8,16] = residual_norm(%23, %30, params.final_norm) eps=1e-6  @blocks.0
    -  %36+0B, %43:bf16[8,50→64], %37+0B, grads.head = head_loss(%33+0B, compute_copy.head, batch.targets+0B) scale=6.25e-2  @head
    +program micro(first=true, last=true) (31 nodes)
     …
    +  %45:bf16[8,32] = qk_norm(%9, params.blocks.0.q_norm, params.blocks.0.k_norm) heads=2 kv_heads=1 head_dim=8 eps=1e-6  @blocks.0
    +  %13:bf16[8,32] = rope(%45, batch.positions) heads=2 kv_heads=1 head_dim=8 theta=10000  @blocks.0
     …
    +  %23:bf16[8,16] = add(%5, %21)  @blocks.0
    +  %24:bf16[8,16] = rms_norm(%23, params.blocks.0.ffn_norm) eps=1e-6  @blocks.0
     …
    +  %49:bf16[8,24→64] = half(%26) index=0  @blocks.0
    +  %50:bf16[8,24→64] = silu(%49)  @blocks.0
    +  %51:bf16[8,24→64] = half(%26) index=1  @blocks.0
    +  %27:bf16[8,24→64] = mul(%50, %51)  @blocks.0
     …
    +  %32:bf16[8,16] = add(%23, %30)  @blocks.0
    +  %33:bf16[8,16] = rms_norm(%32, params.final_norm) eps=1e-6  @blocks.0
    +  %43:bf16[8,50→64] = linear(%33+0B, compute_copy.head)  @head
    +  %56:f32[8] = cross_entropy(%43, batch.targets+0B)  @head
    +  %57:f32[8] = sum_grad(%56) scale=6.25e-2  @head
    +  %58:bf16[8,50→64] = cross_entropy_grad(%43, batch.targets+0B, %57)  @head
    +  %37+0B = linear_input_grad(%58, compute_copy.head)  @head
    +  grads.head = linear_weight_grad(%33+0B, %58, compute_copy.head)  @head
    +  %36+0B = with_gradient(%56, %33+0B, %37+0B)  @head
     …
    ");
}

#[test]
fn with_its_backward() {
    let passes = Passes::new(&[]);
    assert_snapshot!(changes(&passes.recorded, &passes.differentiated(passes.recorded.clone())), @r"
    -program micro(first=true, last=true) (16 nodes)
    +program micro(first=true, last=true) (35 nodes)
     …
    +  %43:bf16[8,16], grads.final_norm, %44:f32[1,16] = rms_norm_grad(%29, params.final_norm, %34) eps=1e-6  @blocks.0 ∇
    +  %45:bf16[8,16] = dropout(%43, batch.sequences, control.step) p=0.1 site=3  @blocks.0 ∇
    +  grads.blocks.0.down = linear_weight_grad(%24, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
    +  %47:bf16[8,24→64] = linear_input_grad(%45, compute_copy.blocks.0.down)  @blocks.0 ∇
    +  %48:bf16[8,2,24→64] = swiglu_grad(%23, %47)  @blocks.0 ∇
    +  grads.blocks.0.gate_up = linear_weight_grad(%21, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
    +  %50:bf16[8,16] = linear_input_grad(%48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
    +  %52:bf16[8,16], grads.blocks.0.ffn_norm, %53:f32[1,16] = rms_norm_grad(%20, params.blocks.0.ffn_norm, %50, %43) eps=1e-6 residual  @blocks.0 ∇
    +  %54:bf16[8,16] = dropout(%52, batch.sequences, control.step) p=0.1 site=2  @blocks.0 ∇
    +  grads.blocks.0.out = linear_weight_grad(%14, %54, compute_copy.blocks.0.out)  @blocks.0 ∇
    +  %56:bf16[8,16] = linear_input_grad(%54, compute_copy.blocks.0.out)  @blocks.0 ∇
    +  %57:bf16[8,32], %58:f32[8,2] = flash_attention_grad(%13, %14, %15, %56, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ∇
    +  %61:bf16[8,32], grads.blocks.0.q_norm, grads.blocks.0.k_norm, %62:f32[1,16] = qk_norm_rope_grad(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions, %57) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ∇
    +  grads.blocks.0.qkv = linear_weight_grad(%7, %61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
    +  %64:bf16[8,16] = linear_input_grad(%61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
    +  %66:bf16[8,16], grads.blocks.0.attention_norm, %67:f32[1,16] = rms_norm_grad(%5, params.blocks.0.attention_norm, %64, %52) eps=1e-6 residual  @embedding ∇
    +  %68:bf16[8,16] = dropout(%66, batch.sequences, control.step) p=0.1 site=0  @embedding ∇
    +  %70:u32[8], %71:u32[8], %72:u32[64], %73:u32[264] = sort_tokens(batch.tokens) vocabulary=64  @embedding ∇
    +  grads.embedding, %74:f32[2,16] = embedding_grad(%70, %71, %72, %68, compute_copy.embedding)  @embedding ∇
    ");
}

/// A later micro-step differs from the first only in one way: it adds to the gradients and the loss instead
/// of overwriting them.
#[test]
fn in_a_later_micro_step() {
    let programs = Programs::new(&plan(&["training.accumulation=3"])).unwrap();
    let variant = |first, last| {
        let found = programs.micro.iter().find(|(variant, _)| *variant == (first, last));
        &found.unwrap().1.program
    };
    assert_snapshot!(changes(variant(true, false), variant(false, false)), @r"
    -program micro(first=true, last=false) (36 nodes)
    -  %33+0B, %40:bf16[8,50→64], %34+0B, grads.head = head_loss(%30+0B, compute_copy.head, batch.targets+0B) scale=2.0833333333333332e-2  @head
    -  control.loss = sum(%33) scale=2.0833333333333332e-2  @head
    -  %43:bf16[8,16], grads.final_norm, %44:f32[1,16] = rms_norm_grad(%29, params.final_norm, %34) eps=1e-6  @blocks.0 ∇
    -  grads.blocks.0.down = linear_weight_grad(%75, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
    -  %52:bf16[8,16], grads.blocks.0.ffn_norm, %53:f32[1,16], %76:bf16[8,16] = rms_norm_grad(%20, params.blocks.0.ffn_norm, %50, %43) eps=1e-6 residual emits=y  @blocks.0 ∇
    -  grads.blocks.0.gate_up = linear_weight_grad(%76, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
    -  grads.blocks.0.out = linear_weight_grad(%14, %54, compute_copy.blocks.0.out)  @blocks.0 ∇
    -  %61:bf16[8,32], grads.blocks.0.q_norm, grads.blocks.0.k_norm, %62:f32[1,16] = qk_norm_rope_grad(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions, %57) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ∇
    -  %66:bf16[8,16], grads.blocks.0.attention_norm, %67:f32[1,16], %78:bf16[8,16] = rms_norm_grad(%5, params.blocks.0.attention_norm, %64, %52) eps=1e-6 residual emits=y  @embedding ∇
    -  grads.blocks.0.qkv = linear_weight_grad(%78, %61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
    -  grads.embedding, %74:f32[2,16] = embedding_grad(%70, %71, %72, %68, compute_copy.embedding)  @embedding ∇
    +program micro(first=false, last=false) (36 nodes)
     …
    +  %33+0B, %40:bf16[8,50→64], %34+0B, +grads.head = head_loss(%30+0B, compute_copy.head, batch.targets+0B) scale=2.0833333333333332e-2  @head
    +  +control.loss = sum(%33) scale=2.0833333333333332e-2  @head
    +  %43:bf16[8,16], +grads.final_norm, %44:f32[1,16] = rms_norm_grad(%29, params.final_norm, %34) eps=1e-6  @blocks.0 ∇
     …
    +  +grads.blocks.0.down = linear_weight_grad(%75, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
     …
    +  %52:bf16[8,16], +grads.blocks.0.ffn_norm, %53:f32[1,16], %76:bf16[8,16] = rms_norm_grad(%20, params.blocks.0.ffn_norm, %50, %43) eps=1e-6 residual emits=y  @blocks.0 ∇
    +  +grads.blocks.0.gate_up = linear_weight_grad(%76, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
     …
    +  +grads.blocks.0.out = linear_weight_grad(%14, %54, compute_copy.blocks.0.out)  @blocks.0 ∇
     …
    +  %61:bf16[8,32], +grads.blocks.0.q_norm, +grads.blocks.0.k_norm, %62:f32[1,16] = qk_norm_rope_grad(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions, %57) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ∇
     …
    +  %66:bf16[8,16], +grads.blocks.0.attention_norm, %67:f32[1,16], %78:bf16[8,16] = rms_norm_grad(%5, params.blocks.0.attention_norm, %64, %52) eps=1e-6 residual emits=y  @embedding ∇
    +  +grads.blocks.0.qkv = linear_weight_grad(%78, %61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
     …
    +  +grads.embedding, %74:f32[2,16] = embedding_grad(%70, %71, %72, %68, compute_copy.embedding)  @embedding ∇
    ");
}

#[test]
fn recomputing_what_is_cheap() {
    let passes = Passes::new(&[]);
    assert_snapshot!(changes(&passes.recomputed(Recompute::None), &passes.recomputed(Recompute::Selective)), @r"
    -program micro(first=true, last=true) (35 nodes)
    -  grads.blocks.0.down = linear_weight_grad(%24, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
    -  %48:bf16[8,2,24→64] = swiglu_grad(%23, %47)  @blocks.0 ∇
    -  grads.blocks.0.gate_up = linear_weight_grad(%21, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
    -  %52:bf16[8,16], grads.blocks.0.ffn_norm, %53:f32[1,16] = rms_norm_grad(%20, params.blocks.0.ffn_norm, %50, %43) eps=1e-6 residual  @blocks.0 ∇
    -  %57:bf16[8,32], %58:f32[8,2] = flash_attention_grad(%13, %14, %15, %56, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ∇
    -  grads.blocks.0.qkv = linear_weight_grad(%7, %61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
    -  %66:bf16[8,16], grads.blocks.0.attention_norm, %67:f32[1,16] = rms_norm_grad(%5, params.blocks.0.attention_norm, %64, %52) eps=1e-6 residual  @embedding ∇
    +program micro(first=true, last=true) (36 nodes)
     …
    +  %48:bf16[8,2,24→64], %75:bf16[8,24→64] = swiglu_grad(%23, %47) emits=y  @blocks.0 ∇
    +  grads.blocks.0.down = linear_weight_grad(%75, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
     …
    +  %52:bf16[8,16], grads.blocks.0.ffn_norm, %53:f32[1,16], %76:bf16[8,16] = rms_norm_grad(%20, params.blocks.0.ffn_norm, %50, %43) eps=1e-6 residual emits=y  @blocks.0 ∇
    +  grads.blocks.0.gate_up = linear_weight_grad(%76, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
     …
    +  %77:bf16[8,32] = qk_norm_rope(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ↻
    +  %57:bf16[8,32], %58:f32[8,2] = flash_attention_grad(%77, %14, %15, %56, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ∇
     …
    +  %66:bf16[8,16], grads.blocks.0.attention_norm, %67:f32[1,16], %78:bf16[8,16] = rms_norm_grad(%5, params.blocks.0.attention_norm, %64, %52) eps=1e-6 residual emits=y  @embedding ∇
    +  grads.blocks.0.qkv = linear_weight_grad(%78, %61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
     …
    ");
}

/// `Emitted` recomputes what `Selective` does, except the rows with normalized and rotated queries and keys
/// (`%13`). It keeps them, because no gradient emits them.
#[test]
fn recomputing_what_gradients_emit() {
    let passes = Passes::new(&[]);
    let emitted = passes.recomputed(Recompute::Emitted);
    assert_snapshot!(changes(&emitted, &passes.recomputed(Recompute::Selective)), @r"
    -program micro(first=true, last=true) (35 nodes)
    -  %57:bf16[8,32], %58:f32[8,2] = flash_attention_grad(%13, %14, %15, %56, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ∇
    -  %66:bf16[8,16], grads.blocks.0.attention_norm, %67:f32[1,16], %77:bf16[8,16] = rms_norm_grad(%5, params.blocks.0.attention_norm, %64, %52) eps=1e-6 residual emits=y  @embedding ∇
    -  grads.blocks.0.qkv = linear_weight_grad(%77, %61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
    +program micro(first=true, last=true) (36 nodes)
     …
    +  %77:bf16[8,32] = qk_norm_rope(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ↻
    +  %57:bf16[8,32], %58:f32[8,2] = flash_attention_grad(%77, %14, %15, %56, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ∇
     …
    +  %66:bf16[8,16], grads.blocks.0.attention_norm, %67:f32[1,16], %78:bf16[8,16] = rms_norm_grad(%5, params.blocks.0.attention_norm, %64, %52) eps=1e-6 residual emits=y  @embedding ∇
    +  grads.blocks.0.qkv = linear_weight_grad(%78, %61, compute_copy.blocks.0.qkv)  @blocks.0 ∇
     …
    ");
}

#[test]
fn recomputing_blocks() {
    let passes = Passes::new(&[]);
    assert_snapshot!(changes(&passes.recomputed(Recompute::None), &passes.recomputed(Recompute::Full)), @r"
    -program micro(first=true, last=true) (35 nodes)
    -  %43:bf16[8,16], grads.final_norm, %44:f32[1,16] = rms_norm_grad(%29, params.final_norm, %34) eps=1e-6  @blocks.0 ∇
    -  grads.blocks.0.down = linear_weight_grad(%24, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
    -  %48:bf16[8,2,24→64] = swiglu_grad(%23, %47)  @blocks.0 ∇
    -  grads.blocks.0.gate_up = linear_weight_grad(%21, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
    -  %52:bf16[8,16], grads.blocks.0.ffn_norm, %53:f32[1,16] = rms_norm_grad(%20, params.blocks.0.ffn_norm, %50, %43) eps=1e-6 residual  @blocks.0 ∇
    -  grads.blocks.0.out = linear_weight_grad(%14, %54, compute_copy.blocks.0.out)  @blocks.0 ∇
    -  %57:bf16[8,32], %58:f32[8,2] = flash_attention_grad(%13, %14, %15, %56, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ∇
    -  %61:bf16[8,32], grads.blocks.0.q_norm, grads.blocks.0.k_norm, %62:f32[1,16] = qk_norm_rope_grad(%9, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions, %57) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ∇
    +program micro(first=true, last=true) (46 nodes)
     …
    +  %75:bf16[8,32] = linear(%7, compute_copy.blocks.0.qkv)  @blocks.0 ↻
    +  %76:bf16[8,32] = qk_norm_rope(%75, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ↻
    +  %77:bf16[8,16], %78:f32[8,2] = flash_attention(%76, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ↻
    +  %79:bf16[8,16] = linear(%77, compute_copy.blocks.0.out)  @blocks.0 ↻
    +  %80:bf16[8,16] = dropout(%79, batch.sequences, control.step) p=0.1 site=2  @blocks.0 ↻
    +  %81:bf16[8,16], %82:bf16[8,16] = residual_norm(%5, %80, params.blocks.0.ffn_norm) eps=1e-6  @blocks.0 ↻
    +  %83:bf16[8,2,24→64] = linear(%82, compute_copy.blocks.0.gate_up)  @blocks.0 ↻
    +  %84:bf16[8,24→64] = swiglu(%83)  @blocks.0 ↻
    +  %85:bf16[8,16] = linear(%84, compute_copy.blocks.0.down)  @blocks.0 ↻
    +  %86:bf16[8,16] = dropout(%85, batch.sequences, control.step) p=0.1 site=3  @blocks.0 ↻
    +  %87:bf16[8,16], %88:bf16[8,16] = residual_norm(%81, %86, params.final_norm) eps=1e-6  @blocks.0 ↻
    +  %43:bf16[8,16], grads.final_norm, %44:f32[1,16] = rms_norm_grad(%87, params.final_norm, %34) eps=1e-6  @blocks.0 ∇
     …
    +  grads.blocks.0.down = linear_weight_grad(%84, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
     …
    +  %48:bf16[8,2,24→64] = swiglu_grad(%83, %47)  @blocks.0 ∇
    +  grads.blocks.0.gate_up = linear_weight_grad(%82, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
     …
    +  %52:bf16[8,16], grads.blocks.0.ffn_norm, %53:f32[1,16] = rms_norm_grad(%81, params.blocks.0.ffn_norm, %50, %43) eps=1e-6 residual  @blocks.0 ∇
     …
    +  grads.blocks.0.out = linear_weight_grad(%77, %54, compute_copy.blocks.0.out)  @blocks.0 ∇
     …
    +  %57:bf16[8,32], %58:f32[8,2] = flash_attention_grad(%76, %77, %78, %56, batch.sequences, control.step) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal p=0.1 site=1  @blocks.0 ∇
    +  %61:bf16[8,32], grads.blocks.0.q_norm, grads.blocks.0.k_norm, %62:f32[1,16] = qk_norm_rope_grad(%75, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions, %57) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0 ∇
     …
    ");
}

/// Shows where gradients are written and exchanged. With overlap, a bucket is exchanged right after its last
/// gradient is written; for the head's bucket that is before the backward. Without overlap, all buckets are
/// exchanged at the end.
/// Each matrix is rounded before the first product that reads it, and a weight in the first micro-step.
#[test]
fn rounding_to_8_bits() {
    let passes = Passes::new(&FP8);
    let before = passes.recomputed(Recompute::Emitted);
    let after = quantize_products(before.clone(), true, Fp8Scaling::Delayed).unwrap();
    assert_snapshot!(changes(&before, &after), @r"
    -program micro(first=true, last=true) (35 nodes)
    -  %23:bf16[16,2,24→64] = linear(%21, compute_copy.blocks.0.gate_up)  @blocks.0
    -  %26:bf16[16,16] = linear(%24, compute_copy.blocks.0.down)  @blocks.0
    -  %47:bf16[16,24→64] = linear_input_grad(%45, compute_copy.blocks.0.down)  @blocks.0 ∇
    -  grads.blocks.0.down = linear_weight_grad(%75, %45, compute_copy.blocks.0.down)  @blocks.0 ∇
    -  %50:bf16[16,16] = linear_input_grad(%48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
    -  grads.blocks.0.gate_up = linear_weight_grad(%76, %48, compute_copy.blocks.0.gate_up)  @blocks.0 ∇
    +program micro(first=true, last=true) (45 nodes)
     …
    +  %78:bf16[2,24→64,16] = copy(compute_copy.blocks.0.gate_up)  @blocks.0
    +  compute_copy.blocks.0.gate_up.e4m3, compute_copy.blocks.0.gate_up.e4m3_transposed, fp8.scales+160B, +fp8.maxima+20B, +fp8.counts+80B, %87:f32[1] = quantize(%78) to=e4m3 layouts=rows+transposed scaling=current  @blocks.0
    +  %91:e4m3[16,16], +fp8.maxima+12B, +fp8.counts+48B = quantize(%21, fp8.scales+96B) to=e4m3 layouts=rows  @blocks.0
    +  %23:bf16[16,2,24→64] = scaled_product(%91, compute_copy.blocks.0.gate_up.e4m3, fp8.scales+96B, fp8.scales+160B)  @blocks.0
     …
    +  %94:bf16[16,24→64] = copy(compute_copy.blocks.0.down)  @blocks.0
    +  compute_copy.blocks.0.down.e4m3, compute_copy.blocks.0.down.e4m3_transposed, fp8.scales+64B, +fp8.maxima+8B, +fp8.counts+32B, %100:f32[1] = quantize(%94) to=e4m3 layouts=rows+transposed scaling=current  @blocks.0
    +  %104:e4m3[16,64], +fp8.maxima+0B, +fp8.counts+0B = quantize(%24, fp8.scales+0B) to=e4m3 layouts=rows  @blocks.0
    +  %26:bf16[16,16] = scaled_product(%104, compute_copy.blocks.0.down.e4m3, fp8.scales+0B, fp8.scales+64B)  @blocks.0
     …
    +  %110:e5m2[16,16], %111:e5m2[16,16], +fp8.maxima+4B, +fp8.counts+16B = quantize(%45, fp8.scales+32B) to=e5m2 layouts=rows+transposed  @blocks.0 ∇
    +  %47:bf16[16,24→64] = scaled_product(%110, compute_copy.blocks.0.down.e4m3_transposed, fp8.scales+32B, fp8.scales+64B)  @blocks.0 ∇
     …
    +  %116:e4m3[64,16] = quantize(%75, fp8.scales+0B) to=e4m3 layouts=transposed  @blocks.0 ∇
    +  grads.blocks.0.down = scaled_product(%111, %116, fp8.scales+32B, fp8.scales+0B)  @blocks.0 ∇
    +  %121:e5m2[16,128], %122:e5m2[128,16], +fp8.maxima+16B, +fp8.counts+64B = quantize(%48, fp8.scales+128B) to=e5m2 layouts=rows+transposed  @blocks.0 ∇
    +  %50:bf16[16,16] = scaled_product(%121, compute_copy.blocks.0.gate_up.e4m3_transposed, fp8.scales+128B, fp8.scales+160B)  @blocks.0 ∇
     …
    +  %127:e4m3[16,16] = quantize(%76, fp8.scales+96B) to=e4m3 layouts=transposed  @blocks.0 ∇
    +  grads.blocks.0.gate_up = scaled_product(%122, %127, fp8.scales+128B, fp8.scales+96B)  @blocks.0 ∇
     …
    ");
}

/// A tied head keeps the copy of the embedding, which other ops read.
#[test]
fn rounding_the_products_of_a_head() {
    let passes = Passes::new(&[
        "training.dtype=fp8",
        "training.local_batch_size=4",
        "fp8.products=[\"head\"]",
        "model.tie_embeddings=true",
    ]);
    let before = passes.recomputed(Recompute::None);
    let after = quantize_products(before.clone(), true, Fp8Scaling::Delayed).unwrap();
    assert_snapshot!(changes(&before, &after), @r"
    -program micro(first=true, last=true) (35 nodes)
    -  %32+0B, %39:bf16[16,50→64], %33+0B, grads.embedding = head_loss(%30+0B, compute_copy.embedding, batch.targets+0B) scale=3.125e-2  @head
    +program micro(first=true, last=true) (41 nodes)
     …
    +  compute_copy.embedding.e4m3, compute_copy.embedding.e4m3_transposed, fp8.scales+64B, +fp8.maxima+8B, +fp8.counts+32B, %82:f32[1] = quantize(compute_copy.embedding) to=e4m3 layouts=rows+transposed scaling=current  @head
    +  %86:e4m3[16,16], %87:e4m3[16,16], +fp8.maxima+0B, +fp8.counts+0B = quantize(%30+0B, fp8.scales+0B) to=e4m3 layouts=rows+transposed  @head
    +  %39:bf16[16,50→64] = scaled_product(%86, compute_copy.embedding.e4m3, fp8.scales+0B, fp8.scales+64B)  @head
    +  %32+0B, %73:bf16[16,50→64] = cross_entropy_with_grad(%39, batch.targets+0B) scale=3.125e-2  @head
    +  %93:e5m2[16,64], %94:e5m2[64,16], +fp8.maxima+4B, +fp8.counts+16B = quantize(%73, fp8.scales+32B) to=e5m2 layouts=rows+transposed  @head
    +  grads.embedding = scaled_product(%94, %87, fp8.scales+32B, fp8.scales+0B)  @head
    +  %33+0B = scaled_product(%93, compute_copy.embedding.e4m3_transposed, fp8.scales+32B, fp8.scales+64B)  @head
     …
    ");
}

#[test]
fn rounding_within_gated_activations() {
    let passes = Passes::new(&FP8);
    let before = passes.recomputed(Recompute::Emitted);
    let before = quantize_products(before, false, Fp8Scaling::Delayed).unwrap();
    assert_snapshot!(changes(&before, &fuse_quantize(before.clone())), @r"
    -program micro(first=true, last=true) (41 nodes)
    -  %24:bf16[16,24→64] = swiglu(%23)  @blocks.0
    -  %92:e4m3[16,64], +fp8.maxima+0B, +fp8.counts+0B = quantize(%24, fp8.scales+0B) to=e4m3 layouts=rows  @blocks.0
    -  %48:bf16[16,2,24→64], %75:bf16[16,24→64] = swiglu_grad(%23, %47) emits=y  @blocks.0 ∇
    -  %106:e4m3[64,16] = quantize(%75, fp8.scales+0B) to=e4m3 layouts=transposed  @blocks.0 ∇
    -  %111:e5m2[16,128], %112:e5m2[128,16], +fp8.maxima+16B, +fp8.counts+64B = quantize(%48, fp8.scales+128B) to=e5m2 layouts=rows+transposed  @blocks.0 ∇
    +program micro(first=true, last=true) (38 nodes)
     …
    +  %92:e4m3[16,64], +fp8.maxima+0B, +fp8.counts+0B = gated_quantize(%23, fp8.scales+0B) swiglu to=e4m3 layouts=rows  @blocks.0
     …
    +  %111:e5m2[16,128], %112:e5m2[128,16], +fp8.maxima+16B, +fp8.counts+64B, %106:e4m3[64,16] = gated_grad_quantize(%23, %47, fp8.scales+128B, fp8.scales+0B) swiglu_grad to=e5m2 layouts=rows+transposed y: to=e4m3 layouts=transposed  @blocks.0 ∇
     …
    ");
}

#[test]
fn measuring_maxima() {
    let passes = Passes::new(&FP8);
    let before = passes.recomputed(Recompute::Emitted);
    assert_snapshot!(changes(&before, &observe_products(before.clone()).unwrap()), @r"
    -program micro(first=true, last=true) (35 nodes)
    +program micro(first=true, last=true) (41 nodes)
     …
    +  +fp8.maxima+12B = observe(%21)  @blocks.0
     …
    +  +fp8.maxima+0B = observe(%24)  @blocks.0
     …
    +  +fp8.maxima+4B = observe(%45)  @blocks.0 ∇
     …
    +  +fp8.maxima+0B = observe(%75)  @blocks.0 ∇
     …
    +  +fp8.maxima+16B = observe(%48)  @blocks.0 ∇
     …
    +  +fp8.maxima+12B = observe(%76)  @blocks.0 ∇
     …
    ");
}

#[test]
fn with_all_reduces() {
    let passes = Passes::new(&[]);
    let program = passes.recomputed(Recompute::Selective);
    let exchange = |overlap| {
        let mut text = String::new();
        for bucket in &passes.buckets {
            let end = bucket.start + bucket.len;
            let inside = passes.state.params.iter().filter(|p| (bucket.start..end).contains(&p.start));
            let names: Vec<&str> = inside.map(|p| p.name.as_str()).collect();
            text += &format!("{}: {}..{end}, {}\n", bucket.slot, bucket.start, names.join(", "));
        }
        let program = insert_all_reduces(program.clone(), &passes.buckets, overlap).unwrap();
        for node in &program.nodes {
            let labels: Vec<String> = node.outputs.iter().map(|&o| program.label(o)).collect();
            let written = labels.iter().filter(|label| label.starts_with("grads."));
            let written: Vec<&str> = written.map(String::as_str).collect();
            if !written.is_empty() {
                text += &format!("{} by {} on {:?}\n", written.join(", "), node.op.name(), node.stream);
            }
        }
        text
    };
    assert_snapshot!(exchange(true), @r"
    grads.bucket.0: 0..1024, head
    grads.bucket.1: 1024..4224, final_norm, blocks.0.down, blocks.0.gate_up
    grads.bucket.2: 4224..6528, blocks.0.ffn_norm, blocks.0.out, blocks.0.k_norm, blocks.0.q_norm, blocks.0.qkv, blocks.0.attention_norm, embedding
    grads.head by head_loss on Main
    grads.bucket.0 by all_reduce on Communication
    grads.final_norm by rms_norm_grad on Main
    grads.blocks.0.down by linear_weight_grad on Main
    grads.blocks.0.ffn_norm by rms_norm_grad on Main
    grads.blocks.0.gate_up by linear_weight_grad on Main
    grads.bucket.1 by all_reduce on Communication
    grads.blocks.0.out by linear_weight_grad on Main
    grads.blocks.0.q_norm, grads.blocks.0.k_norm by qk_norm_rope_grad on Main
    grads.blocks.0.attention_norm by rms_norm_grad on Main
    grads.blocks.0.qkv by linear_weight_grad on Main
    grads.embedding by embedding_grad on Main
    grads.bucket.2 by all_reduce on Communication
    ");
    assert_snapshot!(exchange(false), @r"
    grads.bucket.0: 0..1024, head
    grads.bucket.1: 1024..4224, final_norm, blocks.0.down, blocks.0.gate_up
    grads.bucket.2: 4224..6528, blocks.0.ffn_norm, blocks.0.out, blocks.0.k_norm, blocks.0.q_norm, blocks.0.qkv, blocks.0.attention_norm, embedding
    grads.head by head_loss on Main
    grads.final_norm by rms_norm_grad on Main
    grads.blocks.0.down by linear_weight_grad on Main
    grads.blocks.0.ffn_norm by rms_norm_grad on Main
    grads.blocks.0.gate_up by linear_weight_grad on Main
    grads.blocks.0.out by linear_weight_grad on Main
    grads.blocks.0.q_norm, grads.blocks.0.k_norm by qk_norm_rope_grad on Main
    grads.blocks.0.attention_norm by rms_norm_grad on Main
    grads.blocks.0.qkv by linear_weight_grad on Main
    grads.embedding by embedding_grad on Main
    grads.bucket.0 by all_reduce on Main
    grads.bucket.1 by all_reduce on Main
    grads.bucket.2 by all_reduce on Main
    ");
}

/// Every rank gathers the tokens of all ranks and the gradient's rows for them, and sums the rows. So the
/// embedding's gradient is in no bucket.
#[test]
fn with_exchanged_rows() {
    let passes = Passes::new(&[BY_ROWS]);
    let before = passes.recomputed(Recompute::Selective);
    assert_snapshot!(changes(&before, &passes.exchanged(before.clone())), @r"
    -program micro(first=true, last=true) (36 nodes)
    -  %70:u32[8], %71:u32[8], %72:u32[64], %73:u32[264] = sort_tokens(batch.tokens) vocabulary=64  @embedding ∇
    -  grads.embedding, %74:f32[2,16] = embedding_grad(%70, %71, %72, %68, compute_copy.embedding)  @embedding ∇
    +program micro(first=true, last=true) (37 nodes)
     …
    +  %79:u32[16], %80:bf16[16,16] = gather_rows(batch.tokens, %68) ranks=2  @embedding ⇄
    +  %81:u32[16], %82:u32[16], %83:u32[64], %84:u32[272] = sort_tokens(%79) vocabulary=64 ranks=2 sequence=4  @embedding ∇
    +  grads.embedding, %85:f32[2,16] = embedding_grad(%81, %82, %83, %80, compute_copy.embedding)  @embedding ∇
    ");
    let ends: Vec<usize> = passes.buckets.iter().map(|b| b.start + b.len).collect();
    assert_eq!(ends.last(), Some(&passes.state.param("embedding").unwrap().start));
}

/// If ranks divide the gradient (a sharded optimizer), tokens are gathered at the start, on the communication
/// stream, and each rank sums only the rows that it owns.
#[test]
fn with_exchanged_rows_of_divided_gradients() {
    let passes = Passes::new(&[BY_ROWS, "parallelism.shard=optimizer"]);
    let before = passes.recomputed(Recompute::Selective);
    assert_snapshot!(changes(&before, &passes.exchanged(before.clone())), @r"
    -program micro(first=true, last=true) (36 nodes)
    -  %70:u32[8], %71:u32[8], %72:u32[64], %73:u32[264] = sort_tokens(batch.tokens) vocabulary=64  @embedding ∇
    -  grads.embedding, %74:f32[2,16] = embedding_grad(%70, %71, %72, %68, compute_copy.embedding)  @embedding ∇
    +program micro(first=true, last=true) (38 nodes)
    +  exchange.tokens = gather_rows(batch.tokens) ranks=2  @embedding ⇄ ‖comm
    +  grads.embedding, exchange.order, exchange.sorted, exchange.count, exchange.scratch = token_order(exchange.tokens, compute_copy.embedding) ranks=2 sequence=4 ranges=1  @embedding ⇄ ‖comm
     …
    +  %84:bf16[16,16] = share_rows(exchange.tokens, %68) ranks=2  @embedding ⇄
    +  +grads.embedding, %85:f32[2,16] = embedding_grad_at_owners(exchange.order, exchange.sorted, exchange.count, %84, compute_copy.embedding) ranks=2 sequence=4 ranges=1  @embedding ∇
    ");
}

/// Shows every block of transient memory: offset and size in bytes, the first and the last node at which it
/// is alive, and the tensors that use it one after another.
#[test]
fn with_its_memory() {
    let passes = Passes::new(&[]);
    let program = passes.recomputed(Recompute::Selective);
    let memory = MemoryPlan::new(&program);
    let mut text = format!("{} bytes, most at node {}\n", memory.arena_bytes, memory.peak.0);
    for block in &memory.blocks {
        let names: Vec<&str> = block.tensors.iter().map(|&t| program.tensor(t).name.as_str()).collect();
        let (from, to) = (block.birth, block.death);
        text += &format!("{:>6}+{:<5} {from:>2}..{to:<2} {}\n", block.offset, block.bytes, names.join(", "));
    }
    assert_snapshot!(text, @r"
    5632 bytes, most at node 14
      3584+256    0..31 embedding.x, embedding.x#2
         0+256    2..3  blocks.0.normed
      3072+512    3..29 blocks.0.qkv
         0+512    4..5  blocks.0.attended:packed
      3840+256    5..28 blocks.0.attended
      4096+256    5..28 blocks.0.attended.1
      4352+256    6..22 blocks.0.out:linear, blocks.0.out, blocks.0.middle
      2048+256    8..9  blocks.0.ffn_input
         0+2048   9..23 blocks.0.gate_up, blocks.0.d_gate_up
      2048+1024  10..11 blocks.0.hidden
      4608+256   11..16 blocks.0.down:linear, blocks.0.down, blocks.0.x
      4864+256   13..14 head.normed
      5120+256   14..15 head.losses
      2048+1024  14..14 head.logits.1
      5376+256   14..35 head.d_normed, blocks.0.d_middle, blocks.0.d_x#2, embedding.d_x#2, embedding.d_x
      2048+256   16..16 blocks.0.d_middle.2
      4608+256   17..20 blocks.0.d_down:linear
      2048+1024  18..20 blocks.0.d_hidden, blocks.0.hidden
      2048+256   21..23 blocks.0.d_ffn_input, blocks.0.ffn_input
      2304+256   22..22 blocks.0.d_x#2.2
         0+256   24..26 blocks.0.d_out:linear
      1024+256   26..28 blocks.0.d_attended
         0+512   27..28 blocks.0.attended:packed
       512+512   28..32 blocks.0.d_attended:packed, blocks.0.d_qkv
      1280+256   28..28 blocks.0.d_attended:packed.1
         0+256   29..29 blocks.0.d_qkv.3
         0+256   30..32 blocks.0.d_normed, blocks.0.normed
       256+256   31..31 embedding.d_x#2.2
      1280+256   34..35 embedding.sorted
      1536+256   34..35 embedding.sorted.1
      1792+256   34..35 embedding.sorted.2
         0+1280  34..34 embedding.sorted.3
         0+256   35..35 embedding.d_embedding.1
    ");
}

#[test]
fn the_other_sections() {
    let programs = Programs::new(&plan(&[])).unwrap();
    assert_snapshot!(programs.step_end.program, @r"
    program step_end (4 nodes)
      +control.loss = all_reduce() ⇄
      control.grad_norm, control.clip, +control.bad, %7:f32[2] = grad_norm(grads.flat, control.loss) max_norm=1 ◆
      +params.flat, +m.flat, +v.flat, +compute_copy.flat = adamw(grads.flat, control.schedule, control.step, control.clip, control.bad) betas=(0.9,0.95) eps=0.00000001 segments=9 ◆
      +control.step = advance(control.bad) ◆
    ");
    assert_snapshot!(programs.evaluate.program, @r"
    program evaluate (13 nodes)
      %2:bf16[8,16] = embedding(batch.tokens, compute_copy.embedding)  @embedding
      %4:bf16[8,16] = rms_norm(%2, params.blocks.0.attention_norm) eps=1e-6  @embedding
      %6:bf16[8,32] = linear(%4, compute_copy.blocks.0.qkv)  @blocks.0
      %10:bf16[8,32] = qk_norm_rope(%6, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0
      %11:bf16[8,16], %12:f32[8,2] = flash_attention(%10) heads=2 kv_heads=1 head_dim=8 seq_len=4 mask=causal  @blocks.0
      %14:bf16[8,16] = linear(%11, compute_copy.blocks.0.out)  @blocks.0
      %16:bf16[8,16], %17:bf16[8,16] = residual_norm(%2, %14, params.blocks.0.ffn_norm) eps=1e-6  @blocks.0
      %19:bf16[8,2,24→64] = linear(%17, compute_copy.blocks.0.gate_up)  @blocks.0
      %20:bf16[8,24→64] = swiglu(%19)  @blocks.0
      %22:bf16[8,16] = linear(%20, compute_copy.blocks.0.down)  @blocks.0
      %24:bf16[8,16], %25:bf16[8,16] = residual_norm(%16, %22, params.final_norm) eps=1e-6  @blocks.0
      %28+0B, %33:bf16[8,50→64] = head_loss(%25+0B, compute_copy.head, batch.targets+0B) without gradients  @head
      control.eval_loss = sum(%28) scale=1e0  @head
    ");
    assert_snapshot!(programs.replicas.unwrap().program, @r"
    program replicas (11 nodes)
      replicas.fingerprints+0B = fingerprint(params.head)  @head ⇄
      replicas.fingerprints+16B = fingerprint(params.final_norm)  @final_norm ⇄
      replicas.fingerprints+32B = fingerprint(params.blocks.0.down)  @blocks.0.down ⇄
      replicas.fingerprints+48B = fingerprint(params.blocks.0.gate_up)  @blocks.0.gate_up ⇄
      replicas.fingerprints+64B = fingerprint(params.blocks.0.ffn_norm)  @blocks.0.ffn_norm ⇄
      replicas.fingerprints+80B = fingerprint(params.blocks.0.out)  @blocks.0.out ⇄
      replicas.fingerprints+96B = fingerprint(params.blocks.0.k_norm)  @blocks.0.k_norm ⇄
      replicas.fingerprints+112B = fingerprint(params.blocks.0.q_norm)  @blocks.0.q_norm ⇄
      replicas.fingerprints+128B = fingerprint(params.blocks.0.qkv)  @blocks.0.qkv ⇄
      replicas.fingerprints+144B = fingerprint(params.blocks.0.attention_norm)  @blocks.0.attention_norm ⇄
      replicas.fingerprints+160B = fingerprint(params.embedding)  @embedding ⇄
    ");
    assert_snapshot!(programs.generate.unwrap().program, @r"
    program generate (13 nodes)
      %2:bf16[2,16] = embedding(generation.tokens, compute_copy.embedding)  @embedding
      %4:bf16[2,16] = rms_norm(%2, params.blocks.0.attention_norm) eps=1e-6  @embedding
      %6:bf16[2,32] = linear(%4, compute_copy.blocks.0.qkv)  @blocks.0
      %10:bf16[2,32] = qk_norm_rope(%6, params.blocks.0.q_norm, params.blocks.0.k_norm, generation.positions) heads=2 kv_heads=1 head_dim=8 eps=1e-6 theta=10000  @blocks.0
      %13:bf16[2,16], +generation.cache.0, +generation.arrivals.2, %14:f32[2,1,2,10] = cached_attention(%10, generation.positions) heads=2 kv_heads=1 head_dim=8 capacity=4  @blocks.0
      %16:bf16[2,16] = linear(%13, compute_copy.blocks.0.out)  @blocks.0
      %18:bf16[2,16], %19:bf16[2,16] = residual_norm(%2, %16, params.blocks.0.ffn_norm) eps=1e-6  @blocks.0
      %21:bf16[2,2,24→64] = linear(%19, compute_copy.blocks.0.gate_up)  @blocks.0
      %22:bf16[2,24→64] = swiglu(%21)  @blocks.0
      %24:bf16[2,16] = linear_few_rows(%22, compute_copy.blocks.0.down)  @blocks.0
      %26:bf16[2,16], %27:bf16[2,16] = residual_norm(%18, %24, params.final_norm) eps=1e-6  @blocks.0
      generation.logits = linear(%27, compute_copy.head)  @head
      generation.tokens, +generation.positions, +generation.bad = sample_tokens(generation.logits) temperature=0.8 top_k=0 top_p=1 seed=0 entries=50 last=3  @head
    ");
}

/// The embedding's gradient is not exchanged by rows if the head contributes to it too (tied embeddings), if
/// several micro-steps do, or if there is only one rank.
#[test]
fn a_shared_gradient_is_not_exchanged() {
    for overrides in
        [["model.tie_embeddings=true"], ["training.accumulation=2"], ["parallelism.world_size=1"]]
    {
        assert_eq!(
            layout::rank_interleaving(&plan(&[&overrides[..], &[BY_ROWS]].concat())),
            None,
            "{overrides:?}"
        );
    }
    let passes = Passes::new(&["model.tie_embeddings=true"]);
    let slot = passes.state.param("embedding").unwrap().grad;
    let layout = RankInterleaved { ranks: 2, sequence: 4 };
    let error = exchange_rows(passes.recomputed(Recompute::Selective), slot, layout, None).unwrap_err();
    assert_snapshot!(error, @"program micro(first=true, last=true): the gradient to exchange does not come from one embedding alone");
}

/// A plan's program is what the passes above make in this order: differentiate, recompute, exchange rows,
/// insert reductions.
#[test]
fn the_passes_make_the_program() {
    let ways: [&[&str]; 3] = [&[], &[BY_ROWS], &[BY_ROWS, "parallelism.shard=optimizer"]];
    for way in ways {
        let passes = Passes::new(way);
        let mut program = passes.recomputed(Recompute::Selective);
        if way.contains(&BY_ROWS) {
            program = passes.exchanged(program);
        }
        let program = insert_all_reduces(program, &passes.buckets, true).unwrap();
        let programs = Programs::new(&passes.plan).unwrap();
        assert_eq!(programs.micro.len(), 1);
        assert_eq!(programs.micro[0].1.program.to_string(), program.to_string());
    }
}

/// Also checks that the printed name of a slot begins with the name of its buffer.
#[test]
fn every_slot_is_found_by_its_name_and_no_two_print_alike() {
    let sharded = ["parallelism.world_size=2", "parallelism.shard=optimizer", "training.dtype=bf16"];
    for more in [&[][..], &["ema.decay=0.9", "generation.samples=2"], &["optimizer.name=muon"]] {
        for base in [&[][..], &sharded] {
            let (state, _) = layout::state(&plan(&[base, more].concat())).unwrap();
            let printed: BTreeSet<String> = state.slots.iter().map(|slot| slot.name.to_string()).collect();
            assert_eq!(printed.len(), state.slots.len());
            for (index, Slot { name, buffer, .. }) in state.slots.iter().enumerate() {
                assert_eq!(state.slot(name.clone()), Some(SlotId(index)), "{name}");
                assert!(name.to_string().starts_with(&format!("{}.", state.buffers[*buffer].name)), "{name}");
            }
        }
    }
}

/// A missing gradient is found before anything runs, and the error names the op or the parameter.
#[test]
fn a_missing_gradient_is_an_error_of_the_plan() {
    let passes = Passes::new(&[]);
    let build = |record: &dyn Fn(&mut Builder) -> TensorId| {
        let mut b = Builder::new("wrong", Arc::clone(&passes.state));
        let seed = record(&mut b);
        differentiate(b.finish(), &[(seed, Upstream::One)], true).unwrap_err()
    };
    let without_vjp = build(&|b| {
        let norm = b.param("final_norm").unwrap();
        b.scoped("here", |b| b.emit1("y", SumGrad { scale: Factor::Constant(1.0) }, &[norm])).unwrap()
    });
    assert_snapshot!(without_vjp, @"sum_grad (here) has no gradient");
    let unreached = build(&|b| {
        let (norm, other) = (b.param("final_norm").unwrap(), b.param("blocks.0.q_norm").unwrap());
        b.emit1("unread", Copy, &[norm]).unwrap();
        b.emit1("y", SumGrad { scale: Factor::Constant(1.0) }, &[other]).unwrap();
        b.state(ControlSlot::Loss).unwrap()
    });
    assert_snapshot!(unreached, @"program wrong: no gradient reaches the parameter final_norm");
    let untrained = build(&|b| {
        let (head, targets) = (b.param("head").unwrap(), b.state(BatchSlot::Targets).unwrap());
        let (tokens, table) = (b.state(BatchSlot::Tokens).unwrap(), b.param("embedding").unwrap());
        let x = b.emit1("x", crate::ops::embedding::Embedding, &[tokens, table]).unwrap();
        b.emit1(
            "losses",
            HeadLoss {
                factor: RowFactor::Same(Factor::Constant(1.0)),
                gradients: HeadGradients::None,
                objective: Objective::PLAIN,
                products: ProductPrecision::Native,
            },
            &[x, head, targets],
        )
        .unwrap()
    });
    assert_snapshot!(untrained, @"head_loss in : recorded without gradients, so training cannot pass through it");
}
