//! Recipes: files as written, merged in layers and checked, with the location of every value kept for
//! messages.
//!
//! ```text
//! defaults ─▶ files along `extends` ─▶ XRUN__SECTION__KEY ─▶ section.key=value      (later wins)
//!        layers, checked key by key ─▶ figment merges ─▶ settled for a Machine ─▶ checks ─▶ Recipe, frozen
//! ```
//!
//! [`KEYS`] lists the keys, [`Values`] holds a value for each, and a [`Recipe`] holds them as written and as
//! resolved.

mod batch;
pub mod builtin;
mod checks;
mod condition;
mod copy;
mod define;
mod definition;
pub mod derived;
mod diagnostic;
mod diff;
mod files;
mod fp8_checks;
mod groups;
mod home;
mod idle;
mod json_schema;
mod key;
mod layers;
mod length;
mod load;
mod loaded;
mod lookup;
mod merge;
mod names;
mod optimizer;
mod optimizer_checks;
mod phases;
mod position_checks;
mod prediction;
mod preference_checks;
mod scalars;
mod schedule;
mod schema;
mod settle;
mod source;
mod source_checks;
#[cfg(test)]
mod source_tests;
mod sources;
mod spelling;
mod stored;
mod sweep_checks;
#[cfg(test)]
mod tests;
mod toml_text;
mod typed;
mod until;
mod values;
mod width_checks;

pub use crate::policy::Validation;
pub use batch::{BatchSizes, DEFAULT_LOCAL_BATCH_SIZE, KEYS as BATCH_KEYS, RAMP_KEYS, ramp_fault};
pub use condition::{UNSET, When};
pub use copy::{COPY_HEADER, settings_outside_files};
pub use definition::{definition_label, model_text_error};
pub use diff::{Change, diff, measuring_changes};
pub use home::expand_home;
pub use idle::IdleKey;
pub use json_schema::json_schema;
pub use key::{Class, Key, NumberFormat, NumberRange, RangeScale, Type};
pub use load::{environment, load, load_resolved, load_str, setting};
pub use loaded::{Recipe, StoredRecipe};
pub use lookup::{
    NO_CHECKPOINTS, NO_PLOTS, NO_RESUME, find, find_path, merged_settings, section_keys, suggested_key,
};
pub use phases::Phase;
pub use prediction::{Predicted, Prediction};
pub use schedule::Schedule;
pub use schema::{
    ActivationCheckpoint, Checkpoint, Compare, Data, Ema, Engine, Generation, Job, KEYS, LrScheduler,
    MAX_RANKS, MAX_SHOTS, Metrics, Model, Optimizer, Parallelism, SECTIONS, Sweep, TaskRuns, Training,
    ValidationRuns, Values,
};
pub use source::{Layer, Location, Source};
pub use sources::{DataSource, is_source_path, source_path_key};
pub use spelling::without_dashes;
pub use stored::{StoredChange, StoredKeys, stored_diff};
pub use toml_text::{plain_text, value_text};
pub use until::{Budget, Until};
pub use values::WorldSize;
