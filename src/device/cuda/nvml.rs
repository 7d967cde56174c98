//! What the driver's management library (NVML) says of a GPU: load, clocks, power, temperature, who else is on it.
//!
//! All of it is optional: without the library, and where a card does not tell, a value is blank. A GPU of CUDA is found
//! here by its UUID, else by its place on the bus, for `CUDA_VISIBLE_DEVICES` renumbers the one and not the other.

use super::driver;
use super::libraries::Nvidia;
use cudarc::driver::sys::CUdevice;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor, TopologyLevel};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;
use std::sync::OnceLock;

/// A process that computes on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its number. In a container it may be that of the host, which means another process here, or none.
    pub pid: u32,
    /// Bytes of device memory that it holds; blank where the driver does not tell.
    pub bytes: Option<u64>,
    /// The program; blank where the driver does not tell.
    pub name: Option<String>,
}

/// What a GPU does at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Percent of the last moments in which a kernel ran.
    pub util_pct: Option<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<f64>,
    /// Clock of the memory.
    pub mem_clock_mhz: Option<f64>,
    /// Power of the whole board.
    pub power_w: Option<f64>,
    /// Temperature of the chip.
    pub temperature_c: Option<f64>,
    /// Why clocks are lower than they could be; empty for no reason.
    pub throttle: Option<Vec<&'static str>>,
    /// Bytes of memory in use on the card, by everybody.
    pub memory_used: Option<u64>,
}

impl Reading {
    /// Reads a GPU.
    pub fn of(device: &Device<'_>) -> Self {
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

/// Lower clocks because the board draws what it may: the usual state of a card that works hard.
pub const POWER_CAP: &str = "power_cap";
/// Lower clocks because somebody set them.
pub const CLOCKS_SET: &str = "clocks_set";
/// Lower clocks for a display.
pub const DISPLAY: &str = "display_clocks";

/// Reasons by their names in `timing.csv`. That nothing runs is no reason.
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

/// The library, opened once per process and never closed.
pub(super) fn library() -> Option<&'static Nvml> {
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    let open = || Nvml::builder().lib_path(Nvidia::Nvml.open()?.as_os_str()).init().ok();
    LIBRARY.get_or_init(open).as_ref()
}

/// The driver's version, such as `580.82.07`.
pub fn driver_version() -> Option<String> {
    library().and_then(|nvml| nvml.sys_driver_version().ok()).or_else(|| {
        let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
        Some(text.trim().to_owned()).filter(|version| !version.is_empty())
    })
}

/// The GPU of CUDA as NVML knows it.
pub(super) fn find(device: CUdevice) -> Option<Device<'static>> {
    let nvml = library()?;
    let by_uuid = driver::uuid(device).ok().and_then(|uuid| {
        // What a program sees may be a whole GPU or a part of one (MIG); CUDA gives both without the word in front.
        ["GPU", "MIG"].iter().find_map(|kind| nvml.device_by_uuid(format!("{kind}-{uuid}")).ok())
    });
    by_uuid.or_else(|| nvml.device_by_pci_bus_id(driver::pci_bus_id(device).ok()?).ok())
}

/// The processes that compute on a GPU and hold memory of it; `None` where the driver does not tell.
pub(super) fn processes(device: &Device<'_>) -> Option<Vec<Process>> {
    let all = device.running_compute_processes().ok()?;
    let with_memory = all.into_iter().filter(|p| !matches!(p.used_gpu_memory, UsedGpuMemory::Used(0)));
    Some(
        with_memory
            .map(|p| Process {
                pid: p.pid,
                bytes: match p.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
                name: None,
            })
            .collect(),
    )
}

/// The processes with the names of their programs.
pub(super) fn named_processes(device: &Device<'_>) -> Option<Vec<Process>> {
    let name = |pid| library()?.sys_process_name(pid, 96).ok().filter(|name| !name.is_empty());
    Some(processes(device)?.into_iter().map(|p| Process { name: name(p.pid), ..p }).collect())
}

/// Most links of NVLink that a GPU has.
const LINKS: u32 = 18;

/// How GPUs are joined, as `nvidia-smi topo -m` calls it: `NV18` (links of NVLink), `PIX`, `PXB`, `PHB`, `NODE`, `SYS`, `X`
/// for one and itself. Of GPUs by CUDA's numbers, in their order; `None` where NVML does not know all of them.
pub fn topology(ordinals: &[usize]) -> Option<Vec<Vec<String>>> {
    let device = |ordinal: usize| find(driver::device(ordinal).ok()?.0);
    let devices: Vec<Device<'_>> = ordinals.iter().map(|&ordinal| device(ordinal)).collect::<Option<_>>()?;
    let count = devices.len();
    let links: Vec<Links> = devices.iter().map(Links::of).collect();
    let joined = |a: usize, b: usize| -> Option<String> {
        if a == b {
            return Some("X".to_owned());
        }
        match links[a].towards(&links[b]) {
            0 => devices[a].topology_common_ancestor(device(ordinals[b])?).ok().map(|l| level(&l).to_owned()),
            n => Some(format!("NV{n}")),
        }
    };
    (0..count).map(|a| (0..count).map(|b| joined(a, b)).collect()).collect()
}

/// Where the active links of NVLink of a GPU lead.
struct Links {
    own: Option<String>,
    /// Places on the bus of GPUs at the other ends.
    peers: Vec<String>,
    /// Links that end at a switch, which joins all GPUs.
    switched: usize,
}

impl Links {
    fn of(device: &Device<'_>) -> Self {
        let own = device.pci_info().ok().map(|pci| pci.bus_id);
        let mut links = Links { own, peers: Vec::new(), switched: 0 };
        for link in (0..LINKS).map(|n| device.link_wrapper_for(n)) {
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

/// Whether the other end of a link is a switch. (The wrapper's own function, of version 0.13, drops the answer.)
fn ends_at_a_switch(device: &Device<'_>, link: u32) -> bool {
    const SWITCH: u32 = 2;
    let Ok(ask) = device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref() else { return false };
    let mut kind = u32::MAX;
    // SAFETY: the handle is of a library that is never closed, and the address is of an integer.
    let status = unsafe { ask(device.handle(), link, &raw mut kind) };
    status == 0 && kind == SWITCH
}

fn level(level: &TopologyLevel) -> &'static str {
    match level {
        TopologyLevel::Internal | TopologyLevel::Single => "PIX",
        TopologyLevel::Multiple => "PXB",
        TopologyLevel::HostBridge => "PHB",
        TopologyLevel::Node => "NODE",
        TopologyLevel::System => "SYS",
    }
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
    fn links_through_a_switch_are_those_of_the_side_with_fewer() {
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
