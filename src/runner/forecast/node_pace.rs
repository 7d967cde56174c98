//! Predicts the time of a node, for a whole run and for the lines of a model's text.

use super::time::Pace;
use crate::exec::Section;
use crate::ir::Node;
use crate::machine::{CpuPace, Hardware, Machine, hardware};
use crate::plan::Plan;

/// What the times of nodes are predicted from.
pub(super) enum NodePace<'a> {
    /// The peaks of a device.
    Peaks(Pace<'a>),
    /// Measured times of ops on the CPU.
    Measured {
        /// The times.
        pace: &'a CpuPace,
        /// Ranks on one machine share its threads, so their work adds up.
        ranks: f64,
    },
}

impl<'a> NodePace<'a> {
    /// Returns the pace of a named device; `None` if its peaks are unknown.
    pub fn on(plan: &'a Plan, hardware: &Hardware) -> Option<Self> {
        hardware.limits.map(|limits| Self::Peaks(Pace::new(plan, &limits)))
    }

    /// Returns the pace of the machine that a plan is for; `None` if its speed is unknown.
    pub fn here(plan: &'a Plan, machine: &'a Machine) -> Option<Self> {
        match plan.execution.gpu.and_then(|gpu| machine.gpu(gpu)) {
            Some(gpu) => Self::on(plan, machine.hardware.or_else(|| hardware::by_driver_name(&gpu.name))?),
            None => {
                let pace = machine.cpu_pace.as_deref()?;
                Some(Self::Measured { pace, ranks: plan.batch.world_size as f64 })
            }
        }
    }

    /// Returns the seconds that a node takes.
    pub fn seconds(&self, section: &Section, node: &Node) -> f64 {
        match self {
            Self::Peaks(pace) => pace.seconds(section, node),
            Self::Measured { pace, ranks } => {
                ranks * pace.seconds(node.op.name(), section.program.cost(node).work())
            }
        }
    }

    /// Returns the seconds that a section takes.
    pub fn section_seconds(&self, section: &Section) -> f64 {
        section.program.nodes.iter().map(|node| self.seconds(section, node)).sum()
    }
}
