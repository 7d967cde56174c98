//! What ranks exchange in a step, and a forecast of how long that takes.

use crate::ir::{Node, Program};
use crate::model::Programs;
use crate::plan::Plan;
use serde::Serialize;

/// Bytes per second and direction of copies between two GPUs, both directions at once: what two H200s joined
/// by NVLink reached with 4 MiB at a time (`results/measured/nvidia-h200-x2-2026-11-24/table.md`).
const COPY_BYTES_PER_SECOND: f64 = 300e9;

/// Seconds that ranks wait for each other in a collective by copies, twice, where all have come: in a trace
/// of two H100s (`results/measured/nvidia-h100-x2-2026-11-26b/table.md`).
const WAITS_SECONDS: f64 = 10e-6;

/// What a rank sends in a step after a ramp of the batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangeForecast {
    /// Number of ranks.
    pub ranks: usize,
    /// How: `copies`, `nccl` or `host`. Copies become NCCL where GPUs have no access to each other's memory.
    pub transport: &'static str,
    /// Bytes of gradients, norms and losses.
    pub gradient_bytes: u64,
    /// Bytes of rows of the embedding's gradient; 0 where it is among the gradients.
    pub row_bytes: u64,
    /// Bytes of parameters that other ranks read; 0 where every rank updates all.
    pub parameter_bytes: u64,
    /// How long it takes by copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<ExchangeTime>,
}

/// A forecast from what other GPUs reached: no link of this machine was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExchangeTime {
    /// Bytes per second that it assumes in each direction.
    pub bytes_per_second: f64,
    /// Seconds of all collectives of a step, one after the other.
    pub seconds: f64,
    /// Of these, in which nothing of the model runs.
    pub exposed_seconds: f64,
}

/// What one collective sends.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    gradients: f64,
    rows: f64,
    parameters: f64,
}

impl Sent {
    fn bytes(self) -> f64 {
        self.gradients + self.rows + self.parameters
    }
}

impl ExchangeForecast {
    /// Returns what the ranks of a plan exchange; `None` where they exchange nothing.
    pub fn new(plan: &Plan, programs: &Programs) -> Option<Self> {
        if !plan.exchanges() {
            return None;
        }
        let ranks = plan.batch.world_size;
        let copies = plan.copies_between_gpus();
        let full = plan.batch.micro_steps;
        let step = [programs.micro_step(full - 1, full), &programs.step_end];
        let in_step = step.into_iter().flat_map(|section| all_sent(&section.program, ranks, copies));
        let (step, gather): (Vec<Sent>, Vec<Sent>) = (
            in_step.collect(),
            programs.gather.iter().flat_map(|section| all_sent(&section.program, ranks, copies)).collect(),
        );
        let all = || step.iter().chain(&gather);
        let sum = |part: fn(&Sent) -> f64| all().map(part).sum::<f64>().round() as u64;
        let time = copies.then(|| {
            let seconds = |sent: &Sent| WAITS_SECONDS + sent.bytes() / COPY_BYTES_PER_SECOND;
            let total = all().map(seconds).sum();
            ExchangeTime {
                bytes_per_second: COPY_BYTES_PER_SECOND,
                seconds: total,
                exposed_seconds: match plan.execution.overlap {
                    // What the forward reads first, unless the update gathers it, and what the backward or
                    // the update is the last to give.
                    true => {
                        let at_head = usize::from(step.iter().all(|sent| sent.parameters == 0.0));
                        gather.iter().take(at_head).chain(exposed(&step)).map(seconds).sum()
                    }
                    false => total,
                },
            }
        });
        Some(Self {
            ranks,
            transport: match plan.execution.gpu {
                None => "host",
                Some(_) if copies => "copies",
                Some(_) => "nccl",
            },
            gradient_bytes: sum(|sent| sent.gradients),
            row_bytes: sum(|sent| sent.rows),
            parameter_bytes: sum(|sent| sent.parameters),
            time,
        })
    }
}

/// Returns those collectives of a step behind which nothing is left to compute: the last bucket of gradients,
/// rows of the embedding, and sums of the update, but no parameters, beside which others are updated.
fn exposed(step: &[Sent]) -> impl Iterator<Item = &Sent> {
    let is_bucket = |sent: &Sent| sent.rows == 0.0 && sent.parameters == 0.0;
    // The very last is the sum of losses and norms.
    let last_bucket = step.iter().rposition(is_bucket).and_then(|at| step[..at].iter().rposition(is_bucket));
    step.iter()
        .enumerate()
        .filter(|(_, sent)| sent.parameters == 0.0)
        .filter(move |(at, sent)| !is_bucket(sent) || last_bucket.is_none_or(|last| *at >= last))
        .map(|(_, sent)| sent)
}

/// Returns what a rank sends in each collective of a program.
fn all_sent(program: &Program, ranks: usize, copies: bool) -> Vec<Sent> {
    program.nodes.iter().filter_map(|node| sent(program, node, ranks, copies)).collect()
}

fn sent(program: &Program, node: &Node, ranks: usize, copies: bool) -> Option<Sent> {
    let others = (ranks - 1) as f64;
    let share = others / ranks as f64;
    // Ops of the exchange count a read and a write of what they move.
    let moved = program.cost(node).bytes / 2.0;
    let none = Sent::default();
    Some(match node.op.name() {
        // A ring passes on every part twice, but the own one; copies go to every rank, which adds up.
        "all_reduce" => Sent { gradients: moved * if copies { others } else { 2.0 * share }, ..none },
        "reduce_scatter" => Sent { gradients: moved * share, ..none },
        "all_gather" => Sent { parameters: moved * share, ..none },
        "gather_rows" => {
            let own: usize = node.inputs.iter().map(|&input| program.spec(input).bytes()).sum();
            Sent { rows: own as f64 * others, ..none }
        }
        // Of the rows of others, a rank reads as many as it owns of the table, if tokens are spread evenly.
        "share_rows" => {
            let own = program.spec(node.inputs[1]).bytes() as f64;
            Sent { rows: own * if copies { share } else { others }, ..none }
        }
        _ => return None,
    })
}
