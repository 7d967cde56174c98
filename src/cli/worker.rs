//! `xrun worker`: a rank of a run whose launcher is `process`. The parent starts it; nobody else does.

use super::run::finish;
use crate::ranks::{Party, process};
use crate::train::{WorkerRequest, follow};

/// Runs the rank; never returns.
pub fn run() -> ! {
    process::work(|request: WorkerRequest, party: &Party, stop| {
        let request = request.into_request()?;
        match party.leads() {
            true => finish(request, party, stop),
            // How the run ended is rank 0's to say.
            false => follow(request.resolved, &request.machine, party, stop).map(drop),
        }
    })
}
