//! Conditions on the other keys of a recipe under which a key has no effect, as the table of keys declares
//! them. `idle` evaluates them.

use std::fmt;

/// How an unset value is written.
pub const UNSET: &str = "unset";

/// The words of generated corpora, as TOML.
pub(super) const GENERATED: &[&str] = &["\"stories\"", "\"random\""];

/// The words of corpora that are no paths, as TOML.
pub(super) const NO_PATHS: &[&str] = &["\"stories\"", "\"random\"", "\"mixture\""];

/// A condition under which a key has no effect. Keys are full paths, values are TOML or [`UNSET`].
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// The key has one of these values.
    Is(&'static str, &'static [&'static str]),
    /// The key has none of these values.
    Not(&'static str, &'static [&'static str]),
    /// The number of the first key is at least as large as that of the second.
    AtLeast(&'static str, &'static str),
    /// The number of the first key is larger than that of the second.
    Above(&'static str, &'static str),
    /// All of these hold.
    All(&'static [When]),
    /// A condition that needs arithmetic or several keys at once.
    Fact(Fact),
}

/// Returns the condition that a key is unset.
pub(super) const fn unset(key: &'static str) -> When {
    When::Is(key, &[UNSET])
}

/// Returns the condition that a key is set.
pub(super) const fn set(key: &'static str) -> When {
    When::Not(key, &[UNSET])
}

/// A condition that is computed from several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The model has a text that does not read the key.
    TextReadsOthers,
    /// The model drops no element.
    NothingIsDropped,
    /// Every part that takes the seed of the run has a seed of its own.
    SeedsAreFixed,
    /// The rotary embedding rotates a single pair of elements, whose frequency is 1 for every base.
    OnePairRotates,
    /// Every stage of the batch ramp has the full global batch.
    RampIsFull,
    /// The warm-up takes all steps.
    WarmupIsAll,
    /// At most one step follows the warm-up, and every shape of the decay but `wsd` gives it the same rate.
    DecayIsOneStep,
    /// The ratio of the warm-up is less than half a step.
    WarmupIsNone,
    /// Every parameter that the key could affect gets the setting elsewhere, or does not read it.
    NoParameterReads,
    /// All named steps come after the last step of the run.
    StepsAreBeyond,
    /// The corpus is generated, and no other one is read.
    NoFileIsRead,
    /// No file is read as conversations.
    NoConversationIsRead,
    /// Only single files are read, and no folder.
    NoFolderIsRead,
    /// A mixture has only one source.
    OneSource,
    /// All phases of a mixture begin after the last step.
    PhasesAreBeyond,
    /// The held-out text is a corpus of its own.
    HeldOutIsOwnCorpus,
    /// A split is held out, and not a share.
    SplitIsHeldOut,
    /// A micro-step has one sequence.
    OneSequence,
    /// A step has several micro-steps.
    SeveralMicroSteps,
    /// The ranks are on the CPU.
    OnCpu,
    /// The factor rounds to 1 in fp32.
    DecayRoundsAway,
    /// No checkpoint is saved before the last step.
    SavesOnlyAtEnd,
}

impl Fact {
    /// Says the condition, to follow "no effect".
    const fn text(self) -> &'static str {
        match self {
            Self::TextReadsOthers => "because the text of `model.definition` does not read it",
            Self::NothingIsDropped => "because no element is dropped",
            Self::SeedsAreFixed => "because `[seeds]` sets the seed of every part",
            Self::OnePairRotates => "because a single pair of elements rotates, by one radian per token",
            Self::RampIsFull => "because every stage has the full `training.global_batch_size`",
            Self::WarmupIsAll => "because the warm-up takes all `training.steps`",
            Self::DecayIsOneStep => "because at most one of `training.steps` follows the warm-up",
            Self::WarmupIsNone => "because it is less than half of one of `training.steps`",
            Self::NoParameterReads => {
                "because no parameter reads it: its group, or another hyperparameter, decides"
            }
            Self::StepsAreBeyond => "because these steps come after the last of `training.steps`",
            Self::NoFileIsRead => "because the corpus is generated, and no file is read",
            Self::NoConversationIsRead => "because no files are conversations",
            Self::NoFolderIsRead => "because the corpus is a file, and no folder is read",
            Self::OneSource => "because `data.sources` has only one source",
            Self::PhasesAreBeyond => "because the phases begin after the last of `training.steps`",
            Self::HeldOutIsOwnCorpus => "because the held-out text is a corpus of its own",
            Self::SplitIsHeldOut => "because `data.validation_split` is held out, and no share",
            Self::OneSequence => "because a rank computes one sequence per micro-step",
            Self::SeveralMicroSteps => "because a step has several micro-steps, whose rows are not kept",
            Self::OnCpu => "on the CPU",
            Self::DecayRoundsAway => "because `1 - lr * weight_decay` rounds to 1 in fp32",
            Self::SavesOnlyAtEnd => "because the only checkpoint is the one at the end",
        }
    }
}

/// Writes the condition as in `docs/recipes.md`, to follow "no effect".
impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, values: &[&str], between: &str| {
            for (i, value) in values.iter().enumerate() {
                if i > 0 {
                    write!(f, " {between} ")?;
                }
                write!(f, "`{value}`")?;
            }
            Ok(())
        };
        match self {
            Self::Is(key, [UNSET]) => write!(f, "with `{key}` unset"),
            Self::Not(key, [UNSET]) => write!(f, "with `{key}` set"),
            Self::Is(key, values) => {
                write!(f, "with `{key}` = ")?;
                list(f, values, "or")
            }
            Self::Not(key, values) => {
                write!(f, "unless `{key}` is ")?;
                list(f, values, "or")
            }
            Self::AtLeast(key, other) => write!(f, "with `{key}` ≥ `{other}`"),
            Self::Above(key, other) => write!(f, "with `{key}` > `{other}`"),
            Self::All(conditions) => {
                for (i, condition) in conditions.iter().enumerate() {
                    if i > 0 {
                        f.write_str(" ")?;
                    }
                    condition.fmt(f)?;
                }
                Ok(())
            }
            Self::Fact(fact) => f.write_str(fact.text()),
        }
    }
}

impl When {
    /// Says why a key has no effect, with the values that `value` returns for other keys.
    pub(super) fn reason(&self, own: &str, value: &dyn Fn(&str) -> Option<String>) -> String {
        let now = |key: &str| match value(key) {
            Some(value) => format!("`{key} = {value}`"),
            None => format!("`{key}` unset"),
        };
        match self {
            Self::Is(key, _) | Self::Not(key, _) => format!("with {}", now(key)),
            Self::AtLeast(key, other) | Self::Above(key, other) => {
                let keys = [*key, *other].into_iter().filter(|key| *key != own);
                format!("with {}", keys.map(now).collect::<Vec<_>>().join(" and "))
            }
            Self::All(conditions) => {
                let reasons: Vec<String> =
                    conditions.iter().map(|condition| condition.reason(own, value)).collect();
                reasons.join(" and ")
            }
            Self::Fact(fact) => fact.text().to_owned(),
        }
    }
}
