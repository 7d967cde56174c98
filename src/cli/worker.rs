//! `xrun worker`: a rank of a run whose launcher is `process`. The parent starts it; nobody else does.

use super::run::finish;
use crate::ranks::{LocalRanks, process};
use crate::train::{WorkerRequest, follow};

/// Runs the rank; never returns.
pub fn run() -> ! {
    process::run_worker(|request: WorkerRequest, ranks: &LocalRanks, stop| {
        let request = request.into_request()?;
        match ranks.has_rank_zero() {
            true => finish(request, ranks, stop),
            // How the run ended is rank 0's to say.
            false => follow(request.recipe, &request.machine, ranks, stop).map(drop),
        }
    })
}
