//! Parses a model text, within limits, and locates mistakes.
//!
//! ```text
//! text       = ("embed" | "block" | "head") ":" statement*, each part once, in this order
//! statement  = name "=" choice
//! choice     = "if" or "then" or ("else" choice)? | or
//! or         = and ("or" and)*
//! and        = not ("and" not)*
//! not        = "not" not | comparison
//! comparison = sum (("==" | "!=" | "<" | "<=" | ">" | ">=") sum)?
//! sum        = product (("+" | "-") product)*
//! product    = sign (("*" | "/" | "%") sign)*
//! sign       = "-" sign | power
//! power      = atom ("^" sign)?
//! atom       = number | word | "true" | "false" | "none" | name | "model" "." name
//!            | "block" "[" or "]" "." name
//!            | name "(" (argument ("," argument)* ","?)? ")" | "(" choice ")"
//! argument   = (name "=")? choice
//! ```

use super::canonical::canonical;
use super::functions::{is_function, unknown_function};
use super::mistake::{Mistake, fail};
use super::names::RESERVED;
use super::token::{Placed, Token, tokens};
use super::tree::{Binding, CallArgument, Expression, ExpressionKind, ModelText, Operator, Part, Statement};
use crate::suggest::nearest;
use std::ops::Range;

/// Longest expression that a message repeats, in bytes.
const MAX_SHOWN: usize = 80;

/// Most statements in a text.
pub const MAX_STATEMENTS: usize = 256;

/// Most numbers, names, operators and calls in a text.
pub const MAX_NODES: usize = 4096;

/// Most of them in a statement.
const MAX_STATEMENT_NODES: usize = 256;

/// Most parentheses, calls, signs, powers and `if`s nested in each other.
pub const MAX_DEPTH: usize = 32;

impl ModelText {
    /// Parses a model text.
    ///
    /// # Errors
    /// The first thing that is wrong, with its position in the text.
    pub fn parse(text: &str) -> Result<Self, Mistake> {
        let tokens = tokens(text)?;
        let mut parser = Parser { text, tokens, at: 0, depth: 0, nodes: 0, statement_nodes: 0 };
        let mut statements = Vec::new();
        let mut parts: Vec<Range<usize>> = Vec::new();
        while let Some((token, at)) = parser.peek() {
            if parser.begins_part() {
                parts.push(parser.part(parts.len())?);
                continue;
            }
            if let Some(mistake) = parser.misspelt_part() {
                return Err(mistake);
            }
            let Some(part) = parts.len().checked_sub(1).map(|index| Part::ALL[index]) else {
                return fail(&at, "outside of a part", "a model text begins with the line embed:");
            };
            if token != Token::Name {
                return fail(&at, "no statement", "a statement is a line such as x = linear(x, dim)");
            }
            if statements.len() == MAX_STATEMENTS {
                return fail(&at, "one statement too many", format!("a text has at most {MAX_STATEMENTS}"));
            }
            statements.push(parser.statement(part)?);
        }
        let parts = <[Range<usize>; 3]>::try_from(parts).map_err(|parts| {
            let missing = Part::ALL[parts.len()].word();
            let end = text.trim_end().len();
            let help = format!("the parts of a text are embed:, block: and head:, and {missing}: is missing");
            Mistake::new(end..end, "ends here", help)
        })?;
        let canonical = canonical(&statements);
        Ok(Self { statements, parts, canonical })
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Placed>,
    /// Number of tokens read.
    at: usize,
    depth: usize,
    nodes: usize,
    statement_nodes: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<Placed> {
        self.tokens.get(self.at).cloned()
    }

    /// Returns the name that is next, if one is.
    fn peek_name(&self) -> Option<&str> {
        self.peek().filter(|(token, _)| *token == Token::Name).map(|(_, at)| &self.text[at])
    }

    fn next(&mut self) -> Placed {
        let end = self.text.len();
        let next = self.peek().unwrap_or((Token::End, end..end));
        self.at += 1;
        next
    }

    /// Reads this sign, if it is next.
    fn take_sign(&mut self, wanted: &str) -> Option<Range<usize>> {
        let taken = self.peek().filter(|(token, _)| matches!(token, Token::Sign(sign) if *sign == wanted));
        self.at += usize::from(taken.is_some());
        taken.map(|(_, at)| at)
    }

    /// Reads this word of the language, if it is next.
    fn take_keyword(&mut self, wanted: &str) -> bool {
        let taken = self.peek_name() == Some(wanted);
        self.at += usize::from(taken);
        taken
    }

    /// Returns true if a part's word and a colon are next.
    fn begins_part(&self) -> bool {
        let colon = matches!(self.tokens.get(self.at + 1), Some((Token::Sign(":"), _)));
        colon && self.peek_name().is_some_and(|name| Part::ALL.iter().any(|part| part.word() == name))
    }

    /// Returns what is wrong if a name and a colon are next, which begin no part.
    fn misspelt_part(&self) -> Option<Mistake> {
        let (_, at) = self.peek()?;
        let name = self.peek_name()?;
        if !matches!(self.tokens.get(self.at + 1), Some((Token::Sign(":"), _))) {
            return None;
        }
        let help = match nearest(name, Part::ALL.map(Part::word)) {
            Some(near) => format!("did you mean {near}:?"),
            None => "the parts of a text are embed:, block: and head:".to_owned(),
        };
        Some(Mistake::new(at, "no part of a text", help))
    }

    /// Reads the line that begins part number `index`.
    fn part(&mut self, index: usize) -> Result<Range<usize>, Mistake> {
        let (_, at) = self.next();
        let (_, colon) = self.next();
        if Part::ALL.get(index).is_none_or(|part| part.word() != &self.text[at.clone()]) {
            let label = match Part::ALL.get(index) {
                Some(part) => format!("before the part {}", part.word()),
                None => "after the last part".to_owned(),
            };
            return fail(&at, label, "the parts of a text are embed:, block: and head:, in this order");
        }
        match self.next() {
            (Token::End, _) => Ok(at.start..colon.end),
            (_, at) => fail(&at, "on the line of a part", "begin a new line"),
        }
    }

    fn statement(&mut self, part: Part) -> Result<Statement, Mistake> {
        self.statement_nodes = 0;
        let (_, name_at) = self.next();
        let name = &self.text[name_at.clone()];
        if matches!(name, "then" | "else" | "and" | "or") {
            return fail(&name_at, "begins a line", "to continue a line, put the value in parentheses");
        }
        if RESERVED.contains(&name) {
            return fail(&name_at, "a word of the language", "choose another name");
        }
        let name: Box<str> = name.into();
        if self.take_sign("=").is_none() {
            return Err(self.no_assignment(&name));
        }
        let value = self.choice(true)?;
        match self.next() {
            (Token::End, _) => {
                let line = self.text[..name_at.start].matches('\n').count() + 1;
                Ok(Statement { part, name, name_at, line, value })
            }
            (token, at) => Err(self.unexpected(token, at)),
        }
    }

    /// Returns what is wrong behind a name that begins a statement and has no `=` behind it.
    fn no_assignment(&mut self, name: &str) -> Mistake {
        let ((token, at), (after, after_at)) = (self.next(), self.next());
        let Token::Sign(sign) = token else {
            let help = "a statement is a line such as x = linear(x, dim)";
            return Mistake::new(at, "no = before it", help);
        };
        match Operator::ALL.into_iter().find(|operator| operator.word() == sign) {
            Some(Operator::Equal) => {
                Mistake::new(at, "a comparison", "a statement is name = value, with one =")
            }
            Some(_) if after == Token::Sign("=") && at.end == after_at.start => {
                let help = format!("a statement is name = value: write {name} = {name} {sign} …");
                Mistake::new(at.start..after_at.end, "assigns nothing", help)
            }
            _ => Mistake::new(at, "no = before it", "a statement is a line such as x = linear(x, dim)"),
        }
    }

    /// Reads a value that may be an `if`. A whole statement may lack an `else`.
    fn choice(&mut self, whole: bool) -> Result<Expression, Mistake> {
        let Some((_, start)) = self.peek().filter(|_| self.peek_name() == Some("if")) else {
            return self.operation(Binding::Or);
        };
        self.next();
        let condition = self.within(&start, |parser| parser.operation(Binding::Or))?;
        if !self.take_keyword("then") {
            let (_, at) = self.next();
            return fail(&at, "no then before it", "write if CONDITION then VALUE else VALUE");
        }
        let then = self.within(&start, |parser| parser.operation(Binding::Or))?;
        let otherwise = match self.take_keyword("else") {
            true => Some(Box::new(self.within(&start, |parser| parser.choice(whole))?)),
            false if whole => None,
            false => {
                let help =
                    "only a whole statement may have no else: write if CONDITION then VALUE else VALUE";
                return fail(&start, "has no else", help);
            }
        };
        let end = otherwise.as_ref().map_or(then.at.end, |otherwise| otherwise.at.end);
        let kind = ExpressionKind::If { condition: condition.into(), then: then.into(), otherwise };
        self.node(kind, start.start..end)
    }

    /// Reads an expression that binds at least as tightly as `least`.
    fn operation(&mut self, least: Binding) -> Result<Expression, Mistake> {
        let (mut left, mut bound) = self.operand(least)?;
        while let Some(operator) = self.peek_operator() {
            let [own, at_left, at_right] = operator.bindings();
            if own < least {
                break;
            }
            if own == Binding::Comparison && bound == Binding::Comparison {
                return Err(self.chain(&left, operator));
            }
            if bound < at_left {
                break;
            }
            let (_, at) = self.next();
            let right = match own {
                Binding::Power => self.within(&at, |parser| parser.operation(at_right))?,
                _ => self.operation(at_right)?,
            };
            let whole = left.at.start..right.at.end;
            left = self.node(ExpressionKind::Operation(operator, left.into(), right.into()), whole)?;
            bound = own;
        }
        Ok(left)
    }

    /// Returns what is wrong with a comparison of the comparison `left`.
    fn chain(&mut self, left: &Expression, operator: Operator) -> Mistake {
        let (_, at) = self.next();
        let right = self.operation(operator.bindings()[2]).ok();
        let written = match (&left.kind, right) {
            (ExpressionKind::Operation(_, _, middle), Some(right)) => {
                let [first, middle, last] =
                    [&left.at, &middle.at, &right.at].map(|at| &self.text[at.clone()]);
                format!("{first} and {middle} {} {last}", operator.word())
            }
            _ => String::new(),
        };
        let help = match written.len() {
            1..=MAX_SHOWN if !written.contains('\n') => format!("comparisons do not chain; write {written}"),
            _ => "comparisons do not chain; write a < b and b < c".to_owned(),
        };
        Mistake::new(at, "a second comparison", help)
    }

    fn peek_operator(&self) -> Option<Operator> {
        let (token, at) = self.peek()?;
        let word = match token {
            Token::Sign(sign) => sign,
            Token::Name => &self.text[at],
            _ => return None,
        };
        Operator::ALL.into_iter().find(|operator| operator.word() == word)
    }

    /// Reads an operand with the operators before it. Returns how tightly it binds.
    fn operand(&mut self, least: Binding) -> Result<(Expression, Binding), Mistake> {
        let Some((token, at)) = self.peek() else { return Ok((self.atom()?, Binding::Atom)) };
        if token == Token::Sign("-") {
            self.next();
            let operand = self.within(&at, |parser| parser.operation(Binding::Sign))?;
            let whole = at.start..operand.at.end;
            return Ok((self.node(ExpressionKind::Negative(operand.into()), whole)?, Binding::Sign));
        }
        if self.peek_name() == Some("not") {
            if least > Binding::Not {
                return fail(&at, "after an operator", "write (not …)");
            }
            self.next();
            let operand = self.within(&at, |parser| parser.operation(Binding::Not))?;
            let whole = at.start..operand.at.end;
            return Ok((self.node(ExpressionKind::Not(operand.into()), whole)?, Binding::Not));
        }
        Ok((self.atom()?, Binding::Atom))
    }

    fn atom(&mut self) -> Result<Expression, Mistake> {
        let (token, at) = self.next();
        match token {
            Token::Number(value) => self.node(ExpressionKind::Number(value), at),
            Token::Word => {
                let word = self.text[at.start + 1..at.end - 1].into();
                self.node(ExpressionKind::Word(word), at)
            }
            Token::Name => self.name(at),
            Token::Sign("(") => {
                let inner = self.within(&at, |parser| parser.choice(false))?;
                let end = self.close(&at, ")")?;
                Ok(Expression { kind: inner.kind, at: at.start..end })
            }
            Token::Sign("+") => fail(&at, "a sign", "leave the + out"),
            Token::End => {
                let end = at.start.min(self.text.trim_end().len());
                fail(&(end..end), "ends here", "a number, a name or ( is missing")
            }
            Token::Sign(_) => fail(&at, "nothing before it", "a number, a name or ( is missing"),
        }
    }

    /// Reads what begins with a name.
    fn name(&mut self, at: Range<usize>) -> Result<Expression, Mistake> {
        let name = &self.text[at.clone()];
        let kind = match name {
            "true" => ExpressionKind::Bool(true),
            "false" => ExpressionKind::Bool(false),
            "none" => ExpressionKind::None,
            "model" => {
                let (key, key_at) = self.after_point(&at, "model.activation, the key of a recipe")?;
                return self.node(ExpressionKind::Key(key), at.start..key_at.end);
            }
            "block" => {
                let example = "block[layer - 1].x, the x of the block before";
                let Some(open) = self.take_sign("[") else {
                    return fail(&at, "names a part", format!("write, for example, {example}"));
                };
                let layer = self.within(&open, |parser| parser.operation(Binding::Or))?;
                let end = self.close(&open, "]")?;
                let (name, name_at) = self.after_point(&(at.start..end), example)?;
                let kind = ExpressionKind::BlockName { layer: layer.into(), name };
                return self.node(kind, at.start..name_at.end);
            }
            "if" => return fail(&at, "inside an expression", "put the if in parentheses"),
            _ if RESERVED.contains(&name) => {
                return fail(&at, "a word of the language", "a number, a name or ( is missing before it");
            }
            _ => {
                let name: Box<str> = name.into();
                if let Some(open) = self.take_sign("(") {
                    return self.call(at, &open);
                }
                if let Some(mistake) = self.point_after(&at) {
                    return Err(mistake);
                }
                ExpressionKind::Name(name)
            }
        };
        self.node(kind, at)
    }

    /// Returns what is wrong if a point is next, behind the name at `first`: `torch.sigmoid(x)` or `x.shape`.
    fn point_after(&mut self, first: &Range<usize>) -> Option<Mistake> {
        let mut last = None;
        while self.take_sign(".").is_some() {
            let (token, at) = self.next();
            if token != Token::Name {
                break;
            }
            last = Some(at);
        }
        let last = last?;
        let help = match self.take_sign("(") {
            Some(_) => {
                let name = &self.text[last.clone()];
                match is_function(name) {
                    true => format!("functions belong to no module: write {name}(…)"),
                    false => unknown_function(name),
                }
            }
            None => "only model.KEY and block[i].name have a point".to_owned(),
        };
        Some(Mistake::new(first.start..last.end, "a point after a name", help))
    }

    /// Reads a point and the name after it.
    fn after_point(
        &mut self,
        owner: &Range<usize>,
        example: &str,
    ) -> Result<(Box<str>, Range<usize>), Mistake> {
        if self.take_sign(".").is_none() {
            return fail(owner, "no name after it", format!("write, for example, {example}"));
        }
        match self.next() {
            (Token::Name, at) => Ok((self.text[at.clone()].into(), at)),
            (_, at) => fail(&at, "no name", format!("write, for example, {example}")),
        }
    }

    fn call(&mut self, function_at: Range<usize>, open: &Range<usize>) -> Result<Expression, Mistake> {
        let mut arguments = Vec::new();
        let end = loop {
            if let Some(close) = self.take_sign(")") {
                break close.end;
            }
            arguments.push(self.within(&function_at, Self::argument)?);
            if self.take_sign(",").is_none() {
                break self.close(open, ")")?;
            }
        };
        let function = self.text[function_at.clone()].into();
        let at = function_at.start..end;
        self.node(ExpressionKind::Call { function, function_at, arguments }, at)
    }

    fn argument(&mut self) -> Result<CallArgument, Mistake> {
        let named = matches!(self.tokens.get(self.at + 1), Some((Token::Sign("="), _)));
        let name = match self.peek() {
            Some((Token::Name, at)) if named => {
                self.at += 2;
                Some((self.text[at.clone()].into(), at))
            }
            _ => None,
        };
        Ok(CallArgument { name, value: self.choice(false)? })
    }

    /// Reads the sign that closes a parenthesis or bracket and returns where it ends.
    fn close(&mut self, open: &Range<usize>, sign: &str) -> Result<usize, Mistake> {
        if let Some(at) = self.take_sign(sign) {
            return Ok(at.end);
        }
        let before = self.at.checked_sub(1).map_or(0, |last| self.tokens[last].1.end);
        match self.next() {
            // The next line was read as if it belonged to this one.
            (token, at) if token == Token::End || self.text[before..at.start].contains('\n') => {
                fail(open, "never closed", format!("a {sign} is missing"))
            }
            (token, at) => Err(self.unexpected(token, at)),
        }
    }

    fn unexpected(&self, token: Token, at: Range<usize>) -> Mistake {
        let (label, help) = match token {
            Token::Sign(")" | "]") => ("closes nothing", "a ( or [ is missing"),
            Token::Sign(",") => ("a comma", "commas separate the arguments of a function"),
            Token::Sign("=") => ("an assignment", "a comparison is written with =="),
            Token::Sign(_) => ("not expected here", "an operator or the end of the line was expected"),
            Token::Name if &self.text[at.clone()] == "if" => {
                ("after the value", "write if CONDITION then VALUE else VALUE")
            }
            Token::Name if matches!(&self.text[at.clone()], "then" | "else") => (
                "without an if",
                "write if CONDITION then VALUE else VALUE; an if inside another value needs parentheses",
            ),
            Token::Number(_) | Token::Name | Token::Word => {
                ("no operator before it", "a product is written with *, and a line has one statement")
            }
            Token::End => ("ends here", "the line is not complete"),
        };
        Mistake::new(at, label, help)
    }

    /// Reads something nested in the construct at `at`.
    fn within<T>(
        &mut self,
        at: &Range<usize>,
        read: impl FnOnce(&mut Self) -> Result<T, Mistake>,
    ) -> Result<T, Mistake> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let help = format!("at most {MAX_DEPTH} parentheses, calls, signs, powers and ifs may be nested");
            return fail(at, "too deep", help);
        }
        let part = read(self)?;
        self.depth -= 1;
        Ok(part)
    }

    /// Counts a node of the tree.
    fn node(&mut self, kind: ExpressionKind, at: Range<usize>) -> Result<Expression, Mistake> {
        self.nodes += 1;
        self.statement_nodes += 1;
        let limits =
            [(self.statement_nodes, MAX_STATEMENT_NODES, "a statement"), (self.nodes, MAX_NODES, "a text")];
        for (count, most, what) in limits {
            if count > most {
                let help = format!("{what} has at most {most} numbers, names, operators and calls");
                return fail(&at, "too long", help);
            }
        }
        Ok(Expression { kind, at })
    }
}
