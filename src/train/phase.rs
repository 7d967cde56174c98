//! Phases of training, as the watchdog names them in "rank 2 computes".

use crate::device::communicator::RankPhase;

/// Opens corpus, device and memory.
pub(super) const STARTS: RankPhase = RankPhase::working("starts");
/// Queues a step on its device, or computes one.
pub(super) const COMPUTES: RankPhase = RankPhase::working("computes");
/// Evaluates on held-out data.
pub(super) const EVALUATES: RankPhase = RankPhase::working("evaluates");
/// Compares its parameters with those of the other ranks.
pub(super) const COMPARES: RankPhase = RankPhase::working("compares parameters");
/// Writes rows, samples or a checkpoint.
pub(super) const WRITES: RankPhase = RankPhase::working("writes results");
