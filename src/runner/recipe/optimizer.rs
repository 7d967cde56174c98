//! The `[optimizer]` section: a name, a peak learning rate, the hyperparameters that the named optimizer
//! declares, and tables of parameter groups that change some of these.

use super::condition::{Fact, UNSET, When};
use super::groups::{self, Group, leak};
use super::key::{Class::Training, Key, NumberFormat, NumberRange, Type};
use crate::optim::{self, Entry, Form, GroupRole, Hyperparameter, OPTIMIZERS, RoleRule, Value, Values};
use crate::policy::WeightDecay;
use serde::Deserialize;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::BTreeMap;
use std::ops::Bound::{self, Included};

/// `[optimizer]`: the optimizer and its settings.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "Written")]
pub struct Optimizer {
    /// Name of the optimizer, one of [`optim::OPTIMIZERS`].
    pub name: String,
    /// Peak learning rate.
    pub lr: f64,
    /// What the decoupled weight decay is relative to.
    pub decay: WeightDecay,
    /// The optimizer's hyperparameters.
    pub values: Values,
    /// Groups of parameters that have settings of their own.
    pub groups: BTreeMap<GroupRole, Group>,
}

/// The section as layers set it: missing keys take their defaults. Keys of groups have full names, such as
/// `groups.embedding.lr`.
#[derive(Default, Deserialize)]
struct Written {
    name: Option<String>,
    lr: Option<f64>,
    decay: Option<WeightDecay>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl From<Written> for Optimizer {
    fn from(written: Written) -> Self {
        let name = written.name.unwrap_or_else(|| OPTIMIZERS[0].name.to_owned());
        let declared = optim::find(&name).map_or(Vec::new(), optim::hyperparameters_for_all);
        let values = Values::from_written(declared, &written.others);
        let groups = groups::from_written(&name, &written.others);
        let decay = written.decay.unwrap_or(WeightDecay::Coupled);
        Self { name, lr: written.lr.unwrap_or(1e-3), decay, values, groups }
    }
}

impl Default for Optimizer {
    fn default() -> Self {
        Written::default().into()
    }
}

impl Optimizer {
    /// Returns the rule of a role: its group's settings, and the section's for what the group leaves out.
    /// `None` if the optimizer is unknown.
    pub fn rule(&self, role: GroupRole) -> Option<RoleRule> {
        let none = Group::default();
        let group = self.groups.get(&role).unwrap_or(&none);
        let entry = match &group.name {
            Some(name) => optim::find(name)?,
            None => optim::find_for(role, &self.name)?,
        };
        let decays = role.decays() || group.weight_decay().is_some_and(|decay| decay > 0.0);
        let value = |h: &Hyperparameter| {
            // A vector group with weight decay 0 does not decay at all, like vectors without a group.
            let own = group.values.get(h.name).filter(|_| h.name != groups::WEIGHT_DECAY || decays);
            own.or_else(|| self.values.get(h.name)).map(|value| (h.name.to_owned(), value.clone()))
        };
        let written = entry.hyperparameters.iter().filter_map(value).collect();
        let decay = group.decay.unwrap_or(self.decay);
        Some(RoleRule {
            role,
            entry,
            values: Values::from_written(entry.hyperparameters, &written),
            lr: group.lr.unwrap_or(self.lr),
            decay: if entry.decoupled_decay { decay } else { WeightDecay::Coupled },
            decays,
        })
    }
}

impl Serialize for Optimizer {
    /// Writes every key of the section in table order, with null for keys that this optimizer does not have
    /// or that no group sets.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("lr", &self.lr)?;
        map.serialize_entry("decay", &self.decay)?;
        for name in optim::hyperparameter_names() {
            map.serialize_entry(name, &self.values.get(name))?;
        }
        for role in GroupRole::ALL {
            groups::serialize(role, self.groups.get(&role), &mut map)?;
        }
        map.end()
    }
}

/// When a key of `[optimizer]` or of a group has no effect.
const UNREAD: &[When] = &[When::Fact(Fact::NoParameterReads)];

/// The same for weight decay, whose factor may also round away.
const VANISHES: &[When] = &[When::Fact(Fact::NoParameterReads), When::Fact(Fact::DecayRoundsAway)];

/// Returns the keys of `[optimizer]`: the common ones, then the hyperparameters of every optimizer (a shared
/// name only once), then the same keys for every group.
pub(super) fn keys() -> Vec<Key> {
    let names: Vec<&'static str> = OPTIMIZERS.iter().map(|entry| entry.name).collect();
    let lr = Type::Number(fp32(Included(0.0), Included(10.0)));
    let decay = "What weight decay is relative to: the learning rate, or its share of the peak, whatever the peak is \
                 (Wortsman et al. 2023).";
    let mut keys = vec![
        Key::new("optimizer.name", Training, Type::Word(names.leak()), "The optimizer.", "\"sgd\"")
            .implied("\"adamw\""),
        Key::new("optimizer.lr", Training, lr, "Peak learning rate.", "3e-4").aliases(&["learning_rate"]),
        Key::new("optimizer.decay", Training, Type::Word(WeightDecay::WORDS), decay, "\"independent\"")
            .implied("\"coupled\""),
    ];
    for entry in OPTIMIZERS {
        for hyperparameter in entry.hyperparameters {
            let key = key(hyperparameter);
            let unset = if is_default(entry) { "" } else { leak(format!("only `{}` has it", entry.name)) };
            match keys.iter_mut().find(|known| known.path == key.path) {
                Some(known) => {
                    known.meaning = leak(format!("{} With {}: {}", known.meaning, entry.name, key.meaning));
                }
                None => keys.push(key.unset(unset)),
            }
        }
    }
    keys.iter_mut().for_each(|key| *key = key.idle(UNREAD));
    for key in keys.iter_mut().filter(|key| key.name() == groups::WEIGHT_DECAY) {
        *key = key.idle(VANISHES);
    }
    let group_keys: Vec<Key> =
        GroupRole::ALL.into_iter().flat_map(|role| groups::keys(role, &keys)).collect();
    keys.extend(group_keys);
    keys
}

/// Returns true if the key belongs to some optimizers and possibly not to others.
pub(super) fn is_hyperparameter(key: &Key) -> bool {
    key.section() == "optimizer" && owners(key).next().is_some()
}

/// Returns the optimizers that have a key of `[optimizer]` or of a group.
pub(super) fn owners(key: &Key) -> impl Iterator<Item = &'static Entry> {
    optim::owners(groups::role_and_name(key).map_or(key.name(), |(_, name)| name))
}

/// Returns the setting that chooses an optimizer with this key; `None` if the default optimizer has it.
#[cfg(test)]
pub(super) fn owner_setting(key: &Key) -> Option<&'static str> {
    let owner = owners(key).next().filter(|owner| key.section() == "optimizer" && !is_default(owner))?;
    let group =
        groups::role_and_name(key).map_or(String::new(), |(role, _)| format!("groups.{}.", role.word()));
    Some(leak(format!("optimizer.{group}name={}", owner.name)))
}

fn is_default(entry: &Entry) -> bool {
    entry.name == OPTIMIZERS[0].name
}

/// Optimizers compute in fp32.
const fn fp32(low: Bound<f64>, high: Bound<f64>) -> NumberRange {
    NumberRange { low, high, used_as: NumberFormat::Fp32 }
}

/// Returns a hyperparameter as a key of `[optimizer]`.
pub(super) fn key(hyperparameter: &Hyperparameter) -> Key {
    let kind = match hyperparameter.form {
        Form::Number(low, high) => Type::Number(fp32(low, high)),
        Form::Pair(low, high) => Type::Pair(fp32(low, high)),
        Form::Count { min, max } => Type::Count { min, max },
        Form::Flag => Type::Bool,
        Form::Word(words) => Type::Word(words),
    };
    let path = leak(format!("optimizer.{}", hyperparameter.name));
    let implied_default = hyperparameter.default_is_implied.then(|| leak(hyperparameter.default.to_string()));
    let key = Key::new(path, Training, kind, hyperparameter.meaning, hyperparameter.example)
        .aliases(hyperparameter.aliases)
        .implied(UNSET);
    Key { implied_default, ..key }
}
