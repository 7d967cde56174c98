//! Memory of this process and of the machine, as the operating system reports it.

/// Returns the resident memory of this process, in bytes; `None` on systems other than Linux.
pub fn rss_bytes() -> Option<u64> {
    status_field("VmRSS:")
}

/// Returns the peak resident memory of this process, in bytes; `None` on systems other than Linux.
pub fn peak_rss_bytes() -> Option<u64> {
    status_field("VmHWM:")
}

/// Returns the machine's memory, in bytes; `None` on systems other than Linux.
pub fn total_bytes() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Returns a field of `/proc/self/status`, whose sizes are in KiB although they are written "kB".
fn status_field(name: &str) -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, name)
}

/// Parses a line like `VmRSS:     1234 kB` in `text` and returns the value in bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kib_as_bytes() {
        assert_eq!(kib_field("VmHWM:\t  10 kB\nVmRSS:\t  7 kB\n", "VmRSS:"), Some(7 * 1024));
        assert_eq!(kib_field("VmRSS: many kB\n", "VmRSS:"), None);
        assert_eq!(kib_field("", "VmRSS:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_was_touched_is_resident() {
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(rss_bytes().unwrap() >= 64 << 20);
        drop(block);
        assert!(peak_rss_bytes().unwrap() >= 64 << 20);
    }
}
