//! Parallel work whose outcome does not depend on how the threads are scheduled.

use crate::error::Result;
use rayon::prelude::*;

/// Collects values that are computed in parallel. If several of them fail, returns the error of the first in
/// order: rayon's own `collect::<Result<_>>` returns that of whichever thread came first.
///
/// # Errors
/// If any of the values is an error.
pub fn collect_in_order<T: Send>(values: impl ParallelIterator<Item = Result<T>>) -> Result<Vec<T>> {
    values.collect::<Vec<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::time::Duration;

    #[test]
    fn the_first_error_in_order_is_returned() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        let value = |at: u64| {
            // The later a value stands, the sooner it fails.
            std::thread::sleep(Duration::from_millis(8 - at));
            if at < 2 { Ok(at) } else { Err(Error::usage(format!("value {at}"))) }
        };
        pool.install(|| {
            let failed = collect_in_order((0..8).collect::<Vec<_>>().into_par_iter().map(value)).unwrap_err();
            assert_eq!(failed.message(), "value 2");
            assert_eq!(collect_in_order(vec![0, 1].into_par_iter().map(value)).unwrap(), [0, 1]);
        });
    }
}
