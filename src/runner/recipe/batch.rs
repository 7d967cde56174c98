//! Derives the batch sizes: local, global and accumulation may each be unset.

use super::schema::Training;

/// Sequences per rank and micro step if a recipe sets neither a local nor a global batch size.
pub const DEFAULT_LOCAL_BATCH_SIZE: usize = 8;

/// The keys that determine the batch sizes, for diagnostics.
pub const KEYS: [&str; 4] = [
    "training.global_batch_size",
    "training.local_batch_size",
    "training.accumulation",
    "parallelism.world_size",
];

/// All three batch sizes: `global = local · accumulation · world`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizes {
    /// Sequences per rank and micro step.
    pub local: usize,
    /// Micro steps per optimizer step.
    pub accumulation: usize,
    /// Sequences per optimizer step, over all ranks.
    pub global: usize,
}

/// Derives the batch sizes that `training` leaves unset, for `world` ranks.
///
/// A global batch size determines the unset sizes; without one, it follows from the others. Accumulation
/// defaults to 1 and the local batch size to [`DEFAULT_LOCAL_BATCH_SIZE`] if nothing determines them.
///
/// # Errors
/// If the sizes contradict each other, do not divide, or overflow: a sentence with the numbers.
pub fn batch(training: &Training, world: usize) -> Result<BatchSizes, String> {
    let product = |a: usize, b: usize| {
        a.checked_mul(b)
            .filter(|&p| p > 0)
            .ok_or_else(|| format!("a batch of {a} · {b} sequences is zero or too large"))
    };
    let (local, accumulation) = match (
        training.local_batch_size,
        training.global_batch_size,
        training.accumulation,
    ) {
        (local, None, accumulation) => (local.unwrap_or(DEFAULT_LOCAL_BATCH_SIZE), accumulation.unwrap_or(1)),
        (Some(local), Some(global), None) => {
            let step = product(local, world)?;
            let accumulation = divide(global, step).ok_or_else(|| {
                format!("a global batch of {global} is not a multiple of {local} per rank · {world} ranks = {step}")
            })?;
            (local, accumulation)
        }
        (None, Some(global), accumulation) => {
            let accumulation = accumulation.unwrap_or(1);
            let shares = product(accumulation, world)?;
            let local = divide(global, shares).ok_or_else(|| {
                format!(
                    "a global batch of {global} does not divide into {accumulation} micro steps · {world} ranks = {shares}"
                )
            })?;
            (local, accumulation)
        }
        (Some(local), Some(global), Some(accumulation)) => {
            let found = product(product(local, accumulation)?, world)?;
            if found != global {
                return Err(format!(
                    "a global batch of {global} is not {local} per rank · {accumulation} micro steps · {world} ranks = {found}"
                ));
            }
            (local, accumulation)
        }
    };
    Ok(BatchSizes { local, accumulation, global: product(product(local, accumulation)?, world)? })
}

/// The keys that determine the batch sizes of a ramp, for diagnostics.
pub const RAMP_KEYS: [&str; 3] =
    ["training.batch_ramp", "training.local_batch_size", "parallelism.world_size"];

/// Returns the reason why the stages of a ramp cannot be trained and the next step, or `None` if they can.
/// `sizes` are the sizes of the full batch.
pub fn ramp_fault(training: &Training, sizes: &BatchSizes) -> Option<(String, String)> {
    let micro_step = sizes.global / sizes.accumulation;
    let uneven = training.batch_ramp.iter().find(|[_, sequences]| !sequences.is_multiple_of(micro_step));
    if let Some([step, sequences]) = uneven {
        let ranks = micro_step / sizes.local;
        return Some((
            format!(
                "the batch of {sequences} sequences up to step {step} is not a whole number of micro steps of {} per \
                 rank · {ranks} ranks = {micro_step}",
                sizes.local
            ),
            "make every batch of the ramp a multiple of that, or set a smaller training.local_batch_size"
                .to_owned(),
        ));
    }
    // Programs count the tokens of a step in 32 bits.
    let most = training.batch_ramp.iter().map(|[_, sequences]| *sequences).chain([sizes.global]).max()?;
    let counted = most.checked_mul(training.seq_len).is_some_and(|tokens| u32::try_from(tokens).is_ok());
    (!training.batch_ramp.is_empty() && !counted).then(|| {
        (
            format!("with a ramp a step has at most {} tokens, and {most} sequences have more", u32::MAX),
            "make the batches smaller".to_owned(),
        )
    })
}

/// Returns `a / b` if it is a whole number above zero.
fn divide(a: usize, b: usize) -> Option<usize> {
    (a > 0 && a.is_multiple_of(b)).then(|| a / b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(local: Option<usize>, global: Option<usize>, accumulation: Option<usize>) -> Training {
        Training { local_batch_size: local, global_batch_size: global, accumulation, ..Training::default() }
    }

    #[test]
    fn unset_numbers_are_derived() {
        let derive = |l, g, a, world| {
            batch(&training(l, g, a), world).map(|b| (b.local, b.accumulation, b.global)).expect("consistent")
        };
        assert_eq!(derive(None, None, None, 3), (DEFAULT_LOCAL_BATCH_SIZE, 1, 3 * DEFAULT_LOCAL_BATCH_SIZE));
        assert_eq!(derive(Some(4), None, None, 2), (4, 1, 8));
        assert_eq!(derive(Some(4), None, Some(3), 2), (4, 3, 24));
        assert_eq!(derive(Some(4), Some(64), None, 2), (4, 8, 64));
        assert_eq!(derive(None, Some(64), None, 2), (32, 1, 64));
        assert_eq!(derive(None, Some(64), Some(4), 2), (8, 4, 64));
        assert_eq!(derive(Some(8), Some(64), Some(4), 2), (8, 4, 64));
    }

    #[test]
    fn batches_of_a_ramp_are_whole_micro_steps() {
        let fault = |ramp: &[[usize; 2]], world| {
            let training = Training { batch_ramp: ramp.to_vec(), ..training(Some(4), Some(64), None) };
            ramp_fault(&training, &batch(&training, world).expect("consistent")).map(|(reason, _)| reason)
        };
        assert_eq!(fault(&[], 1), None);
        assert_eq!(fault(&[[10, 4], [20, 128]], 1), None);
        assert!(
            fault(&[[10, 4], [20, 16]], 2).is_some_and(|reason| reason.contains("4 per rank · 2 ranks = 8"))
        );
        let long =
            Training { seq_len: 1 << 26, batch_ramp: vec![[1, 4]], ..training(Some(4), Some(64), None) };
        let sizes = batch(&long, 1).expect("consistent");
        assert!(ramp_fault(&long, &sizes).is_some_and(|(reason, _)| reason.contains("64 sequences")));
    }

    #[test]
    fn nothing_is_rounded() {
        assert!(batch(&training(Some(3), Some(64), None), 1).is_err());
        assert!(batch(&training(None, Some(63), None), 2).is_err());
        assert!(batch(&training(Some(8), Some(64), Some(4)), 1).is_err());
        assert!(batch(&training(Some(8), Some(4), None), 1).is_err(), "less than one micro step");
        assert!(batch(&training(Some(usize::MAX), None, Some(2)), 2).is_err());
        assert!(batch(&training(Some(4), Some(8), None), 0).is_err());
    }
}
