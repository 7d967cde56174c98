//! The runs of a results folder as a collection: listed, filtered and sorted by any recipe key or figure,
//! compared in pairs, annotated and removed.
//!
//! ```text
//! run folders ─▶ Stamps: size and times of each file behind an entry
//!                  │ the same as in RESULTS/.index/runs      │ others
//!                  ▼                                         ▼
//!                entry of the index                        Entry::read
//!                  └──────────────▶ Collection ◀─────────────┘ ◀── annotations.jsonl
//!                                       │
//!                  Field ─▶ Condition, Order, columns of tables and CSV
//! ```
//!
//! The index is a cache: if it is missing, damaged or cannot be written, every run is read.

mod annotations;
mod condition;
mod csv_text;
mod difference;
mod entry;
mod field;
mod index;
mod location;
mod order;
mod read;
mod references;
mod removal;

pub use annotations::{Annotation, AnnotationChange, annotate, check_note, check_tag, read_annotations};
pub use condition::{Condition, Criterion};
pub use csv_text::{differing_keys, to_csv};
pub use difference::{CurveDifference, FigurePair, NamedDifference, RunDifference, facts_of_environment};
pub use entry::{Entry, SetEntry};
pub use field::{Cell, Field, Word, field_names, figures, score_figures, set_figures};
pub use location::{Located, locate};
pub use order::Order;
pub use read::{Collection, PartOf, Run};
pub use references::{Reference, Referrers};
pub use removal::{LockedRun, remove};
