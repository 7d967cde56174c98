//! Finds the values of names.

use super::arguments::Arguments;
use super::value::Value;
use super::{Resolver, Scope};
use crate::expression::{CONSTANTS, Function};
use crate::model_text::functions::{Signature, unknown_function};
use crate::model_text::keys::KeyValue;
use crate::model_text::mistake::{Mistake, fail};
use crate::model_text::names::{INPUTS, KEY_NAMES};
use crate::model_text::tree::{Expression, ExpressionKind, Part};
use crate::suggest::nearest;
use std::ops::Range;

impl<'a> Resolver<'a> {
    /// Returns the value of a name.
    pub(super) fn named(&self, name: &str, at: &Range<usize>) -> Result<Value, Mistake> {
        if let Some(value) = self.local.get(name).or_else(|| self.shared.get(name)) {
            return Ok(value.clone());
        }
        match name {
            "tokens" => return Ok(Value::Tokens),
            "positions" => return Ok(Value::Positions),
            "layer" => match self.layer {
                Some(layer) => return Ok(Value::Number(layer as f64)),
                None => return fail(at, "outside of the part block", "only blocks have an index"),
            },
            _ => {}
        }
        let constant = CONSTANTS.iter().find(|(constant, _)| *constant == name).map(|(_, value)| *value);
        match self.keys.named(name).or(constant) {
            Some(value) => Ok(Value::Number(value)),
            None => Err(self.unknown(name, at)),
        }
    }

    fn unknown(&self, name: &str, at: &Range<usize>) -> Mistake {
        let defined = |part| self.text.statements.iter().any(|s| s.part == part && *s.name == *name);
        let (label, help) = if self.part != Part::Embed && defined(Part::Block) {
            let block = if self.part == Part::Block { "layer - 1" } else { "n_layers - 1" };
            ("has no value here", format!("the value of another block is block[{block}].{name}"))
        } else if defined(self.part) {
            ("has no value here", "a name has a value from its statement on".to_owned())
        } else if self.keys.model.contains_key(name) {
            ("unknown name", format!("the recipe's key is model.{name}"))
        } else if ["target", "targets", "label", "labels"].contains(&name) {
            let help = "a text never sees targets: it gives the logits, and the loss is the engine's";
            ("unknown name", help.to_owned())
        } else if let Some(signature) = Signature::find(name) {
            ("a function", format!("write {}", signature.call()))
        } else if let Some(function) = Function::from_name(name) {
            ("a function", format!("write {}", function.call()))
        } else {
            let own = self.local.keys().chain(self.shared.keys()).map(|name| &**name);
            let keys = KEY_NAMES.iter().map(|(name, _)| *name).chain(INPUTS).chain(["layer"]);
            let words = ["true", "false", "none"];
            let help = match nearest(name, own.chain(keys).chain(words)) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("no statement before it begins with {name} ="),
            };
            ("unknown name", help)
        };
        Mistake::new(at.clone(), label, help)
    }

    /// Checks names, keys and functions everywhere, so also in branches that are not taken.
    ///
    /// # Errors
    /// The first that does not exist.
    pub(super) fn check_all_names(&mut self) -> Result<(), Mistake> {
        let text = self.text;
        for statement in &text.statements {
            self.part = statement.part;
            self.check_names(&statement.value)?;
        }
        Ok(())
    }

    fn check_names(&self, expression: &'a Expression) -> Result<(), Mistake> {
        let at = &expression.at;
        let is_defined = |name: &str, parts: [Part; 2]| {
            let own = self.text.statements.iter().filter(|statement| *statement.name == *name);
            own.into_iter().any(|statement| parts.contains(&statement.part))
        };
        match &expression.kind {
            ExpressionKind::Name(name) => {
                let is_known = INPUTS.contains(&&**name)
                    || **name == *"layer"
                    || self.keys.named(name).is_some()
                    || CONSTANTS.iter().any(|(constant, _)| *constant == &**name);
                if !is_known && !is_defined(name, [Part::Embed, self.part]) {
                    return Err(self.unknown(name, at));
                }
            }
            ExpressionKind::Key(key) => _ = self.key(key, at)?,
            ExpressionKind::BlockName { name, .. } if !is_defined(name, [Part::Embed, Part::Block]) => {
                let help = "give it a value in the part block";
                return fail(at, format!("no block has {name}"), help);
            }
            ExpressionKind::Call { function, function_at, arguments } => match Signature::find(function) {
                Some(signature) => _ = Arguments::new(signature, arguments, at.clone())?,
                None if Function::from_name(function).is_some() => {}
                None => return fail(function_at, "unknown function", unknown_function(function)),
            },
            _ => {}
        }
        expression.kind.operands().try_for_each(|operand| self.check_names(operand))
    }

    /// Returns the value of a recipe's key.
    pub(super) fn key(&self, key: &str, at: &Range<usize>) -> Result<Value, Mistake> {
        match self.keys.model.get(key) {
            Some(KeyValue::Number(value)) => Ok(Value::Number(*value)),
            Some(KeyValue::Bool(value)) => Ok(Value::Bool(*value)),
            Some(KeyValue::Word { word, words }) => Ok(Value::Word(word.clone(), words)),
            Some(KeyValue::None) => Ok(Value::None),
            None => {
                let help = match nearest(key, self.keys.model.keys().copied()) {
                    Some(near) => format!("did you mean model.{near}?"),
                    None => "docs/recipes.md lists the keys of [model]".to_owned(),
                };
                fail(at, "no key that texts read", help)
            }
        }
    }

    /// Returns the value that `name` has at the end of an earlier block.
    pub(super) fn value_in_block(
        &mut self,
        layer: &'a Expression,
        name: &str,
        at: &Range<usize>,
    ) -> Result<Value, Mistake> {
        let index = match self.evaluate(layer)? {
            Value::Number(index) => index,
            other => return fail(&layer.at, self.described(&other), "the index of a block is a number"),
        };
        let exists = index >= 0.0 && index.fract() == 0.0;
        let Some(block) = self.blocks.get(index as usize).filter(|_| exists) else {
            let (label, help) = no_earlier_block(index, self.layer, self.blocks.len());
            return fail(&layer.at, label, help);
        };
        block
            .get(name)
            .cloned()
            .map_or_else(|| fail(at, format!("block {index} has no {name}"), help(block)), Ok)
    }
}

/// Returns what is wrong with `block[index]` in block `layer`, or outside the blocks, if `count` blocks are
/// before it, and the next step.
fn no_earlier_block(index: f64, layer: Option<usize>, count: usize) -> (String, String) {
    match (layer, count) {
        (Some(layer), 0) => (
            format!("block {index} is not before block {layer}"),
            "no block is before block 0; leave it out there: if layer > 0 then … else …".to_owned(),
        ),
        (Some(layer), _) => (
            format!("block {index} is not before block {layer}"),
            format!(
                "the blocks before block {layer} are 0 to {}; block[layer - 1] is the last of them",
                count - 1
            ),
        ),
        (None, 0) => (format!("there is no block {index}"), "no block is before the part embed".to_owned()),
        (None, _) => (
            format!("there is no block {index}"),
            format!("the blocks are 0 to {}; block[n_layers - 1] is the last", count - 1),
        ),
    }
}

/// Returns the next step if a block lacks a name.
fn help(block: &Scope) -> String {
    match block.keys().next() {
        Some(other) => format!("it has {other}, for example; a statement without else may not exist in it"),
        None => "give it a value in the part block".to_owned(),
    }
}
