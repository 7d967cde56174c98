//! Optimizers: the state kept for every parameter, the ops of an update, and its schedule.
//!
//! To add an optimizer, write one file here that implements [`Optimizer`], or [`Rule`] if it treats every
//! element alike, and declares its hyperparameters; then add one line to [`OPTIMIZERS`]. Recipes read their
//! keys from that list. The state layout, checkpoints, forecasts and the program at the end of a step iterate
//! over an optimizer's slots and never name them. Parameters are updated in groups by role, each with its own
//! optimizer, rate and decay ([`UpdateGroup`]).

mod adamw;
mod elementwise;
mod ema;
mod groups;
mod hyperparameters;
mod lion;
mod muon;
mod optimizer;
mod parametrization;
mod polynomials;
mod role;
mod sgd;
mod width;

pub use elementwise::{Elementwise, ElementwiseUpdate, Rule, Scalars, Slot};
pub use ema::{CHECKPOINT_PREFIX as EMA_PREFIX, WeightEma, all_segments};
pub use groups::{RoleRule, UpdateGroup};
pub use hyperparameters::{Form, Hyperparameter, Value, Values};
pub use muon::Muon;
pub use optimizer::{Entry, Optimizer, Rates, Update};
pub use role::GroupRole;
pub use width::{Power, WidthRule};

/// Every optimizer. The first is the default of recipes.
pub static OPTIMIZERS: &[Entry] = &[adamw::ENTRY, lion::ENTRY, sgd::ENTRY, muon::ENTRY];

/// Returns the names of all hyperparameters in the order of the registry, without duplicates.
pub fn hyperparameter_names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for hyperparameter in OPTIMIZERS.iter().flat_map(|entry| entry.hyperparameters) {
        if !names.contains(&hyperparameter.name) {
            names.push(hyperparameter.name);
        }
    }
    names
}

/// Returns the optimizer with this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    OPTIMIZERS.iter().find(|entry| entry.name == name)
}

/// Returns the optimizers that have a hyperparameter with this name.
pub fn owners(name: &str) -> impl Iterator<Item = &'static Entry> {
    OPTIMIZERS.iter().filter(move |entry| entry.hyperparameters.iter().any(|h| h.name == name))
}

/// Returns the optimizer for parameters of a role when a recipe sets optimizer `name` for all: `name`, or the
/// optimizer that takes the parameters `name` cannot update.
pub fn find_for(role: GroupRole, name: &str) -> Option<&'static Entry> {
    let entry = find(name)?;
    if entry.updates(role) { Some(entry) } else { find(entry.fallback?) }
}

/// Returns the hyperparameters that a recipe may set when it names one optimizer for all parameters: its own,
/// and further ones of the optimizer that takes the parameters it cannot update.
pub fn hyperparameters_for_all(entry: &'static Entry) -> Vec<&'static Hyperparameter> {
    let elsewhere = entry.fallback.and_then(find).map_or(&[][..], |other| other.hyperparameters);
    let is_own = |h: &&Hyperparameter| entry.hyperparameters.iter().any(|own| own.name == h.name);
    entry.hyperparameters.iter().chain(elsewhere.iter().filter(|h| !is_own(h))).collect()
}
