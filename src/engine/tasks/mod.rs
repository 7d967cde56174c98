//! Tasks: everything about a standard evaluation but running the model.
//!
//! A [`Definition`] says where the items of a task are, how they become prompts and how answers are scored.
//! [`Loaded`] has the rows of its files, and [`Prepared`] the [`Request`]s of one model: tokens, made exactly
//! as the harness that the definition follows makes them. Whoever runs the model returns an [`Answer`] for
//! each item, and [`Prepared::result`] makes the task's figures of them, with their errors.

mod built_in;
mod contribution;
mod definition;
mod encoding;
mod files;
mod generation;
mod items;
mod metric;
mod prepared;
mod python;
mod random;
mod result;
mod rule;
mod stops;
mod template;
#[cfg(test)]
mod tests;
mod written;

pub use built_in::{SETS, find, names, of_set, select};
pub use contribution::{Answer, Contribution, Score};
pub use definition::{Definition, Examples, MAX_SHOTS, Scoring, Source, Take};
pub use encoding::{Beginning, Encoder, Request};
pub use generation::{GeneratedAnswer, Generation};
pub use items::{Item, Loaded, Question, TaskFile};
pub use metric::Metric;
pub use prepared::{Asked, Prepared, PreparedItem};
pub use result::{Figure, ItemResult, TaskResult, estimate};
pub use rule::{ChoiceRule, RequestRule, Rules};
