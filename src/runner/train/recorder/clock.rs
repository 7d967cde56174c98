//! The clock of a run: computes its timing rows and the time left.

use crate::model::flops_per_token;
use crate::plan::Plan;
use crate::results::progress::Pace;
use crate::results::{Phase, TimingRow, memory};
use crate::train::gauges::{Gauges, MIB};
use crate::train::rank::StepReport;
use crate::train::time_left::TimeLeft;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The times of one process of a run.
pub(in crate::train) struct Clock {
    plan: Arc<Plan>,
    started: Instant,
    /// Wall time of the run's earlier processes, in seconds.
    wall_before: f64,
    /// Number of steps trained by this process.
    pub steps_here: usize,
    time_left: TimeLeft,
    /// Bytes of state and arena.
    planned_bytes: u64,
    /// Model FLOPs per token, forward and backward.
    flops_per_token: f64,
    /// Readings of the GPU; `None` on the CPU.
    pub gauges: Option<Gauges>,
    /// For each rank, the sum over steps of its busy fraction.
    busy: Vec<f64>,
}

impl Clock {
    /// Starts the clock.
    pub fn start(plan: &Arc<Plan>, planned_bytes: u64, wall_before: f64) -> Self {
        Self {
            plan: Arc::clone(plan),
            started: Instant::now(),
            wall_before,
            steps_here: 0,
            time_left: TimeLeft::new(plan),
            planned_bytes,
            flops_per_token: flops_per_token(plan).value,
            gauges: None,
            busy: Vec::new(),
        }
    }

    /// Returns the wall time of the run over all its processes, in seconds.
    pub fn wall_s(&self) -> f64 {
        self.wall_before + self.started.elapsed().as_secs_f64()
    }

    /// Returns the row of a step that was trained in `took`.
    pub fn trained(&mut self, report: &StepReport, took: Duration) -> TimingRow {
        self.steps_here += 1;
        let phase =
            if self.steps_here <= self.plan.intervals.metrics.warmup { Phase::Warmup } else { Phase::Train };
        let batch = &self.plan.batch;
        let (tokens, micro_steps) =
            (batch.tokens_in_step(report.step), batch.micro_steps_in_step(report.step));
        let tok_s = tokens as f64 / took.as_secs_f64();
        let per_device = tok_s / batch.world_size as f64;
        let flops = per_device * self.flops_per_token;
        if phase == Phase::Train {
            self.busy.resize(report.agreed.busy.len(), 0.0);
            self.busy.iter_mut().zip(&report.agreed.busy).for_each(|(sum, busy)| *sum += busy);
        }
        self.time_left.trained(report.step, phase, took.as_secs_f64());
        let row = self.row(report.step, phase, took);
        let utilization = self.gauges.as_ref().and_then(|g| g.utilization(flops, micro_steps, took));
        TimingRow {
            data_wait_ms: Some(report.data_wait.as_secs_f64() * 1e3),
            tok_s: Some(tok_s),
            tok_s_per_device: Some(per_device),
            tflops_per_device: Some(flops / 1e12),
            mfu_pct: utilization.map(|(mfu, _)| mfu),
            hfu_pct: utilization.map(|(_, hfu)| hfu),
            communication_ms: report.communicated.map(|c| c.total.as_secs_f64() * 1e3),
            exposed_communication_ms: report.communicated.map(|c| c.exposed.as_secs_f64() * 1e3),
            slowest_rank: report.agreed.slowest.map(|rank| rank as u64),
            ..row
        }
    }

    /// Returns the row of a pause for something other than a step.
    pub fn paused(&mut self, step: u64, phase: Phase, took: Duration) -> TimingRow {
        self.time_left.took(phase, took.as_secs_f64());
        self.row(step, phase, took)
    }

    fn row(&mut self, step: u64, phase: Phase, took: Duration) -> TimingRow {
        let mib = |bytes: u64| bytes as f64 / MIB;
        let mut row = TimingRow {
            plan_mem_mib: Some(mib(self.planned_bytes)),
            rss_mib: memory::rss_bytes().map(mib),
            peak_mem_mib: memory::peak_rss_bytes().map(mib),
            ..TimingRow::timed(step, phase, self.wall_s(), took.as_secs_f64() * 1e3)
        };
        if let Some(gauges) = &mut self.gauges {
            let tokens = if phase.is_step() { self.plan.batch.tokens_in_step(step) } else { 0 };
            gauges.fill(&mut row, tokens);
        }
        row
    }

    /// Returns the speed after a step, and the time that the run still needs.
    pub fn pace(&self, step: u64) -> Pace {
        let tokens = self.plan.batch.tokens_per_step() as f64;
        let tok_s = self.time_left.step_seconds().map(|seconds| tokens / seconds);
        Pace { tok_s, eta_s: self.time_left.after(step) }
    }

    /// Returns the percentage of the time after the warm-up in which each rank was busy; empty for one rank.
    pub fn busy_pct(&self) -> Vec<f64> {
        let counted = self.steps_here.saturating_sub(self.plan.intervals.metrics.warmup).max(1) as f64;
        self.busy.iter().map(|sum| 100.0 * sum / counted).collect()
    }
}
