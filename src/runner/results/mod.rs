//! The results of runs: row files, run folders, provenance, summaries, comparisons, ledgers, and the progress
//! line.
//!
//! Everything is written as it happens and can be read without xrun. `metrics.csv` is deterministic;
//! measurements go to `timing.csv` and `env.json`.

/// Defines an enum with the word that files, lists and command lines use for each variant.
macro_rules! words {
    (
        $(#[$meta:meta])*
        $visible:vis enum $name:ident { $($(#[$attribute:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        $visible enum $name { $($(#[$attribute])* $variant,)+ }

        impl $name {
            /// Every variant, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the word for this variant.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }
    };
}

pub mod atomic;
pub mod began;
pub mod collection;
pub mod columns;
pub mod configurations;
pub mod confirmation;
pub mod coordinates;
pub mod difference;
pub mod experiment;
pub mod find;
pub mod folder;
pub mod follow;
pub mod held_out;
pub mod keep;
pub mod labels;
pub mod ledger;
pub mod losses;
pub mod markdown;
pub mod measure;
pub mod memory;
pub mod names;
pub mod numbers;
pub mod origin;
pub mod profile;
pub mod progress;
pub mod provenance;
pub mod quantiles;
pub mod rows;
pub mod run_figure;
pub mod scored_tasks;
pub mod screen;
mod source_losses;
pub mod stdout;
pub mod steady;
pub mod stored;
pub mod streams;
pub mod summary;
pub mod tensorboard;
pub mod verify;

pub use folder::RunFolder;
pub use rows::{MetricsRow, Phase, TimingRow};
pub use summary::{Status, Summary};
