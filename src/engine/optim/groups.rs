//! Groups of parameters by role, each with its own update rule.

use super::hyperparameters::Values;
use super::optimizer::{Entry, Optimizer, Rates, Update};
use super::role::GroupRole;
use crate::error::Result;
use crate::ir::{Builder, GroupRequest, Param, ParamRequest, Precision, Role};
use crate::policy::WeightDecay;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// How parameters of a role are updated.
#[derive(Clone, Debug)]
pub struct RoleRule {
    /// The role.
    pub role: GroupRole,
    /// The optimizer.
    pub entry: &'static Entry,
    /// The values of all the optimizer's hyperparameters.
    pub values: Values,
    /// Peak learning rate.
    pub lr: f64,
    /// What weight decay is relative to.
    pub decay: WeightDecay,
    /// True if weight decay applies.
    pub decays: bool,
}

/// Parameters of one or more roles that one rule updates.
#[derive(Clone, Debug)]
pub struct UpdateGroup {
    /// Roles of the parameters, ascending.
    pub roles: Vec<GroupRole>,
    /// The roles to which weight decay applies.
    pub decaying: Vec<GroupRole>,
    /// Name of the optimizer.
    pub name: &'static str,
    /// The values of all the optimizer's hyperparameters.
    pub values: Values,
    /// The update rule with these values.
    pub optimizer: Arc<dyn Optimizer>,
    /// Peak learning rate; the plan gives the schedule.
    pub lr: f64,
    /// What weight decay is relative to.
    pub decay: WeightDecay,
}

impl UpdateGroup {
    /// Returns one group for each set of roles with equal rules, in the order of their first roles.
    pub fn join(rules: &[RoleRule]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for rule in rules {
            let at = groups.iter().position(|group| group.has_rule(rule)).unwrap_or_else(|| {
                groups.push(Self {
                    roles: Vec::new(),
                    decaying: Vec::new(),
                    name: rule.entry.name,
                    values: rule.values.clone(),
                    optimizer: (rule.entry.build)(&rule.values),
                    lr: rule.lr,
                    decay: rule.decay,
                });
                groups.len() - 1
            });
            groups[at].roles.push(rule.role);
            groups[at].decaying.extend(rule.decays.then_some(rule.role));
        }
        groups
    }

    fn has_rule(&self, rule: &RoleRule) -> bool {
        self.name == rule.entry.name
            && self.values == rule.values
            && self.lr == rule.lr
            && self.decay == rule.decay
    }

    /// Returns the group's roles that occur among `parameters`, in words: `embedding+head`.
    pub fn present_roles(&self, parameters: impl Iterator<Item = Role>) -> String {
        present_roles(&self.roles, parameters)
    }

    /// Returns the group's decaying roles that occur among `parameters`, in words; `none` if there are none.
    pub fn present_decaying_roles(&self, parameters: impl Iterator<Item = Role>) -> String {
        let words = present_roles(&self.decaying, parameters);
        if words.is_empty() { "none".to_owned() } else { words }
    }

    /// Returns the rates of a step. `lr` is the learning rate and `share` its share of the peak.
    ///
    /// Coupled weight decay is a multiple of the learning rate (Loshchilov and Hutter, 2019). Independent
    /// decay follows only the schedule, so a different peak does not change it (Wortsman et al., "Small-scale
    /// proxies for large-scale Transformer training instabilities", 2023).
    pub fn rates(&self, lr: f64, share: f64) -> Rates {
        let decay = match self.decay {
            WeightDecay::Coupled => lr,
            WeightDecay::Independent => share,
        };
        Rates { lr, decay }
    }

    /// Returns the request for this group's parameters in a model and for the tensors kept for them. If ranks
    /// can own whole parameters, these begin at multiples of `block` elements.
    pub fn request(&self, precision: Precision, params: &[ParamRequest], block: usize) -> GroupRequest {
        let is_own = |i: &usize| self.roles.contains(&GroupRole::from_role(params[*i].update_role()));
        let own: Vec<usize> = (0..params.len()).filter(is_own).collect();
        let roles = params.iter().map(ParamRequest::update_role);
        GroupRequest {
            name: if own.len() == params.len() { String::new() } else { self.present_roles(roles) },
            params: own,
            slots: self.optimizer.slots(precision),
            alignment: if self.optimizer.owns_whole_parameters() { block } else { 0 },
        }
    }

    /// Records the update of this group within a range of the flat buffers. `group` is its index in the
    /// state. Records nothing if the group has no parameter in the range. For an optimizer that owns whole
    /// parameters, the range must hold all of the group's parameters or none.
    ///
    /// # Errors
    /// If an op rejects the shapes or formats.
    pub fn record(&self, b: &mut Builder, group: usize, range: &Range<usize>) -> Result<()> {
        let decays = |param: &Param| {
            let by_role = self.decaying.contains(&GroupRole::from_role(param.update_role()));
            param.update.decay.unwrap_or(by_role)
        };
        let update = Update::for_group(b, group, range, decays)?;
        if update.segments.is_empty() {
            return Ok(());
        }
        let name = b.program.state.groups[group].name.clone();
        match name.as_str() {
            "" => self.optimizer.record(b, &update),
            name => b.scoped(name, |b| self.optimizer.record(b, &update)),
        }
    }
}

/// Returns the roles that occur among `parameters`, in words.
fn present_roles(roles: &[GroupRole], parameters: impl Iterator<Item = Role>) -> String {
    let present: BTreeSet<GroupRole> = parameters.map(GroupRole::from_role).collect();
    let words = roles.iter().filter(|role| present.contains(role)).map(|role| role.word());
    words.collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DType;
    use crate::ir::{FlatBuffer, Init, SlotName, StateBuilder, Sublayer, UpdateOverride};
    use crate::optim::{OPTIMIZERS, find};
    use std::collections::BTreeMap;

    const MATRIX: Role = Role::Matrix(Sublayer::Attention);

    fn rule(role: GroupRole) -> RoleRule {
        rule_for(&OPTIMIZERS[0], role)
    }

    fn rule_for(entry: &'static Entry, role: GroupRole) -> RoleRule {
        let values = Values::from_written(entry.hyperparameters, &BTreeMap::new());
        RoleRule { role, entry, values, lr: 1e-3, decay: WeightDecay::Coupled, decays: role.decays() }
    }

    #[test]
    fn equal_rules_share_a_group() {
        let mut rules = GroupRole::ALL.map(rule);
        let roles = |rules: &[RoleRule]| -> Vec<String> {
            let all = [Role::Embedding, Role::Positions, Role::Head, MATRIX, Role::Vector];
            UpdateGroup::join(rules).iter().map(|group| group.present_roles(all.into_iter())).collect()
        };
        assert_eq!(roles(&rules), ["embedding+positions+head+matrix+vector"]);
        assert_eq!(UpdateGroup::join(&rules)[0].decaying, &GroupRole::ALL[..4]);
        rules[0].lr = 2e-3;
        rules[2].lr = 2e-3;
        rules[3] = rule_for(find("sgd").unwrap(), rules[3].role);
        assert_eq!(roles(&rules), ["embedding+head", "positions+vector", "matrix"]);
        rules[4].decay = WeightDecay::Independent;
        assert_eq!(roles(&rules), ["embedding+head", "positions", "matrix", "vector"]);
    }

    /// Slots hold only the parameters of their group, in the order of the flat buffers.
    #[test]
    fn the_slots_of_a_group_are_compact() {
        let roles = [Role::Head, Role::Vector, MATRIX, MATRIX, Role::Vector, Role::Embedding];
        let requests: Vec<ParamRequest> = roles
            .iter()
            .enumerate()
            .map(|(i, &role)| ParamRequest {
                name: format!("p{i}"),
                shape: vec![100],
                alloc: vec![100],
                init: Init::Constant(1.0),
                role,
                update: UpdateOverride::default(),
                stacked: Vec::new(),
                block: None,
            })
            .collect();
        let mut rules = GroupRole::ALL.map(rule);
        rules[3].lr = 2e-3;
        rules[4].lr = 2e-3;
        let precision = Precision::for_act_dtype(DType::F32);
        let groups = UpdateGroup::join(&rules);
        let groups: Vec<_> = groups.iter().map(|group| group.request(precision, &requests, 64)).collect();
        assert_eq!((&groups[0].params, &groups[1].params), (&vec![0, 5], &vec![1, 2, 3, 4]));
        let state = StateBuilder::for_training(precision, &requests, &groups, None).finish();
        // 100 fp32 numbers take 512 bytes: every parameter begins at a multiple of 256 bytes.
        let stride = state.params[1].start;
        let buffer = |slot, group: &str| FlatBuffer::Optimizer { slot, group: group.to_owned() };
        let elements = |slot: SlotName| {
            let slot = state.get(state.slot(slot).unwrap());
            (slot.offset / 4, slot.spec.elements())
        };
        let (m, v) = (buffer("m", "embedding+head"), buffer("v", "matrix+vector"));
        assert_eq!(elements(m.clone().into()), (0, 2 * stride));
        assert_eq!(elements(m.param("p5")), (stride, 100));
        assert_eq!(elements(v.clone().into()), (0, 4 * stride));
        assert_eq!(elements(v.param("p4")), (3 * stride, 100));
        assert_eq!(state.slot(buffer("m", "")), None);
    }
}
