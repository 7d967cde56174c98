//! Prints a forecast as text.

use super::conversations::write_chat;
use super::time::NODE_SECONDS;
use super::update_groups::{checkpoint_in_words, table};
use super::verdict::advice_for_large_state;
use super::{
    Basis, Budget, DeviceFit, Disk, ExchangeForecast, FitRow, Forecast, Memory, Saving, SourceForecast,
    StepTime,
};
use crate::data::TaskFacts;
use crate::format::Column::{Left, Right};
use crate::format::{Table, about_bytes, binary, duration, metric, percent, plural, thousands, wall_time};
use crate::statistics::PlannedScores;
use std::fmt;

/// The confidence with which a difference of scores is to be found.
const CONFIDENCE: f64 = 0.95;

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}\n", self.recipe, self.execution)?;
        self.parameters(f)?;
        self.numbers(f)?;
        self.time_here(f)?;
        saving(f, &self.needs.saving)?;
        disk(f, &self.needs.disk)?;
        if let Some(found) = &self.exchange {
            exchange(f, found)?;
        }
        memory(f, &self.memory)?;
        if let Some(choice) = &self.recompute_choice {
            writeln!(f, "\nActivation recompute  {choice}")?;
        }
        if let Some(here) = &self.here {
            writeln!(f, "\nOn this machine  {}", here.says)?;
        }
        for verdict in &self.on {
            writeln!(f)?;
            on(f, verdict, &self.memory)?;
        }
        Ok(())
    }
}

impl Forecast {
    fn parameters(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.parameters;
        let share = |n: usize| percent(n as f64 / p.total.max(1) as f64);
        let mut table = Table::new(&[Left, Right, Right]);
        table.row(["embedding".into(), thousands(p.embedding), share(p.embedding)]);
        if p.head > 0 {
            table.row(["head".into(), thousands(p.head), share(p.head)]);
        } else {
            table.row(["head", "tied", "to the embedding"]);
        }
        table.row(["attention".into(), thousands(p.attention), share(p.attention)]);
        table.row(["feed-forward".into(), thousands(p.ffn), share(p.ffn)]);
        table.row(["norms".into(), thousands(p.norms), share(p.norms)]);
        table.row(["total".into(), thousands(p.total), share(p.total)]);
        table.row(["core (non-embedding)".into(), thousands(p.core), share(p.core)]);
        if p.trained < p.total {
            table.row(["trained (adapters)".into(), thousands(p.trained), share(p.trained)]);
        }
        write!(f, "Parameters\n{}", table.render(2))?;
        for remark in &self.remarks {
            writeln!(f, "  {remark}")?;
        }
        writeln!(f)
    }

    fn time_here(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(time) = &self.needs.time else { return Ok(()) };
        writeln!(f, "Time on this machine  {}", time.in_words())?;
        let steps = counted(self.training.steps, "step");
        let (each, all) = (duration(time.step_s), wall_time(time.training_s));
        let mut parts = vec![match self.batch.stages.is_empty() {
            true => format!("{steps} × {each} = {all}"),
            false => format!("{steps}, {each} after the ramp, {all} in all"),
        }];
        let mut part = |count: u64, what: &str, seconds: Option<f64>| {
            if let Some(seconds) = seconds.filter(|_| count > 0) {
                let count = count as usize;
                parts.push(format!("{count} {what}{} {}", plural(count), wall_time(seconds)));
            }
        };
        part(time.evaluations, "evaluation", Some(time.evaluating_s));
        part(time.checkpoints, "checkpoint", time.saving_s);
        let scores = time.scoring_s.filter(|_| time.task_evaluations > 0);
        parts.extend(scores.map(|seconds| {
            let count = time.task_evaluations as usize;
            format!("{count} evaluation{} on tasks {}", plural(count), wall_time(seconds))
        }));
        if time.sampling_s > 0.0 {
            parts.push(format!("samples {}", wall_time(time.sampling_s)));
        }
        writeln!(f, "  {}", parts.join(", "))?;
        writeln!(
            f,
            "  {}\n",
            match time.basis {
                Basis::MeasuredCpu =>
                    "from the measured times of ops of small models on this CPU, kept in the cache folder",
                Basis::GpuPeaks =>
                    "from the peaks of the GPU and what ops reached of them on an H200, without links and data",
            }
        )
    }

    fn numbers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (b, t) = (&self.batch, &self.training);
        writeln!(f, "FLOPs per token  {}FLOP, forward and backward", metric(self.flops.value))?;
        writeln!(f, "  {}", self.flops.symbols)?;
        writeln!(f, "  {}\n", self.flops.numbers)?;
        writeln!(
            f,
            "Batch  {} × {} × {} = {} sequences per step",
            counted(b.world, "rank"),
            counted(b.local, "sequence"),
            counted(b.accumulation, "micro-step"),
            thousands(b.global)
        )?;
        for stage in &b.stages {
            writeln!(
                f,
                "  {} of {} sequences in {}",
                counted(stage.steps, "step"),
                thousands(stage.sequences),
                counted(stage.micro_steps, "micro-step")
            )?;
        }
        writeln!(f, "  {} scaling: {}\n", b.scaling, b.scaling_in_words)?;
        let (steps, each, all) = (thousands(t.steps), thousands(t.tokens_per_step), thousands(t.tokens));
        match b.stages.is_empty() {
            true => writeln!(f, "Training  {steps} steps × {each} tokens = {all} tokens")?,
            false => {
                writeln!(f, "Training  {steps} steps, {each} tokens after the ramp, {all} tokens in all")?
            }
        }
        if let Some(until) = &t.until {
            writeln!(f, "  {until}")?;
        }
        let about = if t.exact { "" } else { "about " };
        match t.sources.is_empty() {
            true => writeln!(
                f,
                "  {:.2} passes over {about}{} tokens; {about}{} held out",
                t.passes,
                thousands(t.corpus_tokens - t.left_out.unwrap_or_default()),
                thousands(t.validation_tokens)
            )?,
            false => {
                let (all, held_out) = (thousands(t.corpus_tokens), thousands(t.validation_tokens));
                writeln!(f, "  a mixture of {about}{all} tokens; {about}{held_out} held out")?;
            }
        }
        for SourceForecast { name, tokens, exact, share, epochs } in &t.sources {
            let about = if *exact { "" } else { "about " };
            writeln!(
                f,
                "    {name}: {} of the sequences, {epochs:.2} passes over {about}{} tokens",
                percent(*share),
                thousands(*tokens)
            )?;
        }
        if let Some(packed) = &t.packed {
            writeln!(f, "  {about}{packed}")?;
        }
        for (source, chat) in &t.chat {
            write_chat(f, source, chat)?;
        }
        if let Some(left_out @ 1..) = t.left_out {
            let (left_out, all, window) =
                (thousands(left_out), thousands(t.corpus_tokens), counted(b.seq_len, "token"));
            match t.left_out_by_turns {
                true => writeln!(
                    f,
                    "  of {all} tokens, each pass leaves out {left_out}, which fill no window of {window}: the last and the \
                     first by turns"
                )?,
                false => writeln!(
                    f,
                    "  the last {left_out} of {all} tokens fill no window of {window}, so no pass reaches them"
                )?,
            }
        }
        if !t.set_tokens.is_empty() {
            let set = |(name, &tokens): (&String, &usize)| format!("{name} {about}{}", thousands(tokens));
            let sets: Vec<String> = t.set_tokens.iter().map(set).collect();
            writeln!(f, "  held-out sets: {} tokens", sets.join(", "))?;
        }
        if t.corpus_bytes > 0 {
            writeln!(f, "  {about}{} of host memory for these tokens", binary(t.corpus_bytes))?;
        }
        for TaskFacts { name, items, accuracy_clusters, requests, tokens, .. } in &t.tasks {
            let sees = accuracy_clusters
                .and_then(|clusters| PlannedScores::from_accuracy(clusters, 0.5).smallest_seen(CONFIDENCE));
            let sees = sees.map(|seen| format!("; sees {:.1} points between two checkpoints", 100.0 * seen));
            writeln!(
                f,
                "  task {name}: {}, {} requests, {} tokens{}",
                counted(*items, "item"),
                thousands(*requests),
                thousands(*tokens),
                sees.unwrap_or_default()
            )?;
        }
        if t.evaluated_batches < t.validation_batches {
            let (batches, of) = (thousands(t.evaluated_batches), thousands(t.validation_batches));
            writeln!(f, "  validation over {batches} of {about}{of} batches")?;
        }
        if let Some(floor) = t.floor {
            writeln!(f, "  floor {floor:.4} nats per token: no model can do better on the held-out tokens")?;
        }
        if self.update_groups.len() > 1 {
            write!(f, "\nUpdates  a rule for each group of parameters\n{}", table(&self.update_groups))?;
        }
        writeln!(
            f,
            "\nCheckpoint  {} = {}\n",
            binary(self.needs.disk.checkpoint_bytes as usize),
            checkpoint_in_words(&self.update_groups, self.parameters.trained, self.has_ema)
        )
    }
}

/// Returns how many things there are, as in `1 step` or `1,024 steps`.
pub(super) fn counted(n: usize, what: &str) -> String {
    format!("{} {what}{}", thousands(n), plural(n))
}

fn saving(f: &mut fmt::Formatter<'_>, s: &Saving) -> fmt::Result {
    let copy = format!("a copy of the state of {} in {}", binary(s.copy_bytes), s.place);
    match s.beside_training {
        true => writeln!(f, "Saves  beside training, from {copy}: {}\n", s.reason),
        false => writeln!(f, "Saves  while training waits: {}\n", s.reason),
    }
}

fn disk(f: &mut fmt::Formatter<'_>, d: &Disk) -> fmt::Result {
    let sized = |bytes: u64| binary(bytes as usize);
    write!(f, "Disk  about {}:", about_bytes(d.total_bytes))?;
    if d.checkpoints > 0 {
        let mut part = |count: u64, what: &str, bytes: u64| match count as usize {
            0 => Ok(()),
            count => write!(f, " {count} checkpoint{}{what} of {},", plural(count), sized(bytes)),
        };
        part(d.checkpoints - d.weights_only, "", d.checkpoint_bytes)?;
        part(d.weights_only, " without the optimizer's state", d.weights_bytes)?;
    }
    write!(f, " rows and log {}", about_bytes(d.text_bytes))?;
    if d.picture_bytes > 0 {
        write!(f, ", pictures {}", about_bytes(d.picture_bytes))?;
    }
    if d.peak_bytes > d.total_bytes {
        write!(f, "; {} while a checkpoint replaces another", about_bytes(d.peak_bytes))?;
    }
    writeln!(f, "\n")
}

fn exchange(f: &mut fmt::Formatter<'_>, e: &ExchangeForecast) -> fmt::Result {
    let how = match e.transport {
        "copies" => {
            "by copies between GPUs, or through NCCL where they have no access to each other's memory"
        }
        "nccl" => "through NCCL",
        _ => "through the host",
    };
    let part = |bytes: u64, what: &str| (bytes > 0).then(|| format!("{} of {what}", binary(bytes as usize)));
    let parts = [
        part(e.gradient_bytes, "gradients"),
        part(e.row_bytes, "rows of the embedding's gradient"),
        part(e.parameter_bytes, "parameters"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    writeln!(f, "Exchange  a rank sends {} in a step, {how}", parts.join(", "))?;
    if let Some(time) = &e.time {
        writeln!(
            f,
            "  forecast, from what two H200s joined by NVLink reached ({:.0} GB/s each way): {} beside the model and {} exposed",
            time.bytes_per_second / 1e9,
            duration(time.seconds - time.exposed_seconds),
            duration(time.exposed_seconds)
        )?;
    }
    writeln!(f)
}

fn memory(f: &mut fmt::Formatter<'_>, m: &Memory) -> fmt::Result {
    writeln!(f, "Memory of a rank  {} B = {}", thousands(m.peak_bytes), binary(m.peak_bytes))?;
    let sized = |name: &str, bytes: usize| [name.to_owned(), thousands(bytes), binary(bytes)];
    let mut table = Table::new(&[Left, Right, Right]);
    table.row(sized("state", m.state_bytes));
    for buffer in &m.state {
        table.row(sized(&format!("  {}", buffer.name), buffer.bytes));
    }
    table.row(sized(&format!("activations ({})", m.placement), m.transient_bytes));
    write!(f, "{}", table.render(2))?;
    let others = [("arena", m.arena_bytes), ("caching", m.caching_bytes), ("naive", m.naive_bytes)];
    let others: Vec<String> = others
        .iter()
        .filter(|(name, _)| *name != m.placement)
        .map(|(name, bytes)| format!("{} with placement {name}", binary(*bytes)))
        .collect();
    writeln!(f, "  activations would take {}\n", others.join(", "))?;

    let mut table = Table::new(&[Left, Right, Right, Right, Right]);
    table.row(["section", "nodes", "arena", "live at peak", "fragmentation"]);
    for s in &m.sections {
        table.row([
            s.name.clone(),
            thousands(s.nodes),
            binary(s.arena_bytes),
            binary(s.live_bytes),
            percent(s.fragmentation),
        ]);
    }
    write!(f, "{}", table.render(2))?;

    let peak = &m.peak;
    let scope = if peak.scope.is_empty() { String::new() } else { format!(" of {}", peak.scope) };
    writeln!(f, "\n  Most is alive at node {} ({}{scope}) of {}", peak.node, peak.op, peak.section)?;
    let mut table = Table::new(&[Left, Left, Right, Right, Left]);
    table.row(["tensor", "format and shape", "bytes", "share", "made by, needed until"]);
    for h in &peak.holders {
        table.row([
            h.tensor.clone(),
            h.spec.clone(),
            thousands(h.bytes),
            percent(h.bytes as f64 / peak.live_bytes.max(1) as f64),
            format!("node {} {}, node {}", h.node, h.op, h.until),
        ]);
    }
    write!(f, "{}", table.render(2))
}

fn on(f: &mut fmt::Formatter<'_>, v: &DeviceFit, memory: &Memory) -> fmt::Result {
    let peak = memory.peak_bytes;
    match &v.hardware {
        Some(h) => {
            let cc = h.compute_capability.map_or(String::new(), |cc| format!(", compute capability {cc}"));
            writeln!(f, "On {}  {} ({}{cc})", v.on, h.product, h.architecture)?;
        }
        None => writeln!(f, "Within {}", v.on)?,
    }
    match (v.budget_bytes, v.spare_bytes) {
        (Some(budget), Some(spare)) => {
            let aside = match v.reserve_bytes {
                0 => String::new(),
                reserve => format!(" ({} set aside for driver and libraries)", binary(reserve as usize)),
            };
            let difference = binary(spare.unsigned_abs() as usize);
            let verdict = if spare >= 0 {
                format!("fits, {difference} to spare")
            } else {
                format!("does not fit, {difference} too much")
            };
            writeln!(f, "  {verdict}: {} of {}{aside}", binary(peak), binary(budget as usize))?;
        }
        _ => {
            writeln!(f, "  it is unknown whether {} fit; set engine.memory_limit_gib to check", binary(peak))?
        }
    }
    advice(f, v, memory.state_bytes)?;
    if let Some(step) = &v.step {
        time(f, step)?;
    }
    if let Some(gain) = &v.fp8 {
        writeln!(f, "  {}", gain.sentence())?;
    }
    if let Some(h) = &v.hardware {
        if let Some(l) = h.limits {
            writeln!(
                f,
                "  dense peaks bf16 {}FLOP/s, tf32 {}FLOP/s, fp32 {}FLOP/s; memory {}B/s",
                metric(l.bf16),
                metric(l.tf32),
                metric(l.fp32),
                metric(l.bandwidth)
            )?;
        }
        writeln!(f, "  source: {}", h.source)?;
    }
    Ok(())
}

fn advice(f: &mut fmt::Formatter<'_>, v: &DeviceFit, state: usize) -> fmt::Result {
    if v.advice.is_empty() {
        return Ok(());
    }
    let fits = v.advice.iter().any(|a| a.fits);
    let state_alone = v.budget_bytes.is_some_and(|budget| state as u64 > budget);
    match (fits, state_alone) {
        (true, _) => writeln!(f, "  would fit:")?,
        (false, false) => writeln!(f, "  no change that was tried fits; the smallest is:")?,
        (false, true) => {
            return writeln!(f, "  {}", advice_for_large_state(state as u64));
        }
    }
    let mut table = Table::new(&[Left, Right, Right, Left]);
    for a in &v.advice {
        table.row([
            a.set.join(" "),
            binary(a.peak_bytes),
            a.tokens_per_second.map_or(String::new(), |t| format!("{} tok/s", thousands(t.round() as usize))),
            if a.same_curve { "same curve".into() } else { "another curve".into() },
        ]);
    }
    write!(f, "{}", table.render(4))
}

fn time(f: &mut fmt::Formatter<'_>, step: &StepTime) -> fmt::Result {
    writeln!(
        f,
        "  predicted step {}: {} tok/s, MFU {} of {}; all steps {}",
        duration(step.seconds),
        thousands(step.tokens_per_second.round() as usize),
        percent(step.mfu),
        step.products,
        duration(step.training_seconds)
    )?;
    let mut table = Table::new(&[Left, Right, Right, Right, Right, Right]);
    table.row(["phase", "nodes", "products", "memory traffic", "time", "bound by products"]);
    for p in &step.phases {
        table.row([
            p.phase.to_owned(),
            thousands(p.nodes),
            format!("{}FLOP", metric(p.product_flops)),
            format!("{}B", metric(p.bytes)),
            duration(p.seconds),
            percent(if p.seconds > 0.0 { p.product_bound_seconds / p.seconds } else { 0.0 }),
        ]);
    }
    write!(f, "{}", table.render(4))?;
    writeln!(
        f,
        "    An estimate from the costs of ops: each node takes {:.0} µs and the longer of its products at {:.0} % of the\n    \
         dense {} peak (attention's at what they reached on an H200) and its bytes at {:.0} % of the bandwidth. Data and\n    \
         links are not in it.",
        1e6 * NODE_SECONDS,
        100.0 * step.product_efficiency,
        step.products,
        100.0 * step.memory_efficiency
    )
}

/// Formats the table of `--fit`.
pub fn fit_table(rows: &[FitRow], budget: &Budget) -> String {
    let room =
        budget.bytes.map_or(String::new(), |b| format!(": {} for state and activations", binary(b as usize)));
    let (place, what) = match budget.hardware {
        Some(_) => ("on", "driver and libraries"),
        None => ("within", "the corpus"),
    };
    let aside = match budget.reserve {
        0 => String::new(),
        reserve => format!(", after {} set aside for {what}", binary(reserve as usize)),
    };
    let mut text = format!("Largest training.local_batch_size {place} {}{room}{aside}\n", budget.name);
    let mut table = Table::new(&[Left, Left, Right, Right, Right, Right]);
    table.row(["dtype", "recompute", "sequences", "tokens", "peak", "predicted tok/s"]);
    for row in rows {
        let capped = if row.capped { "≥ " } else { "" };
        let none = row.local_batch_size == 0;
        table.row([
            row.dtype.to_owned(),
            row.recompute.to_owned(),
            if none { "none".into() } else { format!("{capped}{}", thousands(row.local_batch_size)) },
            thousands(row.tokens),
            if none { format!("1 needs {}", binary(row.peak_bytes)) } else { binary(row.peak_bytes) },
            row.tokens_per_second.map_or(String::new(), |t| thousands(t.round() as usize)),
        ]);
    }
    text += &table.render(2);
    text
}
