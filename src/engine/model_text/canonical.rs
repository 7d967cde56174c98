//! The canonical text: one for every spelling of a model.

use super::tree::{Binding, Expression, ExpressionKind, ModelText, Part, Statement};
use crate::expression::number;

impl ModelText {
    /// Returns the canonical text: a line per statement, without comments, with one space around operators,
    /// the fewest parentheses and the shortest form of each number. Nothing is rearranged.
    pub fn text(&self) -> &str {
        &self.canonical
    }

    /// Returns the BLAKE3 hash of the canonical text, in hexadecimal.
    pub fn hash(&self) -> String {
        blake3::hash(self.canonical.as_bytes()).to_hex().to_string()
    }

    /// Returns the line on which the statement begins that is on `line` of the canonical text, each from 1.
    pub fn line_of_canonical(&self, line: usize) -> Option<usize> {
        // A statement takes a line, and each part begins with one.
        let canonical = |(index, statement): (usize, &Statement)| {
            (index + 2 + statement.part as usize == line).then_some(statement.line)
        };
        self.statements.iter().enumerate().find_map(canonical)
    }

    /// Returns a statement's part, the line on which it begins, from 1, and its canonical text without its
    /// indentation.
    ///
    /// # Panics
    /// If there is no such statement.
    pub fn statement(&self, index: usize) -> (Part, usize, String) {
        let statement = &self.statements[index];
        (statement.part, statement.line, text_of(statement))
    }
}

impl Expression {
    /// Returns the canonical text of the expression.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        write(self, Binding::If, &mut text);
        text
    }
}

/// Writes the parts and statements of a text.
pub(super) fn canonical(statements: &[Statement]) -> String {
    let mut text = String::new();
    for part in Part::ALL {
        text += &format!("{}:\n", part.word());
        for statement in statements.iter().filter(|statement| statement.part == part) {
            text += &format!("  {}\n", text_of(statement));
        }
    }
    text
}

fn text_of(statement: &Statement) -> String {
    format!("{} = {}", statement.name, statement.value.text())
}

/// Writes an expression in a position that requires at least the binding `place`.
fn write(expression: &Expression, place: Binding, to: &mut String) {
    let parentheses = expression.kind.binding() < place;
    if parentheses {
        to.push('(');
    }
    match &expression.kind {
        ExpressionKind::Number(value) => to.push_str(&number::text(*value)),
        ExpressionKind::Word(word) => *to += &format!("\"{word}\""),
        ExpressionKind::Bool(value) => to.push_str(if *value { "true" } else { "false" }),
        ExpressionKind::None => to.push_str("none"),
        ExpressionKind::Name(name) => to.push_str(name),
        ExpressionKind::Key(key) => *to += &format!("model.{key}"),
        ExpressionKind::BlockName { layer, name } => {
            to.push_str("block[");
            write(layer, Binding::Or, to);
            *to += &format!("].{name}");
        }
        ExpressionKind::Not(operand) => {
            to.push_str("not ");
            write(operand, Binding::Not, to);
        }
        ExpressionKind::Negative(operand) => {
            to.push('-');
            write(operand, Binding::Sign, to);
        }
        ExpressionKind::Operation(operator, left, right) => {
            let [own, at_left, at_right] = operator.bindings();
            write(left, at_left, to);
            match own {
                Binding::Power => to.push_str(operator.word()),
                _ => *to += &format!(" {} ", operator.word()),
            }
            write(right, at_right, to);
        }
        ExpressionKind::Call { function, arguments, .. } => {
            *to += &format!("{function}(");
            for (i, argument) in arguments.iter().enumerate() {
                to.push_str(if i == 0 { "" } else { ", " });
                if let Some((name, _)) = &argument.name {
                    *to += &format!("{name} = ");
                }
                write(&argument.value, Binding::If, to);
            }
            to.push(')');
        }
        ExpressionKind::If { condition, then, otherwise } => {
            to.push_str("if ");
            write(condition, Binding::Or, to);
            to.push_str(" then ");
            write(then, Binding::Or, to);
            if let Some(otherwise) = otherwise {
                to.push_str(" else ");
                write(otherwise, Binding::If, to);
            }
        }
    }
    if parentheses {
        to.push(')');
    }
}
