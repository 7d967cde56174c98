//! Starts the ranks of a run as threads of this process.

use crate::device::comm::{Alone, Communicator, InProcess};
use crate::error::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs `body` once per rank and returns what rank 0 returned.
///
/// A rank that fails or panics makes the collectives of all others fail, so that none waits for it.
///
/// # Errors
/// The error of the rank that failed first, with its number where there are several.
pub fn launch<T: Send>(world: usize, body: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync) -> Result<T> {
    if world == 1 {
        return body(Arc::new(Alone));
    }
    let body = &body;
    let results: Vec<Result<T>> = std::thread::scope(|scope| {
        let ranks: Vec<_> = InProcess::group(world)
            .into_iter()
            .enumerate()
            .map(|(rank, comm)| {
                let comm: Arc<dyn Communicator> = Arc::new(comm);
                let thread = std::thread::Builder::new().name(format!("xrun-rank-{rank}"));
                let for_rank = Arc::clone(&comm);
                let started = thread.spawn_scoped(scope, move || guarded(rank, &for_rank, body));
                started.map_err(|e| {
                    let error = Error::failed(format!("cannot start the thread of rank {rank}: {e}"));
                    comm.abort(error.message());
                    error
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank?.join().unwrap_or_else(|_| Err(Error::failed("a rank's thread was lost"))))
            .collect()
    });
    first_cause(results)
}

/// Runs a rank's body; tells the others when it ends badly.
fn guarded<T>(
    rank: usize,
    comm: &Arc<dyn Communicator>,
    body: &(impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync),
) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(|| body(Arc::clone(comm)))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Error::failed(format!("panicked: {}", text.unwrap_or_else(|| "no message".to_string()))))
    });
    result.map_err(|e| {
        comm.abort(e.message());
        e.context(format!("rank {rank}"))
    })
}

/// What rank 0 returned, or the error of the rank that failed on its own account.
fn first_cause<T>(results: Vec<Result<T>>) -> Result<T> {
    let caused = |e: &Error| !e.message().contains(crate::device::comm::STOPPED_BY_ANOTHER);
    if let Some(error) = results.iter().filter_map(|r| r.as_ref().err()).find(|e| caused(e)) {
        return Err(error.clone());
    }
    results.into_iter().next().unwrap_or_else(|| Err(Error::failed("a run of no ranks")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_fails_is_named_and_nobody_waits() {
        let result: Result<()> = launch(3, |comm| {
            if comm.rank() == 1 {
                return Err(Error::failed("out of disk"));
            }
            comm.barrier()
        });
        assert_eq!(result.unwrap_err().message(), "rank 1: out of disk");
    }

    #[test]
    fn a_panic_is_an_error_of_its_rank() {
        let result: Result<()> = launch(2, |comm| {
            assert!(comm.rank() == 0, "injected");
            comm.barrier()
        });
        assert_eq!(result.unwrap_err().message(), "rank 1: panicked: injected");
    }

    #[test]
    fn rank_0_answers() {
        assert_eq!(launch(4, |comm| comm.all_reduce_max(comm.rank() as u64)).unwrap(), 3);
    }
}
