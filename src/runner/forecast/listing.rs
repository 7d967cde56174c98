//! Lists programs as `xrun plan --program` prints them: every node with its outputs, their offsets and
//! lifetimes.

use crate::device::gpu::{Collector, Properties};
use crate::error::{Error, Result};
use crate::exec::{Section, collect_node};
use crate::format::{Column, Table, binary, plural, thousands};
use crate::ir::TensorId;
use crate::model::Programs;

/// Lists the state, and then all programs, or those whose name begins with `only`. Given the properties of a
/// GPU, names the kernels that each node launches on it.
///
/// # Errors
/// A usage error that names the sections if none begins with `only`. Fails if an op does not run on the GPU.
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

/// Lists one program: a line per node, followed by the kernels that it launches on a GPU and a line per
/// tensor that it creates.
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
                text += &tensor_location(section, id, width);
            }
        }
    }
    Ok(text)
}

/// Lists the kernels that a node launches on a GPU; empty if it launches none of xrun's own.
fn kernels(section: &Section, at: usize, gpu: &Properties, width: usize) -> Result<String> {
    let program = &section.program;
    let node = &program.nodes[at];
    let collector = Collector::new(gpu.clone());
    collect_node(&collector, program, node)?;
    let requests = collector.into_requests();
    // The collector also names our own fallback kernel for a product without an algorithm, which is not
    // launched.
    let launched = requests.kernels.iter().map(|kernel| kernel.entry).filter(|entry| *entry != "product");
    let names: Vec<&str> = launched.collect();
    let text = format!("{:width$}    kernels {}\n", "", names.join(", "));
    Ok(if names.is_empty() { String::new() } else { text })
}

/// Lists the offset of a transient tensor and the nodes between which its block lives; empty for state and
/// views.
fn tensor_location(section: &Section, id: TensorId, width: usize) -> String {
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
