//! Computes the memory of one rank to the byte, from the engine's own layout and memory plans.

use crate::exec::{FreeLists, Section};
use crate::ir::Program;
use crate::model::Programs;
use crate::passes::{Block, MemoryPlan};
use crate::plan::Plan;
use crate::policy::Placement;
use serde::Serialize;
use std::convert::Infallible;

/// Number of tensors to name at the peak.
const HOLDERS: usize = 10;

/// The memory of one rank, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Memory {
    /// State and transient tensors, with the plan's placement.
    pub peak_bytes: usize,
    /// The state, which outlives programs, by buffer.
    pub state: Vec<Named>,
    /// Total bytes of the state.
    pub state_bytes: usize,
    /// The placement of the plan's transient tensors: `arena`, `caching` or `naive`.
    pub placement: &'static str,
    /// Transient memory with this placement.
    pub transient_bytes: usize,
    /// Transient memory if every offset is planned ahead.
    pub arena_bytes: usize,
    /// Transient memory if dead blocks are kept in lists by size class.
    pub caching_bytes: usize,
    /// Transient memory if every block is allocated and freed on its own: the most bytes alive.
    pub naive_bytes: usize,
    /// Transient memory of each program.
    pub sections: Vec<SectionMemory>,
    /// The moment when most bytes are alive.
    pub peak: Peak,
}

/// A buffer of the state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: usize,
}

/// The transient memory of one program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionMemory {
    /// Its name.
    pub name: String,
    /// Number of nodes.
    pub nodes: usize,
    /// Bytes of arena that the program needs.
    pub arena_bytes: usize,
    /// The most bytes alive at once.
    pub live_bytes: usize,
    /// Fraction of the arena lost between blocks: `1 − live / arena`.
    pub fragmentation: f64,
}

/// The node at which most transient bytes are alive, in the section that determines the arena's size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peak {
    /// The section.
    pub section: String,
    /// The node's index.
    pub node: usize,
    /// Its op.
    pub op: &'static str,
    /// Its scope.
    pub scope: String,
    /// The most bytes alive.
    pub live_bytes: usize,
    /// The largest tensors alive at this node.
    pub holders: Vec<Holder>,
}

/// A tensor that is alive at the peak.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Holder {
    /// Its scoped name.
    pub tensor: String,
    /// Its format and shape.
    pub spec: String,
    /// Bytes of the tensor's block.
    pub bytes: usize,
    /// The node that creates the tensor.
    pub node: usize,
    /// The op of that node.
    pub op: &'static str,
    /// The last node that needs the block.
    pub until: usize,
}

impl Memory {
    /// Reads the memory of a plan's programs.
    pub fn new(plan: &Plan, programs: &Programs) -> Self {
        let sections = programs.sections();
        let transient = transient_bytes(plan.execution.placement, &sections);
        Self {
            peak_bytes: peak_bytes(plan, programs),
            state: programs.buffers().map(|(name, bytes)| Named { name, bytes }).collect(),
            state_bytes: programs.state_bytes(),
            placement: plan.execution.placement.word(),
            transient_bytes: transient,
            arena_bytes: programs.arena_bytes(),
            caching_bytes: caching_bytes(&sections),
            naive_bytes: live_bytes(&sections),
            sections: sections.iter().map(|s| SectionMemory::new(s)).collect(),
            peak: Peak::new(&sections),
        }
    }
}

/// Returns the most bytes that one rank holds: state and transient tensors, with the plan's placement.
pub fn peak_bytes(plan: &Plan, programs: &Programs) -> usize {
    programs.state_bytes() + transient_bytes(plan.execution.placement, &programs.sections())
}

fn transient_bytes(placement: Placement, sections: &[&Section]) -> usize {
    match placement {
        Placement::Arena => sections.iter().map(|s| s.memory.arena_bytes).max().unwrap_or(0),
        Placement::Caching => caching_bytes(sections),
        Placement::Naive => live_bytes(sections),
    }
}

fn live_bytes(sections: &[&Section]) -> usize {
    sections.iter().map(|s| s.memory.peak.1).max().unwrap_or(0)
}

/// Returns the bytes that the caching placement reserves once every section has run. All blocks are free at
/// the end of a section, so neither the order of sections nor running them again changes this.
fn caching_bytes(sections: &[&Section]) -> usize {
    let mut lists = FreeLists::default();
    for MemoryPlan { blocks, births, deaths, .. } in sections.iter().map(|s| &s.memory) {
        for (born, dead) in births.iter().zip(deaths) {
            for &block in born {
                let Ok(()) = lists.take(blocks[block].bytes, |_| Ok::<(), Infallible>(()));
            }
            for &block in dead {
                lists.give_back(blocks[block].bytes, ());
            }
        }
    }
    lists.reserved_bytes()
}

impl SectionMemory {
    fn new(section: &Section) -> Self {
        let (arena, live) = (section.memory.arena_bytes, section.memory.peak.1);
        Self {
            name: section.program.name.clone(),
            nodes: section.program.nodes.len(),
            arena_bytes: arena,
            live_bytes: live,
            fragmentation: if arena == 0 { 0.0 } else { 1.0 - live as f64 / arena as f64 },
        }
    }
}

impl Peak {
    fn new(sections: &[&Section]) -> Self {
        // Of equals, take the first: variants of a micro-step mostly need the same.
        let largest = sections.iter().rev().max_by_key(|s| s.memory.arena_bytes);
        let section = largest.expect("a plan always has its optimizer section");
        let (program, memory) = (&section.program, &section.memory);
        let (at, live_bytes) = memory.peak;
        let producers = program.producers();
        let held = memory.blocks_at_peak();
        Self {
            section: program.name.clone(),
            node: at,
            op: program.nodes[at].op.name(),
            scope: program.nodes[at].scope.to_string(),
            live_bytes,
            holders: held
                .into_iter()
                .take(HOLDERS)
                .map(|b| Holder::new(program, &producers, b, at))
                .collect(),
        }
    }
}

impl Holder {
    /// Names the tensor that a block holds at node `at`: if tensors replace each other in place, the last one
    /// created.
    fn new(program: &Program, producers: &[Option<usize>], block: &Block, at: usize) -> Self {
        let made = |id: &crate::ir::TensorId| producers[id.0].unwrap_or(block.birth);
        let tensor = block.tensors.iter().rev().find(|id| made(id) <= at).or(block.tensors.first());
        let id = *tensor.expect("a block is made for a tensor");
        let node = made(&id);
        Self {
            tensor: program.tensor(id).name.clone(),
            spec: program.spec(id).to_string(),
            bytes: block.bytes,
            node,
            op: program.nodes[node].op.name(),
            until: block.death,
        }
    }
}
