//! Campaigns: random and mutated inputs for every parser, run folders in which a file was damaged, and
//! simulated comparisons.
//!
//! In CI they are small. `XRUN_CAMPAIGN_S=1800 cargo test --release --test campaign -- --nocapture` gives
//! each of them half an hour, and `XRUN_CAMPAIGN_SEED=7` other inputs. An input that breaks something is
//! written to `target/tmp/campaign/`; with its cause mended it belongs into
//! `tests/campaign/regressions/PARSER/`, from which it is tried first, every time.

mod folders;
mod measure;
mod mutate;
mod parsers;
#[allow(dead_code, reason = "the tests of the binary use all of it")]
#[path = "../binary/place.rs"]
mod place;
mod runner;
mod verdicts;
