//! Initial values: which parameters of two models start the same, and that they never change for a seed.

use crate::engine::harness::{Setup, get};
use std::collections::BTreeMap;

/// Returns the values of every drawn parameter, by name.
fn matrices(settings: &[&str]) -> BTreeMap<String, Vec<f64>> {
    let setup = Setup::new(settings);
    let engine = setup.engine();
    let params = setup.programs.state.params.iter().filter(|param| param.role.is_matrix());
    params.map(|param| (param.name.clone(), get(&engine, &format!("params.{}", param.name)))).collect()
}

/// Returns the first three values, as bits, of the embedding and of a matrix in the last block.
fn pinned(settings: &[&str]) -> [[u32; 3]; 2] {
    let values = matrices(settings);
    ["embedding", "blocks.1.gate_up"].map(|name| std::array::from_fn(|i| (values[name][i] as f32).to_bits()))
}

#[test]
fn models_share_the_values_of_the_parameters_that_both_have() {
    let base = matrices(&[]);
    assert_eq!(base.len(), 10);
    for change in ["model.qk_norm=false", "model.norm=layer_norm"] {
        assert_eq!(matrices(&[change]), base, "{change}");
    }
    let mut untied = base.clone();
    untied.remove("head");
    assert_eq!(matrices(&["model.tie_embeddings=true"]), untied);
    // At another depth, all are the same but those that write the residual stream, whose deviation depends on
    // the depth.
    for (name, values) in matrices(&["model.n_layers=3"]) {
        let is_scaled = name.ends_with(".out") || name.ends_with(".down");
        assert_eq!(base.get(&name) == Some(&values), !is_scaled && !name.starts_with("blocks.2."), "{name}");
    }
    // By index, the norms of queries and keys shift everything after them, as they used to.
    let index = "seeds.scheme=index";
    let by_index = matrices(&[index]);
    let alike =
        |other: &BTreeMap<String, Vec<f64>>| by_index.iter().filter(|(n, v)| other[*n] == **v).count();
    assert_eq!(alike(&matrices(&[index, "model.qk_norm=false"])), 4);
    assert_eq!(alike(&base), 0);
}

#[test]
fn no_two_parameters_or_seeds_have_the_same_values() {
    let mut seen = Vec::new();
    for seed in ["seeds.init=3", "seeds.init=4"] {
        for (name, values) in matrices(&[seed]) {
            // Values drawn with the same key have the same ratios.
            seen.push(((values[1] / values[0] * 1e3).round() as i64, format!("{name} with {seed}")));
        }
    }
    seen.sort();
    let twice = seen.windows(2).find(|pair| pair[0].0 == pair[1].0);
    assert_eq!((seen.len(), twice), (20, None));
}

/// Runs that are trained again rely on the values, so they never change for a seed and a scheme.
#[test]
fn values_never_change() {
    let found = ["name", "index"].map(|scheme| pinned(&["seeds.init=42", &format!("seeds.scheme={scheme}")]));
    let by_name =
        [[1_035_876_228, 1_028_771_870, 1_041_436_377], [1_020_076_261, 1_042_541_872, 3_129_225_966]];
    let by_index =
        [[3_182_958_426, 3_180_814_775, 975_328_925], [1_039_450_504, 1_008_526_826, 3_175_345_463]];
    assert_eq!(found, [by_name, by_index]);
}
