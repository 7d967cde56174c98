//! Lifetimes, in-place reuse, and offsets in one arena: where every transient tensor lies, to the byte.

use crate::ir::{Home, Program, TensorId};

/// A range of transient memory: one tensor, or several that replace each other in place.
#[derive(Clone, Debug)]
pub struct Block {
    /// Size in bytes, a multiple of the alignment.
    pub bytes: usize,
    /// The node that first writes the block.
    pub birth: usize,
    /// The last node that touches the block.
    pub death: usize,
    /// Offset in the arena in bytes.
    pub offset: usize,
    /// The tensors that occupy the block, in order of birth.
    pub tensors: Vec<TensorId>,
}

/// The memory of one program.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// All blocks, in order of birth.
    pub blocks: Vec<Block>,
    /// The block of each transient tensor (not of views).
    pub block_of: Vec<Option<usize>>,
    /// Blocks born before each node.
    pub births: Vec<Vec<usize>>,
    /// Blocks that die after each node.
    pub deaths: Vec<Vec<usize>>,
    /// Size of the arena, in bytes.
    pub arena_bytes: usize,
    /// The node at which the most bytes are alive, and that number of bytes.
    pub peak: (usize, usize),
}

impl MemoryPlan {
    /// Plans the memory of a program.
    pub fn new(program: &Program) -> Self {
        let lifetimes = lifetimes(program);
        let (mut blocks, block_of) = blocks(program, &lifetimes);
        let arena_bytes = place(&mut blocks);
        let (mut births, mut deaths) =
            (vec![Vec::new(); program.nodes.len()], vec![Vec::new(); program.nodes.len()]);
        let mut alive = vec![0usize; program.nodes.len()];
        for (i, b) in blocks.iter().enumerate() {
            births[b.birth].push(i);
            deaths[b.death].push(i);
            alive[b.birth..=b.death].iter_mut().for_each(|a| *a += b.bytes);
        }
        let mut peak = (0, 0);
        for (node, &bytes) in alive.iter().enumerate() {
            if bytes > peak.1 {
                peak = (node, bytes);
            }
        }
        Self { blocks, block_of, births, deaths, arena_bytes, peak }
    }

    /// Returns the blocks alive at the peak, largest first.
    pub fn blocks_at_peak(&self) -> Vec<&Block> {
        let at = self.peak.0;
        let mut held: Vec<&Block> = self.blocks.iter().filter(|b| b.birth <= at && at <= b.death).collect();
        held.sort_by_key(|b| std::cmp::Reverse(b.bytes));
        held
    }
}

#[derive(Clone, Copy, Debug)]
struct Lifetime {
    birth: usize,
    death: usize,
}

/// Returns the nodes of the first write and last access of every transient tensor. An access through a view
/// counts for the viewed tensor.
fn lifetimes(program: &Program) -> Vec<Option<Lifetime>> {
    let mut lifetimes: Vec<Option<Lifetime>> = vec![None; program.tensors.len()];
    for (at, node) in program.nodes.iter().enumerate() {
        for &id in node.inputs.iter().chain(&node.outputs) {
            let base = program.base(id);
            if program.tensor(base).home != Home::Transient {
                continue;
            }
            let l = lifetimes[base.0].get_or_insert(Lifetime { birth: at, death: at });
            l.death = at;
        }
    }
    lifetimes
}

/// Groups tensors into blocks: an output takes over the block of an input that dies at its node, if the op
/// permits.
fn blocks(program: &Program, lifetimes: &[Option<Lifetime>]) -> (Vec<Block>, Vec<Option<usize>>) {
    let mut blocks: Vec<Block> = Vec::new();
    let mut block_of: Vec<Option<usize>> = vec![None; program.tensors.len()];
    for (at, node) in program.nodes.iter().enumerate() {
        let aliases = node.op.may_alias();
        let mut taken: Vec<usize> = Vec::new();
        for (k, &out) in node.outputs.iter().enumerate() {
            let base = program.base(out);
            let Some(life) = lifetimes[base.0].filter(|l| l.birth == at) else { continue };
            if block_of[base.0].is_some() {
                continue;
            }
            let bytes = program.spec(base).aligned_bytes();
            let in_place = aliases.iter().filter(|a| a.output == k && base == out).find_map(|a| {
                let input = node.inputs[a.input];
                let same = program.tensor(input).home == Home::Transient;
                let dies = lifetimes[input.0].is_some_and(|l| l.death == at);
                let once = node.inputs.iter().filter(|&&i| program.base(i) == input).count() == 1;
                let block = block_of[input.0]?;
                (same && dies && once && !taken.contains(&block) && blocks[block].bytes >= bytes)
                    .then_some(block)
            });
            let block = in_place.unwrap_or_else(|| {
                blocks.push(Block { bytes, birth: at, death: at, offset: 0, tensors: Vec::new() });
                blocks.len() - 1
            });
            taken.push(block);
            blocks[block].death = life.death;
            blocks[block].tensors.push(base);
            block_of[base.0] = Some(block);
        }
    }
    (blocks, block_of)
}

/// Assigns offsets, largest block first, each the lowest that is free during the block's whole lifetime:
/// greedy by size, as in Pisarchyk and Lee, "Efficient memory management for deep neural net inference"
/// (2020). Returns the size of the arena.
fn place(blocks: &mut [Block]) -> usize {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(blocks[i].bytes), blocks[i].birth, i));
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    let mut end = 0;
    for i in order {
        let mut at = 0;
        // `placed` is sorted by offset, so the first gap that is wide enough is the lowest.
        for &j in &placed {
            let (a, b) = (&blocks[i], &blocks[j]);
            if a.birth <= b.death && b.birth <= a.death {
                if b.offset >= at + a.bytes {
                    break;
                }
                at = at.max(b.offset + b.bytes);
            }
        }
        blocks[i].offset = at;
        end = end.max(at + blocks[i].bytes);
        let position = placed.partition_point(|&j| blocks[j].offset <= at);
        placed.insert(position, i);
    }
    end
}
