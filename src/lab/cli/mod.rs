//! The command line: one thin file per subcommand.

mod answers;
mod arguments;
mod chat;
mod cluster;
mod command;
mod compare;
mod compile;
mod complete;
mod completions;
mod coordinates;
mod data;
mod data_cache;
mod data_check;
mod data_questions;
mod data_show;
mod dispatch;
mod doctor;
mod eval;
mod export;
mod import;
mod init;
mod inspect;
mod keep;
mod ls;
#[cfg(feature = "man")]
mod man;
mod model;
mod named;
mod ops;
mod plan;
mod profile;
pub mod relocated;
mod replay;
mod report;
mod resume;
pub mod run;
mod runs;
mod sample;
mod schema;
mod sweep;
mod tasks;
mod terminal;
mod tokenizer;
mod tune;
#[cfg(feature = "view")]
mod view;
mod watch;
mod what;
mod words;

pub use arguments::{NotParsed, parse};
pub use command::{Cli, Command};
pub use dispatch::{Next, dispatch};
pub use terminal::eprint_line;
