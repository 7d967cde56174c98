//! Which keys of a recipe a text reads, for whatever values of them.

use super::functions::{Call, Signature};
use super::names::KEY_NAMES;
use super::tree::{CallArgument, Expression, ExpressionKind, ModelText, Part};
use std::collections::BTreeSet;

/// Keys of `[model]` that count for every model: its size, what its context and vocabulary follow from, and
/// how initial values are found.
const ALWAYS: [&str; 7] =
    ["definition", "init_from", "init_optimizer", "n_layers", "parametrization", "base_dim", "vocab_size"];

/// Keys that a rotation reads unless its arguments replace them, and those arguments.
const OF_ROPE: [(&str, &str); 3] =
    [("rope_theta", "theta"), ("rope_fraction", "width"), ("rope_direction", "reversed")];

/// Keys that a rotation reads in any case.
const SCALING: [&str; 8] = [
    "rope_scaling",
    "rope_factor",
    "rope_original_context",
    "rope_beta_fast",
    "rope_beta_slow",
    "rope_attention_factor",
    "rope_low_freq_factor",
    "rope_high_freq_factor",
];

impl ModelText {
    /// Returns the keys of `[model]` that the text reads, without the section: those that it names, and those
    /// that its functions read by themselves.
    pub fn keys(&self) -> BTreeSet<&str> {
        let mut keys: BTreeSet<&str> = ALWAYS.into();
        self.statements.iter().for_each(|statement| add(&statement.value, &mut keys));
        keys
    }

    /// Returns true if the text has a table of positions.
    pub fn looks_up_positions(&self) -> bool {
        let is_positions = |argument: &CallArgument| match &argument.value.kind {
            ExpressionKind::Name(name) => &**name == "positions",
            _ => false,
        };
        self.calls(|_, signature, arguments| {
            signature.call == Call::Embedding && arguments.iter().any(is_positions)
        })
    }

    /// Returns true if the part `head` has a product with a matrix of its own.
    pub fn has_own_head(&self) -> bool {
        let is_shared =
            |argument: &CallArgument| argument.name.as_ref().is_some_and(|(name, _)| &**name == "weight");
        self.calls(|part, signature, arguments| {
            part == Part::Head && signature.call == Call::Linear && !arguments.iter().any(is_shared)
        })
    }

    /// Returns the roles that the text gives to parameters.
    pub fn roles(&self) -> BTreeSet<&str> {
        let mut roles = BTreeSet::new();
        let mut rest: Vec<(&Expression, bool)> =
            self.statements.iter().map(|statement| (&statement.value, false)).collect();
        while let Some((expression, is_role)) = rest.pop() {
            match &expression.kind {
                ExpressionKind::Word(word) if is_role => _ = roles.insert(&**word),
                ExpressionKind::Call { arguments, .. } => rest.extend(arguments.iter().map(|argument| {
                    let is_role = argument.name.as_ref().is_some_and(|(name, _)| &**name == "role");
                    (&argument.value, is_role)
                })),
                kind => rest.extend(kind.operands().map(|operand| (operand, is_role))),
            }
        }
        roles
    }

    /// Returns true if the text drops elements at a rate of its own, and not at that of `model.dropout`.
    pub fn has_own_dropout(&self) -> bool {
        let is_key =
            |rate: &Expression| matches!(&rate.kind, ExpressionKind::Key(key) if &**key == "dropout");
        self.calls(|_, signature, arguments| {
            let rate = match signature.call {
                Call::Dropout => given(signature, arguments, "p"),
                Call::Attention => given(signature, arguments, "dropout"),
                _ => None,
            };
            rate.is_some_and(|rate| !is_key(rate))
        })
    }

    /// Returns true if a call in the text is one of these.
    fn calls(&self, is_wanted: impl Fn(Part, &Signature, &[CallArgument]) -> bool) -> bool {
        let mut rest: Vec<(Part, &Expression)> =
            self.statements.iter().map(|statement| (statement.part, &statement.value)).collect();
        while let Some((part, expression)) = rest.pop() {
            if let ExpressionKind::Call { function, arguments, .. } = &expression.kind
                && Signature::find(function).is_some_and(|signature| is_wanted(part, signature, arguments))
            {
                return true;
            }
            rest.extend(expression.kind.operands().map(|operand| (part, operand)));
        }
        false
    }
}

fn add<'a>(expression: &'a Expression, keys: &mut BTreeSet<&'a str>) {
    match &expression.kind {
        ExpressionKind::Key(key) if &**key == "gated" => _ = keys.insert("activation"),
        ExpressionKind::Key(key) => _ = keys.insert(key),
        ExpressionKind::Name(name) => {
            let known = KEY_NAMES.iter().find(|(known, _)| *known == &**name);
            keys.extend(known.and_then(|(_, key)| key.strip_prefix("model.")));
        }
        ExpressionKind::Call { function, arguments, .. } => {
            if let Some(signature) = Signature::find(function) {
                add_of_call(signature, arguments, keys);
            }
        }
        _ => {}
    }
    expression.kind.operands().for_each(|operand| add(operand, keys));
}

/// Returns the argument of a call that has this name, whether it is written or follows from its place.
fn given<'a>(signature: &Signature, arguments: &'a [CallArgument], wanted: &str) -> Option<&'a Expression> {
    let at = signature.arguments.iter().position(|argument| argument.name == wanted);
    let mut found = arguments.iter().enumerate().filter(|(index, argument)| match &argument.name {
        Some((name, _)) => **name == *wanted,
        None => Some(*index) == at,
    });
    found.next().map(|(_, argument)| &argument.value)
}

/// Adds the keys that a function reads for the arguments that a call leaves out.
fn add_of_call(signature: &Signature, arguments: &[CallArgument], keys: &mut BTreeSet<&str>) {
    let gives = |wanted: &str| given(signature, arguments, wanted).is_some();
    match signature.call {
        Call::Embedding | Call::Linear if !gives("weight") => {
            keys.insert("init_std");
            let initial =
                arguments.iter().find(|a| a.name.as_ref().is_some_and(|(name, _)| &**name == "init"));
            if let Some(CallArgument { value: Expression { kind: ExpressionKind::Word(word), .. }, .. }) =
                initial
                && &**word == "residual"
            {
                keys.insert("residual_init");
            }
        }
        Call::RmsNorm | Call::LayerNorm if !gives("eps") => _ = keys.insert("norm_eps"),
        Call::Norm => keys.extend(["norm", "norm_weight", "norm_bias", "norm_eps"]),
        Call::Rope => {
            keys.extend(SCALING);
            keys.extend(OF_ROPE.into_iter().filter(|(_, argument)| !gives(argument)).map(|(key, _)| key));
        }
        Call::Dropout if !gives("p") => _ = keys.insert("dropout"),
        Call::Activation => _ = keys.insert("activation"),
        _ => {}
    }
}
