//! Steps whose nodes are timed one by one.

use super::Rank;
use crate::error::Result;
use crate::exec::{Engine, Section, UnderLoad};
use crate::ir::{Node, Program};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

impl Rank {
    /// Trains one step and passes each of its nodes, with its time, to `on_node`.
    ///
    /// # Errors
    /// Fails like [`Rank::train_step`].
    pub fn time_step(&mut self, mut on_node: impl FnMut(&Program, &Node, Duration)) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        let step = self.done + 1;
        let micro_steps = self.plan.batch.micro_steps_in_step(step);
        self.gather_parameters()?;
        for micro in 0..micro_steps {
            self.upload_next()?;
            time_nodes(&mut self.engine, programs.micro_step(micro, micro_steps), &mut on_node)?;
        }
        time_nodes(&mut self.engine, &programs.step_end, &mut on_node)?;
        self.gathered = programs.gather.is_none();
        self.done += 1;
        Ok(())
    }

    /// Runs the programs of a step on a GPU, and repeats the first node of each kind under load. Leaves a
    /// meaningless state.
    ///
    /// # Errors
    /// Fails like [`Engine::time_under_load`].
    pub(in crate::train) fn time_under_load<K: Ord>(
        &mut self,
        kind: impl Fn(&Program, &Node) -> K,
    ) -> Result<BTreeMap<K, UnderLoad>> {
        let programs = Arc::clone(&self.programs);
        let step = self.done + 1;
        self.upload_next()?;
        let mut found = BTreeMap::new();
        for section in [programs.micro_step(0, self.plan.batch.micro_steps_in_step(step)), &programs.step_end]
        {
            let program = &section.program;
            let mut firsts = BTreeMap::new();
            for (at, node) in program.nodes.iter().enumerate() {
                firsts.entry(kind(program, node)).or_insert(at);
            }
            // In program order, because repeating a node changes only what later nodes read. The last node
            // advances the step counter, by which the optimizer looks up its rate.
            let mut nodes: Vec<(usize, K)> = firsts.into_iter().map(|(kind, at)| (at, kind)).collect();
            nodes.sort_by_key(|(at, _)| *at);
            let (nodes, kinds): (Vec<usize>, Vec<K>) = nodes.into_iter().unzip();
            found.extend(kinds.into_iter().zip(self.engine.time_under_load(section, &nodes)?));
        }
        Ok(found)
    }

    /// Evaluates the last uploaded batch, generates a token if the plan has samples, and passes every node,
    /// with its time, to `on_node`.
    ///
    /// # Errors
    /// If the engine fails.
    pub(in crate::train) fn time_forward_programs(
        &mut self,
        mut on_node: impl FnMut(&Program, &Node, Duration),
    ) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        for section in [Some(&programs.evaluate), programs.generate.as_ref()].into_iter().flatten() {
            time_nodes(&mut self.engine, section, &mut on_node)?;
        }
        Ok(())
    }
}

/// Runs a section and passes each of its nodes, with its time, to `on_node`.
fn time_nodes(
    engine: &mut Engine,
    section: &Section,
    on_node: &mut impl FnMut(&Program, &Node, Duration),
) -> Result<()> {
    let times = engine.time(section)?;
    section.program.nodes.iter().zip(times).for_each(|(node, time)| on_node(&section.program, node, time));
    Ok(())
}
