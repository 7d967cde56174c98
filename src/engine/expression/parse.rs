//! Parses text to a tree, within limits, and locates errors.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = sign (("*" | "/") sign)*
//! sign    = "-" sign | power
//! power   = atom ("^" sign)?
//! atom    = number | constant | variable | function "(" sum ("," sum)* ")" | "(" sum ")"
//! ```

use super::functions::{CONSTANTS, Function};
use super::number;
use super::scope::Scope;
use super::slopes::steps_of;
use super::tree::{Operator, Tree};
use crate::suggest::nearest;
use std::ops::Range;

/// Most parentheses, calls, signs and powers nested in each other.
pub const MAX_DEPTH: usize = 16;

/// Most numbers, constants, variables, operators and calls in a formula.
pub const MAX_NODES: usize = 64;

/// Largest absolute value of a constant exponent.
pub const MAX_EXPONENT: f64 = 64.0;

/// What is wrong with a formula, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The byte range of the text to point at.
    pub at: Range<usize>,
    /// What is wrong with them.
    pub label: String,
    /// The next step; empty if the label says enough.
    pub help: String,
}

impl ParseError {
    pub(super) fn new(at: Range<usize>, label: impl Into<String>, help: impl Into<String>) -> Self {
        Self { at, label: label.into(), help: help.into() }
    }
}

/// Fails with what is wrong at `at`.
fn fail<T>(at: Range<usize>, label: impl Into<String>, help: impl Into<String>) -> Result<T, ParseError> {
    Err(ParseError::new(at, label, help))
}

/// Parses a formula; returns its tree and the names of its variables.
///
/// # Errors
/// The first thing that is wrong.
pub(super) fn parse(text: &str, scope: Scope) -> Result<(Tree, &'static [&'static str]), ParseError> {
    let tokens = tokens(text)?;
    if tokens.is_empty() {
        return fail(0..text.len(), "empty", "");
    }
    let mut parser = Parser { text, tokens, at: 0, depth: 0, nodes: 0, scope, variables: None };
    let root = parser.sum()?;
    if let Some((token, at)) = parser.next() {
        return Err(parser.unexpected(token, at));
    }
    let whole = root.at.clone();
    let Some(variables) = parser.variables else {
        if scope.may_be_constant() {
            return Ok((root.tree, scope.variables()[0]));
        }
        return fail(whole, "has no variable", format!("a formula is {}", scope.meaning()));
    };
    let unused = (0..variables.len()).find(|&index| !root.tree.uses(index));
    if let Some(index) = unused {
        let label = format!("does not use {}", variables[index]);
        return fail(whole, label, format!("a formula is {}", scope.meaning()));
    }
    Ok((root.tree, variables))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Number(f64),
    Name,
    /// One of `+-*/^(),`.
    Sign(u8),
}

type Placed = (Token, Range<usize>);

fn tokens(text: &str) -> Result<Vec<Placed>, ParseError> {
    let bytes = text.as_bytes();
    let run = |from: usize, holds: fn(&u8) -> bool| {
        from + bytes[from..].iter().position(|byte| !holds(byte)).unwrap_or(bytes.len() - from)
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        match byte {
            b' ' | b'\t' => at += 1,
            b'0'..=b'9' => {
                at = run(at, u8::is_ascii_digit);
                if bytes.get(at) == Some(&b'.') {
                    let digits = at + 1;
                    at = run(digits, u8::is_ascii_digit);
                    if at == digits {
                        return fail(start..at, "no digit after the point", "");
                    }
                }
                if matches!(bytes.get(at), Some(b'e' | b'E')) {
                    let signed = at + 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
                    // Without digits, `e` is the constant, and an operator is missing before it.
                    if bytes.get(signed).is_some_and(u8::is_ascii_digit) {
                        at = run(signed, u8::is_ascii_digit);
                    }
                }
                let value = text[start..at].parse().unwrap_or(f64::NAN);
                if let Some(fault) = number::range_error(value) {
                    return fail(start..at, fault, "kernels compute in fp32");
                }
                found.push((Token::Number(value), start..at));
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                at = run(at, |byte| byte.is_ascii_alphanumeric() || *byte == b'_');
                found.push((Token::Name, start..at));
            }
            b'+' | b'-' | b'*' | b'/' | b'^' | b'(' | b')' | b',' => {
                at += 1;
                if byte == b'*' && bytes.get(at) == Some(&b'*') {
                    return fail(start..at + 1, "no operator", "a power is written with ^");
                }
                found.push((Token::Sign(byte), start..at));
            }
            b'.' => return fail(start..start + 1, "no digit before the point", "write 0.5"),
            _ => {
                let c = text[start..].chars().next().unwrap_or_default();
                return fail(
                    start..start + c.len_utf8(),
                    "not part of a formula",
                    "a formula has numbers, names, + - * / ^, parentheses and commas",
                );
            }
        }
    }
    Ok(found)
}

/// A part of the formula and its position.
struct Part {
    tree: Tree,
    at: Range<usize>,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Placed>,
    /// Number of tokens read.
    at: usize,
    depth: usize,
    nodes: usize,
    scope: Scope,
    /// The set of variables that the first variable in the text belongs to.
    variables: Option<&'static [&'static str]>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<Placed> {
        self.tokens.get(self.at).cloned()
    }

    fn next(&mut self) -> Option<Placed> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    /// Reads one of these signs, if it is next.
    fn take_sign(&mut self, signs: &[u8]) -> Option<(u8, Range<usize>)> {
        match self.peek() {
            Some((Token::Sign(sign), at)) if signs.contains(&sign) => {
                self.at += 1;
                Some((sign, at))
            }
            _ => None,
        }
    }

    fn sum(&mut self) -> Result<Part, ParseError> {
        let mut left = self.product()?;
        while let Some((sign, _)) = self.take_sign(b"+-") {
            let right = self.product()?;
            let operator = if sign == b'+' { Operator::Add } else { Operator::Subtract };
            left = self.operation(operator, left, right)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Part, ParseError> {
        let mut left = self.signed()?;
        while let Some((sign, _)) = self.take_sign(b"*/") {
            let right = self.signed()?;
            let operator = if sign == b'*' { Operator::Multiply } else { Operator::Divide };
            left = self.operation(operator, left, right)?;
        }
        Ok(left)
    }

    fn signed(&mut self) -> Result<Part, ParseError> {
        let Some((_, minus)) = self.take_sign(b"-") else { return self.power() };
        let operand = self.within(minus.clone(), Self::signed)?;
        let at = minus.start..operand.at.end;
        self.part(Tree::Negative(Box::new(operand.tree)), at)
    }

    fn power(&mut self) -> Result<Part, ParseError> {
        let base = self.atom()?;
        let Some((_, operator)) = self.take_sign(b"^") else { return Ok(base) };
        let exponent = self.within(operator, Self::signed)?;
        match (value(&base.tree), value(&exponent.tree)) {
            (_, Some(constant)) if constant.abs() > MAX_EXPONENT => fail(
                exponent.at,
                format!("an exponent of {constant}"),
                format!("a constant exponent is at most {MAX_EXPONENT} in size"),
            ),
            (Some(constant), None) if constant <= 0.0 => {
                fail(base.at, "not above 0", "the base of a variable exponent is above 0")
            }
            _ => self.operation(Operator::Power, base, exponent),
        }
    }

    fn atom(&mut self) -> Result<Part, ParseError> {
        match self.next() {
            Some((Token::Number(value), at)) => self.part(Tree::Number(value), at),
            Some((Token::Name, at)) => self.name(at),
            Some((Token::Sign(b'('), open)) => {
                let inner = self.within(open.clone(), Self::sum)?;
                let end = self.close(&open)?;
                Ok(Part { tree: inner.tree, at: open.start..end })
            }
            Some((Token::Sign(b'+'), at)) => fail(at, "a sign", "leave the + out"),
            Some((token, at)) => Err(self.unexpected(token, at)),
            None => {
                let end = self.text.len();
                fail(end.saturating_sub(1)..end, "ends here", "a number, a name or ( is missing")
            }
        }
    }

    /// Reads a constant, a variable or a call.
    fn name(&mut self, at: Range<usize>) -> Result<Part, ParseError> {
        let name = &self.text[at.clone()];
        if let Some(index) = CONSTANTS.iter().position(|(constant, _)| *constant == name) {
            return self.part(Tree::Constant(index), at);
        }
        if let Some(function) = Function::from_name(name) {
            return self.call(function, at);
        }
        let sets = self.scope.variables();
        let Some(set) = sets.iter().find(|set| set.contains(&name)) else { return Err(self.unknown(at)) };
        if let Some(first) = self.variables.filter(|first| first != set) {
            return fail(
                at,
                format!("{name} beside {}", first.join(" and ")),
                format!("a formula is {}", self.scope.meaning()),
            );
        }
        self.variables = Some(set);
        let index = set.iter().position(|variable| *variable == name).unwrap_or_default();
        self.part(Tree::Variable(index), at)
    }

    fn unknown(&self, at: Range<usize>) -> ParseError {
        let name = &self.text[at.clone()];
        let variables = self.scope.variables().concat();
        let functions = Function::ALL.iter().map(|function| function.name());
        let names: Vec<&str> =
            variables.iter().copied().chain(CONSTANTS.map(|(name, _)| name)).chain(functions).collect();
        let help = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("the names of a formula are {}", names.join(", ")),
        };
        ParseError::new(at, "unknown name", help)
    }

    fn call(&mut self, function: Function, name: Range<usize>) -> Result<Part, ParseError> {
        let wanted = function.arguments().len();
        let Some((_, open)) = self.take_sign(b"(") else {
            return fail(name, "a function", format!("write {}", function.call()));
        };
        let mut arguments = vec![self.within(name.clone(), Self::sum)?.tree];
        while self.take_sign(b",").is_some() {
            arguments.push(self.within(name.clone(), Self::sum)?.tree);
        }
        let end = self.close(&open)?;
        let at = name.start..end;
        if arguments.len() != wanted {
            let label = format!("{} of {wanted} arguments", arguments.len());
            return fail(at, label, format!("write {}", function.call()));
        }
        self.part(Tree::Call(function, arguments), at)
    }

    /// Reads the `)` that closes a parenthesis and returns where it ends.
    fn close(&mut self, open: &Range<usize>) -> Result<usize, ParseError> {
        match self.next() {
            Some((Token::Sign(b')'), at)) => Ok(at.end),
            Some((token, at)) => Err(self.unexpected(token, at)),
            None => fail(open.clone(), "never closed", "a ) is missing"),
        }
    }

    fn unexpected(&self, token: Token, at: Range<usize>) -> ParseError {
        match token {
            Token::Sign(b')') if self.depth == 0 => ParseError::new(at, "closes nothing", "a ( is missing"),
            Token::Sign(b',') => {
                ParseError::new(at, "a comma", "commas separate the arguments of a function")
            }
            Token::Number(_) | Token::Name | Token::Sign(b'(') => {
                ParseError::new(at, "no operator before it", "a product is written with *")
            }
            Token::Sign(_) => ParseError::new(at, "nothing before it", "a number, a name or ( is missing"),
        }
    }

    /// Reads something nested in the construct at `at`.
    fn within(
        &mut self,
        at: Range<usize>,
        read: fn(&mut Self) -> Result<Part, ParseError>,
    ) -> Result<Part, ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let help = format!("at most {MAX_DEPTH} parentheses, calls, signs and powers may be nested");
            return fail(at, "too deep", help);
        }
        let part = read(self);
        self.depth -= 1;
        part
    }

    fn operation(&mut self, operator: Operator, left: Part, right: Part) -> Result<Part, ParseError> {
        let at = left.at.start..right.at.end;
        self.part(Tree::Operation(operator, Box::new(left.tree), Box::new(right.tree)), at)
    }

    /// Counts a node and, if it is constant, checks its value.
    fn part(&mut self, tree: Tree, at: Range<usize>) -> Result<Part, ParseError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let help = format!("a formula has at most {MAX_NODES} numbers, names and operators");
            return fail(at, "too long", help);
        }
        match value(&tree).and_then(number::range_error) {
            Some(fault) => fail(at, fault, "kernels compute in fp32"),
            None => Ok(Part { tree, at }),
        }
    }
}

/// Returns the value of a tree without variables.
fn value(tree: &Tree) -> Option<f64> {
    (!tree.has_variables()).then(|| steps_of(tree, None).evaluate(&[])[0])
}
