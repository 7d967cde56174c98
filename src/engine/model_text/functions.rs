//! The functions of model texts, besides those of formulas.

use crate::expression::Function;
use crate::suggest::nearest;

/// Which function a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Embedding,
    Linear,
    RmsNorm,
    LayerNorm,
    Norm,
    Rope,
    Attention,
    Heads,
    Slice,
    Concat,
    Shift,
    Dropout,
    Activation,
    Sum,
    Mean,
    Scalar,
    Vector,
    Normal,
    Floor,
    Ceil,
}

/// A function that texts may call.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    pub(super) call: Call,
    /// Name.
    pub name: &'static str,
    /// Arguments, those without a default first.
    pub arguments: &'static [Argument],
    /// Index of an argument that may be given several times, as the last ones without a name.
    pub repeated: Option<usize>,
    /// One sentence about the result.
    pub meaning: &'static str,
}

/// An argument of a function.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Name.
    pub name: &'static str,
    /// What holds without the argument; empty if it must be given.
    pub default: &'static str,
}

impl Signature {
    /// Returns the function called `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        FUNCTIONS.iter().find(|signature| signature.name == name)
    }

    /// Returns a call with all arguments, such as `slice(x, from, to)`. Those that may be left out have their
    /// defaults.
    pub fn call(&self) -> String {
        let argument = |(index, argument): (usize, &Argument)| {
            let more = if self.repeated == Some(index) { ", …" } else { "" };
            match argument.default {
                "" => format!("{}{more}", argument.name),
                default => format!("{} = {default}", argument.name),
            }
        };
        let arguments: Vec<String> = self.arguments.iter().enumerate().map(argument).collect();
        format!("{}({})", self.name, arguments.join(", "))
    }
}

/// Returns calls of the functions that texts share with formulas, which work element by element.
pub fn element_functions() -> Vec<String> {
    Function::ALL.iter().map(|function| function.call()).collect()
}

/// Returns true if texts may call `name`.
pub(super) fn is_function(name: &str) -> bool {
    Signature::find(name).is_some() || Function::from_name(name).is_some()
}

/// Returns the next step for a call of `name`, which is no function.
pub(super) fn unknown_function(name: &str) -> String {
    const LIST: &str = "`xrun model functions` lists the functions";
    let own = FUNCTIONS.iter().map(|signature| signature.name);
    match (name, nearest(name, own.chain(Function::ALL.iter().map(|function| function.name())))) {
        ("softmax", _) => format!("only attention(q, k, v) has a softmax; {LIST}"),
        ("matmul" | "mm" | "bmm" | "einsum", _) => {
            format!("linear(x, width) multiplies by a trained matrix; {LIST}")
        }
        (_, Some(near)) => format!("did you mean {near}? {LIST}"),
        (_, None) => LIST.to_owned(),
    }
}

const fn needed(name: &'static str) -> Argument {
    Argument { name, default: "" }
}

const fn optional(name: &'static str, default: &'static str) -> Argument {
    Argument { name, default }
}

const INIT: Argument = optional("init", "none");
const ROLE: Argument = optional("role", "none");
const DECAY: Argument = optional("decay", "none");
const NAME: Argument = optional("name", "none");
const X: Argument = needed("x");

const fn signature(
    call: Call,
    name: &'static str,
    arguments: &'static [Argument],
    meaning: &'static str,
) -> Signature {
    Signature { call, name, arguments, repeated: None, meaning }
}

/// Every function of model texts alone, in the order of the manual.
pub const FUNCTIONS: &[Signature] = &[
    signature(
        Call::Embedding,
        "embedding",
        &[needed("ids"), needed("width"), INIT, ROLE, DECAY, NAME],
        "rows of a trained table: one per token for `tokens`, one per position for `positions`",
    ),
    Signature {
        repeated: Some(1),
        ..signature(
            Call::Linear,
            "linear",
            &[
                X,
                needed("width"),
                optional("bias", "false"),
                optional("stack", "1"),
                optional("weight", "none"),
                INIT,
                ROLE,
                DECAY,
                NAME,
            ],
            "the product of whole rows with a trained matrix",
        )
    },
    signature(
        Call::RmsNorm,
        "rms_norm",
        &[X, optional("weight", "true"), optional("eps", "norm_eps"), NAME],
        "each head divided by its root mean square, times a trained weight",
    ),
    signature(
        Call::LayerNorm,
        "layer_norm",
        &[X, optional("weight", "true"), optional("bias", "true"), optional("eps", "norm_eps"), NAME],
        "each head less its mean, divided by its standard deviation, times a weight, plus a bias",
    ),
    signature(
        Call::Norm,
        "norm",
        &[X, NAME],
        "the norm that `model.norm`, `norm_weight` and `norm_bias` describe",
    ),
    signature(
        Call::Rope,
        "rope",
        &[
            X,
            optional("theta", "model.rope_theta"),
            optional("width", "none"),
            optional("reversed", "model.rope_direction == \"negative\""),
        ],
        "the first `width` elements of each head rotated by position, or `model.rope_fraction` of them; scaled as `model.rope_scaling` says",
    ),
    signature(
        Call::Attention,
        "attention",
        &[
            needed("q"),
            needed("k"),
            needed("v"),
            optional("window", "none"),
            optional("cap", "none"),
            optional("scale", "none"),
            optional("dropout", "0"),
            optional("sinks", "none"),
        ],
        "causal attention of the heads of `q` to those of `k` and `v`, which several heads of `q` may share; without `scale`, scores are divided by √width; `sinks`, a vector with a number for each head of `q`, are scores without values",
    ),
    signature(
        Call::Heads,
        "heads",
        &[X, needed("n")],
        "the same elements divided into `n` heads; 1 undoes it",
    ),
    signature(
        Call::Slice,
        "slice",
        &[X, needed("from"), needed("to")],
        "elements from `from` to before `to` of each head",
    ),
    Signature {
        repeated: Some(0),
        ..signature(Call::Concat, "concat", &[X], "the elements of all arguments side by side, head by head")
    },
    signature(
        Call::Shift,
        "shift",
        &[X, needed("n")],
        "the rows `n` tokens earlier, from 0 to 64, in the same document; zeros where there is none",
    ),
    signature(
        Call::Dropout,
        "dropout",
        &[X, optional("p", "model.dropout")],
        "in training, zeros with probability `p`, and the rest scaled up",
    ),
    signature(
        Call::Activation,
        "activation",
        &[needed("a"), optional("b", "none")],
        "the recipe's `model.activation`; `b` only if it is gated",
    ),
    signature(Call::Sum, "sum", &[X], "the sum over each head, of width 1"),
    signature(Call::Mean, "mean", &[X], "the mean over each head, of width 1"),
    signature(Call::Scalar, "scalar", &[needed("init"), ROLE, DECAY, NAME], "a trained number"),
    signature(
        Call::Vector,
        "vector",
        &[needed("width"), needed("init"), ROLE, DECAY, NAME],
        "trained numbers, the same for all rows",
    ),
    signature(
        Call::Normal,
        "normal",
        &[needed("std")],
        "for `init`: normal with mean 0 and this standard deviation",
    ),
    signature(Call::Floor, "floor", &[X], "a number, rounded down"),
    signature(Call::Ceil, "ceil", &[X], "a number, rounded up"),
];
