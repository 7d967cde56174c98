//! How NCCL adds: pinned before it reads its environment, so that a sum has the same bits in every run.
//!
//! Left alone, NCCL chooses by a model of the machine, and a choice by size and topology decides the order in which
//! ranks are added. What the user has set stays.

use std::collections::BTreeMap;
use std::env;

/// What NCCL is told, where the user tells nothing: rings, whose order of additions depends on the ranks, the length of a
/// tensor and the number of channels alone, and whole chunks, which carry most per second.
const CHOICES: [(&str, &str); 2] = [("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];

/// What every variable of NCCL begins with.
const PREFIX: &str = "NCCL_";

/// How NCCL was told to work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The algorithm; `None` where NCCL chose.
    pub algorithm: Option<String>,
    /// The protocol; `None` where NCCL chose.
    pub protocol: Option<String>,
    /// Whether the user set any of NCCL's variables to something else than it would have been.
    pub set_by_user: bool,
    /// NCCL's other variables that were set.
    pub variables: BTreeMap<String, String>,
}

impl Pinned {
    /// What the environment says now.
    pub fn now() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        Self::of(env::vars_os().map(text))
    }

    fn of(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut set: BTreeMap<String, String> =
            variables.filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty()).collect();
        // Container images say what they installed under a name that NCCL does not read.
        set.remove("NCCL_VERSION");
        let [algorithm, protocol] = CHOICES.map(|(name, _)| set.remove(name));
        let chosen = [&algorithm, &protocol];
        let ours = CHOICES.iter().zip(chosen).all(|((_, choice), value)| value.as_deref() == Some(choice));
        Self { algorithm, protocol, set_by_user: !ours || !set.is_empty(), variables: set }
    }
}

/// Sets what NCCL reads when its first communicator is made, where the user has not. A command that trains
/// calls it before anything else; where other threads run already, it does nothing, and NCCL chooses for itself.
pub fn pin_environment() {
    if !alone() {
        return;
    }
    for (name, choice) in CHOICES {
        if env::var_os(name).is_none_or(|value| value.is_empty()) {
            // SAFETY: the system has just said that this thread is the only one of the process, and it does nothing else
            // meanwhile, so nobody reads the environment while it is changed.
            unsafe { env::set_var(name, choice) };
        }
    }
}

/// Whether this thread is the only one of the process; false where the system does not tell.
fn alone() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    threads.is_some_and(|count| count.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Pinned {
        Pinned::of(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn what_the_user_sets_is_told_from_what_is_pinned() {
        let image = ("NCCL_VERSION", "2.28.3-1");
        let ours = of(&[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"), ("HOME", "/root"), image]);
        assert!(!ours.set_by_user && ours.variables.is_empty());
        assert_eq!((ours.algorithm.as_deref(), ours.protocol.as_deref()), (Some("Ring"), Some("Simple")));
        assert!(of(&[("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "Simple")]).set_by_user);
        let more = of(&[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"), ("NCCL_P2P_DISABLE", "1")]);
        assert!(more.set_by_user && more.variables["NCCL_P2P_DISABLE"] == "1");
        assert_eq!(of(&[]).algorithm, None, "where nothing is set, NCCL chose");
    }

    /// Tests run in threads, where the environment must stay as it is.
    #[test]
    fn nothing_is_set_beside_other_threads() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!alone());
                let before = Pinned::now();
                pin_environment();
                assert_eq!(Pinned::now(), before);
            });
        });
    }
}
