//! A parsed formula.

use super::parse::{self, ParseError};
use super::scope::Scope;
use super::slopes::steps_of;
use super::steps::Steps;
use super::tree::Tree;
use std::fmt;
use std::sync::Arc;

/// Most characters in a formula, both as written and in its canonical text.
pub const MAX_LENGTH: usize = 256;

/// Most variables of a formula that is made from a tree.
pub const MAX_VARIABLES: usize = 8;

/// The names of more than two variables.
const VARIABLES: [&str; MAX_VARIABLES] = ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"];

/// A formula within all limits. Cheap to clone. Two formulas are equal if their trees are.
#[derive(Clone)]
pub struct Formula {
    tree: Arc<Tree>,
    variables: &'static [&'static str],
    /// The canonical text.
    text: Arc<str>,
    /// The steps that compute its value.
    value: Arc<Steps>,
}

impl Formula {
    /// Parses a formula.
    ///
    /// # Errors
    /// The first thing that is wrong, with its position in the text.
    pub fn parse(text: &str, scope: Scope) -> Result<Self, ParseError> {
        let help = || format!("a formula has at most {MAX_LENGTH} characters");
        if let Some((end, _)) = text.char_indices().nth(MAX_LENGTH) {
            return Err(ParseError::new(end..text.len(), "too long", help()));
        }
        let (tree, variables) = parse::parse(text, scope)?;
        let canonical = tree.text(variables);
        if canonical.len() > MAX_LENGTH {
            let label = format!("{} characters with spaces around its operators", canonical.len());
            return Err(ParseError::new(0..text.len(), label, help()));
        }
        let value = Arc::new(steps_of(&tree, None));
        Ok(Self { tree: Arc::new(tree), variables, text: canonical.into(), value })
    }

    /// Returns the formula of a tree with this many variables, from 1 to [`MAX_VARIABLES`]. One variable is
    /// called `x`, two are `a` and `b`, and more are `x0`, `x1` and so on. The length of the text is not
    /// limited, because nobody wrote it.
    pub fn from_tree(tree: Tree, variables: usize) -> Self {
        let variables = match variables {
            1 | 2 => Scope::Activation.variables()[variables - 1],
            _ => &VARIABLES[..variables],
        };
        let (text, value) = (tree.text(variables).into(), Arc::new(steps_of(&tree, None)));
        Self { tree: Arc::new(tree), variables, text, value }
    }

    /// Returns the formula as a tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the canonical text, which is the same for every spelling of a tree.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the names of its variables; steps refer to them by index in this order.
    pub fn variables(&self) -> &'static [&'static str] {
        self.variables
    }

    /// Computes the formula's value in f64.
    pub fn value(&self, variables: &[f64]) -> f64 {
        self.value.evaluate(variables)[0]
    }

    /// Returns the steps that compute the formula's value.
    pub fn steps(&self) -> &Steps {
        &self.value
    }

    /// Returns the steps that compute the formula's value and its slopes with respect to all variables.
    pub fn steps_with_slopes(&self) -> Steps {
        steps_of(&self.tree, Some(self.variables.len()))
    }
}

impl PartialEq for Formula {
    fn eq(&self, other: &Self) -> bool {
        self.variables == other.variables && self.tree == other.tree
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Formula({:?})", self.text)
    }
}
