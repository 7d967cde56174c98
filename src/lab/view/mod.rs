//! `xrun view`: a page about a results folder, served on 127.0.0.1 or written to one file.
//!
//! ```text
//! connection ─▶ http: a request within limits ─▶ access: name, site, cookie ─▶ routes ─▶ documents ─▶ folder
//!                                                                     │                      │
//!                                                                   assets       table, known_rows: kept current
//! single_file: the page with its assets and documents in it, without private data
//! ```
//!
//! Requests only read. Everything from a run is data: documents are JSON, and the page shows their texts as
//! text.

mod access;
mod assets;
mod documents;
mod filter;
mod folder;
mod http;
mod known_rows;
mod private;
mod routes;
mod server;
mod single_file;
mod table;

pub use folder::ResultsFolder;
pub use server::Server;
pub use single_file::{Selection, SingleFile};
