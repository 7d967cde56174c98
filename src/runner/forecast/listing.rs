//! Programs as `xrun plan --program` prints them: every node with its outputs, their offsets and lifetimes.

use crate::device::gpu::{Collector, Properties};
use crate::error::{Error, Result};
use crate::exec::{Section, collect_node};
use crate::format::{Column, Table, binary, plural, thousands};
use crate::ir::TensorId;
use crate::model::Programs;

/// The listing of all programs, or of those whose name begins with `only`, after a table of the state. With
/// the properties of a GPU, it names the kernels that each node launches there.
///
/// # Errors
/// A usage error that names the sections, when none begins so; when an op does not run on that GPU.
pub fn listing(programs: &Programs, only: Option<&str>, gpu: Option<&Properties>) -> Result<String> {
    let sections: Vec<&Section> = programs
        .sections()
        .into_iter()
        .filter(|s| only.is_none_or(|name| s.program.name.starts_with(name)))
        .collect();
    if sections.is_empty() {
        let names: Vec<String> =
            programs.sections().iter().map(|s| format!("{:?}", s.program.name)).collect();
        return Err(Error::usage(format!(
            "no section begins with {:?}; this plan has {}",
            only.unwrap_or_default(),
            names.join(", ")
        )));
    }
    let mut text = state(programs);
    for section in sections {
        text.push('\n');
        text += &self::section(section, gpu)?;
    }
    Ok(text)
}

fn state(programs: &Programs) -> String {
    let state = &programs.state;
    let mut text =
        format!("state ({}, {} parameters)\n", binary(state.bytes()), thousands(state.parameter_count()));
    let mut table = Table::new(&[Column::Left, Column::Right]);
    for buffer in &state.buffers {
        table.row([buffer.name.clone(), thousands(buffer.bytes)]);
    }
    text += &table.render(2);
    text
}

/// One program: a line per node, and under it the kernels that it launches on a GPU, and a line per tensor
/// that is born there.
fn section(section: &Section, gpu: Option<&Properties>) -> Result<String> {
    let (program, memory) = (&section.program, &section.memory);
    let nodes = program.nodes.len();
    let mut text = format!(
        "program {} ({nodes} node{}, arena {} B, live peak {} B at node {})\n",
        program.name,
        plural(nodes),
        thousands(memory.arena_bytes),
        thousands(memory.peak.1),
        memory.peak.0
    );
    let producers = program.producers();
    let width = nodes.saturating_sub(1).to_string().len();
    for (at, node) in program.nodes.iter().enumerate() {
        text += &format!("{at:>width$}  {}\n", program.line(node));
        if let Some(gpu) = gpu {
            text += &kernels(section, at, gpu, width)?;
        }
        for &id in &node.outputs {
            if producers[id.0] == Some(at) {
                text += &home(section, id, width);
            }
        }
    }
    Ok(text)
}

/// The kernels that a node launches on a GPU; empty if it launches none of ours.
fn kernels(section: &Section, at: usize, gpu: &Properties, width: usize) -> Result<String> {
    let program = &section.program;
    let node = &program.nodes[at];
    let collector = Collector::new(gpu.clone());
    collect_node(&collector, program, node)?;
    let requests = collector.into_requests();
    // The kernel of our own that would serve a product without an algorithm is not one that is launched.
    let launched = requests.kernels.iter().map(|kernel| kernel.entry).filter(|entry| *entry != "product");
    let names: Vec<&str> = launched.collect();
    let text = format!("{:width$}    kernels {}\n", "", names.join(", "));
    Ok(if names.is_empty() { String::new() } else { text })
}

/// Offset of a transient tensor, and the nodes between which its block lives; empty for state and views.
fn home(section: &Section, id: TensorId, width: usize) -> String {
    let Some(block) = section.memory.block_of[id.0] else { return String::new() };
    let block = &section.memory.blocks[block];
    let spec = section.program.spec(id);
    let in_place = if block.tensors.first() == Some(&id) { "" } else { " in place" };
    format!(
        "{:width$}    %{} {}  arena {}..{}  nodes {}..={}{in_place}\n",
        "",
        id.0,
        section.program.tensor(id).name,
        thousands(block.offset),
        thousands(block.offset + spec.aligned_bytes()),
        block.birth,
        block.death
    )
}
