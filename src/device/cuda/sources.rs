//! The kernels' sources, embedded in the binary.

use std::borrow::Cow;
use std::path::Path;

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
pub const HEADERS: [(&str, &str); 14] = [
    header!("activation"),
    header!("attention"),
    header!("common"),
    header!("formula"),
    header!("heads"),
    header!("matrices"),
    header!("mma"),
    header!("norm"),
    header!("optimizer"),
    header!("ranges"),
    header!("streaming"),
    header!("tiles"),
    header!("tma"),
    header!("wgmma"),
];

/// Kernel files by name. One per op that has kernels.
pub const SOURCES: [(&str, &str); 51] = [
    source!("activate"),
    source!("adamw"),
    source!("add"),
    source!("add_bias"),
    source!("advance"),
    source!("attention_unfused"),
    source!("cached_attention"),
    source!("cast"),
    source!("checksum"),
    source!("copy_small"),
    source!("cross_entropy"),
    source!("dropout"),
    source!("ema"),
    source!("embedding"),
    source!("fill"),
    source!("fingerprint"),
    source!("flash_attention"),
    source!("flash_attention_fp32"),
    source!("flash_attention_grad"),
    source!("flash_attention_grad_fp32"),
    source!("flash_attention_grad_short"),
    source!("flash_attention_grad_wgmma"),
    source!("flash_attention_wgmma"),
    source!("gated"),
    source!("grad_norm"),
    source!("half"),
    source!("hold"),
    source!("kv_cache"),
    source!("layer_norm"),
    source!("linear_few_rows"),
    source!("lion"),
    source!("mul"),
    source!("muon_momentum"),
    source!("muon_update"),
    source!("partials"),
    source!("product"),
    source!("qk_norm_rope"),
    source!("rank_sum"),
    source!("residual_norm"),
    source!("rms_norm"),
    source!("rope"),
    source!("sample_tokens"),
    source!("scale"),
    source!("select_rows"),
    source!("sgd"),
    source!("soft_cap"),
    source!("softmax"),
    source!("sum"),
    source!("sum_at_once"),
    source!("swap_ema"),
    source!("window_spans"),
];

/// The variable that names a folder whose files replace those in the binary, to edit kernels without
/// rebuilding.
pub const FOLDER_VARIABLE: &str = "XRUN_KERNELS";

/// Returns the source of a kernel file.
///
/// Panics for a name that the binary does not know: a programming error.
pub fn source(file: &str) -> Cow<'static, str> {
    let embedded = SOURCES.iter().find(|(name, _)| *name == file);
    replaced(&format!("{file}.cu"))
        .unwrap_or_else(|| Cow::Borrowed(embedded.unwrap_or_else(|| panic!("no kernel file {file}")).1))
}

/// Returns the names and sources of the headers.
pub fn headers() -> Vec<(&'static str, Cow<'static, str>)> {
    HEADERS.iter().map(|(name, text)| (*name, replaced(name).unwrap_or(Cow::Borrowed(text)))).collect()
}

/// Returns a file of the folder that [`FOLDER_VARIABLE`] names, if it exists.
fn replaced(name: &str) -> Option<Cow<'static, str>> {
    let folder = std::env::var_os(FOLDER_VARIABLE)?;
    std::fs::read_to_string(Path::new(&folder).join(name)).ok().map(Cow::Owned)
}
