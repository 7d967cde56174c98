//! Fault injection, to test how a run reacts when a rank panics, hangs or runs out of memory.
//!
//! `XRUN_FAULT="FAULT RANK STEP"` injects a fault into a rank before it starts a step; FAULT is `panic`,
//! `hang` or `oom`. `disk` makes writing the rows of that step fail once; only rank 0 writes rows.
//! `write-hang` and `write-panic` hit the background thread that writes the checkpoint of that step.

use crate::error::{Error, Result};
use crate::results::progress::eprint_line;
use clap::ValueEnum;
use std::sync::OnceLock;

/// Environment variable with the fault.
const VARIABLE: &str = "XRUN_FAULT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    effect: Effect,
    rank: usize,
    step: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Effect {
    Panic,
    Hang,
    Oom,
    Disk,
    WriteHang,
    WritePanic,
}

/// Returns the requested fault. Parses the variable only once.
fn requested() -> Result<Option<Fault>> {
    static FAULT: OnceLock<Result<Option<Fault>>> = OnceLock::new();
    let read =
        || std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()).map(|text| parse(&text)).transpose();
    FAULT.get_or_init(read).clone()
}

/// Rejects a fault that would never be injected, because the run would look as if it had survived the fault.
///
/// # Errors
/// If the variable is malformed, or names a rank or step that this run does not have.
pub fn check(world: usize, done: u64, steps: u64) -> Result<()> {
    match requested()? {
        Some(Fault { rank, step, .. }) if rank >= world || step <= done || step > steps => {
            Err(Error::usage(format!(
                "{VARIABLE} names rank {rank} and step {step}, but this run has ranks 0 to {} and steps {} to \
                 {steps}",
                world - 1,
                done + 1
            )))
        }
        _ => Ok(()),
    }
}

/// Injects the fault into this rank if the variable names this rank and step.
///
/// # Errors
/// Returns the injected `oom` as an error. Fails if the variable is malformed.
pub fn inject_fault(rank: usize, step: u64) -> Result<()> {
    let here = requested()?.filter(|fault| (fault.rank, fault.step) == (rank, step));
    let Some(Fault { effect: effect @ (Effect::Panic | Effect::Hang | Effect::Oom), .. }) = here else {
        return Ok(());
    };
    // Printed immediately, because tests measure the time from here to the end of the run.
    eprint_line(&format!("{VARIABLE}: fault injected into rank {rank} before step {step}"));
    match effect {
        Effect::Panic => panic!("injected by {VARIABLE}"),
        Effect::Oom => Err(Error::does_not_fit(format!("out of memory, injected by {VARIABLE}"))),
        _ => loop {
            std::thread::park();
        },
    }
}

/// Makes the rows of a step fail if the variable asks for it.
///
/// # Errors
/// Returns the injected fault as an error. Fails if the variable is malformed.
pub fn inject_disk_fault(step: u64) -> Result<()> {
    match requested()? {
        Some(fault) if (fault.effect, fault.step) == (Effect::Disk, step) => Err(Error::failed(format!(
            "cannot write the rows of step {step}: disk full, injected by {VARIABLE}"
        ))),
        _ => Ok(()),
    }
}

/// Injects the fault into the thread that writes the checkpoint of a step, if the variable asks for it.
///
/// # Errors
/// If the variable is malformed.
pub fn inject_write_fault(step: u64) -> Result<()> {
    match requested()? {
        Some(Fault { effect: Effect::WriteHang, step: at, .. }) if at == step => loop {
            std::thread::park();
        },
        Some(Fault { effect: Effect::WritePanic, step: at, .. }) if at == step => {
            panic!("injected by {VARIABLE}")
        }
        _ => Ok(()),
    }
}

fn parse(text: &str) -> Result<Fault> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let fault = match words[..] {
        [effect, rank, step] => {
            let parts = (Effect::from_str(effect, false), rank.parse(), step.parse());
            if let (Ok(effect), Ok(rank), Ok(step)) = parts {
                Some(Fault { effect, rank, step })
            } else {
                None
            }
        }
        _ => None,
    };
    fault.ok_or_else(|| {
        Error::usage(format!(
            "{VARIABLE} = `{text}` is not a fault: write `panic`, `hang`, `oom`, `disk`, `write-hang` or `write-panic`, a rank, \
             and a step"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_parsed_or_refused() {
        assert_eq!(parse("hang 1 5").unwrap(), Fault { effect: Effect::Hang, rank: 1, step: 5 });
        for wrong in ["hang", "hang 1", "crash 1 5", "oom x 5", "oom 1 5 7"] {
            assert!(parse(wrong).unwrap_err().message().contains("not a fault"), "{wrong}");
        }
    }
}
