//! Remarks about a text that describes a model but may not be meant so: values that nothing reads, and
//! branches that no block takes.

use super::keys::Keys;
use super::names::{KEY_NAMES, LOGITS};
use super::resolve::{Branches, branches_taken};
use super::tree::{Expression, ExpressionKind, ModelText, Part, Statement};
use crate::format::shortened;
use std::collections::BTreeSet;

/// Most characters of a condition or a statement that a remark repeats.
const SHOWN: usize = 60;

/// A remark about a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The line on which the statement begins, from 1.
    pub line: usize,
    /// The statement, or its beginning.
    pub statement: String,
    /// What there is to say about it.
    pub text: String,
}

impl ModelText {
    /// Returns remarks about the text, as resolved for the keys of a recipe.
    pub fn remarks(&self, keys: &Keys) -> Vec<Remark> {
        let taken = branches_taken(self, keys);
        let mut found = Vec::new();
        for (index, is_read) in self.read().into_iter().enumerate() {
            let mut texts = Vec::new();
            if !is_read {
                texts.push("nothing reads this value".to_owned());
            }
            let statement = &self.statements[index];
            if let Some(taken) = &taken {
                self.untaken(&statement.value, statement.part, taken, &mut texts);
            }
            let (_, line, written) = self.statement(index);
            let statement = shortened(&written, SHOWN);
            found.extend(texts.into_iter().map(|text| Remark { line, statement: statement.clone(), text }));
        }
        found
    }

    /// Returns whether a statement's value may be read, by a statement whose own value may be read.
    fn read(&self) -> Vec<bool> {
        let mut read = vec![true; self.statements.len()];
        loop {
            let unread = (0..read.len()).find(|&index| read[index] && !self.is_read(index, &read));
            match unread {
                Some(index) => read[index] = false,
                None => return read,
            }
        }
    }

    fn is_read(&self, index: usize, read: &[bool]) -> bool {
        let Statement { part, name, .. } = &self.statements[index];
        let of = |part: Part| {
            let all = self.statements.iter().enumerate();
            all.filter(move |(_, statement)| statement.part == part).map(|(index, _)| index)
        };
        let is_shared =
            *part != Part::Head && of(Part::Embed).any(|embedded| self.statements[embedded].name == *name);
        // Follows the value through a list of statements. `None` if it comes out at the end.
        let follow = |statements: &mut dyn Iterator<Item = usize>| {
            for next in statements {
                let statement = &self.statements[next];
                if next != index && read[next] && reads_name(&statement.value, name) {
                    return Some(true);
                }
                if statement.name == *name && always_exists(&statement.value) {
                    return Some(false);
                }
            }
            None
        };
        let of_blocks = *part != Part::Head
            && self.statements.iter().zip(read).any(|(s, read)| *read && reads_of_block(&s.value, name));
        let in_head = || follow(&mut of(Part::Head)).unwrap_or(false);
        let rest = follow(&mut of(*part).filter(|next| *next > index));
        of_blocks
            || match (rest, *part) {
                (Some(is_read), _) => is_read,
                (None, Part::Embed) => follow(&mut of(Part::Block)).unwrap_or_else(in_head),
                (None, Part::Block) => is_shared && (follow(&mut of(Part::Block)) == Some(true) || in_head()),
                (None, Part::Head) => **name == *LOGITS,
            }
    }

    /// Adds a remark for each branch that was never taken, although its condition is no choice of the recipe.
    fn untaken(&self, expression: &Expression, part: Part, taken: &Branches, found: &mut Vec<String>) {
        let ExpressionKind::If { condition, then, otherwise } = &expression.kind else {
            expression.kind.operands().for_each(|operand| self.untaken(operand, part, taken, found));
            return;
        };
        let is_taken = |branch: bool| taken.contains(&(expression.at.start, expression.at.end, branch));
        let [is_true, is_false] = [true, false].map(is_taken);
        let everywhere = if part == Part::Block { " in every block" } else { "" };
        let mut remark = |always: bool, branch: &str| {
            if !self.is_choice(condition) {
                let condition = shortened(&condition.text(), SHOWN);
                let text =
                    format!("{condition} is {always}{everywhere}, so what follows {branch} is never used");
                found.push(text);
            }
        };
        if is_false && !is_true {
            remark(false, "then");
        }
        if is_true && !is_false && otherwise.is_some() {
            remark(true, "else");
        }
        if is_true {
            self.untaken(then, part, taken, found);
        }
        if let Some(otherwise) = otherwise.as_deref().filter(|_| is_false) {
            self.untaken(otherwise, part, taken, found);
        }
    }

    /// Returns true if a condition depends on the recipe's keys, which may choose a branch for good: on any
    /// key, but on `n_layers` only without `layer`.
    fn is_choice(&self, condition: &Expression) -> bool {
        let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut rest = vec![condition];
        while let Some(expression) = rest.pop() {
            match &expression.kind {
                ExpressionKind::Key(_) | ExpressionKind::BlockName { .. } => return true,
                ExpressionKind::Name(name) => {
                    let own = self.statements.iter().filter(|statement| statement.name == *name);
                    if seen.insert(name) {
                        rest.extend(own.map(|statement| &statement.value));
                    }
                    names.insert(&**name);
                }
                _ => {}
            }
            rest.extend(expression.kind.operands());
        }
        let of_keys = |name: &&str| KEY_NAMES.iter().any(|(known, _)| known == name);
        let mut keys = names.iter().copied().filter(of_keys);
        keys.any(|name| name != "n_layers" || !names.contains("layer"))
    }
}

/// Returns true if the statement with this value exists whatever its conditions are.
fn always_exists(value: &Expression) -> bool {
    match &value.kind {
        ExpressionKind::If { otherwise, .. } => otherwise.as_deref().is_some_and(always_exists),
        _ => true,
    }
}

fn reads_name(expression: &Expression, wanted: &str) -> bool {
    matches!(&expression.kind, ExpressionKind::Name(name) if **name == *wanted)
        || expression.kind.operands().any(|operand| reads_name(operand, wanted))
}

fn reads_of_block(expression: &Expression, wanted: &str) -> bool {
    matches!(&expression.kind, ExpressionKind::BlockName { name, .. } if **name == *wanted)
        || expression.kind.operands().any(|operand| reads_of_block(operand, wanted))
}
