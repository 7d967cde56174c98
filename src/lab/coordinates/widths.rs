//! Changes the width of a recipe: stream, feed-forward layer and number of heads grow together, and the width
//! of a head stays.

use crate::error::Result;
use crate::machine::Machine;
use crate::policy::Parametrization;
use crate::recipe::{Recipe, derived};

/// Returns the recipe at a width, in a parametrization, with a seed.
///
/// # Errors
/// A usage error if a layer would not have a whole number of elements or heads at this width, or if the
/// recipe contradicts itself.
pub(super) fn at_width(
    recipe: &Recipe,
    width: usize,
    parametrization: Parametrization,
    seed: u64,
    machine: &Machine,
) -> Result<Recipe> {
    let model = &recipe.values().model;
    let scaled = |key: &'static str, value: Option<usize>| -> Result<Option<String>> {
        let Some(value) = value else { return Ok(None) };
        let product = value.checked_mul(width).filter(|product| product.is_multiple_of(model.dim));
        let product = product.ok_or_else(|| {
            recipe.error(
                &[key, "model.dim"],
                format!(
                    "a width of {width} is {width}/{} of the recipe's, and {value} times that is not a whole \
                     number",
                    model.dim
                ),
                "use other widths, or a recipe whose layer sizes have more divisors",
            )
        })?;
        Ok(Some(format!("{key}={}", product / model.dim)))
    };
    let mut settings = vec![format!("model.dim={width}"), format!("model.parametrization={parametrization}")];
    settings.push(format!("model.head_dim={}", derived::head_dim(model)));
    settings.extend(scaled("model.n_heads", model.n_heads)?);
    settings.extend(scaled("model.n_kv_heads", model.n_kv_heads)?);
    settings.extend(scaled("model.ffn_dim", model.ffn_dim)?);
    settings.push(format!("training.seed={seed}"));
    recipe.with_overrides(&settings, machine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::load_str;

    fn recipe(text: &str) -> Recipe {
        load_str("small.toml".as_ref(), text, &[], std::iter::empty(), &Machine::none()).unwrap()
    }

    #[test]
    fn stream_heads_and_feed_forward_layer_grow_together() {
        let small = recipe("[model]\ndim = 128\nhead_dim = 32\nn_kv_heads = 2\nbase_dim = 64\n");
        let machine = Machine::none();
        let large = at_width(&small, 512, Parametrization::Mup, 7, &machine).unwrap();
        let model = &large.values().model;
        assert_eq!((model.dim, model.head_dim, model.n_heads), (512, Some(32), Some(16)));
        assert_eq!((model.n_kv_heads, model.ffn_dim), (Some(8), Some(4 * 384)));
        assert_eq!((model.base_dim, model.parametrization), (Some(64), Parametrization::Mup));
        assert_eq!(large.values().training.seed, 7);
        let same = at_width(&small, 128, Parametrization::Standard, 0, &machine).unwrap();
        assert_eq!(same.values(), small.values());
    }

    #[test]
    fn a_width_with_broken_heads_is_refused_by_key_and_value() {
        let small = recipe("[model]\ndim = 128\nhead_dim = 32\nn_kv_heads = 2\n");
        let error = at_width(&small, 32, Parametrization::Standard, 0, &Machine::none()).unwrap_err();
        assert!(error.message().contains("model.n_kv_heads = 2"), "{}", error.message());
        assert!(error.message().contains("32/128"), "{}", error.message());
    }
}
