//! The measured pace of this machine's CPU: how long ops take for a given amount of work.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Times of ops on this machine's CPU, from training steps of small models. A plan reads them and never
/// measures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuPace {
    /// Number of CPU threads used.
    pub threads: usize,
    /// For each op the times of its nodes, sorted by work: FLOPs if the op has products, else bytes to and
    /// from memory.
    ops: BTreeMap<String, Vec<NodeTime>>,
    /// The fastest and the slowest measured step, divided by the median.
    pub spread: (f64, f64),
    /// Bytes per second for writing a file and waiting until it is on disk.
    pub write_bytes_per_s: f64,
}

/// The measured time of a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeTime {
    /// FLOPs or bytes.
    pub work: f64,
    /// Seconds.
    pub seconds: f64,
}

impl CpuPace {
    /// Creates the pace from the times of nodes. Nodes of an op with the same work are averaged by their
    /// mean: the time of a step is a sum, and a median would leave out the interruptions that every step has.
    pub fn new(threads: usize, nodes: impl IntoIterator<Item = (String, NodeTime)>) -> Self {
        let mut times: BTreeMap<String, BTreeMap<u64, Vec<f64>>> = BTreeMap::new();
        for (op, NodeTime { work, seconds }) in nodes {
            if work > 0.0 && work.is_finite() && seconds > 0.0 && seconds.is_finite() {
                // The bits of positive floats sort like their values.
                times.entry(op).or_default().entry(work.to_bits()).or_default().push(seconds);
            }
        }
        let mean = |seconds: Vec<f64>| seconds.iter().sum::<f64>() / seconds.len() as f64;
        let points = |by_work: BTreeMap<u64, Vec<f64>>| {
            let point = |(work, seconds)| NodeTime { work: f64::from_bits(work), seconds: mean(seconds) };
            by_work.into_iter().map(point).collect()
        };
        let ops = times.into_iter().map(|(op, by_work)| (op, points(by_work))).collect();
        Self { threads, ops, spread: (1.0, 1.0), write_bytes_per_s: 0.0 }
    }

    /// Returns the seconds for a node of `op` with this much work: interpolated between measured nodes on
    /// logarithmic scales, at the pace of the largest node above it, and the time of the smallest node below
    /// it. An op that was not measured takes as long per unit of work as all measured ops together.
    pub fn seconds(&self, op: &str, work: f64) -> f64 {
        if work <= 0.0 {
            return 0.0;
        }
        let Some(points) = self.ops.get(op) else { return work * self.rate() };
        let above = points.partition_point(|point| point.work < work);
        match (points[..above].last(), points.get(above)) {
            (None, Some(first)) => first.seconds,
            (Some(last), None) => last.seconds * work / last.work,
            (Some(low), Some(high)) => {
                let share = (work / low.work).ln() / (high.work / low.work).ln();
                low.seconds * (high.seconds / low.seconds).powf(share)
            }
            (None, None) => 0.0,
        }
    }

    /// Returns the seconds per unit of work, over the largest nodes of all ops.
    fn rate(&self) -> f64 {
        let largest = self.ops.values().filter_map(|points| points.last());
        let (seconds, work) = largest.fold((0.0, 0.0), |(s, w), node| (s + node.seconds, w + node.work));
        if work > 0.0 { seconds / work } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(points: &[(f64, f64)]) -> CpuPace {
        let nodes = points.iter().map(|&(work, seconds)| ("op".to_owned(), NodeTime { work, seconds }));
        CpuPace::new(2, nodes)
    }

    #[test]
    fn between_measured_nodes_the_scale_is_logarithmic() {
        let pace = pace(&[(100.0, 0.5), (10_000.0, 4.0), (100.0, 1.0), (100.0, 1.5)]);
        assert_eq!(pace.seconds("op", 100.0), 1.0);
        assert!((pace.seconds("op", 1000.0) - 2.0).abs() < 1e-12);
        assert_eq!(pace.seconds("op", 10_000.0), 4.0);
    }

    #[test]
    fn beyond_the_largest_node_the_pace_stays_and_below_the_smallest_the_time() {
        let pace = pace(&[(100.0, 1.0), (1000.0, 5.0)]);
        assert_eq!(pace.seconds("op", 4000.0), 20.0);
        assert_eq!(pace.seconds("op", 1.0), 1.0);
        assert_eq!(pace.seconds("op", 0.0), 0.0);
    }

    #[test]
    fn an_op_that_was_not_measured_has_the_pace_of_all_others() {
        let node = |op: &str, work, seconds| (op.to_owned(), NodeTime { work, seconds });
        let nodes = [node("a", 10.0, 9.0), node("a", 100.0, 1.0), node("b", 300.0, 3.0)];
        assert_eq!(CpuPace::new(1, nodes).seconds("other", 200.0), 2.0);
        assert_eq!(CpuPace::default().seconds("other", 200.0), 0.0);
    }

    #[test]
    fn invalid_times_are_left_out() {
        let pace = pace(&[(100.0, f64::NAN), (0.0, 1.0), (f64::INFINITY, 1.0), (100.0, 2.0), (100.0, -1.0)]);
        assert_eq!(pace.seconds("op", 100.0), 2.0);
    }
}
