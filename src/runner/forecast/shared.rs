//! Finds the random numbers that two runs share. Common random numbers reduce the scatter of paired
//! differences.

use crate::ir::{Init, ParamRequest};
use crate::model::ModelTensors;
use crate::plan::Plan;
use crate::recipe::{Recipe, diff};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Keys of `[data]` that leave the windows of the training split unchanged.
const KEYS_WITHOUT_EFFECT_ON_WINDOWS: [&str; 2] = ["data.cross_documents", "data.validation_tokens"];

/// Which random numbers two runs share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRandomness {
    /// Initial values of parameters.
    pub parameters: SharedParameters,
    /// The order in which windows of the corpus are read, batch by batch.
    pub order: Sharing,
    /// Dropout masks, site by site in the blocks that both runs have.
    pub masks: Sharing,
}

/// How many drawn parameters have the same initial values in both runs. Parameters that begin as ones or
/// zeros do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedParameters {
    /// Parameters with the same values: same name, shape and deviation, drawn with the same key.
    pub shared: usize,
    /// Number of distinct names of drawn parameters in the two runs.
    pub of: usize,
}

/// Whether two runs share a sequence of random numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// They share it.
    Shared,
    /// Neither run draws any.
    NotDrawn,
    /// They do not share it; these settings differ.
    Differs(Vec<String>),
}

impl Sharing {
    /// Returns `Shared` unless one of the flags is true; each flag comes with its name.
    fn unless(differing: &[(bool, &str)]) -> Self {
        let differing: Vec<String> =
            differing.iter().filter(|(differs, _)| *differs).map(|(_, what)| (*what).to_owned()).collect();
        if differing.is_empty() { Self::Shared } else { Self::Differs(differing) }
    }
}

/// Compares the random numbers of two runs, each given by recipe and plan. A setting that is made later, such
/// as the seed of a pair, is compared as it is here.
pub fn shared_randomness(a: (&Recipe, &Plan), b: (&Recipe, &Plan)) -> SharedRandomness {
    let ((recipe_a, a), (recipe_b, b)) = (a, b);
    let reads_other_text = diff(recipe_a.values(), recipe_b.values()).iter().any(|change| {
        change.key.starts_with("data.") && !KEYS_WITHOUT_EFFECT_ON_WINDOWS.contains(&change.key)
    });
    let corpus = (reads_other_text, "the corpus");
    let length = (a.batch.seq_len != b.batch.seq_len, "training.seq_len");
    let batch = (a.batch.global != b.batch.global, "the global batch size");
    let order = Sharing::unless(&[(a.seeds.order != b.seeds.order, "the seed"), corpus, length, batch]);
    let masks = if !a.drops_elements() && !b.drops_elements() {
        Sharing::NotDrawn
    } else {
        Sharing::unless(&[
            (a.seeds.dropout != b.seeds.dropout, "the seed"),
            (a.model.dropout != b.model.dropout, "model.dropout"),
            (a.model.definition != b.model.definition, "model.definition"),
            (a.model.dim != b.model.dim, "model.dim"),
            (a.model.n_heads != b.model.n_heads, "model.n_heads"),
            length,
            batch,
        ])
    };
    SharedRandomness { parameters: shared_parameters(a, b), order, masks }
}

fn shared_parameters(a: &Plan, b: &Plan) -> SharedParameters {
    let drawn = |plan: &Plan| -> BTreeMap<String, ([u32; 2], Vec<usize>, f64)> {
        let with_key = |(index, param): (usize, ParamRequest)| match param.init {
            Init::Normal(deviation) => {
                let key = plan.seeds.initial_values_key(index, &param.name);
                Some((param.name, (key, param.shape, deviation)))
            }
            Init::Constant(_) => None,
        };
        ModelTensors::new(plan).trained.into_iter().enumerate().filter_map(with_key).collect()
    };
    let (a, b) = (drawn(a), drawn(b));
    let shared = a.iter().filter(|(name, values)| b.get(*name) == Some(values)).count();
    let in_b_alone = b.keys().filter(|name| !a.contains_key(*name)).count();
    SharedParameters { shared, of: a.len() + in_b_alone }
}

impl fmt::Display for SharedRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SharedParameters { shared, of } = self.parameters;
        let (mut common, mut other) = (Vec::new(), Vec::new());
        match shared {
            0 => other.push("initial values".to_owned()),
            shared if shared == of => common.push("initial values".to_owned()),
            shared => common.push(format!("initial values of {shared} of {of} parameters")),
        }
        for (what, sharing) in [("data order", &self.order), ("dropout masks", &self.masks)] {
            match sharing {
                Sharing::Shared => common.push(what.to_owned()),
                Sharing::NotDrawn => {}
                Sharing::Differs(why) => other.push(format!("{what} (differs in {})", why.join(", "))),
            }
        }
        match (common.is_empty(), other.is_empty()) {
            (_, true) => write!(f, "shared: {}", common.join(", ")),
            (true, false) => write!(f, "not shared: {}", other.join(", ")),
            (false, false) => write!(f, "shared: {}; not shared: {}", common.join(", "), other.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::plan::CorpusFacts;
    use crate::recipe;
    use std::path::Path;

    const TWO_BLOCKS: &str = "[model]\ndim = 32\nn_layers = 2\nn_heads = 2\n[training]\nseq_len = 16\n";

    fn planned(settings: &[&str]) -> (Recipe, Plan) {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let machine = Machine::none();
        let recipe =
            recipe::load_str(Path::new("r.toml"), TWO_BLOCKS, &settings, std::iter::empty(), &machine)
                .unwrap();
        let corpus = CorpusFacts {
            vocab_size: 100,
            train_tokens: 10_000,
            exact: true,
            validation_tokens: 1000,
            ..CorpusFacts::default()
        };
        let plan = Plan::new(&recipe, &corpus, &machine).unwrap();
        (recipe, plan)
    }

    fn shared(a: &[&str], b: &[&str]) -> SharedRandomness {
        let ((recipe_a, plan_a), (recipe_b, plan_b)) = (planned(a), planned(b));
        shared_randomness((&recipe_a, &plan_a), (&recipe_b, &plan_b))
    }

    fn in_words(b: &[&str]) -> String {
        shared(&[], b).to_string()
    }

    /// The head, the embedding, and four matrices in each of two blocks are drawn.
    #[test]
    fn what_a_change_leaves_alike_is_shared() {
        let all = "shared: initial values, data order";
        for alike in ["optimizer.lr=5.0", "model.qk_norm=false", "model.norm=layer_norm", "training.steps=5"]
        {
            assert_eq!(in_words(&[alike]), all, "{alike}");
        }
        assert_eq!(shared(&[], &[]).parameters, SharedParameters { shared: 10, of: 10 });
        assert_eq!(
            in_words(&["model.tie_embeddings=true"]),
            "shared: initial values of 9 of 10 parameters, data order"
        );
        // The new block's four matrices are drawn only once, and the deviation of those that write the
        // residual stream depends on the depth.
        assert_eq!(
            in_words(&["model.n_layers=3"]),
            "shared: initial values of 6 of 14 parameters, data order"
        );
        assert_eq!(
            in_words(&["training.seed=4"]),
            "not shared: initial values, data order (differs in the seed)"
        );
        assert_eq!(
            in_words(&["training.local_batch_size=16", "data.corpus=random"]),
            "shared: initial values; not shared: data order (differs in the corpus, the global batch size)"
        );
        assert_eq!(in_words(&["data.cross_documents=false"]), all, "the same windows");
    }

    #[test]
    fn masks_are_shared_where_their_coordinates_are() {
        let masks = |b: &[&str]| shared(&["model.dropout=0.1"], &[b, &["model.dropout=0.1"]].concat()).masks;
        assert_eq!(masks(&["model.n_layers=1"]), Sharing::Shared);
        assert_eq!(masks(&["seeds.dropout=4"]), Sharing::Differs(vec!["the seed".to_owned()]));
        assert_eq!(masks(&["model.dim=64"]), Sharing::Differs(vec!["model.dim".to_owned()]));
        assert_eq!(shared(&[], &[]).masks, Sharing::NotDrawn);
        let of_text = shared(&["model.definition=gpt2", "model.dropout=0.1"], &["model.dropout=0.1"]).masks;
        assert_eq!(of_text, Sharing::Differs(vec!["model.definition".to_owned()]));
        let unread = ["model.definition=llama", "model.dropout=0.1"];
        assert_eq!(shared(&unread, &unread).masks, Sharing::NotDrawn, "the text reads no dropout");
        let one_side = shared(&["model.dropout=0.1"], &[]).masks;
        assert_eq!(one_side, Sharing::Differs(vec!["model.dropout".to_owned()]));
    }

    #[test]
    fn by_index_an_added_parameter_shifts_later_ones() {
        let index = "seeds.scheme=index";
        let both = shared(&[index], &[index]).parameters;
        assert_eq!(both, SharedParameters { shared: 10, of: 10 });
        let shifted = shared(&[index], &[index, "model.qk_norm=false"]).parameters;
        // The head is shared, and in the last block, what comes before the norms of queries and keys: three
        // matrices.
        assert_eq!(shifted, SharedParameters { shared: 4, of: 10 });
        assert_eq!(shared(&[], &[index]).parameters.shared, 0, "by name and by index");
    }
}
