//! Ranks of a run: how they are started, how they talk on the host, how a dead or hanging one ends the others.

mod connection;
pub mod environment;
mod exit_guard;
pub mod fault;
mod group;
mod launch;
pub mod process;
mod remote;
pub mod rendezvous;
mod server;
mod stop;
mod timed;
mod watchdog;

pub use connection::Line;
pub use exit_guard::LastWords;
pub use group::{Group, Local};
pub use launch::{Launch, Party, launch, stopped_by_another};
pub use remote::Remote;
pub use server::{Hub, Lost, turn_away};
pub use stop::{Stop, signal_group};
pub use timed::Timed;
pub use watchdog::Watchdog;

#[cfg(test)]
mod tests;
