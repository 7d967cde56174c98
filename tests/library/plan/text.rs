//! What a person reads.

use crate::plan::{TINY, device, forecast, plan, programs};
use xrun::forecast::listing::listing;
use xrun::format::thousands;
use xrun::machine::hardware;

#[test]
fn the_report_of_a_tiny_plan() {
    let found = forecast(&plan("quickstart", &TINY, 511), &[device("rtx3090")]);
    insta::assert_snapshot!(found.to_string(), @r"
    quickstart: fp32, flash attention, selective recompute

    Parameters
      embedding             16,352   39.4 %
      head                  16,352   39.4 %
      attention              4,096    9.9 %
      feed-forward           4,608   11.1 %
      norms                    128    0.3 %
      total                 41,536  100.0 %
      core (non-embedding)   8,832   21.3 %
      79 % of the parameters are embedding and head: a small model on a vocabulary of 511 is mostly embedding

    FLOPs per token  151.87 kFLOP, forward and backward
      6·(L·(2·d·(h+kv)·hd + 3·d·ffn) + V·d) + 6·L·h·hd·T
      6·(1·(2·32·(2+2)·16 + 3·32·48) + 511·32) + 6·1·2·16·8

    Batch  1 rank × 2 sequences × 1 micro-step = 2 sequences per step
      weak scaling: the batch per rank is fixed: more ranks make a larger global batch

    Training  3 steps × 16 tokens = 48 tokens
      0.00 passes over 999,993 tokens; 10,000 held out
      the last 7 of 1,000,000 tokens fill no window of 8 tokens, so no pass reaches them
      floor 1.2500 nats per token: no model can do better on the held-out tokens

    Checkpoint  486.75 KiB = 41,536 parameters × 12 B (fp32 weight and two moments)

    Saves  beside training, from a copy of the state of 507.75 KiB in the GPU's memory: the copy fits

    Disk  about 1.1 MiB: 1 checkpoint of 486.75 KiB, rows and log 25 KiB, pictures 560 KiB

    Memory of a rank  756,224 B = 738.50 KiB
      state                696,320  680.00 KiB
        params             173,312  169.25 KiB
        grads              173,312  169.25 KiB
        m                  173,312  169.25 KiB
        v                  173,312  169.25 KiB
        batch                1,280    1.25 KiB
        control              1,792    1.75 KiB
      activations (arena)   59,904   58.50 KiB
      activations would take 76.75 KiB with placement caching, 58.50 KiB with placement naive

      section                       nodes      arena  live at peak  fragmentation
      micro(first=true, last=true)     30  58.50 KiB     58.50 KiB          0.0 %
      step_end                          3      256 B         256 B          0.0 %
      evaluate                         13  34.25 KiB     34.25 KiB          0.0 %

      Most is alive at node 11 (head_loss of head) of micro(first=true, last=true)
      tensor               format and shape   bytes   share  made by, needed until
      head.logits.1        f32[16,511→512]   32,768  54.7 %  node 11 head_loss, node 11
      blocks.0.gate_up     f32[16,2,48→64]    8,192  13.7 %  node 7 linear, node 19
      blocks.0.qkv         f32[16,96]         6,144  10.3 %  node 2 linear, node 24
      embedding.x          f32[16,32]         2,048   3.4 %  node 0 embedding, node 26
      blocks.0.attended    f32[16,32]         2,048   3.4 %  node 4 flash_attention, node 23
      blocks.0.middle      f32[16,32]         2,048   3.4 %  node 6 residual_norm, node 18
      blocks.0.x           f32[16,32]         2,048   3.4 %  node 10 residual_norm, node 13
      head.normed          f32[16,32]         2,048   3.4 %  node 10 residual_norm, node 11
      head.d_normed        f32[16,32]         2,048   3.4 %  node 11 head_loss, node 29
      blocks.0.attended.1  f32[16,2]            256   0.4 %  node 4 flash_attention, node 23

    On rtx3090  NVIDIA GeForce RTX 3090 (Ampere, compute capability 8.6)
      fits, 22.75 GiB to spare: 738.50 KiB of 22.75 GiB (1.25 GiB set aside for driver and libraries)
      predicted step 101.4 µs: 157,800 tok/s, MFU 0.1 % of fp32; all steps 304.2 µs
        phase      nodes      products  memory traffic     time  bound by products
        forward       13    1.91 MFLOP       295.88 kB  39.4 µs              0.0 %
        recompute      1        0 FLOP        12.48 kB   3.0 µs              0.0 %
        backward      16  675.84 kFLOP       299.52 kB  48.4 µs              0.0 %
        optimizer      3        0 FLOP         1.39 MB  10.7 µs              0.0 %
        An estimate from the costs of ops: each node takes 3 µs and the longer of its products at 69 % of the
        dense fp32 peak (attention's at what they reached on an H200) and its bytes at 89 % of the bandwidth. Data and
        links are not in it.
      dense peaks bf16 71.00 TFLOP/s, tf32 35.60 TFLOP/s, fp32 35.60 TFLOP/s; memory 936.00 GB/s
      source: NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A (fp32 accumulation)
    ");
}

#[test]
fn the_listing_of_a_tiny_program() {
    let programs = programs(&plan("quickstart", &TINY, 511));
    insta::assert_snapshot!(listing(&programs, Some("evaluate"), None).expect("a section"), @r"
    state (680.00 KiB, 41,536 parameters)
      params   173,312
      grads    173,312
      m        173,312
      v        173,312
      batch      1,280
      control    1,792

    program evaluate (13 nodes, arena 35,072 B, live peak 35,072 B at node 11)
     0  %2:f32[16,32] = embedding(batch.tokens, params.embedding)  @embedding
          %2 embedding.x  arena 12,288..14,336  nodes 0..=10
     1  %4:f32[16,32] = rms_norm(%2, params.blocks.0.attention_norm) eps=1e-6  @embedding
          %4 blocks.0.normed  arena 6,144..8,192  nodes 1..=2
     2  %6:f32[16,96] = linear(%4, params.blocks.0.qkv)  @blocks.0
          %6 blocks.0.qkv  arena 0..6,144  nodes 2..=4
     3  %10:f32[16,96] = qk_norm_rope(%6, params.blocks.0.q_norm, params.blocks.0.k_norm, batch.positions) heads=2 kv_heads=2 head_dim=16 eps=1e-6 theta=10000  @blocks.0
          %10 blocks.0.attended:packed  arena 0..6,144  nodes 2..=4 in place
     4  %11:f32[16,32], %12:f32[16,2] = flash_attention(%10) heads=2 kv_heads=2 head_dim=16 seq_len=8 mask=causal  @blocks.0
          %11 blocks.0.attended  arena 6,144..8,192  nodes 4..=5
          %12 blocks.0.attended.1  arena 8,192..8,448  nodes 4..=4
     5  %14:f32[16,32] = linear(%11, params.blocks.0.out)  @blocks.0
          %14 blocks.0.out  arena 8,192..10,240  nodes 5..=7
     6  %16:f32[16,32], %17:f32[16,32] = residual_norm(%2, %14, params.blocks.0.ffn_norm) eps=1e-6  @blocks.0
          %16 blocks.0.middle  arena 12,288..14,336  nodes 0..=10 in place
          %17 blocks.0.ffn_input  arena 8,192..10,240  nodes 5..=7 in place
     7  %19:f32[16,2,48→64] = linear(%17, params.blocks.0.gate_up)  @blocks.0
          %19 blocks.0.gate_up  arena 0..8,192  nodes 7..=8
     8  %20:f32[16,48→64] = swiglu(%19)  @blocks.0
          %20 blocks.0.hidden  arena 8,192..12,288  nodes 8..=9
     9  %22:f32[16,32] = linear(%20, params.blocks.0.down)  @blocks.0
          %22 blocks.0.down  arena 32,768..34,816  nodes 9..=11
    10  %24:f32[16,32], %25:f32[16,32] = residual_norm(%16, %22, params.final_norm) eps=1e-6  @blocks.0
          %24 blocks.0.x  arena 12,288..14,336  nodes 0..=10 in place
          %25 head.normed  arena 32,768..34,816  nodes 9..=11 in place
    11  %28+0B, %33:f32[16,511→512] = head_loss(%25+0B, params.head, batch.targets+0B) without gradients  @head
          %33 head.logits.1  arena 0..32,768  nodes 11..=11
    12  control.eval_loss = sum(%28) scale=1e0  @head
    ");
}

#[test]
fn the_devices_in_the_docs_are_those_in_the_binary() {
    let docs = include_str!("../../../docs/planning.md");
    let rows: Vec<String> = hardware::DEVICES
        .iter()
        .filter_map(|d| {
            let (bytes, l) = (d.memory_bytes? as usize, d.limits?);
            let tera = |x: f64| (x / 1e12).to_string();
            let memory = thousands(bytes >> 20);
            Some(format!(
                "| `{}` | {memory} | {} | {} | {} | {} |",
                d.name,
                tera(l.bf16),
                tera(l.tf32),
                tera(l.fp32),
                tera(l.bandwidth)
            ))
        })
        .collect();
    assert!(docs.contains(&rows.join("\n")), "{}", rows.join("\n"));
}

#[test]
fn a_limit_on_evaluations_is_part_of_the_plan() {
    let limited = forecast(&plan("quickstart", &[&TINY[..], &["validation.steps=2"]].concat(), 511), &[]);
    assert!(limited.to_string().contains("\n  validation over 2 of 625 batches\n"), "{limited}");
    let whole = forecast(&plan("quickstart", &TINY, 511), &[]);
    assert!(!whole.to_string().contains("validation over"), "{whole}");
}
