//! Faults on purpose: what a death, a hang or a lack of memory of one rank looks like, before one comes by itself.
//!
//! `XRUN_FAULT="KIND RANK STEP"` strikes a rank before it begins a step; KIND is `panic`, `hang` or `oom`.

use crate::error::{Error, Result};
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

/// Strikes where the variable says so.
///
/// # Errors
/// The fault, if it is one that is returned; a variable that says nothing that can be done.
pub(super) fn strike(rank: usize, step: u64) -> Result<()> {
    static FAULT: OnceLock<Result<Option<Fault>>> = OnceLock::new();
    let read =
        || std::env::var(VARIABLE).ok().filter(|text| !text.is_empty()).map(|text| parse(&text)).transpose();
    match FAULT.get_or_init(read).clone()? {
        Some(fault) if (fault.rank, fault.step) == (rank, step) => {
            // Said when it happens: from here on, whoever measures counts the seconds.
            eprintln!("{VARIABLE} strikes rank {rank} before step {step}");
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
