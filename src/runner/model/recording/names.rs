//! The names of tensors: where they belong, and the statement of the text that gives them.

use crate::model_text::{Graph, Operation, Part};
use std::collections::BTreeMap;

/// Returns the scope of an operation: the part of the text, or the block.
pub(super) fn scope(graph: &Graph, node: usize) -> String {
    match graph.nodes[node].block {
        Some(block) => format!("blocks.{block}"),
        None if graph.statements[graph.nodes[node].statement].part == Part::Embed => "embedding".to_owned(),
        None => "head".to_owned(),
    }
}

/// Returns a name for the result of every operation, unique in its model: `blocks.3.qkv` is what a statement
/// `qkv = …` gives in block 3, `blocks.3.qkv:linear` a part of it, and `blocks.3.x#2` what the second
/// statement `x = …` gives.
pub(super) fn names(graph: &Graph) -> Vec<String> {
    // The last operation of every statement, and how many earlier ones of its name there are in its scope.
    let mut last: BTreeMap<(usize, Option<usize>), usize> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        last.insert((node.statement, node.block), index);
    }
    let mut earlier: BTreeMap<(String, &str), usize> = BTreeMap::new();
    let mut ordinals: BTreeMap<(usize, Option<usize>), usize> = BTreeMap::new();
    let mut parts: BTreeMap<String, usize> = BTreeMap::new();
    let mut names = Vec::with_capacity(graph.nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        let (key, scope) = ((node.statement, node.block), scope(graph, index));
        let statement = &*graph.statements[node.statement].name;
        let ordinal = *ordinals.entry(key).or_insert_with(|| {
            let count = earlier.entry((scope.clone(), statement)).or_default();
            *count += 1;
            *count
        });
        let repeated = if ordinal > 1 { format!("#{ordinal}") } else { String::new() };
        let mut name = format!("{scope}.{statement}{repeated}");
        if last[&key] != index {
            name = format!("{name}:{}", word(&node.operation));
            let count = parts.entry(name.clone()).or_default();
            *count += 1;
            if *count > 1 {
                name = format!("{name}#{count}");
            }
        }
        names.push(name);
    }
    names
}

/// Returns the word for an operation whose result has no name of its own in the text.
fn word(operation: &Operation) -> &'static str {
    match operation {
        Operation::Embedding { .. } => "embedding",
        Operation::Linear { .. } => "linear",
        Operation::Norm(_) => "norm",
        Operation::Rope { .. } => "rope",
        Operation::Attention { .. } => "attention",
        Operation::Shift(_) => "shift",
        Operation::Dropout(_) => "dropout",
        Operation::Heads => "heads",
        Operation::Slice { .. } => "slice",
        Operation::Concat => "concat",
        Operation::Reduce(_) => "reduced",
        Operation::Vector(_) => "vector",
        Operation::Constant(_) => "number",
        Operation::Elementwise(_) => "elementwise",
        Operation::Activation => "activation",
    }
}
