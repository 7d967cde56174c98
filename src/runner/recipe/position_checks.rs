//! Checks the keys of the rotary embedding and of the norms of queries and keys: each key must have an effect
//! given the others, and the numbers must fit together.

use super::derived;
use super::diagnostic::Diagnostic;
use super::loaded::Recipe;
use super::schema::KEYS;
use super::toml_text::Texts;
use crate::policy::{Position, QkNormPlace, RopeScaling};

const POSITION: &str = "model.position";
const SCALING: &str = "model.rope_scaling";
const PLACE: &str = "model.qk_norm_place";

/// Reports contradictions among these keys.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    norms(recipe, found);
    if recipe.values().model.position == Position::Rope {
        share(recipe, found);
        scaling(recipe, found);
    } else {
        without_rotation(recipe, found);
    }
}

/// Reports settings of query and key norms in a model without them.
fn norms(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let model = &recipe.values().model;
    let set = [
        (PLACE, model.qk_norm_place != QkNormPlace::BeforeRope),
        ("model.qk_norm_weight", !model.qk_norm_weight),
    ];
    for (key, _) in set.iter().filter(|(_, set)| *set && !model.qk_norm) {
        found.push(recipe.diagnostic(
            &[key, "model.qk_norm"],
            "queries and keys have no norm, so this sets nothing",
            format!("set model.qk_norm = true, or leave {key} unset"),
        ));
    }
}

/// Returns the keys of the rotation whose values are not the defaults.
fn changed_rotation(recipe: &Recipe) -> impl Iterator<Item = &'static str> {
    let texts = Texts::new(recipe.values());
    let rotation = KEYS.iter().filter(|key| key.path.starts_with("model.rope_"));
    rotation.filter(move |key| texts.is_changed(key)).map(|key| key.path)
}

/// Reports keys of a rotation in a model without rotation.
fn without_rotation(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let model = &recipe.values().model;
    let after = model.qk_norm && model.qk_norm_place == QkNormPlace::AfterRope;
    for key in changed_rotation(recipe).chain(after.then_some(PLACE)) {
        found.push(recipe.diagnostic(
            &[key, POSITION],
            format!("with model.position = \"{}\" no head is rotated", model.position),
            format!("set model.position = \"rope\", or leave {key} unset"),
        ));
    }
}

/// Reports a share of a head that is not a whole number of pairs.
fn share(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let model = &recipe.values().model;
    let head_dim = derived::head_dim(model);
    let rotated = derived::rotated_dim(head_dim, model.rope_fraction);
    // An odd head width has a report of its own.
    if (rotated >= 2 && rotated.is_multiple_of(2)) || !head_dim.is_multiple_of(2) {
        return;
    }
    let nearest = [rotated / 2 * 2, rotated / 2 * 2 + 2];
    let nearest: Vec<String> = nearest
        .into_iter()
        .filter(|rotated| (2..=head_dim).contains(rotated))
        .map(|rotated| format!("{:?} ({rotated} elements)", rotated as f64 / head_dim as f64))
        .collect();
    found.push(recipe.diagnostic(
        &["model.rope_fraction", "model.head_dim"],
        format!(
            "{:?} of a head of {head_dim} are {rotated} elements, but the rotary embedding rotates pairs",
            model.rope_fraction
        ),
        format!("take a fraction of {}", nearest.join(" or ")),
    ));
}

/// Reports numbers that a scaling lacks, does not read, or cannot work with.
fn scaling(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let model = &recipe.values().model;
    let scaling = model.rope_scaling;
    // The scalings that read each key, and whether they require it.
    use RopeScaling::{Linear, Llama3, Yarn};
    let read: [(&str, &[RopeScaling], bool); 7] = [
        ("model.rope_factor", &[Linear, Yarn, Llama3], true),
        ("model.rope_original_context", &[Yarn, Llama3], true),
        ("model.rope_beta_fast", &[Yarn], false),
        ("model.rope_beta_slow", &[Yarn], false),
        ("model.rope_attention_factor", &[Yarn], false),
        ("model.rope_low_freq_factor", &[Llama3], false),
        ("model.rope_high_freq_factor", &[Llama3], false),
    ];
    let changed: Vec<&str> = changed_rotation(recipe).collect();
    for (key, readers, needed) in read {
        let (set, reads) = (changed.contains(&key), readers.contains(&scaling));
        if set && !reads {
            let readers: Vec<String> = readers.iter().map(|word| format!("\"{word}\"")).collect();
            found.push(recipe.diagnostic(
                &[key, SCALING],
                format!("no frequency depends on {key} with model.rope_scaling = \"{scaling}\""),
                format!("set model.rope_scaling = {}, or leave {key} unset", readers.join(" or ")),
            ));
        } else if reads && needed && !set {
            let what = if key == "model.rope_factor" {
                "how many times longer the context is, such as 4.0"
            } else {
                "the context that the frequencies were chosen for, such as 8192"
            };
            found.push(recipe.diagnostic(
                &[SCALING, key],
                format!("model.rope_scaling = \"{scaling}\" needs {key}"),
                format!("set {key} to {what}"),
            ));
        }
    }
    let ordered = |low: (&str, f64), high: (&str, f64)| {
        (low.1 >= high.1).then(|| {
            recipe.diagnostic(
                &[low.0, high.0],
                format!("frequencies are ramped from {} = {:?} to {} = {:?}", low.0, low.1, high.0, high.1),
                format!("take {} below {}", low.0, high.0),
            )
        })
    };
    match scaling {
        RopeScaling::None | Linear => {}
        Yarn => {
            found.extend(ordered(
                ("model.rope_beta_slow", model.rope_beta_slow),
                ("model.rope_beta_fast", model.rope_beta_fast),
            ));
            if model.rope_theta == 1.0 {
                found.push(recipe.diagnostic(
                    &["model.rope_theta", SCALING],
                    "with model.rope_theta = 1.0 all frequencies are the same, but \"yarn\" must tell them apart",
                    "take a larger base, such as 10000.0",
                ));
            }
        }
        Llama3 => found.extend(ordered(
            ("model.rope_low_freq_factor", model.rope_low_freq_factor),
            ("model.rope_high_freq_factor", model.rope_high_freq_factor),
        )),
    }
}
