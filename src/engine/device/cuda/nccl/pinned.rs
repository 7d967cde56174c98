//! Pins NCCL's algorithm and protocol before NCCL reads its environment, so that a sum has the same bits in
//! every run.
//!
//! By default NCCL chooses them from a model of the machine, and the choice determines the order in which
//! ranks are added. Variables set by the user are kept.

use std::collections::BTreeMap;
use std::env;

/// Values for variables that the user has not set: rings, whose order of additions depends only on the ranks,
/// the length of a tensor and the number of channels; and the protocol with the highest bandwidth.
const CHOICES: [(&str, &str); 2] = [("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple")];

/// Prefix of NCCL's variables.
const PREFIX: &str = "NCCL_";

/// NCCL's settings in the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclSettings {
    /// The algorithm; `None` if NCCL chooses.
    pub algorithm: Option<String>,
    /// The protocol; `None` if NCCL chooses.
    pub protocol: Option<String>,
    /// True if the user set any NCCL variable to a value other than ours.
    pub set_by_user: bool,
    /// NCCL's other variables that are set.
    pub variables: BTreeMap<String, String>,
}

impl NcclSettings {
    /// Reads the settings of the current environment.
    pub fn from_environment() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        Self::from_variables(env::vars_os().map(text))
    }

    fn from_variables(variables: impl Iterator<Item = (String, String)>) -> Self {
        let mut set: BTreeMap<String, String> =
            variables.filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty()).collect();
        // Container images set this variable to the installed version; NCCL does not read it.
        set.remove("NCCL_VERSION");
        let [algorithm, protocol] = CHOICES.map(|(name, _)| set.remove(name));
        let chosen = [&algorithm, &protocol];
        let ours = CHOICES.iter().zip(chosen).all(|((_, choice), value)| value.as_deref() == Some(choice));
        Self { algorithm, protocol, set_by_user: !ours || !set.is_empty(), variables: set }
    }
}

/// Sets the variables that NCCL reads when its first communicator is created, unless the user has set them. A
/// training command calls this before anything else. If other threads are already running, it does nothing,
/// and NCCL chooses for itself.
pub fn pin_environment() {
    if !is_single_threaded() {
        return;
    }
    for (name, choice) in CHOICES {
        if env::var_os(name).is_none_or(|value| value.is_empty()) {
            // SAFETY: the OS has just reported that this is the only thread of the process, so no other
            // thread reads the environment while it changes.
            unsafe { env::set_var(name, choice) };
        }
    }
}

/// Returns true if this is the only thread of the process; false if the OS does not report that.
fn is_single_threaded() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    threads.is_some_and(|count| count.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> NcclSettings {
        NcclSettings::from_variables(
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    #[test]
    fn variables_of_the_user_differ_from_pinned_ones() {
        let image = ("NCCL_VERSION", "2.28.3-1");
        let ours = settings(&[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"), ("HOME", "/root"), image]);
        assert!(!ours.set_by_user && ours.variables.is_empty());
        assert_eq!((ours.algorithm.as_deref(), ours.protocol.as_deref()), (Some("Ring"), Some("Simple")));
        assert!(settings(&[("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "Simple")]).set_by_user);
        let more = settings(&[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "Simple"), ("NCCL_P2P_DISABLE", "1")]);
        assert!(more.set_by_user && more.variables["NCCL_P2P_DISABLE"] == "1");
        assert_eq!(settings(&[]).algorithm, None, "without variables, NCCL chooses");
    }

    /// Tests run in threads, so the environment must not change.
    #[test]
    fn nothing_is_set_while_other_threads_run() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!is_single_threaded());
                let before = NcclSettings::from_environment();
                pin_environment();
                assert_eq!(NcclSettings::from_environment(), before);
            });
        });
    }
}
