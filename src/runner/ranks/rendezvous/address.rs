//! The address where ranks meet.

use crate::error::{Error, ErrorKind, Result};
use crate::ranks::Stop;
use crate::ranks::environment::{PORTS, RankAssignment};
use std::net::{SocketAddr, ToSocketAddrs};

/// Describes the address and ports of rank 0 for messages.
pub(super) fn address_and_ports(assignment: &RankAssignment) -> String {
    let RankAssignment { address, port, .. } = assignment;
    format!("{address}, ports {port} to {}", port.saturating_add(PORTS - 1))
}

/// Returns the ports that rank 0 may listen on.
pub(super) fn ports(assignment: &RankAssignment) -> impl Iterator<Item = u16> + use<> {
    let first = assignment.port;
    (0..PORTS).filter_map(move |more| first.checked_add(more))
}

/// Resolves the machine of rank 0 to socket addresses with this port.
pub(super) fn resolve(assignment: &RankAssignment, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (assignment.address.as_str(), port).to_socket_addrs();
    found
        .map(Iterator::collect)
        .map_err(|e| Error::failed(format!("MASTER_ADDR = {}: {e}", assignment.address)))
}

/// Fails if a stop was requested. There is nothing to save yet.
pub(super) fn check_stop(stop: &Stop) -> Result<()> {
    match stop.requested() {
        true => Err(Error::new(ErrorKind::Interrupted, "stopped by a signal before all ranks had connected")),
        false => Ok(()),
    }
}
