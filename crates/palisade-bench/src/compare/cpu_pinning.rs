//! Client and server on cores of their own.
//!
//! A cycle of acquire and release has four wake-ups. Their cost depends on the cores that the
//! scheduler chooses: on one core a third of the cost across two, and either choice lasts for a
//! whole run. So both ends are pinned, for every side alike: this process to the first core, and
//! the server to all others.

use std::fs;
use std::process::{Command, Stdio};

use super::{Result, Server};

/// Dropping it lets both use all cores again.
pub(crate) struct CpuPinning {
    servers: Vec<u32>,
    /// All cores that we may use, as they are written.
    all: String,
}

impl CpuPinning {
    /// `None` where there is only one core.
    pub(crate) fn apply(server: &impl Server) -> Result<Option<CpuPinning>> {
        let status = fs::read_to_string("/proc/self/status")?;
        let all = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .unwrap_or_default()
            .trim()
            .to_owned();
        let cores = cores(&all)?;
        let Some((first, others)) = cores.split_first().filter(|(_, others)| !others.is_empty())
        else {
            return Ok(None);
        };
        let pinning = CpuPinning {
            servers: server.pids(),
            all,
        };
        let others: Vec<String> = others.iter().map(u32::to_string).collect();
        pin(std::process::id(), &first.to_string())?;
        for server in &pinning.servers {
            pin(*server, &others.join(","))?;
        }
        Ok(Some(pinning))
    }
}

impl Drop for CpuPinning {
    fn drop(&mut self) {
        for process in [std::process::id()].iter().chain(&self.servers) {
            if let Err(error) = pin(*process, &self.all) {
                eprintln!("palisade-bench: {error}");
            }
        }
    }
}

/// With all its threads, and those that they start.
fn pin(process: u32, cores: &str) -> Result<()> {
    let held = Command::new("taskset")
        .args(["-a", "-c", "-p", cores, &process.to_string()])
        .stdout(Stdio::null())
        .status();
    match held {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("taskset: {status}").into()),
        Err(error) => {
            Err(format!("taskset cannot be started ({error}); scripts/setup installs it").into())
        }
    }
}

/// As the kernel writes them: `0-2,5`.
fn cores(list: &str) -> Result<Vec<u32>> {
    let mut cores = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse::<u32>()?..=last.parse()?);
    }
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_as_the_kernel_writes_them() {
        assert_eq!(cores("0-2,5").unwrap(), [0, 1, 2, 5]);
        assert_eq!(cores("3").unwrap(), [3]);
        assert!(cores("").unwrap().is_empty() && cores("x").is_err());
    }
}
