//! Forecasts what ranks exchange in a step, and how long it takes.

use crate::exec::Section;
use crate::ir::{Node, Program};
use crate::model::Programs;
use crate::plan::Plan;
use serde::Serialize;

/// Bytes per second in each direction when two GPUs copy in both directions at once. Two H200s joined by
/// NVLink reached this with 4 MiB at a time (`results/measured/nvidia-h200-x2-2026-11-24/table.md`).
const COPY_BYTES_PER_SECOND: f64 = 300e9;

/// Seconds of the two waits in a collective by copies, once all ranks have arrived, from a trace of two H100s
/// (`results/measured/nvidia-h100-x2-2026-11-26b/table.md`).
const WAITS_SECONDS: f64 = 10e-6;

/// What a rank sends in a step, after any ramp of the batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangeForecast {
    /// Number of ranks.
    pub ranks: usize,
    /// The transport: `copies`, `nccl` or `host`. Copies become NCCL if GPUs cannot access each other's
    /// memory.
    pub transport: &'static str,
    /// Bytes of gradients, norms and losses.
    pub gradient_bytes: u64,
    /// Bytes of rows of the embedding's gradient; 0 if it is sent with the gradients.
    pub row_bytes: u64,
    /// Bytes of parameters that other ranks read; 0 if every rank updates all parameters.
    pub parameter_bytes: u64,
    /// The time that the exchange takes by copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<ExchangeTime>,
}

/// A forecast from what other GPUs reached; the links of this machine were not measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExchangeTime {
    /// Assumed bytes per second in each direction.
    pub bytes_per_second: f64,
    /// Seconds of all collectives of a step, one after another.
    pub seconds: f64,
    /// The part of these during which nothing of the model runs.
    pub exposed_seconds: f64,
}

/// What one collective sends, in bytes.
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
    /// Returns what the ranks of a plan exchange; `None` if they exchange nothing.
    pub fn new(plan: &Plan, programs: &Programs) -> Option<Self> {
        if !plan.exchanges_gradients() {
            return None;
        }
        let ranks = plan.batch.world_size;
        let copies = plan.copies_between_gpus();
        let full = plan.batch.micro_steps;
        let sent_in = |section: &Section| -> Vec<Sent> {
            let program = &section.program;
            program.nodes.iter().filter_map(|node| sent(program, node, ranks, copies)).collect()
        };
        let step = [programs.micro_step(full - 1, full), &programs.step_end].map(sent_in).concat();
        let gather = programs.gather.as_ref().map(sent_in).unwrap_or_default();
        let all = || step.iter().chain(&gather);
        let sum = |part: fn(&Sent) -> f64| all().map(part).sum::<f64>().round() as u64;
        let time = copies.then(|| {
            let seconds = |sent: &Sent| WAITS_SECONDS + sent.bytes() / COPY_BYTES_PER_SECOND;
            let total = all().map(seconds).sum();
            ExchangeTime {
                bytes_per_second: COPY_BYTES_PER_SECOND,
                seconds: total,
                exposed_seconds: match plan.execution.overlap {
                    // What the forward reads first is exposed, unless the update gathers it, and so is what
                    // the backward or the update delivers last.
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

/// Returns the collectives of a step that have no computation left to hide behind: the last bucket of
/// gradients, rows of the embedding, and sums of the update. Parameters are not among them because other
/// parameters are updated meanwhile.
fn exposed(step: &[Sent]) -> impl Iterator<Item = &Sent> {
    let is_bucket = |sent: &Sent| sent.rows == 0.0 && sent.parameters == 0.0;
    // The very last collective is the sum of losses and norms.
    let last_bucket = step.iter().rposition(is_bucket).and_then(|at| step[..at].iter().rposition(is_bucket));
    step.iter()
        .enumerate()
        .filter(|(_, sent)| sent.parameters == 0.0)
        .filter(move |(at, sent)| !is_bucket(sent) || last_bucket.is_none_or(|last| *at >= last))
        .map(|(_, sent)| sent)
}

/// Returns what a rank sends in a node; `None` if it is no collective.
fn sent(program: &Program, node: &Node, ranks: usize, copies: bool) -> Option<Sent> {
    let others = (ranks - 1) as f64;
    let share = others / ranks as f64;
    // The cost of an exchange op counts both a read and a write of the bytes that it moves.
    let moved = program.cost(node).bytes / 2.0;
    let none = Sent::default();
    Some(match node.op.name() {
        // A ring passes on every part but the rank's own twice. Copies go to every other rank, which adds
        // them up.
        "all_reduce" => Sent { gradients: moved * if copies { others } else { 2.0 * share }, ..none },
        "reduce_scatter" => Sent { gradients: moved * share, ..none },
        "all_gather" => Sent { parameters: moved * share, ..none },
        "gather_rows" => {
            let own: usize = node.inputs.iter().map(|&input| program.spec(input).bytes()).sum();
            Sent { rows: own as f64 * others, ..none }
        }
        // If tokens are spread evenly, a rank reads as many of the others' rows as its share of the table.
        "share_rows" => {
            let own = program.spec(node.inputs[1]).bytes() as f64;
            Sent { rows: own * if copies { share } else { others }, ..none }
        }
        _ => return None,
    })
}
