//! A parsed model text.

use std::ops::Range;

/// A part of a model text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// From tokens to the first rows.
    Embed,
    /// Repeated for every layer.
    Block,
    /// From the last rows to the logits.
    Head,
}

impl Part {
    /// Every part, in the order of a text.
    pub const ALL: [Self; 3] = [Self::Embed, Self::Block, Self::Head];

    /// Returns the word that begins the part.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Block => "block",
            Self::Head => "head",
        }
    }
}

/// A model text within all limits. Two texts are equal if they differ only in spaces, comments, unnecessary
/// parentheses and the spelling of numbers.
#[derive(Clone, Debug)]
pub struct ModelText {
    /// The statements of all parts, in order.
    pub(super) statements: Vec<Statement>,
    /// The byte range of each part's word.
    pub(super) parts: [Range<usize>; 3],
    pub(super) canonical: String,
}

impl PartialEq for ModelText {
    fn eq(&self, other: &Self) -> bool {
        self.canonical == other.canonical
    }
}

/// `name = value`.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub part: Part,
    pub name: Box<str>,
    pub name_at: Range<usize>,
    /// Line of the name, from 1.
    pub line: usize,
    pub value: Expression,
}

/// An expression and its byte range.
#[derive(Clone, Debug)]
pub(super) struct Expression {
    pub kind: ExpressionKind,
    pub at: Range<usize>,
}

#[derive(Clone, Debug)]
pub(super) enum ExpressionKind {
    Number(f64),
    Word(Box<str>),
    Bool(bool),
    None,
    /// A name of the text, or one that every text has, such as `dim`.
    Name(Box<str>),
    /// `model.KEY`, a key of the recipe.
    Key(Box<str>),
    /// `block[layer].name`, a value of another block.
    BlockName {
        layer: Box<Expression>,
        name: Box<str>,
    },
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Operation(Operator, Box<Expression>, Box<Expression>),
    Call {
        function: Box<str>,
        function_at: Range<usize>,
        arguments: Vec<CallArgument>,
    },
    /// Without `otherwise`, which only a whole statement may lack, the statement may not exist.
    If {
        condition: Box<Expression>,
        then: Box<Expression>,
        otherwise: Option<Box<Expression>>,
    },
}

impl ExpressionKind {
    /// Returns the expressions that it consists of.
    pub fn operands(&self) -> impl Iterator<Item = &Expression> {
        let (few, arguments): ([Option<&Expression>; 3], &[CallArgument]) = match self {
            Self::Number(_) | Self::Word(_) | Self::Bool(_) | Self::None | Self::Name(_) | Self::Key(_) => {
                ([None; 3], &[])
            }
            Self::BlockName { layer: operand, .. } | Self::Not(operand) | Self::Negative(operand) => {
                ([Some(operand), None, None], &[])
            }
            Self::Operation(_, left, right) => ([Some(left), Some(right), None], &[]),
            Self::Call { arguments, .. } => ([None; 3], arguments),
            Self::If { condition, then, otherwise } => {
                ([Some(condition), Some(then), otherwise.as_deref()], &[])
            }
        };
        few.into_iter().flatten().chain(arguments.iter().map(|argument| &argument.value))
    }
}

/// An argument of a call, with its name if it was written.
#[derive(Clone, Debug)]
pub(super) struct CallArgument {
    pub name: Option<(Box<str>, Range<usize>)>,
    pub value: Expression,
}

/// An operator between two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Power,
}

/// How tightly an expression binds, from `if` to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Binding {
    If,
    Or,
    And,
    Not,
    Comparison,
    Sum,
    Product,
    Sign,
    Power,
    Atom,
}

impl Operator {
    pub(super) const ALL: [Self; 14] = [
        Self::Or,
        Self::And,
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessEqual,
        Self::Greater,
        Self::GreaterEqual,
        Self::Add,
        Self::Subtract,
        Self::Multiply,
        Self::Divide,
        Self::Remainder,
        Self::Power,
    ];

    /// Returns the operator as written.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Or => "or",
            Self::And => "and",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::Power => "^",
        }
    }

    /// Returns how tightly it binds, and what its left and right operands must bind with at least.
    pub(super) const fn bindings(self) -> [Binding; 3] {
        use Binding::{And, Atom, Comparison, Not, Or, Power, Product, Sign, Sum};
        match self {
            Self::Or => [Or, Or, And],
            Self::And => [And, And, Not],
            Self::Equal
            | Self::NotEqual
            | Self::Less
            | Self::LessEqual
            | Self::Greater
            | Self::GreaterEqual => [Comparison, Sum, Sum],
            Self::Add | Self::Subtract => [Sum, Sum, Product],
            Self::Multiply | Self::Divide | Self::Remainder => [Product, Product, Sign],
            // Associates to the right; `x^-1` has a sign in its exponent.
            Self::Power => [Power, Atom, Sign],
        }
    }
}

impl ExpressionKind {
    pub(super) fn binding(&self) -> Binding {
        match self {
            Self::If { .. } => Binding::If,
            Self::Not(_) => Binding::Not,
            Self::Negative(_) => Binding::Sign,
            Self::Operation(operator, ..) => operator.bindings()[0],
            _ => Binding::Atom,
        }
    }
}
