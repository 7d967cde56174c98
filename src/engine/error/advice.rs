//! What to do after an error of the operating system: one table for every message that advises something.

use rustix::io::Errno;

/// Advice for errors that the table lacks.
const OTHER: &str = "Remove the cause";

/// Errors of file systems, and what a user can do after each. Every text is a sentence without its period, so
/// that a message can go on, for example with ", then `xrun resume RUN`".
const ADVICE: [(&[Errno], &str); 12] = [
    (&[Errno::NOSPC, Errno::DQUOT], "Free space"),
    (&[Errno::FBIG], "Free space, or raise the limit on the size of a file (`ulimit -f`)"),
    (
        &[Errno::IO, Errno::NXIO, Errno::NODEV, Errno::REMOTEIO],
        "The disk or its connection fails; read the kernel's log (`dmesg`) and repair it, or copy the results to another disk",
    ),
    (
        &[Errno::ROFS],
        "The file system is read-only, and Linux also makes it so after an error of the disk; mount it for writing",
    ),
    (&[Errno::ACCESS, Errno::PERM], "Give this user the permission to write there"),
    (
        &[
            Errno::STALE,
            Errno::NOTCONN,
            Errno::TIMEDOUT,
            Errno::HOSTDOWN,
            Errno::HOSTUNREACH,
            Errno::CONNABORTED,
            Errno::CONNRESET,
            Errno::SHUTDOWN,
        ],
        "The network file system has lost the file or its server; mount it again",
    ),
    (
        &[Errno::NOTEMPTY, Errno::BUSY, Errno::EXIST, Errno::TXTBSY],
        "Another process has opened or written files there; end it",
    ),
    (&[Errno::MFILE, Errno::NFILE], "Raise the limit on open files (`ulimit -n`)"),
    (&[Errno::NOMEM], "Free memory"),
    (
        &[Errno::NOLCK],
        "The file system has no locks; mount it with them (for NFS: `nolock` or a lock server), or choose another folder with --results",
    ),
    (
        &[Errno::NOENT, Errno::NOTDIR, Errno::ISDIR],
        "Restore the folder, which something moved, removed or replaced",
    ),
    (
        &[Errno::NAMETOOLONG, Errno::LOOP, Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL],
        "The file system lacks something that results need; choose another folder with --results",
    ),
];

/// Returns what to do after an error with this number of the operating system; without one, something that is
/// always true.
pub(super) fn advice(os_error: Option<i32>) -> &'static str {
    let Some(code) = os_error else { return OTHER };
    let found = ADVICE.iter().find(|(codes, _)| codes.iter().any(|known| known.raw_os_error() == code));
    found.map_or(OTHER, |(_, advice)| advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, IoContext};
    use std::path::Path;

    /// Returns the error of writing a file that fails with this number.
    fn error(code: i32) -> Error {
        let failed: std::io::Result<()> = Err(std::io::Error::from_raw_os_error(code));
        failed.at("write", Path::new("metrics.csv")).unwrap_err()
    }

    #[test]
    fn space_is_advised_only_where_space_is_missing() {
        for code in 1..=133 {
            let missing = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].map(Errno::raw_os_error).contains(&code);
            let advice = error(code).context("checkpoint of step 3 not saved").advice();
            assert_eq!(advice.contains("Free space"), missing, "{code}: {advice}");
            assert!(!advice.is_empty() && !advice.ends_with('.'));
        }
        assert_eq!(Error::failed("no system was asked").advice(), OTHER);
        let advised = error(Errno::NOLCK.raw_os_error()).with_advice();
        assert!(
            advised.message().ends_with("--results") && advised.message().contains("cannot write"),
            "{advised}"
        );
    }

    #[test]
    fn every_error_has_one_advice() {
        let mut codes: Vec<i32> =
            ADVICE.iter().flat_map(|(codes, _)| codes.iter().map(|code| code.raw_os_error())).collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
        for (codes, advice) in ADVICE {
            assert!(codes.iter().all(|code| error(code.raw_os_error()).advice() == advice));
        }
    }
}
