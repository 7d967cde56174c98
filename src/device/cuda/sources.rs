//! The kernels' sources, embedded in the binary.

macro_rules! source {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../kernels/", $name, ".cu")))
    };
}
macro_rules! header {
    ($name:literal) => {
        (concat!($name, ".cuh"), include_str!(concat!("../../../kernels/", $name, ".cuh")))
    };
}
/// Headers that kernels include by name.
pub const HEADERS: [(&str, &str); 7] = [
    header!("activation"),
    header!("attention"),
    header!("common"),
    header!("heads"),
    header!("mma"),
    header!("norm"),
    header!("tiles"),
];

/// Kernel files by name. One per op that has kernels.
pub const SOURCES: [(&str, &str); 28] = [
    source!("adamw"),
    source!("add"),
    source!("advance"),
    source!("attention_unfused"),
    source!("cast"),
    source!("checksum"),
    source!("cross_entropy"),
    source!("dropout"),
    source!("embedding"),
    source!("flash_attention"),
    source!("flash_attention_fp32"),
    source!("flash_attention_grad"),
    source!("flash_attention_grad_fp32"),
    source!("grad_norm"),
    source!("half"),
    source!("kv_cache"),
    source!("mul"),
    source!("partials"),
    source!("product"),
    source!("qk_norm_rope"),
    source!("residual_norm"),
    source!("rms_norm"),
    source!("rope"),
    source!("scale"),
    source!("silu"),
    source!("softmax"),
    source!("sum"),
    source!("swiglu"),
];

/// The source of a kernel file.
///
/// Panics for a name that is not in [`SOURCES`]: a programming error.
pub fn source(file: &str) -> &'static str {
    SOURCES.iter().find(|(name, _)| *name == file).unwrap_or_else(|| panic!("no kernel file {file}")).1
}
