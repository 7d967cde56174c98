//! What a step takes, by the lines of the model's text.
//!
//! Recording gives every node the statement that it computes, and passes keep it: a gradient belongs to the
//! statement of its forward. A node that computes several statements belongs to the one of its last result.

use super::node_pace::NodePace;
use super::time::step_sections;
use crate::exec::Section;
use crate::ir::Phase;
use crate::machine::Machine;
use crate::model::Programs;
use crate::model::text::{LineCost, cost};
use crate::plan::Plan;
use serde::Serialize;
use std::ops::AddAssign;

/// What one rank does in a step, after any ramp of the batch, by the statements of the model's text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelLines {
    /// The recipe's name.
    pub recipe: String,
    /// Tokens of a step, over all ranks.
    pub tokens_per_step: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Micro-steps of a step.
    pub micro_steps: usize,
    /// The statements, in the order of the canonical text.
    pub lines: Vec<ModelLine>,
    /// What belongs to no statement: the update, the sums of losses, the keys that windows show, and
    /// reductions of gradients.
    pub rest: StepCosts,
    /// The sum of the lines and the rest.
    pub total: StepCosts,
    /// What the times are predicted for: devices, or `this machine`.
    pub on: Vec<String>,
    /// Why other times are not predicted.
    pub no_time: Vec<String>,
}

/// A statement, over all blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelLine {
    /// The part: embed, block or head.
    pub part: &'static str,
    /// The line of the canonical text, from 1.
    pub line: usize,
    /// The canonical text.
    pub statement: String,
    /// Blocks in which the statement exists; 0 outside the blocks.
    pub blocks: usize,
    /// What it takes.
    #[serde(flatten)]
    pub costs: StepCosts,
}

/// What a part of a step takes on one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepCosts {
    /// Trained elements.
    pub parameters: usize,
    /// FLOPs of products per step, forward and backward, including recomputation.
    pub product_flops: f64,
    /// Bytes of the results that stay in memory from the forward of a micro-step to its backward.
    pub kept_bytes: usize,
    /// Bytes to and from memory per step.
    pub bytes: f64,
    /// Predicted seconds per step, on each of [`ModelLines::on`].
    pub seconds: Vec<f64>,
}

impl AddAssign<&Self> for StepCosts {
    fn add_assign(&mut self, other: &Self) {
        self.parameters += other.parameters;
        self.product_flops += other.product_flops;
        self.kept_bytes += other.kept_bytes;
        self.bytes += other.bytes;
        self.seconds.resize(other.seconds.len().max(self.seconds.len()), 0.0);
        self.seconds.iter_mut().zip(&other.seconds).for_each(|(sum, seconds)| *sum += seconds);
    }
}

/// The machine without a name of its own.
pub(super) const HERE: &str = "this machine";

impl ModelLines {
    /// Returns what the lines of a plan's model take, with times for each of the machines whose speed is
    /// known.
    pub fn new(plan: &Plan, programs: &Programs, machines: &[Machine]) -> Self {
        let (mut on, mut no_time, mut paces) = (Vec::new(), Vec::new(), Vec::new());
        for machine in machines {
            let pace = match machine.hardware {
                Some(hardware) => NodePace::on(plan, hardware),
                None => NodePace::here(plan, machine),
            };
            let name = machine.hardware.map_or(HERE, |hardware| hardware.name);
            match pace {
                Some(pace) => {
                    on.push(name.to_owned());
                    paces.push(pace);
                }
                None => no_time.push(match (machine.hardware, plan.execution.gpu) {
                    (Some(_), _) => format!("the peaks of {name} are unknown"),
                    (None, Some(_)) => "the peaks of the GPU are unknown".to_owned(),
                    (None, None) => "the speed of the CPU is unknown".to_owned(),
                }),
            }
        }
        let mut lines = statements(plan);
        let none = || StepCosts { seconds: vec![0.0; paces.len()], ..StepCosts::default() };
        lines.iter_mut().for_each(|line| line.costs.seconds = none().seconds);
        let mut rest = none();
        let micro_steps = plan.batch.micro_steps;
        for (section, times) in step_sections(programs, micro_steps) {
            for node in &section.program.nodes {
                let cost = section.program.cost(node);
                let seconds = paces.iter().map(|pace| times as f64 * pace.seconds(section, node)).collect();
                let (product_flops, bytes) = (times as f64 * cost.product_flops, times as f64 * cost.bytes);
                *costs_of(&mut lines, &mut rest, node.statement) +=
                    &StepCosts { product_flops, bytes, seconds, ..StepCosts::default() };
            }
        }
        for (statement, bytes) in kept(programs.micro_step(0, micro_steps)) {
            costs_of(&mut lines, &mut rest, statement).kept_bytes += bytes;
        }
        let mut total = none();
        lines.iter().map(|line| &line.costs).chain([&rest]).for_each(|costs| total += costs);
        Self {
            recipe: plan.name.clone(),
            tokens_per_step: plan.batch.tokens_per_step(),
            ranks: plan.batch.world_size,
            micro_steps,
            lines,
            rest,
            total,
            on,
            no_time,
        }
    }
}

/// Returns the costs of a statement, or of the rest.
fn costs_of<'a>(
    lines: &'a mut [ModelLine],
    rest: &'a mut StepCosts,
    statement: Option<usize>,
) -> &'a mut StepCosts {
    match statement {
        Some(index) => &mut lines[index].costs,
        None => rest,
    }
}

/// Returns the statements of a plan's model with their parameters.
fn statements(plan: &Plan) -> Vec<ModelLine> {
    let found = cost(plan.model.text(), &plan.graph, &plan.model, plan.batch.seq_len).lines;
    let line = |(index, line): (usize, LineCost)| ModelLine {
        part: line.part,
        // The canonical text has a line for each statement and one before each part.
        line: index + 2 + PARTS.iter().position(|part| *part == line.part).unwrap_or(0),
        statement: line.statement,
        blocks: line.blocks,
        costs: StepCosts { parameters: line.parameters, ..StepCosts::default() },
    };
    found.into_iter().enumerate().map(line).collect()
}

/// The parts of a text, in their order.
pub(super) const PARTS: [&str; 3] = ["embed", "block", "head"];

/// Returns what a micro-step keeps between its forward and its backward: the bytes of each block of memory,
/// with the statement that wrote it last.
fn kept(section: &Section) -> Vec<(Option<usize>, usize)> {
    let (nodes, memory) = (&section.program.nodes, &section.memory);
    let Some(last) = nodes.iter().rposition(|node| node.phase == Phase::Forward) else { return Vec::new() };
    let mut writers = vec![None; memory.blocks.len()];
    for node in &nodes[..=last] {
        for &output in &node.outputs {
            if let Some(block) = memory.block_of[section.program.base(output).0] {
                writers[block] = node.statement;
            }
        }
    }
    let blocks = memory.blocks.iter().zip(writers);
    let waits = blocks.filter(|(block, _)| block.birth <= last && last < block.death);
    waits.map(|(block, writer)| (writer, block.bytes)).collect()
}
