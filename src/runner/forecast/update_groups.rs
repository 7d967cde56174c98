//! Describes the groups in which parameters are updated, each with its rule and what is kept for it.

use super::disk::weight_bytes;
use crate::device::DType;
use crate::format::Column::{Left, Right};
use crate::format::{Table, binary, thousands};
use crate::model::Programs;
use crate::plan::Plan;
use serde::Serialize;
use std::fmt::Write;

/// Parameters that are updated by one rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupForecast {
    /// Their roles, such as `embedding+head`.
    pub roles: String,
    /// The optimizer with its hyperparameters.
    pub optimizer: String,
    /// Peak learning rate.
    pub lr: f64,
    /// What decoupled weight decay is relative to.
    pub decay: &'static str,
    /// Roles that weight decay applies to, or `none`.
    pub decaying: String,
    /// Number of parameters.
    pub parameters: usize,
    /// Bytes of one rank's memory for what the optimizer keeps.
    pub state_bytes: usize,
    /// Bytes per parameter of the group in a checkpoint, besides the weight.
    pub checkpoint_bytes_per_parameter: usize,
    /// What the optimizer keeps, in words; empty if it keeps nothing.
    #[serde(skip)]
    pub(super) slots_in_words: &'static str,
}

impl GroupForecast {
    /// Returns a plan's groups that have parameters.
    pub fn all(plan: &Plan, programs: &Programs) -> Vec<Self> {
        let state = &programs.state;
        let groups = state.groups.iter().zip(&plan.update_groups).filter(|(own, _)| !own.params.is_empty());
        let elements = |&index: &usize| state.params[index].spec.logical_elements();
        let forecasts = groups.map(|(own, rule)| {
            let bytes_of_slots = own.slots.iter().map(|slot| slot.dtype.size()).sum::<usize>();
            let roles = || own.params.iter().map(|&index| state.params[index].update_role());
            Self {
                roles: rule.present_roles(roles()),
                optimizer: format!("{} {}", rule.name, rule.values),
                lr: rule.lr,
                decay: rule.decay.word(),
                decaying: rule.present_decaying_roles(roles()),
                parameters: own.params.iter().map(elements).sum(),
                state_bytes: own.places.shard_len * bytes_of_slots,
                checkpoint_bytes_per_parameter: DType::F32.size() * own.slots.len(),
                slots_in_words: rule.optimizer.slots_in_words(),
            }
        });
        forecasts.collect()
    }
}

/// Formats the table of groups.
pub(super) fn table(groups: &[GroupForecast]) -> String {
    let mut table = Table::new(&[Left, Left, Right, Left, Right, Right]);
    table.row(["group", "optimizer", "peak rate", "decay", "parameters", "state of a rank"]);
    for group in groups {
        table.row([
            group.roles.clone(),
            group.optimizer.clone(),
            format!("{:?}", group.lr),
            format!("{}, of {}", group.decay, group.decaying),
            thousands(group.parameters),
            binary(group.state_bytes),
        ]);
    }
    table.render(2)
}

/// Describes the size of a checkpoint as a sum over `total` parameters. Weights are in fp32, and so is their
/// moving average if `has_ema`.
pub(super) fn checkpoint_in_words(groups: &[GroupForecast], total: usize, has_ema: bool) -> String {
    let weight = weight_bytes(has_ema);
    let average = if has_ema { " and moving average" } else { "" };
    if let [only] = groups {
        let mut parts = vec!["fp32 weight"];
        parts.extend([only.slots_in_words].into_iter().filter(|words| !words.is_empty()));
        let bytes = weight + only.checkpoint_bytes_per_parameter;
        return format!("{} parameters × {bytes} B ({}{average})", thousands(total), parts.join(" and "));
    }
    let mut text = format!("{} parameters × {weight} B (fp32 weight{average})", thousands(total));
    for group in groups.iter().filter(|group| group.checkpoint_bytes_per_parameter > 0) {
        let (count, bytes) = (thousands(group.parameters), group.checkpoint_bytes_per_parameter);
        let _ = write!(text, " + {count} × {bytes} B ({} of {})", group.slots_in_words, group.roles);
    }
    text
}
