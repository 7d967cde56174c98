//! Shows the transient memory of programs over time: where each tensor lies, and between which nodes.

use super::memory::{Memory, Named};
use crate::exec::Section;
use crate::ir::{Node, Program, TensorId};
use crate::model::Programs;
use crate::passes::Block;
use crate::plan::Plan;
use serde::Serialize;

/// Maximum number of blocks listed per section; the largest are kept.
const MAX_BLOCKS: usize = 4000;

/// The memory of one rank over the nodes of its programs, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryTimeline {
    /// The placement of the plan's transient tensors: `arena`, `caching` or `naive`. Offsets always refer to
    /// an arena.
    pub placement: &'static str,
    /// State and transient tensors with this placement.
    pub peak_bytes: usize,
    /// Bytes of the state.
    pub state_bytes: usize,
    /// Transient memory if every offset is planned ahead.
    pub arena_bytes: usize,
    /// The buffers of the state.
    pub state: Vec<Named>,
    /// The programs, in the order in which they first run.
    pub sections: Vec<SectionTimeline>,
}

/// The transient memory of one program over its nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SectionTimeline {
    /// Its name.
    pub name: String,
    /// Bytes of arena that the program needs.
    pub arena_bytes: usize,
    /// The node at which most bytes are alive.
    pub peak_node: usize,
    /// Bytes alive at this node.
    pub peak_bytes: usize,
    /// Its nodes.
    pub nodes: Vec<TimelineNode>,
    /// The ranges of memory, in order of birth.
    pub blocks: Vec<TimelineBlock>,
    /// Number of smaller ranges that are not listed.
    pub left_out: usize,
    /// Bytes alive at each node.
    pub alive: Vec<usize>,
}

/// A node of a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineNode {
    /// Its op.
    pub op: &'static str,
    /// Its scope in the model, such as `blocks.0`.
    pub scope: String,
    /// The part of the step.
    pub phase: String,
}

/// A range of memory, used by one tensor or by several that replace each other in place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineBlock {
    /// The name of the first tensor.
    pub tensor: String,
    /// Format and shape of the first tensor.
    pub spec: String,
    /// Size of the block.
    pub bytes: usize,
    /// Where it begins in the arena.
    pub offset: usize,
    /// The node that first writes it.
    pub birth: usize,
    /// The last node that touches it.
    pub death: usize,
    /// The names of the tensors that later reuse it.
    pub also: Vec<String>,
}

impl MemoryTimeline {
    /// Reads the timeline of a plan's programs.
    pub fn new(plan: &Plan, programs: &Programs) -> Self {
        let Memory { placement, peak_bytes, state, state_bytes, arena_bytes, .. } =
            Memory::new(plan, programs);
        let sections = programs.sections().into_iter().map(SectionTimeline::new).collect();
        Self { placement, peak_bytes, state_bytes, arena_bytes, state, sections }
    }
}

impl SectionTimeline {
    fn new(section: &Section) -> Self {
        let (program, memory) = (&section.program, &section.memory);
        let mut alive = vec![0; program.nodes.len()];
        for block in &memory.blocks {
            alive[block.birth..=block.death].iter_mut().for_each(|bytes| *bytes += block.bytes);
        }
        let mut largest: Vec<&Block> = memory.blocks.iter().collect();
        largest.sort_by_key(|block| std::cmp::Reverse(block.bytes));
        let left_out = largest.len().saturating_sub(MAX_BLOCKS);
        largest.truncate(MAX_BLOCKS);
        largest.sort_by_key(|block| (block.birth, block.offset));
        let node = |node: &Node| TimelineNode {
            op: node.op.name(),
            scope: node.scope.to_string(),
            phase: format!("{:?}", node.phase).to_lowercase(),
        };
        Self {
            name: program.name.clone(),
            arena_bytes: memory.arena_bytes,
            peak_node: memory.peak.0,
            peak_bytes: memory.peak.1,
            nodes: program.nodes.iter().map(node).collect(),
            blocks: largest.into_iter().map(|block| TimelineBlock::new(program, block)).collect(),
            left_out,
            alive,
        }
    }
}

impl TimelineBlock {
    fn new(program: &Program, block: &Block) -> Self {
        let name = |id: &TensorId| program.tensor(*id).name.clone();
        let mut tensors = block.tensors.iter();
        let first = tensors.next();
        Self {
            tensor: first.map(name).unwrap_or_default(),
            spec: first.map(|id| program.spec(*id).to_string()).unwrap_or_default(),
            bytes: block.bytes,
            offset: block.offset,
            birth: block.birth,
            death: block.death,
            also: tensors.map(name).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::Planned;
    use crate::machine::Machine;
    use crate::plan::CorpusFacts;
    use crate::recipe::load_str;
    use std::path::Path;

    #[test]
    fn blocks_lie_beside_each_other_and_sum_to_the_peak() {
        let machine = Machine::none();
        let text = "[model]\ndim = 32\nn_layers = 2\nn_heads = 2\n[training]\nseq_len = 16\n";
        let recipe = load_str(Path::new("r.toml"), text, &[], std::iter::empty(), &machine).unwrap();
        let corpus = CorpusFacts {
            vocab_size: 64,
            train_tokens: 1 << 20,
            exact: true,
            validation_tokens: 1 << 12,
            ..CorpusFacts::default()
        };
        let Planned { plan, programs, .. } = Planned::new(&recipe, &corpus, &machine).unwrap();
        let found = MemoryTimeline::new(&plan, &programs);
        assert_eq!(found.state.iter().map(|buffer| buffer.bytes).sum::<usize>(), found.state_bytes);
        for section in &found.sections {
            assert_eq!(section.alive.iter().max(), Some(&section.peak_bytes), "{}", section.name);
            assert_eq!(section.alive[section.peak_node], section.peak_bytes);
            assert_eq!(section.left_out, 0);
            for (at, a) in section.blocks.iter().enumerate() {
                assert!(a.offset + a.bytes <= section.arena_bytes && a.death < section.nodes.len());
                for b in &section.blocks[at + 1..] {
                    let meet = a.birth <= b.death && b.birth <= a.death;
                    let overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
                    assert!(!(meet && overlap), "{} and {}", a.tensor, b.tensor);
                }
            }
        }
        assert!(found.sections[0].nodes.iter().any(|node| node.scope.contains("blocks.1")));
    }
}
