//! Where ranks meet.

use crate::error::{Error, ErrorKind, Result};
use crate::ranks::Stop;
use crate::ranks::environment::{PORTS, RankAssignment};
use std::net::{SocketAddr, ToSocketAddrs};

/// Returns the address and the ports that rank 0 may listen at, as messages name them.
pub(super) fn address_and_ports(assignment: &RankAssignment) -> String {
    let RankAssignment { address, port, .. } = assignment;
    format!("{address}, ports {port} to {}", port.saturating_add(PORTS - 1))
}

/// Returns the ports that rank 0 may listen at.
pub(super) fn ports(assignment: &RankAssignment) -> impl Iterator<Item = u16> + use<> {
    let first = assignment.port;
    (0..PORTS).filter_map(move |more| first.checked_add(more))
}

/// Returns the addresses that a port of the machine of rank 0 has.
pub(super) fn resolve(assignment: &RankAssignment, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (assignment.address.as_str(), port).to_socket_addrs();
    found
        .map(Iterator::collect)
        .map_err(|e| Error::failed(format!("MASTER_ADDR = {}: {e}", assignment.address)))
}

/// Fails if a stop is requested: there is nothing to save yet.
pub(super) fn check_stop(stop: &Stop) -> Result<()> {
    match stop.requested() {
        true => Err(Error::new(ErrorKind::Interrupted, "stopped by a signal before all ranks had connected")),
        false => Ok(()),
    }
}
