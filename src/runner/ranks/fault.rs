//! Fault injection, to test how a run reacts when a rank panics, hangs or runs out of memory.
//!
//! `XRUN_FAULT="FAULT RANK STEP"` injects a fault into a rank before it starts a step; FAULT is `panic`,
//! `hang` or `oom`. `disk` makes writing the rows of that step fail once; only rank 0 writes rows.
//! `write-hang` and `write-panic` hit the background thread that writes the checkpoint of that step.

use crate::error::{Error, Result};
use crate::results::progress::eprint_line;
use std::sync::OnceLock;

/// Environment variable with the fault.
const VARIABLE: &str = "XRUN_FAULT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    effect: Effect,
    rank: usize,
    step: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    match requested()? {
        Some(fault) if (fault.rank, fault.step) == (rank, step) && fault.effect.is_of_step() => {
            // Printed immediately, because tests measure the time from here to the end of the run.
            eprint_line(&format!("{VARIABLE}: fault injected into rank {rank} before step {step}"));
            match fault.effect {
                Effect::Panic => panic!("injected by {VARIABLE}"),
                Effect::Oom => Err(Error::does_not_fit(format!("out of memory, injected by {VARIABLE}"))),
                Effect::Hang => loop {
                    std::thread::park();
                },
                Effect::Disk | Effect::WriteHang | Effect::WritePanic => Ok(()),
            }
        }
        _ => Ok(()),
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

impl Effect {
    /// Returns true if the fault hits a rank before a step.
    fn is_of_step(self) -> bool {
        matches!(self, Self::Panic | Self::Hang | Self::Oom)
    }
}

fn parse(text: &str) -> Result<Fault> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let fault = match words[..] {
        [effect, rank, step] => {
            let effect = match effect {
                "panic" => Some(Effect::Panic),
                "hang" => Some(Effect::Hang),
                "oom" => Some(Effect::Oom),
                "disk" => Some(Effect::Disk),
                "write-hang" => Some(Effect::WriteHang),
                "write-panic" => Some(Effect::WritePanic),
                _ => None,
            };
            effect.zip(rank.parse().ok()).zip(step.parse().ok()).map(|((effect, rank), step)| Fault {
                effect,
                rank,
                step,
            })
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
