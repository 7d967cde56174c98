//! The view of a run: its rows, its summary and its log, and whether its process is still running.

mod draw;

use super::canvas::Canvas;
use super::liveness::Liveness;
use super::view::{Show, View};
use crate::curve::GrowingCurves;
use crate::machine::Machine;
use crate::recipe;
use crate::regular;
use crate::results::collection::locate;
use crate::results::folder::{LOG, METRICS, NamedOwner, RESOLVED, SUMMARY, is_held, named_owner};
use crate::results::follow::{AppendedLines, RunFollower, RunNews};
use crate::results::losses::SmoothedLoss;
use crate::results::{MetricsRow, Status, Summary, TimingRow};
use crate::train::TimeLeft;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes at the end of the log that are read first.
const LOG_TAIL: u64 = 16 << 10;

/// Lines of the log to keep.
const LOG_LINES: usize = 40;

/// Time without a row after which the frame says so, and the steps in which it then counts, in seconds.
const QUIET: Duration = Duration::from_secs(10);
const QUIET_STEP: u64 = 5;

/// Follows a run.
pub struct RunView {
    /// `RECIPE/RUN`, as in lists.
    name: String,
    folder: PathBuf,
    follower: RunFollower,
    log: AppendedLines,
    liveness: Liveness,
    /// Why the files could not be read at the last poll.
    trouble: Option<String>,
    /// How the files contradict each other.
    damage: Option<String>,
    summary: Option<Summary>,
    /// The status, once there is a summary.
    status: Option<Status>,
    /// The last holder of the folder, if the run was killed.
    owner: Option<NamedOwner>,
    /// Number of ranks; `None` if the recipe cannot be read.
    ranks: Option<usize>,
    time_left: Option<TimeLeft>,
    /// The curves of `metrics.csv`.
    metrics: GrowingCurves,
    /// The curves of `timing.csv`.
    timing: GrowingCurves,
    last_metrics: Option<MetricsRow>,
    last_timing: Option<TimingRow>,
    log_lines: VecDeque<String>,
    /// Seconds without a row, rounded as the frame shows them.
    quiet: Option<u64>,
}

impl RunView {
    /// Creates the view of the run in a folder.
    pub fn new(folder: &Path) -> Self {
        let name = locate(folder).map_or_else(|_| folder.display().to_string(), |located| located.id);
        Self {
            name,
            folder: folder.to_owned(),
            follower: RunFollower::new(folder),
            log: AppendedLines::from_tail(&folder.join(LOG), LOG_TAIL),
            liveness: Liveness::new(folder),
            trouble: None,
            damage: None,
            summary: None,
            status: None,
            owner: None,
            ranks: None,
            time_left: None,
            metrics: GrowingCurves::new(&["loss", "val_loss", "lr", "grad_norm"]),
            timing: GrowingCurves::new(&["tok_s", "gpu_reserved_mib", "rss_mib", "gpu_util_pct", "mfu_pct"]),
            last_metrics: None,
            last_timing: None,
            log_lines: VecDeque::new(),
            quiet: None,
        }
    }

    /// Reads the recipe, once the summary tells the number of steps.
    fn read_recipe(&mut self) {
        let path = self.folder.join(RESOLVED);
        let Some(steps) = self.summary.as_ref().map(|summary| summary.steps_planned) else { return };
        if self.ranks.is_some() {
            return;
        }
        let text =
            regular::read(&path, regular::MAX_TEXT).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let recipe = text.and_then(|text| recipe::load_resolved(&path, &text, &[], &Machine::none()).ok());
        self.ranks = recipe.as_ref().map(recipe::Recipe::world_size);
        self.time_left = recipe.and_then(|recipe| TimeLeft::from_recipe(&recipe, steps).ok());
    }

    fn take(&mut self, news: RunNews) {
        if let Some(summary) = news.summary {
            self.summary = Some(summary);
            self.read_recipe();
        }
        self.metrics.add(&news.metrics);
        if news.metrics.is_restarted {
            self.last_metrics = None;
        }
        self.last_metrics = news.metrics.rows.into_iter().next_back().or(self.last_metrics.take());
        self.timing.add(&news.timing);
        if news.timing.is_restarted {
            self.last_timing = None;
            (self.ranks, self.time_left) = (None, None);
            self.read_recipe();
        }
        for row in &news.timing.rows {
            self.time_left.iter_mut().for_each(|time_left| time_left.add(row));
        }
        self.last_timing = news.timing.rows.into_iter().next_back().or(self.last_timing.take());
    }

    /// Reads new log lines. Skips samples, which are in the summary too.
    fn read_log(&mut self) -> bool {
        // If the log cannot be read, the rest of the frame is still shown.
        let Ok(new) = self.log.poll() else { return false };
        if new.is_restarted {
            self.log_lines.clear();
        }
        let text = String::from_utf8_lossy(&new.bytes);
        // Indented lines continue another one. The date is dropped because the run's name has it.
        let lines = text.lines().filter(|line| !line.starts_with(' '));
        let lines = lines.map(|line| line.split_once('T').map_or(line, |(_, line)| line));
        let is_sample = |line: &&str| line.contains(" sample after step ");
        self.log_lines.extend(lines.filter(|line| !is_sample(line)).map(str::to_owned));
        while self.log_lines.len() > LOG_LINES {
            self.log_lines.pop_front();
        }
        !new.bytes.is_empty() || new.is_restarted
    }

    /// Updates the status. Returns true if it changed.
    fn update_status(&mut self) -> bool {
        let Some(summary) = &self.summary else { return false };
        let is_running = summary.status == Status::Running;
        let status = match is_running && self.liveness.is_held() {
            true => Status::Running,
            false => summary.status.without_process(),
        };
        let quiet = self.liveness.quiet();
        let quiet =
            (status == Status::Running && quiet >= QUIET).then(|| quiet.as_secs() / QUIET_STEP * QUIET_STEP);
        let before = (self.status, self.quiet);
        if status == Status::Killed && self.owner.is_none() {
            self.owner = named_owner(&self.folder);
        }
        (self.status, self.quiet) = (Some(status), quiet);
        before != (self.status, self.quiet)
    }

    /// Checks whether an ended run lost rows that its summary counts. Returns true if the result changed.
    fn update_damage(&mut self) -> bool {
        let lost = self.lost_rows();
        // Resuming cuts the files back to the checkpoint before the summary says that the run is running.
        let damage = lost.filter(|_| !is_held(&self.folder).unwrap_or(true));
        let is_new = damage != self.damage;
        self.damage = damage;
        is_new
    }

    /// Describes the missing rows if an ended run has fewer than its summary counts.
    fn lost_rows(&self) -> Option<String> {
        let summary = self.summary.as_ref().filter(|summary| summary.status != Status::Running)?;
        let last = self.last_metrics.as_ref().map_or(0, |row| row.step);
        // A fork counts the steps of its parent but has no rows for them.
        let first = summary.forked_from.as_ref().map_or(0, |fork| fork.step);
        if self.trouble.is_some() || last.max(first) >= summary.steps {
            return None;
        }
        let path = self.folder.join(METRICS);
        let what = match (path.exists(), last) {
            (false, _) => "is missing".to_owned(),
            (true, 0) => "has no row".to_owned(),
            (true, last) => format!("ends at step {last}"),
        };
        Some(format!(
            "{} {what}, but {SUMMARY} has {} steps: rows were lost; restore the file, or run it again with `xrun {}`",
            path.display(),
            summary.steps,
            self.folder.display()
        ))
    }

    /// Returns the mean of the last losses, over the same window as in results, and how many they are.
    fn smoothed_loss(&self) -> Option<(f64, usize)> {
        let steps = self.last_metrics.as_ref()?.step as usize;
        let before = self.summary.iter().flat_map(|summary| summary.losses_before.iter().rev());
        let before = before.map(|loss| loss.map_or(f64::NAN, f64::from));
        let all = self.metrics.column("loss").iter().rev().map(|point| point.1).chain(before);
        let last: Vec<f64> = all.take(SmoothedLoss::window(steps)).filter(|loss| loss.is_finite()).collect();
        (!last.is_empty()).then(|| (last.iter().sum::<f64>() / last.len() as f64, last.len()))
    }

    /// Returns the estimated seconds until the run ends.
    fn seconds_left(&self) -> Option<f64> {
        let is_running = self.status == Some(Status::Running);
        let step = self.last_metrics.as_ref().map(|row| row.step).filter(|_| is_running)?;
        self.time_left.as_ref()?.after(step)
    }
}

impl View for RunView {
    fn poll(&mut self) -> bool {
        let mut is_new = self.read_log();
        let mut has_more = true;
        while has_more {
            has_more = false;
            match self.follower.poll() {
                Ok(news) => {
                    is_new |= news.is_any() || self.trouble.is_some();
                    self.trouble = None;
                    has_more = news.has_more();
                    self.take(news);
                }
                Err(e) => {
                    let trouble = Some(e.message().to_owned());
                    is_new |= self.trouble != trouble;
                    self.trouble = trouble;
                }
            }
        }
        if is_new {
            self.liveness.record_write();
        }
        let has_changed = self.update_status();
        self.update_damage() || has_changed || is_new
    }

    fn is_live(&self) -> bool {
        matches!(self.status, None | Some(Status::Running))
    }

    fn fault(&self) -> Option<String> {
        self.trouble.clone().or_else(|| self.damage.clone())
    }

    fn draw(&self, canvas: &mut Canvas, show: &Show) {
        self.draw_frame(canvas, show);
    }
}
