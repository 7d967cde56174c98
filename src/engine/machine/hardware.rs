//! Devices by name: memory, dense peaks, bandwidth, each with its source.

use crate::error::{Error, Result};
use crate::suggest::nearest_by;
use serde::Serialize;

/// Published limits of a device. Peaks are dense (no structured sparsity), at boost clocks, with fp32
/// accumulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Hardware {
    /// Name for `--on`.
    pub name: &'static str,
    /// Name of the product.
    pub product: &'static str,
    /// Name that the driver reports. PCIe cards, laptop GPUs and MIG partitions have other clocks or fewer
    /// units under similar names.
    #[serde(skip)]
    pub driver_name: Option<&'static str>,
    /// Name of the architecture.
    pub architecture: &'static str,
    /// CUDA compute capability, such as `9.0`.
    pub compute_capability: Option<&'static str>,
    /// Memory in bytes, as reported by the driver.
    pub memory_bytes: Option<u64>,
    /// Peaks and bandwidth; `None` if unknown.
    pub limits: Option<Limits>,
    /// Source of the figures.
    pub source: &'static str,
}

/// Peaks that bound the time of a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// FLOP/s of fp32 outside tensor cores.
    pub fp32: f64,
    /// FLOP/s of products with TF32 inputs.
    pub tf32: f64,
    /// FLOP/s of products with bf16 inputs.
    pub bf16: f64,
    /// Bytes per second to and from memory.
    pub bandwidth: f64,
}

/// Every device that `--on` accepts. Memory is the total shown by `nvidia-smi`.
pub static DEVICES: &[Hardware] = &[
    gpu(
        ["h200", "NVIDIA H200 SXM", "NVIDIA H200", "Hopper", "9.0"],
        143_771,
        [66.9e12, 494.7e12, 989.4e12, 4.8e12],
        "NVIDIA H200 datasheet (its tensor figures halved: they count sparsity); NVIDIA H100 architecture whitepaper",
    ),
    gpu(
        ["h100", "NVIDIA H100 SXM5", "NVIDIA H100 80GB HBM3", "Hopper", "9.0"],
        81_559,
        [66.9e12, 494.7e12, 989.4e12, 3.35e12],
        "NVIDIA H100 Tensor Core GPU architecture whitepaper, table 2; bandwidth from the H100 datasheet",
    ),
    gpu(
        ["a100-80", "NVIDIA A100 SXM4 80 GB", "NVIDIA A100-SXM4-80GB", "Ampere", "8.0"],
        81_920,
        [19.5e12, 156.0e12, 312.0e12, 2.039e12],
        "NVIDIA A100 80GB datasheet",
    ),
    gpu(
        ["a100-40", "NVIDIA A100 SXM4 40 GB", "NVIDIA A100-SXM4-40GB", "Ampere", "8.0"],
        40_960,
        [19.5e12, 156.0e12, 312.0e12, 1.555e12],
        "NVIDIA A100 Tensor Core GPU architecture whitepaper, table 1",
    ),
    gpu(
        ["b200", "NVIDIA B200 SXM", "NVIDIA B200", "Blackwell", "10.0"],
        183_359,
        [75.0e12, 1100.0e12, 2250.0e12, 7.7e12],
        "NVIDIA Blackwell (HGX B200) datasheet, per GPU (its tensor figures halved: they count sparsity)",
    ),
    gpu(
        ["l40s", "NVIDIA L40S", "NVIDIA L40S", "Ada Lovelace", "8.9"],
        46_068,
        [91.6e12, 183.0e12, 362.05e12, 0.864e12],
        "NVIDIA L40S datasheet",
    ),
    gpu(
        ["rtx5090", "NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 5090", "Blackwell", "12.0"],
        32_607,
        [104.8e12, 104.8e12, 209.5e12, 1.792e12],
        "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A (fp32 accumulation)",
    ),
    gpu(
        ["rtx4090", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090", "Ada Lovelace", "8.9"],
        24_564,
        [82.6e12, 82.6e12, 165.2e12, 1.008e12],
        "NVIDIA Ada GPU architecture whitepaper, appendix A (fp32 accumulation)",
    ),
    gpu(
        ["rtx3090", "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090", "Ampere", "8.6"],
        24_576,
        [35.6e12, 35.6e12, 71.0e12, 0.936e12],
        "NVIDIA Ampere GA102 GPU architecture whitepaper, appendix A (fp32 accumulation)",
    ),
    Hardware {
        name: "cpu",
        product: "any CPU",
        driver_name: None,
        architecture: "unknown",
        compute_capability: None,
        memory_bytes: None,
        limits: None,
        source: "nothing is known about it in advance",
    },
];

/// Builds an entry from names, memory in MiB, `[fp32, tf32, bf16]` in FLOP/s plus bandwidth in bytes per
/// second, and the source.
const fn gpu(names: [&'static str; 5], mib: u64, peaks: [f64; 4], source: &'static str) -> Hardware {
    let [name, product, driver_name, architecture, compute_capability] = names;
    let [fp32, tf32, bf16, bandwidth] = peaks;
    Hardware {
        name,
        product,
        driver_name: Some(driver_name),
        architecture,
        compute_capability: Some(compute_capability),
        memory_bytes: Some(mib << 20),
        limits: Some(Limits { fp32, tf32, bf16, bandwidth }),
        source,
    }
}

/// Returns the device with this name. Case, spaces and dashes do not matter; `a100` alone means the larger
/// one.
///
/// # Errors
/// A usage error with the nearest name and all names if the name is unknown.
pub fn find(name: &str) -> Result<&'static Hardware> {
    let wanted = plain(name);
    let wanted = if wanted == "a100" { "a10080".to_owned() } else { wanted };
    if let Some(device) = DEVICES.iter().find(|d| plain(d.name) == wanted || plain(d.product) == wanted) {
        return Ok(device);
    }
    let named = DEVICES.iter().map(|device| (device.name, plain(device.name))).collect::<Vec<_>>();
    let nearest = nearest_by(&wanted, named.iter().map(|(name, plain)| (*name, plain.as_str())));
    let meant = nearest.map_or(String::new(), |near| format!("did you mean {near}? "));
    let names: Vec<&str> = DEVICES.iter().map(|d| d.name).collect();
    Err(Error::usage(format!("there is no device {name:?}: {meant}known devices are {}", names.join(", "))))
}

/// Returns the device that the driver reports under exactly this name, to compare a run with the device's
/// peaks.
pub fn by_driver_name(name: &str) -> Option<&'static Hardware> {
    DEVICES.iter().find(|device| device.driver_name == Some(name.trim()))
}

fn plain(name: &str) -> String {
    name.chars().take(64).filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_they_are_written() {
        for device in DEVICES {
            assert_eq!(find(device.name).expect("itself"), device);
            assert_eq!(find(&device.name.to_uppercase()).expect("in capitals"), device);
        }
        assert_eq!(find("RTX 5090").expect("with a space").name, "rtx5090");
        assert_eq!(find("NVIDIA GeForce RTX 4090").expect("as the driver says it").name, "rtx4090");
        assert_eq!(find("a100").expect("the larger").name, "a100-80");
        let wrong = find("rtx509").expect_err("unknown");
        assert!(wrong.message().contains("did you mean rtx5090?"), "{wrong}");
        assert!(find("").expect_err("nothing").message().contains("known devices are h200"));
    }

    #[test]
    fn the_driver_s_names_are_known_to_the_letter() {
        for (name, device) in [
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-40GB", "a100-40"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ] {
            assert_eq!(by_driver_name(name).map(|d| d.name), Some(device));
        }
        for other in ["NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "", "cpu"] {
            assert_eq!(by_driver_name(other), None, "{other}");
        }
        assert!(DEVICES.iter().all(|d| d.limits.is_some() == d.driver_name.is_some()));
    }

    #[test]
    fn peaks_are_dense_and_in_order() {
        for device in DEVICES {
            let Some(l) = device.limits else { continue };
            assert!(l.fp32 <= l.tf32 && l.tf32 < l.bf16, "{}", device.name);
            // Every architecture here does twice as many bf16 as TF32 operations, up to rounding in
            // datasheets.
            assert!((l.bf16 / l.tf32 - 2.0).abs() < 0.05, "{}", device.name);
        }
    }
}
