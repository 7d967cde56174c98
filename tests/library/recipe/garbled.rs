//! Garbled recipes end in a message, never in a panic.

use proptest::prelude::*;
use std::path::Path;
use xrun::error::ErrorKind;
use xrun::machine::Machine;
use xrun::recipe::{self, KEYS, builtin};

/// Loading ends with a recipe that survives being written, or with a usage error; it never panics.
fn survives(text: &str, overrides: &[String]) -> Result<(), TestCaseError> {
    match recipe::load_str(Path::new("garbled.toml"), text, overrides, std::iter::empty(), &Machine::none()) {
        Ok(recipe) => {
            let again = recipe::load_str(
                Path::new("again.toml"),
                &recipe.to_toml(),
                &[],
                std::iter::empty(),
                &Machine::none(),
            );
            prop_assert_eq!(again.map(|r| r.values().clone()), Ok(recipe.values().clone()));
        }
        Err(error) => {
            prop_assert_eq!(error.kind(), ErrorKind::Usage);
            prop_assert!(!error.message().is_empty());
        }
    }
    Ok(())
}

/// Values that are wrong for most keys.
fn nasty() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("-1".to_owned()),
        Just("nan".to_owned()),
        Just("-inf".to_owned()),
        Just("1e999".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("9".repeat(400)),
        Just("0xffff_ffff_ffff_ffff".to_owned()),
        Just("\"\"".to_owned()),
        Just("\"é\u{200b}\t\"".to_owned()),
        Just("[]".to_owned()),
        Just("[[[[]]]]".to_owned()),
        Just("{}".to_owned()),
        Just("{ \"model.dim\" = [1, 2] }".to_owned()),
        Just("[{ model = { dim = 3 } }]".to_owned()),
        Just("1979-05-27T07:32:00Z".to_owned()),
        Just("true".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|x| format!("{x:?}")),
        "\\PC{0,20}",
    ]
}

/// A valid recipe, in words and signs.
fn tokens() -> impl Strategy<Value = Vec<String>> {
    (0..builtin::RECIPES.len()).prop_map(|i| {
        let (name, text) = builtin::RECIPES[i];
        let long = recipe::load(Path::new(name), &[], std::iter::empty(), &Machine::none())
            .map(|r| r.to_toml())
            .unwrap_or_default();
        let text = if i % 2 == 0 { text } else { long.as_str() };
        let mut tokens: Vec<String> = Vec::new();
        for c in text.chars() {
            match tokens.last_mut() {
                Some(last) if c.is_alphanumeric() && last.chars().all(char::is_alphanumeric) => last.push(c),
                _ => tokens.push(c.to_string()),
            }
        }
        tokens
    })
}

proptest! {
    #[test]
    fn mutated_recipes_never_panic(
        mut tokens in tokens(),
        changes in prop::collection::vec((0..5_u8, any::<prop::sample::Index>(), nasty()), 1..6),
    ) {
        for (kind, index, value) in changes {
            if tokens.is_empty() {
                break;
            }
            let at = index.index(tokens.len());
            match kind {
                0 => drop(tokens.remove(at)),
                1 => tokens.insert(at, tokens[at].clone()),
                2 => tokens[at] = value,
                3 => tokens.insert(at, value),
                _ => tokens.truncate(at),
            }
        }
        survives(&tokens.concat(), &[])?;
    }

    #[test]
    fn any_value_of_any_key_never_panics(
        settings in prop::collection::vec((any::<prop::sample::Index>(), nasty()), 1..4),
    ) {
        let settings: Vec<String> =
            settings.iter().map(|(key, value)| format!("{}={value}", KEYS[key.index(KEYS.len())].path)).collect();
        survives("", &settings)?;
        survives(&settings.join("\n"), &[])?;
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,80}") {
        survives(&String::from_utf8_lossy(&bytes), std::slice::from_ref(&text))?;
        survives(&text, &[])?;
    }
}
