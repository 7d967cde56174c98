//! Readings from the driver's management library (NVML): load, clocks, power, temperature and processes of a
//! GPU.
//!
//! All of it is optional: a value is `None` without the library, or if the GPU does not report it. A GPU is
//! found by its UUID, else by its PCI address, because `CUDA_VISIBLE_DEVICES` renumbers GPUs for CUDA but not
//! for NVML.

use super::super::driver;
use super::super::libraries::Nvidia;
use cudarc::driver::sys::CUdevice;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
#[cfg(target_os = "linux")]
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// A process that computes on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Process id. In a container it may be the id on the host, which belongs to another process here, or to
    /// none.
    pub pid: u32,
    /// Bytes of device memory held; `None` if the driver does not report them.
    pub bytes: Option<u64>,
    /// Name of the program; `None` if the driver does not report it.
    pub name: Option<String>,
}

/// Readings of a GPU at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Percentage of time in the last sampling period during which a kernel ran.
    pub util_pct: Option<f64>,
    /// Clock of the SMs, in MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Clock of the memory, in MHz.
    pub mem_clock_mhz: Option<f64>,
    /// Power of the whole board, in watts.
    pub power_w: Option<f64>,
    /// Temperature of the chip, in °C.
    pub temperature_c: Option<f64>,
    /// Reasons for lower clocks; empty if there are none.
    pub throttle: Option<Vec<&'static str>>,
    /// Bytes of GPU memory in use by all processes.
    pub memory_used: Option<u64>,
}

impl Reading {
    /// Reads a GPU.
    pub fn from_device(device: &Device<'_>) -> Self {
        let clock = |which| device.clock_info(which).ok().map(f64::from);
        Self {
            util_pct: device.utilization_rates().ok().map(|u| f64::from(u.gpu)),
            sm_clock_mhz: clock(Clock::SM),
            mem_clock_mhz: clock(Clock::Memory),
            power_w: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            throttle: device.current_throttle_reasons().ok().map(words),
            memory_used: device.memory_info().ok().map(|info| info.used),
        }
    }
}

/// Lower clocks because the board is at its power limit: the usual state of a GPU under load.
pub const POWER_CAP: &str = "power_cap";
/// Lower clocks because a user has set them.
pub const CLOCKS_SET: &str = "clocks_set";
/// Lower clocks to drive a display.
pub const DISPLAY: &str = "display_clocks";

/// Returns the names of throttle reasons in `timing.csv`. Idleness does not count as a reason.
fn words(reasons: ThrottleReasons) -> Vec<&'static str> {
    let names = [
        (ThrottleReasons::SW_POWER_CAP, POWER_CAP),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power_brake"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "thermal"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "thermal_hardware"),
        (ThrottleReasons::HW_SLOWDOWN, "slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync_boost"),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, CLOCKS_SET),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, DISPLAY),
    ];
    names.into_iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, name)| name).collect()
}

/// Returns the library, which is opened once per process and never closed.
pub(in super::super) fn library() -> Option<&'static Nvml> {
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    let open = || Nvml::builder().lib_path(Nvidia::Nvml.open()?.as_os_str()).init().ok();
    LIBRARY.get_or_init(open).as_ref()
}

/// Returns the driver's version, such as `580.82.07`.
pub fn driver_version() -> Option<String> {
    library().and_then(|nvml| nvml.sys_driver_version().ok()).or_else(|| {
        let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
        Some(text.trim().to_owned()).filter(|version| !version.is_empty())
    })
}

/// Returns NVML's handle for a CUDA device.
pub(in super::super) fn find(device: CUdevice) -> Option<Device<'static>> {
    let nvml = library()?;
    let by_uuid = driver::uuid(device).ok().and_then(|uuid| {
        // A program may see a whole GPU or part of one (MIG); CUDA gives either UUID without a prefix.
        ["GPU", "MIG"].iter().find_map(|kind| nvml.device_by_uuid(format!("{kind}-{uuid}")).ok())
    });
    by_uuid.or_else(|| nvml.device_by_pci_bus_id(driver::pci_bus_id(device).ok()?).ok())
}

/// Returns the driver's list of processes that compute on a GPU and hold some of its memory; `None` if there
/// is no list.
fn computing(device: &Device<'_>) -> Option<impl Iterator<Item = ProcessInfo> + use<>> {
    let all = device.running_compute_processes().ok()?;
    Some(all.into_iter().filter(|p| !matches!(p.used_gpu_memory, UsedGpuMemory::Used(0))))
}

/// Returns the ids of the processes that compute on a GPU; `None` if the driver does not report them.
pub(super) fn pids(device: &Device<'_>) -> Option<BTreeSet<u32>> {
    Some(computing(device)?.map(|p| p.pid).collect())
}

/// Returns the processes that compute on a GPU; `None` if the driver does not report them.
pub(in super::super) fn processes(device: &Device<'_>) -> Option<Vec<Process>> {
    let name = |pid| library()?.sys_process_name(pid, 96).ok().filter(|name| !name.is_empty());
    let process = |p: ProcessInfo| Process {
        pid: p.pid,
        bytes: match p.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
        name: name(p.pid),
    };
    Some(computing(device)?.map(process).collect())
}

/// Largest number of NVLink links on a GPU.
const MAX_LINKS: u32 = 18;

/// Returns how GPUs are connected, in the terms of `nvidia-smi topo -m`: `NV18` (18 NVLink links), `PIX`,
/// `PXB`, `PHB`, `NODE`, `SYS`, and `X` on the diagonal. GPUs are given by CUDA's ordinals. `None` if NVML
/// does not know all of them.
pub fn topology(ordinals: &[usize]) -> Option<Vec<Vec<String>>> {
    let device = |ordinal: usize| find(driver::device(ordinal).ok()?.0);
    let devices: Vec<Device<'_>> = ordinals.iter().map(|&ordinal| device(ordinal)).collect::<Option<_>>()?;
    let count = devices.len();
    let links: Vec<Links> = devices.iter().map(Links::for_device).collect();
    let joined = |a: usize, b: usize| -> Option<String> {
        if a == b {
            return Some("X".to_owned());
        }
        match links[a].towards(&links[b]) {
            0 => common_ancestor(&devices[a], device(ordinals[b])?).map(str::to_owned),
            n => Some(format!("NV{n}")),
        }
    };
    (0..count).map(|a| (0..count).map(|b| joined(a, b)).collect()).collect()
}

/// The other ends of a GPU's active NVLink links.
struct Links {
    own: Option<String>,
    /// PCI addresses of the GPUs at the other ends.
    peers: Vec<String>,
    /// Number of links to a switch, which connects all GPUs.
    switched: usize,
}

impl Links {
    fn for_device(device: &Device<'_>) -> Self {
        let own = device.pci_info().ok().map(|pci| pci.bus_id);
        let mut links = Links { own, peers: Vec::new(), switched: 0 };
        for link in (0..MAX_LINKS).map(|n| device.link_wrapper_for(n)) {
            if !link.is_active().unwrap_or(false) {
                continue;
            }
            if ends_at_a_switch(device, link.link()) {
                links.switched += 1;
            } else {
                links.peers.extend(link.remote_pci_info().ok().map(|pci| pci.bus_id));
            }
        }
        links
    }

    fn towards(&self, other: &Links) -> usize {
        let direct = self.peers.iter().filter(|&peer| other.own.as_ref() == Some(peer)).count();
        direct + self.switched.min(other.switched)
    }
}

/// Returns true if the other end of a link is a switch. The wrapper's own function drops the result (in
/// version 0.13).
fn ends_at_a_switch(device: &Device<'_>, link: u32) -> bool {
    const SWITCH: u32 = 2;
    let Ok(ask) = device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref() else { return false };
    let mut kind = u32::MAX;
    // SAFETY: the handle comes from a library that is never closed, and the address points to an integer.
    let status = unsafe { ask(device.handle(), link, &raw mut kind) };
    status == 0 && kind == SWITCH
}

/// Returns how two GPUs without NVLink are connected, if NVML knows.
#[cfg(target_os = "linux")]
fn common_ancestor(device: &Device<'_>, other: Device<'_>) -> Option<&'static str> {
    Some(match device.topology_common_ancestor(other).ok()? {
        TopologyLevel::Internal | TopologyLevel::Single => "PIX",
        TopologyLevel::Multiple => "PXB",
        TopologyLevel::HostBridge => "PHB",
        TopologyLevel::Node => "NODE",
        TopologyLevel::System => "SYS",
    })
}

/// NVML reports this only on Linux.
#[cfg(not(target_os = "linux"))]
fn common_ancestor(_device: &Device<'_>, _other: Device<'_>) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_names_and_idleness_is_none() {
        assert!(words(ThrottleReasons::GPU_IDLE).is_empty());
        assert!(words(ThrottleReasons::empty()).is_empty());
        let both = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(words(both), [POWER_CAP, "thermal_hardware"]);
    }

    #[test]
    fn links_through_a_switch_count_for_the_gpu_with_fewer() {
        let links = |own: &str, peers: &[&str], switched| Links {
            own: Some(own.to_owned()),
            peers: peers.iter().map(|p| (*p).to_owned()).collect(),
            switched,
        };
        assert_eq!(links("a", &[], 18).towards(&links("b", &[], 12)), 12);
        assert_eq!(links("a", &["b", "b", "c"], 0).towards(&links("b", &["a", "a"], 0)), 2);
        assert_eq!(links("a", &[], 0).towards(&links("b", &[], 0)), 0);
    }
}
