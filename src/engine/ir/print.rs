//! Text form of programs: one line per node, stable, for readers and snapshot tests.

use super::{Home, Mode, Node, Phase, Program, Stream, TensorId};
use std::fmt;

impl Program {
    /// Returns a tensor's label in the text form: `%12` for a transient, its name for state, `%12+2048B` for
    /// a view.
    pub fn label(&self, id: TensorId) -> String {
        match self.tensor(id).home {
            Home::Transient => format!("%{}", id.0),
            Home::State(_) => self.tensor(id).name.clone(),
            Home::View { of, offset } => format!("{}+{offset}B", self.label(of)),
        }
    }

    /// Returns the text of one node.
    pub fn line(&self, node: &Node) -> String {
        let inputs: Vec<String> = node.inputs.iter().map(|&i| self.label(i)).collect();
        let outputs: Vec<String> = node
            .outputs
            .iter()
            .zip(&node.modes)
            .map(|(&o, &mode)| {
                let add = if mode == Mode::Add { "+" } else { "" };
                match self.tensor(o).home {
                    Home::Transient => format!("{add}{}:{}", self.label(o), self.spec(o)),
                    _ => format!("{add}{}", self.label(o)),
                }
            })
            .collect();
        let attributes = node.op.attributes();
        let gap = if attributes.is_empty() { "" } else { " " };
        let phase = match node.phase {
            Phase::Forward => "",
            Phase::Backward => " ∇",
            Phase::Recompute => " ↻",
            Phase::Communication => " ⇄",
            Phase::Optimizer => " ◆",
        };
        let stream = if node.stream == Stream::Communication { " ‖comm" } else { "" };
        let scope = if node.scope.is_empty() { String::new() } else { format!("  @{}", node.scope) };
        let name = node.op.name();
        format!(
            "{} = {name}({}){gap}{attributes}{scope}{phase}{stream}",
            outputs.join(", "),
            inputs.join(", ")
        )
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {} ({} nodes)", self.name, self.nodes.len())?;
        for node in &self.nodes {
            writeln!(f, "  {}", self.line(node))?;
        }
        Ok(())
    }
}
