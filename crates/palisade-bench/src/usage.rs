//! The resources of this process.

use std::time::Duration;

/// CPU time of this process so far, in user and kernel mode together.
pub(crate) fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Memory that is resident now.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap_or_default();
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .trim()
        .parse()
        .unwrap_or_default();
    kib * 1024
}
