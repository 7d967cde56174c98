//! Reads the definition of a model: a text in a recipe, a file of one, or the name of a built-in one.

use super::diagnostic::text_error;
use super::scalars::InvalidValue;
use crate::error::Error;
use crate::format::shortened;
use crate::model_text::{MAX_BYTES, Mistake, ModelText, built_in, texts};
use crate::regular;
use std::ops::Range;
use std::path::Path;

/// The key of the definition.
pub(super) const KEY: &str = "model.definition";

/// Returns the canonical text of the definition `written`, so that a recipe with it needs no other file. A
/// path is relative to `folder`. `raw` is the value as it stands in the recipe, from byte `start` on.
///
/// # Errors
/// If the file cannot be read, or the first mistake in the text.
pub(super) fn canonical_definition(
    written: &str,
    folder: &Path,
    (raw, start): (&str, usize),
) -> Result<String, InvalidValue> {
    let whole = start..start + raw.len();
    let refused = |span: Range<usize>, title: String, label: String, help: String| InvalidValue {
        span,
        title,
        label,
        help,
    };
    if let Some(text) = built_in(written) {
        return Ok(ModelText::parse(text).expect("a built-in text is valid").text().to_owned());
    }
    if written.contains('\n') {
        let wrong = |Mistake { at, label, help, .. }: Mistake| {
            // Without escapes, the text stands in the recipe as it is.
            let found = raw.find(written).map(|from| start + from + at.start..start + from + at.end);
            refused(
                found.unwrap_or(whole.clone()),
                "model.definition describes no model".to_owned(),
                label,
                help,
            )
        };
        return ModelText::parse(written).map(|text| text.text().to_owned()).map_err(wrong);
    }
    let path = folder.join(super::home::expand_home(written));
    let shown = shortened(&path.display().to_string(), 80);
    let text = read(&path).map_err(|e| {
        let names = texts().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        let help = format!(
            "model.definition is a text with the lines embed:, block: and head:, a file of one, or one of {names}"
        );
        refused(whole.clone(), e, "not read".to_owned(), help)
    })?;
    ModelText::parse(&text).map(|text| text.text().to_owned()).map_err(
        |Mistake { at, label, help, .. }| {
            let before = &text[..at.start];
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
            let title = format!("{shown}:{line}:{column} describes no model: {label}");
            refused(whole.clone(), title, "`xrun model check` shows the line".to_owned(), help)
        },
    )
}

/// Replaces the definitions in a table of settings, or of settings with lists of values, by canonical texts.
///
/// # Errors
/// As [`canonical_definition`].
pub(super) fn canonical_definitions(
    settings: &mut toml::Table,
    folder: &Path,
    at: (&str, usize),
) -> Result<(), InvalidValue> {
    let replace = |value: &mut toml::Value| match value {
        toml::Value::String(written) => {
            *written = canonical_definition(written, folder, at)?;
            Ok(())
        }
        _ => Ok(()),
    };
    match settings.get_mut(KEY) {
        Some(toml::Value::Array(values)) => values.iter_mut().try_for_each(replace),
        Some(value) => replace(value),
        None => Ok(()),
    }
}

/// Returns a short name of a canonical text for tables and labels: that of a built-in text, or the beginning
/// of the hash that `xrun model check` prints.
pub fn definition_label(text: &str) -> String {
    let Ok(parsed) = ModelText::parse(text) else { return "text".to_owned() };
    let is_it =
        |(_, text): &(&str, &str)| ModelText::parse(text).is_ok_and(|own| own.text() == parsed.text());
    match texts().find(is_it) {
        Some((name, _)) => name.to_owned(),
        None => format!("text {}", &parsed.hash()[..8]),
    }
}

/// Returns the error about a mistake in a model text, shown as mistakes in recipes are.
pub fn model_text_error(path: &Path, text: &str, Mistake { at, label, help, layer }: Mistake) -> Error {
    let mut title = format!("{} describes no model", path.display());
    if let Some(layer) = layer {
        title += &format!(": block {layer} is wrong");
    }
    text_error((path, text), &title, (at, &label), &help)
}

/// Reads a text of at most [`MAX_BYTES`] bytes.
fn read(path: &Path) -> Result<String, String> {
    let bytes = regular::read_through_link(path, MAX_BYTES as u64).map_err(|e| e.message().to_owned())?;
    String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::definition_label;
    use crate::machine::Machine;
    use crate::recipe::{Recipe, diff, load, load_str};
    use std::path::Path;

    const TEXT: &str = "embed:\n  x = embedding(tokens, dim)\nblock:\n  x = x + linear(x, dim)\nhead:\n  \
                        logits = linear(x, vocab_size)\n";

    fn recipe(text: &str) -> Result<Recipe, String> {
        let recipe = load_str(Path::new("r.toml"), text, &[], std::iter::empty(), &Machine::none());
        recipe.map_err(|e| e.message().to_owned())
    }

    fn with_text(text: &str) -> String {
        format!("[model]\nn_layers = 3\ndefinition = \"\"\"\n{text}\"\"\"\n")
    }

    #[test]
    fn a_text_is_canonical_whether_it_stands_in_the_recipe_or_in_a_file() {
        let commented =
            TEXT.replace("block:", "# A comment.\nblock:").replace("x + linear(x, dim)", "(x+linear(x,dim))");
        let (plain, other) = (recipe(&with_text(TEXT)).unwrap(), recipe(&with_text(&commented)).unwrap());
        assert_eq!(plain.hash(), other.hash());
        assert_eq!(plain.values().model.definition, other.values().model.definition);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine.model"), &commented).unwrap();
        let path = folder.path().join("r.toml");
        std::fs::write(&path, "[model]\nn_layers = 3\ndefinition = \"mine.model\"\n").unwrap();
        let of_file = load(&path, &[], std::iter::empty(), &Machine::none()).unwrap();
        assert_eq!(of_file.hash(), plain.hash());
        // The copy and the resolved recipe need no other file.
        for text in [of_file.copy(), &of_file.to_toml()] {
            assert_eq!(recipe(text).unwrap().values().model, of_file.values().model, "{text}");
        }
        let changed = recipe(&with_text(&TEXT.replace("x + linear", "x - linear"))).unwrap();
        assert_ne!(changed.hash(), plain.hash());
    }

    #[test]
    fn texts_of_a_comparison_and_a_sweep_stand_beside_the_recipe_and_in_its_copy() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine.model"), TEXT).unwrap();
        let path = folder.path().join("r.toml");
        let settings = "[compare]\nchange = { \"model.definition\" = \"mine.model\" }\n[sweep]\n\
                        grid = { \"model.definition\" = [\"llama\", \"mine.model\"] }\n";
        std::fs::write(&path, settings).unwrap();
        let of_file = load(&path, &[], std::iter::empty(), &Machine::none()).unwrap();
        let canonical = recipe(&with_text(TEXT)).unwrap().values().model.definition.clone();
        for text in [of_file.copy(), &of_file.to_toml()] {
            let recipe = recipe(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let changed = recipe.values().compare.change["model.definition"].as_str().map(str::to_owned);
            assert_eq!(changed, canonical, "{text}");
        }
        let wrong = recipe("[compare]\nchange = { \"model.definition\" = \"no.model\" }\n").unwrap_err();
        assert!(wrong.contains("no.model") && wrong.contains("r.toml:2:10"), "{wrong}");
    }

    #[test]
    fn a_text_has_a_short_label() {
        let own = recipe(&with_text(TEXT)).unwrap();
        let label = definition_label(own.values().model.definition.as_deref().unwrap());
        assert!(label.starts_with("text ") && label.len() == 13, "{label}");
        let built_in = recipe("[model]\ndefinition = \"llama\"\n").unwrap();
        assert_eq!(definition_label(built_in.values().model.definition.as_deref().unwrap()), "llama");
        let changes = diff(own.values(), built_in.values());
        let change = changes.iter().find(|change| change.key == "model.definition").unwrap();
        assert_eq!([&change.old, &change.new], [&label, "llama"]);
    }

    #[test]
    fn mistakes_are_shown_where_they_are() {
        let wrong = recipe(&with_text(&TEXT.replace("linear(x, dim)", "linear(x, dim))"))).unwrap_err();
        assert!(wrong.contains("r.toml:7:25") && wrong.contains("  x = x + linear(x, dim))"), "{wrong}");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("mine.model"), "embed:\n  x = \n").unwrap();
        let path = folder.path().join("r.toml");
        std::fs::write(&path, "model.definition = \"mine.model\"\n").unwrap();
        let wrong = load(&path, &[], std::iter::empty(), &Machine::none()).unwrap_err();
        assert!(wrong.message().contains("mine.model:2:6"), "{wrong}");
        let wrong = recipe("model.definition = \"no.model\"").unwrap_err();
        assert!(wrong.contains("no.model") && wrong.contains("nanochat"), "{wrong}");
    }

    #[test]
    fn keys_that_a_text_does_not_read_have_no_effect() {
        let text =
            format!("{}dropout = 0.1\nnorm = \"layer_norm\"\nresidual_init = \"zero\"\n", with_text(TEXT));
        let idle =
            |text: &str| recipe(text).unwrap().idle_keys(false).into_iter().map(|idle| idle.key).collect();
        let found: Vec<&str> = idle(&text);
        assert_eq!(found, ["model.dropout", "model.norm", "model.residual_init"]);
        let reads = "norm(x + dropout(linear(x, dim, init = \"residual\", name = \"out\")))";
        let found: Vec<&str> = idle(&text.replace("x + linear(x, dim)", reads));
        assert_eq!(found, [""; 0]);
        // The seed of dropout counts where a text has a rate of its own.
        let seeded = format!(
            "{}[seeds]\ndropout = 4\n",
            with_text(&TEXT.replace("linear(x, dim)", "dropout(linear(x, dim), 0.1)"))
        );
        let found: Vec<&str> = idle(&seeded);
        assert_eq!(found, [""; 0]);
        let found: Vec<&str> = idle(&seeded.replace(", 0.1)", ")"));
        assert_eq!(found, ["seeds.dropout"]);
    }
}
