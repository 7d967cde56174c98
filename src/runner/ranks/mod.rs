//! The ranks of a run: how they start, how they communicate on the host, and how a dead or hanging rank ends
//! the run.
//!
//! ```text
//! thread:   LocalCommunicator ─┬─ Group ─ Watchdog
//!           LocalCommunicator ─┘
//!
//! process:  RemoteCommunicator ═ Connection ═ Server ─┬─ Group ─ Watchdog    (in the parent)
//!           RemoteCommunicator ═ Connection ═ Server ─┘
//!
//! env:                            LocalCommunicator ──┬─ Group ─ Watchdog    (in the process of rank 0)
//!           RemoteCommunicator ═ Connection ═ Server ─┘
//! ```
//!
//! With every launcher, a rank gets a [`Communicator`](crate::device::communicator::Communicator) and runs
//! the same code.

mod connection;
pub mod environment;
mod exit_guard;
pub mod fault;
mod group;
mod launch;
mod local_ranks;
mod poll;
pub mod process;
mod remote;
pub mod rendezvous;
mod server;
mod stop;
mod timed;
mod watchdog;

pub use connection::Connection;
pub use exit_guard::ExitGuard;
pub use group::{Group, LocalCommunicator};
pub use launch::Launch;
pub use local_ranks::{LocalRanks, launch};
pub use remote::{Peer, RemoteCommunicator};
pub use server::{OnDisconnect, Server};
pub use stop::{KilledTogether, Stop, ignore_file_size_signal, signal_group, stack_fault};
pub use timed::TimedCommunicator;
pub use watchdog::{Watchdog, named_ranks};

#[cfg(test)]
mod tests;
