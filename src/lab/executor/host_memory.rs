//! Tells whether the kernel kills processes because host memory ran out.

use std::path::Path;

/// Returns how many processes of this process's control group were killed so far because host memory ran out;
/// of the whole machine where the group does not count them. `None` if the kernel counts none.
pub fn oom_kills() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).ok();
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let of_group = groups.lines().filter_map(counter_of_group).find_map(|path| count(&read(&path)?));
    of_group.or_else(|| count(&read("/proc/vmstat")?))
}

/// Returns the file with the counter of a group, from a line of `/proc/self/cgroup`: its hierarchy, its
/// controllers and its path, separated by colons.
fn counter_of_group(line: &str) -> Option<String> {
    let mut parts = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let path = path.trim_end_matches('/');
    if hierarchy == "0" && controllers.is_empty() {
        return Some(format!("/sys/fs/cgroup{path}/memory.events"));
    }
    let has_memory = controllers.split(',').any(|controller| controller == "memory");
    has_memory.then(|| format!("/sys/fs/cgroup/memory{path}/memory.oom_control"))
}

/// Returns the number in the line `oom_kill N`.
fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_versions_of_control_groups_are_found() {
        let events = Some("/sys/fs/cgroup/system.slice/job_7/memory.events".to_owned());
        assert_eq!(counter_of_group("0::/system.slice/job_7"), events);
        assert_eq!(counter_of_group("0::/"), Some("/sys/fs/cgroup/memory.events".to_owned()));
        let control = Some("/sys/fs/cgroup/memory/slurm/job_7/memory.oom_control".to_owned());
        assert_eq!(counter_of_group("4:cpu,memory:/slurm/job_7"), control);
        assert_eq!(counter_of_group("5:cpuset:/slurm"), None);
        assert_eq!(counter_of_group("nothing"), None);
        assert_eq!(count("oom 1\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(count("low 0\n"), None);
    }
}
