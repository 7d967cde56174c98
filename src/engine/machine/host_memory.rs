//! The memory that this process may use: that of the machine, or less where a limit applies to it.

use std::fs::read_to_string;
use std::path::{Component, Path, PathBuf};

/// Memory controllers state limits up to this many bytes; from here on a number means that there is none.
const NO_LIMIT: u64 = 1 << 60;

/// Returns the bytes of memory that this process may use: those of the machine, of each control group that it
/// is in, or of its own limits (`ulimit -v`, `ulimit -d`), whichever are fewest. `None` if the OS is not
/// Linux.
pub(super) fn usable_bytes() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let own = [Resource::As, Resource::Data].into_iter().filter_map(|limit| getrlimit(limit).current);
    let root = Path::new("/");
    let of_machine = total(&read_to_string("/proc/meminfo").ok()?)?;
    own.chain(group_limit(root)).chain([of_machine]).min()
}

/// Parses the machine's memory, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A mounted hierarchy of control groups.
struct Hierarchy {
    /// The group at the mount point, `/` if the whole hierarchy is mounted.
    mounted: PathBuf,
    /// The mount point.
    at: PathBuf,
    /// The file with a group's limit.
    file: &'static str,
}

/// Returns the lowest memory limit of the control groups that this process is in, in version 1 and 2. A group
/// is limited by every group above it. `root` is the file system's root.
fn group_limit(root: &Path) -> Option<u64> {
    let limit = |(hierarchy, inside): (Hierarchy, PathBuf)| {
        let limit = |group: &Path| {
            let text = read_to_string(hierarchy.at.join(group).join(hierarchy.file)).ok()?;
            text.trim().parse::<u64>().ok().filter(|bytes| *bytes < NO_LIMIT)
        };
        inside.ancestors().filter_map(limit).min()
    };
    own_groups(root).into_iter().filter_map(limit).min()
}

/// Returns how many processes the kernel has killed so far because memory ran out: those of this process's
/// control group, or of the whole machine if the group does not count them. `None` if the kernel counts none.
pub fn oom_kills() -> Option<u64> {
    oom_kills_below(Path::new("/"))
}

fn oom_kills_below(root: &Path) -> Option<u64> {
    let count = |path: PathBuf| {
        let text = read_to_string(path).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
    };
    let of_group = own_groups(root).into_iter().find_map(|(hierarchy, inside)| {
        let file = if hierarchy.file == V1 { "memory.oom_control" } else { "memory.events" };
        count(hierarchy.at.join(inside).join(file))
    });
    of_group.or_else(|| count(root.join("proc/vmstat")))
}

/// Returns the hierarchies that limit memory, mounted below `root`, each with this process's group in it.
fn own_groups(root: &Path) -> Vec<(Hierarchy, PathBuf)> {
    let read = |file: &str| read_to_string(root.join(file)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let own = |hierarchy: Hierarchy| {
        let is_memory = hierarchy.file == V1;
        let own = groups.lines().find_map(|line| group(line, is_memory))?;
        let below = |path: &Path| -> PathBuf {
            path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
        };
        let at = root.join(below(&hierarchy.at));
        // In a container, the groups above the mount point are out of sight, and the path may be relative to
        // a group that is not mounted. The mount point itself is then the container's group.
        let inside = own.strip_prefix(&hierarchy.mounted).map(below).unwrap_or_default();
        let inside = if at.join(&inside).is_dir() { inside } else { PathBuf::new() };
        Some((Hierarchy { at, ..hierarchy }, inside))
    };
    mounts.lines().filter_map(hierarchy).filter_map(own).collect()
}

/// The file with a group's limit, in version 1 and 2 of control groups.
const V1: &str = "memory.limit_in_bytes";
const V2: &str = "memory.max";

/// Parses a line of `/proc/self/mountinfo`; `None` unless it mounts control groups that limit memory.
fn hierarchy(line: &str) -> Option<Hierarchy> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (mounted, at) = (fields.next()?, fields.next()?);
    let mut kind = kind.split(' ');
    let file = match (kind.next()?, kind.nth(1)?) {
        ("cgroup2", _) => V2,
        ("cgroup", options) if options.split(',').any(|option| option == "memory") => V1,
        _ => return None,
    };
    Some(Hierarchy { mounted: unescape(mounted), at: unescape(at), file })
}

/// Parses a line of `/proc/self/cgroup`, and returns the group if the line is about the hierarchy of version
/// 2 or, with `memory`, about the one of version 1 that limits memory.
fn group(line: &str, memory: bool) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let is_wanted =
        if memory { controllers.split(',').any(|name| name == "memory") } else { controllers.is_empty() };
    is_wanted.then(|| PathBuf::from(path))
}

/// Replaces the escapes of spaces, tabs, line breaks and backslashes in a mount's path.
fn unescape(path: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    PathBuf::from(escapes.iter().fold(path.to_owned(), |path, (from, to)| path.replace(from, to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's files: what `/proc` says, and the limit of each group.
    struct Case {
        name: &'static str,
        groups: &'static str,
        mounts: &'static str,
        limits: &'static [(&'static str, &'static str)],
        bytes: Option<u64>,
    }

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1_MOUNTS: &str = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                             32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    const CASES: [Case; 12] = [
        Case { name: "nothing is mounted", groups: "0::/a\n", mounts: "", limits: &[], bytes: None },
        Case {
            name: "version 2, no limit",
            groups: "0::/user.slice\n",
            mounts: V2_MOUNT,
            limits: &[("sys/fs/cgroup/user.slice/memory.max", "max\n")],
            bytes: None,
        },
        Case {
            name: "version 2, own limit",
            groups: "0::/job/step\n",
            mounts: V2_MOUNT,
            limits: &[
                ("sys/fs/cgroup/job/step/memory.max", "1000\n"),
                ("sys/fs/cgroup/job/memory.max", "max\n"),
            ],
            bytes: Some(1000),
        },
        Case {
            name: "version 2, the limit of a group above",
            groups: "0::/job/step/task\n",
            mounts: V2_MOUNT,
            limits: &[
                ("sys/fs/cgroup/job/step/task/memory.max", "3000\n"),
                ("sys/fs/cgroup/job/step/memory.max", "max\n"),
                ("sys/fs/cgroup/job/memory.max", "2000\n"),
            ],
            bytes: Some(2000),
        },
        Case {
            name: "version 2, a container with its own namespace",
            groups: "0::/\n",
            mounts: V2_MOUNT,
            limits: &[("sys/fs/cgroup/memory.max", "4096\n")],
            bytes: Some(4096),
        },
        Case {
            name: "version 2, a group outside of the namespace",
            groups: "0::/../other\n",
            mounts: V2_MOUNT,
            limits: &[("sys/fs/cgroup/memory.max", "4096\n")],
            bytes: Some(4096),
        },
        Case {
            name: "version 1, own limit and that of a group above",
            groups: "5:cpu,cpuacct:/x\n4:memory:/job/step\n",
            mounts: V1_MOUNTS,
            limits: &[
                ("sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "5000\n"),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4000\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ],
            bytes: Some(4000),
        },
        Case {
            name: "version 1, no limit",
            groups: "4:memory:/job\n",
            mounts: V1_MOUNTS,
            limits: &[("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n")],
            bytes: None,
        },
        Case {
            name: "version 1, a container that sees the path of its host",
            groups: "4:memory:/docker/0123\n",
            mounts: "32 23 0:28 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            limits: &[("sys/fs/cgroup/memory/memory.limit_in_bytes", "6000\n")],
            bytes: Some(6000),
        },
        Case {
            name: "version 1, a container whose groups are out of sight",
            groups: "4:memory:/docker/0123\n",
            mounts: V1_MOUNTS,
            limits: &[("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000\n")],
            bytes: Some(7000),
        },
        Case {
            name: "both versions, of which one limits memory",
            groups: "4:memory:/job\n0::/user.slice\n",
            mounts: "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                     32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            limits: &[("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8000\n")],
            bytes: Some(8000),
        },
        Case {
            name: "a mount point with a space, and lines that are none",
            groups: "x\n0::/a b\n",
            mounts: "y\n30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n",
            limits: &[("my groups/a b/memory.max", "9000\n")],
            bytes: Some(9000),
        },
    ];

    #[test]
    fn every_group_above_a_process_limits_it() {
        for Case { name, groups, mounts, limits, bytes } in CASES {
            let root = tempfile::tempdir().unwrap();
            let files = [("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)];
            for (file, text) in files.iter().chain(limits) {
                let path = root.path().join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            assert_eq!(group_limit(root.path()), bytes, "{name}");
        }
    }

    #[test]
    fn kills_for_memory_are_those_of_the_own_group_or_else_of_the_machine() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(oom_kills_below(root.path()), None);
        write("proc/vmstat", "pgfault 9\noom_kill 7\n");
        write("proc/self/cgroup", "0::/job\n");
        write("proc/self/mountinfo", V2_MOUNT);
        assert_eq!(oom_kills_below(root.path()), Some(7));
        write("sys/fs/cgroup/job/memory.events", "oom 1\noom_kill 2\noom_group_kill 0\n");
        assert_eq!(oom_kills_below(root.path()), Some(2));
        write("proc/self/cgroup", "4:memory:/job\n");
        write("proc/self/mountinfo", V1_MOUNTS);
        write("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 3\n");
        assert_eq!(oom_kills_below(root.path()), Some(3));
    }

    #[test]
    fn the_machine_s_memory_is_read_in_kib() {
        assert_eq!(total("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
    }
}
