//! Finds keys that a recipe sets but that have no effect, because other keys make them idle.
//!
//! The table of keys declares the conditions ([`When`]); this file evaluates them on a recipe. A run and a
//! plan report what is found, and the resolved recipe marks it, so that it does not claim what was not used.

use super::condition::{Fact, When};
use super::derived;
use super::diagnostic::Diagnostic;
use super::files;
use super::groups;
use super::key::Key;
use super::loaded::{self, Recipe};
use super::lookup::find_path;
use super::schema::{Optimizer, Values};
use super::source::Origin;
use super::toml_text::{Texts, keys_of};
use crate::model_text::ModelText;
use crate::optim::{GroupRole, RoleRule, Value};
use crate::policy::{
    AdapterKind, CorpusSource, Decay, OrFormula, PathList, Position, TextFormat, Validation, WeightDecay,
};
use std::collections::BTreeMap;

/// A key that a recipe sets without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleKey {
    /// Full path of the key.
    pub key: &'static str,
    /// Why it has no effect, to follow "no effect".
    pub reason: String,
    /// True if a recipe inside the binary sets it, or the recipe of a run, which said so when it began.
    is_known: bool,
}

impl Recipe {
    /// Returns the resolved recipe as TOML, section by section, with unset keys as comments, and a comment
    /// behind every value that was set without effect. Parsing it gives the same values.
    pub fn to_toml(&self) -> String {
        let idle: BTreeMap<_, _> =
            self.idle_keys(false).into_iter().map(|idle| (idle.key, idle.reason)).collect();
        loaded::to_toml(
            self.values(),
            |_| false,
            |key| idle.get(key.path).map(|reason| format!("no effect {}", reason.replace('`', ""))),
        )
    }

    /// Returns the keys that are set to other values than the default but have no effect, with the reason.
    /// `on_cpu` is true if the ranks are known to use the CPU.
    pub fn idle_keys(&self, on_cpu: bool) -> Vec<IdleKey> {
        self.without_effect(on_cpu, |key| {
            let of_model = (key.section() == "model").then_some(When::Fact(Fact::TextReadsOthers));
            of_model.into_iter().chain(key.idle.iter().copied()).collect()
        })
    }

    /// Returns a sentence for each key that the user set without effect, as a run and a plan report it.
    pub fn remarks(&self, on_cpu: bool) -> Vec<String> {
        let own = self.idle_keys(on_cpu).into_iter().filter(|idle| !idle.is_known);
        own.map(|idle| format!("`{}` has no effect {}", idle.key, idle.reason)).collect()
    }

    fn without_effect(&self, on_cpu: bool, conditions: fn(&Key) -> Vec<When>) -> Vec<IdleKey> {
        let (state, written) = (State::new(self, on_cpu), Texts::new(self.written()));
        let mut found = Vec::new();
        for key in keys_of(self.written()) {
            let Some(at) = self.locate(key.path).filter(|_| written.is_changed(key)) else { continue };
            let Some(when) = conditions(key).into_iter().find(|when| state.holds(when, key)) else {
                continue;
            };
            let reason = when.reason(key.path, &|other| state.value(other));
            let is_known = match &at.source.origin {
                Origin::BuiltIn(_) => true,
                Origin::File(path) => files::is_of_run(path),
                Origin::Env(_) | Origin::CommandLine => false,
            };
            found.push(IdleKey { key: key.path, reason, is_known });
        }
        found
    }
}

/// Reports keys without effect whose values would make a result claim more than it has.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    for IdleKey { key, reason, .. } in recipe.without_effect(false, |key| key.refused.to_vec()) {
        found.push(recipe.diagnostic(
            &[key],
            format!("{key} has no effect {reason}"),
            format!("leave {key} out, or change what makes it idle"),
        ));
    }
}

/// The values that conditions are evaluated on.
struct State<'a> {
    recipe: &'a Recipe,
    on_cpu: bool,
    /// The resolved values.
    texts: Texts,
    /// The text of the model, if the recipe has one.
    model_text: Option<ModelText>,
}

impl<'a> State<'a> {
    fn new(recipe: &'a Recipe, on_cpu: bool) -> Self {
        let texts = Texts::new(recipe.values());
        let definition = recipe.values().model.definition.as_deref();
        let model_text = definition.and_then(|text| ModelText::parse(text).ok());
        Self { recipe, on_cpu, texts, model_text }
    }

    fn value(&self, key: &str) -> Option<String> {
        find_path(key).and_then(|key| self.texts.get(key))
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.value(key)?.parse().ok()
    }

    fn holds(&self, when: &When, key: &Key) -> bool {
        let is = |key: &str, words: &[&str]| {
            let value = self.value(key);
            words.contains(&value.as_deref().unwrap_or(super::UNSET))
        };
        let numbers = |a: &str, b: &str| self.number(a).zip(self.number(b));
        match *when {
            When::Is(other, words) => is(other, words),
            When::Not(other, words) => !is(other, words),
            When::AtLeast(a, b) => numbers(a, b).is_some_and(|(a, b)| a >= b),
            When::Above(a, b) => numbers(a, b).is_some_and(|(a, b)| a > b),
            When::All(conditions) => conditions.iter().all(|when| self.holds(when, key)),
            When::Fact(fact) => self.is_true(fact, key),
        }
    }

    fn is_true(&self, fact: Fact, key: &Key) -> bool {
        let values = self.recipe.values();
        let Values { model, adapter, training, seeds, lr_scheduler: schedule, data, checkpoint, .. } = values;
        let steps = training.steps;
        let after_warmup = steps.saturating_sub(derived::warmup_steps(schedule, steps));
        match fact {
            Fact::NothingIsDropped => !self.drops_elements(),
            Fact::SeedsAreFixed => {
                let draws_adapters = adapter.kind != AdapterKind::None && adapter.init_from.is_none();
                (seeds.init.is_some() || (model.init_from.is_some() && !draws_adapters))
                    && seeds.order.is_some()
                    && (seeds.dropout.is_some() || !self.drops_elements())
            }
            Fact::TextReadsOthers => {
                self.model_text.as_ref().is_some_and(|text| !text.keys().contains(key.name()))
            }
            Fact::OnePairRotates => {
                model.position == Position::Rope
                    && derived::rotated_dim(derived::head_dim(model), model.rope_fraction) == 2
            }
            Fact::RampIsFull => self.recipe.batch_or_reason().is_ok_and(|batch| {
                training.batch_ramp.iter().all(|[_, sequences]| *sequences == batch.global)
            }),
            Fact::WarmupIsAll => after_warmup == 0,
            Fact::DecayIsOneStep => {
                let ends_low = matches!(schedule.decay, OrFormula::Word(decay) if decay != Decay::Wsd);
                after_warmup == 0 || (after_warmup == 1 && ends_low)
            }
            Fact::WarmupIsNone => {
                let replaces = self.recipe.locate("lr_scheduler.warmup_steps").is_some();
                derived::warmup_steps(schedule, steps) == 0 && !replaces
            }
            Fact::NoParameterReads => !self.is_read(key),
            Fact::DecayRoundsAway => self.decay_rounds_away(key),
            Fact::StepsAreBeyond => {
                let named = checkpoint.steps.as_deref().unwrap_or_default();
                !named.is_empty() && named.iter().all(|step| *step > steps)
            }
            Fact::NoConversationIsRead => {
                let of_sources = data.sources.values().filter_map(|source| source.format);
                of_sources
                    .chain([data.format])
                    .all(|format| !matches!(format, TextFormat::Chat | TextFormat::Preference))
            }
            Fact::NoFileIsRead => {
                let is_generated = matches!(data.corpus, CorpusSource::Stories | CorpusSource::Random);
                is_generated && values.validation.sets.is_empty()
            }
            Fact::OneSource => data.sources.len() == 1,
            Fact::PhasesAreBeyond => {
                data.phases.iter().all(|phase| phase.steps_before(steps) >= steps as u64)
            }
            Fact::NoFolderIsRead => {
                let is_folder = |paths: &PathList| paths.iter().any(|path| !path.is_file());
                let mut sources = data.sources.values().filter_map(|source| source.path.as_ref());
                let corpus = match &data.corpus {
                    CorpusSource::Paths(paths) => is_folder(paths),
                    CorpusSource::Mixture => sources.any(is_folder),
                    CorpusSource::Stories | CorpusSource::Random => false,
                };
                let held_out = matches!(&data.validation, Validation::Paths(paths) if is_folder(paths));
                let sets = values.validation.sets.values().any(is_folder);
                !corpus && !held_out && !sets
            }
            Fact::HeldOutIsOwnCorpus => {
                matches!(data.validation, Validation::Paths(_)) || data.validation_split.is_some()
            }
            Fact::SplitIsHeldOut => {
                matches!(data.validation, Validation::Fraction(_)) && data.validation_split.is_some()
            }
            Fact::OneSequence => self.recipe.batch_or_reason().is_ok_and(|batch| batch.local == 1),
            Fact::SeveralMicroSteps => self
                .recipe
                .batch_or_reason()
                .is_ok_and(|batch| batch.accumulation > 1 && training.batch_ramp.is_empty()),
            Fact::OnCpu => self.on_cpu,
            Fact::SavesOnlyAtEnd => {
                let never = |interval: usize| interval == 0 || interval >= steps;
                let by_time = checkpoint.interval.is_none() && checkpoint.minutes > 0.0;
                !by_time
                    && checkpoint.interval.is_none_or(never)
                    && checkpoint.steps.as_deref().unwrap_or_default().iter().all(|step| *step >= steps)
                    && checkpoint.log_spacing.is_none()
                    && !checkpoint.keep_best
            }
        }
    }

    /// Returns true if the model drops elements.
    fn drops_elements(&self) -> bool {
        let Values { model, adapter, .. } = self.recipe.values();
        let by_adapter = adapter.kind != AdapterKind::None && adapter.dropout > 0.0;
        let by_key = model.dropout > 0.0;
        by_adapter
            || match &self.model_text {
                Some(text) => text.has_own_dropout() || (by_key && text.keys().contains("dropout")),
                None => by_key,
            }
    }

    /// Returns the roles that the model has trained parameters of.
    fn roles(&self) -> impl Iterator<Item = GroupRole> + use<> {
        let Values { model, adapter, .. } = self.recipe.values();
        let has_adapters = adapter.kind != AdapterKind::None;
        let (positions, head) = match &self.model_text {
            Some(text) => (text.looks_up_positions(), text.has_own_head()),
            None => (model.position == Position::Learned, !model.tie_embeddings),
        };
        let of_keys = model.norm_weight || model.bias || (model.qk_norm && model.qk_norm_weight);
        // Which vectors a text has depends on its arithmetic.
        let vectors = of_keys || self.model_text.is_some();
        let of_text = self.model_text.as_ref().map(|text| text.roles()).unwrap_or_default();
        let of_text: Vec<GroupRole> = of_text.into_iter().filter_map(GroupRole::from_word).collect();
        GroupRole::ALL.into_iter().filter(move |role| match role {
            // Nothing else is trained.
            role if has_adapters => *role == GroupRole::Matrix,
            role if of_text.contains(role) => true,
            GroupRole::Positions => positions,
            GroupRole::Head => head,
            GroupRole::Vector => vectors,
            _ => true,
        })
    }

    /// Returns true if the update of some parameter changes when the key of `[optimizer]` does.
    fn is_read(&self, key: &Key) -> bool {
        let own = &self.recipe.values().optimizer;
        let other = with_other_value(own, key);
        let read = |optimizer: &Optimizer, role| optimizer.rule(role).map(ReadRule::new);
        *own == other || self.roles().any(|role| read(own, role) != read(&other, role))
    }

    /// Returns true if the factor of weight decay is 1 in fp32 for every parameter that the key decays.
    fn decay_rounds_away(&self, key: &Key) -> bool {
        let own = &self.recipe.values().optimizer;
        let other = with_other_value(own, key);
        let decay = |rule: &RoleRule| match rule.values.get(groups::WEIGHT_DECAY) {
            Some(Value::Number(decay)) if rule.decays => *decay,
            _ => 0.0,
        };
        let mut changed =
            self.roles().filter_map(|role| own.rule(role).zip(other.rule(role))).filter(|(own, other)| {
                decay(own) != decay(other) && decay(own) > 0.0 && own.entry.decoupled_decay
            });
        let rounds_away = |rule: &RoleRule| {
            let rate = if rule.decay == WeightDecay::Independent { 1.0 } else { rule.lr };
            (1.0 - rate * decay(rule)) as f32 == 1.0
        };
        let mut any = false;
        changed.all(|(own, _)| {
            any = true;
            rounds_away(&own)
        }) && any
    }
}

/// The parts of a rule that an update reads.
#[derive(Debug, PartialEq)]
struct ReadRule {
    name: &'static str,
    values: crate::optim::Values,
    lr: f64,
    decay: Option<WeightDecay>,
}

impl ReadRule {
    fn new(rule: RoleRule) -> Self {
        let number = |name: &str| match rule.values.get(name) {
            Some(Value::Number(x)) => Some(*x),
            _ => None,
        };
        let decays = rule.decays && number(groups::WEIGHT_DECAY).is_some_and(|decay| decay > 0.0);
        let mut values = rule.values.clone();
        if number("momentum") == Some(0.0) {
            values = values.without("nesterov");
        }
        if !decays {
            values = values.without(groups::WEIGHT_DECAY);
        }
        let decay = (decays && rule.entry.decoupled_decay).then_some(rule.decay);
        Self { name: rule.entry.name, values, lr: rule.lr, decay }
    }
}

/// Returns the optimizer's section with another value of `key`, to see whether anything reads it.
fn with_other_value(section: &Optimizer, key: &Key) -> Optimizer {
    let mut other = section.clone();
    let another = |name: &str| if name == "sgd" { "lion" } else { "sgd" }.to_owned();
    let opposite = |decay| match decay {
        WeightDecay::Coupled => WeightDecay::Independent,
        WeightDecay::Independent => WeightDecay::Coupled,
    };
    match groups::role_and_name(key) {
        Some((role, name)) => {
            if let Some(group) = other.groups.get_mut(&role) {
                match name {
                    "name" => group.name = group.name.as_deref().map(another),
                    "lr" => group.lr = group.lr.map(|lr| lr + 1.0),
                    "decay" => group.decay = group.decay.map(opposite),
                    name => group.values.extend(group.values.get(name).map(|v| (name.to_owned(), v.other()))),
                }
            }
        }
        None => match key.name() {
            "name" => other.name = another(&section.name),
            "lr" => other.lr += 1.0,
            "decay" => other.decay = opposite(section.decay),
            name => other.values = other.values.with_other(name),
        },
    }
    other
}
