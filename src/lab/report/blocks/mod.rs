//! Blocks of Markdown pages that are rendered from kept runs: `xrun report` writes them, `xrun report
//! --check` verifies them.
//!
//! ```text
//! page ─▶ markers ─▶ spec ─▶ kept files, verified ─▶ rows alike? ─┬▶ Markdown ─▶ compared with the page
//!                                                                └▶ hashes ───▶ compared with report.lock
//! ```
//!
//! An update writes the page and `report.lock` instead of comparing them.
//!
//! `report.lock` holds two hashes per block. The hash of its sources' manifests changes when kept files do;
//! the hash of its text changes when the text is edited.

mod alike;
mod attributes;
mod chain;
mod chain_figure;
mod columns;
mod comparison;
mod configurations;
mod curves;
mod examine;
mod figure;
mod figures;
mod fixes;
mod kept;
mod kept_comparison;
mod lock;
mod markers;
mod page_context;
mod pages;
mod provenance;
mod quality;
mod quality_figure;
mod runs;
mod series;
mod spec;
mod structure;
mod sweep;
mod text;
mod value;
mod why;

pub use lock::LOCK;
pub use page_context::JudgeAgain;
pub use pages::{Checked, Found, PageProblem, PageSources, Scope, check, named, pages, sources, update};
pub use spec::{KINDS, template};
