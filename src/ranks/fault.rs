//! Faults on purpose: what a death, a hang or a lack of memory of one rank looks like, before one comes by itself.
//!
//! `XRUN_FAULT="KIND RANK STEP"` strikes a rank before it begins a step; KIND is `panic`, `hang` or `oom`.

use crate::error::{Error, Result};
use crate::results::progress::tell;
use std::sync::OnceLock;

/// The variable.
const VARIABLE: &str = "XRUN_FAULT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    kind: Kind,
    rank: usize,
    step: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Panic,
    Hang,
    Oom,
}

/// What the variable asks for.
fn asked() -> Result<Option<Fault>> {
    static FAULT: OnceLock<Result<Option<Fault>>> = OnceLock::new();
    let read =
        || std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()).map(|text| parse(&text)).transpose();
    FAULT.get_or_init(read).clone()
}

/// Refuses a fault that would never strike, which would look like one that was survived.
///
/// # Errors
/// When the variable names a rank or step that this run does not have, or says nothing that can be done.
pub fn check(world: usize, done: u64, steps: u64) -> Result<()> {
    match asked()? {
        Some(Fault { rank, step, .. }) if rank >= world || step <= done || step > steps => {
            Err(Error::usage(format!(
                "{VARIABLE} is to strike rank {rank} before step {step}, and this run has ranks 0 to {} and steps {} to \
                 {steps}",
                world - 1,
                done + 1
            )))
        }
        _ => Ok(()),
    }
}

/// Strikes where the variable says so.
///
/// # Errors
/// The fault, if it is one that is returned; a variable that says nothing that can be done.
pub fn strike(rank: usize, step: u64) -> Result<()> {
    match asked()? {
        Some(fault) if (fault.rank, fault.step) == (rank, step) => {
            // Said when it happens: from here on, whoever measures counts the seconds.
            tell(&format!("{VARIABLE} strikes rank {rank} before step {step}"));
            match fault.kind {
                Kind::Panic => panic!("{VARIABLE} asked for it"),
                Kind::Oom => Err(Error::does_not_fit(format!("out of memory, as {VARIABLE} asked"))),
                Kind::Hang => loop {
                    std::thread::park();
                },
            }
        }
        _ => Ok(()),
    }
}

fn parse(text: &str) -> Result<Fault> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let fault = match words[..] {
        [kind, rank, step] => {
            let kind = match kind {
                "panic" => Some(Kind::Panic),
                "hang" => Some(Kind::Hang),
                "oom" => Some(Kind::Oom),
                _ => None,
            };
            kind.zip(rank.parse().ok()).zip(step.parse().ok()).map(|((kind, rank), step)| Fault {
                kind,
                rank,
                step,
            })
        }
        _ => None,
    };
    fault.ok_or_else(|| {
        Error::usage(format!(
            "{VARIABLE} = `{text}` is no fault: write `panic`, `hang` or `oom`, a rank, and a step"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_or_refused() {
        assert_eq!(parse("hang 1 5").unwrap(), Fault { kind: Kind::Hang, rank: 1, step: 5 });
        for wrong in ["hang", "hang 1", "crash 1 5", "oom x 5", "oom 1 5 7"] {
            assert!(parse(wrong).unwrap_err().message().contains("no fault"), "{wrong}");
        }
    }
}
