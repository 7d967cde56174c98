//! Resolves a text for the keys of a recipe: computes its numbers, decides every `if`, and repeats the part
//! `block` for each layer.

mod arguments;
mod calls;
mod elementwise;
mod lookup;
mod parameters;
mod prune;
mod value;

use super::graph::{Graph, MAX_GRAPH_NODES, Node, Operation, Outcome, Parameter, Shape};
use super::keys::Keys;
use super::mistake::{Mistake, fail};
use super::names::{self, LOGITS};
use super::tree::{Expression, ExpressionKind, ModelText, Operator, Part, Statement};
pub use calls::MAX_SHIFT;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use value::Value;

impl Statement {
    /// Returns the statement as one that exists in no block so far.
    fn without_value(&self) -> Outcome {
        Outcome { part: self.part, name: self.name.clone(), line: self.line, value: String::new(), blocks: 0 }
    }
}

/// Names with their values.
type Scope = BTreeMap<Box<str>, Value>;

/// Resolves a text for the keys of a recipe.
///
/// # Errors
/// The first thing that is wrong, with its position in the text, and its layer if the text may be right for
/// others.
pub fn resolve(text: &ModelText, keys: &Keys) -> Result<Graph, Mistake> {
    let mut resolver = Resolver::new(text, keys);
    resolver.all_parts()?;
    resolver.finish()
}

/// The branches of `if`s that were taken: where an `if` begins and ends, and whether its condition was true.
pub(super) type Branches = BTreeSet<(usize, usize, bool)>;

/// Returns the branches of `if`s that are taken in some block; `None` if the text describes no model.
pub(super) fn branches_taken(text: &ModelText, keys: &Keys) -> Option<Branches> {
    let mut resolver = Resolver::new(text, keys);
    resolver.all_parts().ok()?;
    Some(resolver.taken)
}

struct Resolver<'a> {
    text: &'a ModelText,
    keys: &'a Keys,
    part: Part,
    /// Index of the block; `None` outside the blocks.
    layer: Option<usize>,
    /// Index of the statement.
    statement: usize,
    /// Calls with parameters that the current call is in, itself included.
    nesting: usize,
    /// The names of the part `embed`, with the values that blocks gave them since.
    shared: Scope,
    /// The names of the current block or of the head.
    local: Scope,
    /// The values at the end of each block that the text reads by `block[i].name`.
    blocks: Vec<Scope>,
    /// The names that it reads so.
    kept: BTreeSet<Box<str>>,
    nodes: Vec<Node>,
    parameters: Vec<Parameter>,
    parameter_names: BTreeSet<String>,
    /// What each statement gave.
    outcomes: Vec<Outcome>,
    /// Where each parameter is created in the text.
    created_at: Vec<Range<usize>>,
    /// The branches of `if`s that were taken.
    taken: Branches,
}

impl<'a> Resolver<'a> {
    fn new(text: &'a ModelText, keys: &'a Keys) -> Self {
        let mut kept = BTreeSet::new();
        text.statements.iter().for_each(|statement| names_of_blocks(&statement.value, &mut kept));
        Self {
            text,
            keys,
            part: Part::Embed,
            layer: None,
            statement: 0,
            nesting: 0,
            shared: Scope::new(),
            local: Scope::new(),
            blocks: Vec::new(),
            kept,
            nodes: Vec::new(),
            parameters: Vec::new(),
            parameter_names: BTreeSet::new(),
            outcomes: text.statements.iter().map(Statement::without_value).collect(),
            created_at: Vec::new(),
            taken: Branches::new(),
        }
    }

    /// Resolves all statements, and checks the names in branches that are not taken.
    fn all_parts(&mut self) -> Result<(), Mistake> {
        self.part(Part::Embed)?;
        for layer in 0..self.keys.n_layers() {
            self.layer = Some(layer);
            self.local.clear();
            self.part(Part::Block).map_err(|mistake| Mistake { layer: Some(layer), ..mistake })?;
            self.keep_block();
        }
        self.layer = None;
        self.local.clear();
        self.part(Part::Head)?;
        self.check_all_names()
    }

    /// Resolves the statements of a part.
    fn part(&mut self, part: Part) -> Result<(), Mistake> {
        self.part = part;
        let text = self.text;
        let statements = text.statements.iter().enumerate().filter(|(_, statement)| statement.part == part);
        for (index, statement) in statements {
            self.statement = index;
            self.resolve_statement(statement)?;
        }
        Ok(())
    }

    fn resolve_statement(&mut self, statement: &'a Statement) -> Result<(), Mistake> {
        if names::is_taken(&statement.name) {
            let help = "choose another name; docs/model-texts.md lists those that every text has";
            return fail(&statement.name_at, "has a meaning in every text", help);
        }
        let Some(value) = self.chosen(&statement.value)? else { return Ok(()) };
        let text = value.text(|tensor| self.shape(tensor));
        let outcome = &mut self.outcomes[self.statement];
        outcome.blocks += usize::from(self.layer.is_some());
        outcome.value = text;
        // A block replaces a value of the part `embed`; its own names end with it.
        let is_shared = match self.part {
            Part::Embed => true,
            Part::Block => self.shared.contains_key(&statement.name),
            Part::Head => false,
        };
        let scope = if is_shared { &mut self.shared } else { &mut self.local };
        scope.insert(statement.name.clone(), value);
        Ok(())
    }

    /// Keeps the values of a block that the text reads in later parts.
    fn keep_block(&mut self) {
        let names = self.kept.iter();
        let value = |name: &str| self.local.get(name).or_else(|| self.shared.get(name)).cloned();
        let kept = names.filter_map(|name| Some((name.clone(), value(name)?))).collect();
        self.blocks.push(kept);
    }

    /// Returns the graph, without operations that no logit depends on.
    fn finish(mut self) -> Result<Graph, Mistake> {
        let help = "the part head gives the value logits, a row of vocab_size for each token";
        let logits = match self.local.get(LOGITS) {
            Some(Value::Tensor(logits)) => *logits,
            _ => return fail(&self.text.parts[2], "gives no logits", help),
        };
        let shape = self.shape(logits);
        let vocab_size = self.keys.named("vocab_size").unwrap_or(0.0);
        if !shape.rows || shape.heads != 1 || shape.width as f64 != vocab_size {
            let last = self.text.statements.iter().rev().find(|statement| *statement.name == *LOGITS);
            let at = last.map_or(&self.text.parts[2], |statement| &statement.value.at);
            return fail(at, format!("{shape}, for a vocabulary of {vocab_size}"), help);
        }
        let graph = Graph {
            nodes: std::mem::take(&mut self.nodes),
            parameters: std::mem::take(&mut self.parameters),
            logits,
            statements: std::mem::take(&mut self.outcomes),
        };
        prune::pruned(graph).map_err(|(unread, graph)| self.untrained(unread, &graph))
    }

    /// Returns what is wrong if no logit depends on a parameter.
    fn untrained(&self, parameter: usize, graph: &Graph) -> Mistake {
        let (at, layer) = (&self.created_at[parameter], graph.parameters[parameter].block);
        let in_general =
            "use its value, or remove it: a parameter that no logit depends on cannot be trained";
        let mistake = |at: &Range<usize>, label: &str, help: String| Mistake {
            layer,
            ..Mistake::new(at.clone(), label, help)
        };
        let (Some(layer), names) = (layer, self.names_behind_blocks(graph)) else {
            return mistake(at, "no logit depends on it", in_general.to_owned());
        };
        let last = prune::last_reader(graph, parameter);
        let statement = &self.text.statements[last];
        let name = &statement.name;
        if names.is_empty() || names.contains(name) {
            return mistake(at, "no logit depends on it", in_general.to_owned());
        }
        let help = match self.kept.contains(name) {
            true => format!(
                "nothing reads the {name} of block {layer}: block[i].{name} reads that of other blocks; an if with layer \
                 leaves it out, or remove it"
            ),
            false => {
                let names: Vec<&str> = names.iter().map(|name| &**name).collect();
                let next = match names[..] {
                    [only] => format!("write {only} = …"),
                    _ => "give it to one of them".to_owned(),
                };
                format!(
                    "{name} ends with the block, and later blocks and the head read {}: {next}, or remove it, because \
                     a parameter that no logit depends on cannot be trained",
                    names.join(", ")
                )
            }
        };
        match last == graph.parameters[parameter].statement {
            true => mistake(at, "no logit depends on it", help),
            false => mistake(&statement.name_at, "no logit depends on it", help),
        }
    }

    /// Returns the names that give a block's values to later blocks and to the head, and that these read.
    fn names_behind_blocks(&self, graph: &Graph) -> BTreeSet<Box<str>> {
        let mut read = BTreeSet::new();
        let behind = self.text.statements.iter().filter(|statement| statement.part != Part::Embed);
        behind.for_each(|statement| names_in(&statement.value, &mut read));
        let is_row = |value: &Value| match *value {
            Value::Tensor(tensor) => graph.nodes[tensor].shape.rows,
            _ => false,
        };
        let shared = self.shared.iter().filter(|(name, value)| is_row(value) && read.contains(*name));
        shared.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the value of a statement; `None` if the statement does not exist for these numbers.
    fn chosen(&mut self, expression: &'a Expression) -> Result<Option<Value>, Mistake> {
        match &expression.kind {
            ExpressionKind::If { condition, then, otherwise } => {
                let is_true = self.condition(condition)?;
                self.taken.insert((expression.at.start, expression.at.end, is_true));
                match (is_true, otherwise) {
                    (true, _) => self.evaluate(then).map(Some),
                    (false, Some(otherwise)) => self.chosen(otherwise),
                    (false, None) => Ok(None),
                }
            }
            _ => self.evaluate(expression).map(Some),
        }
    }

    fn evaluate(&mut self, expression: &'a Expression) -> Result<Value, Mistake> {
        let at = &expression.at;
        match &expression.kind {
            ExpressionKind::Number(value) => Ok(Value::Number(*value)),
            ExpressionKind::Word(word) => Ok(Value::Word(word.as_ref().into(), &[])),
            ExpressionKind::Bool(value) => Ok(Value::Bool(*value)),
            ExpressionKind::None => Ok(Value::None),
            ExpressionKind::Name(name) => self.named(name, at),
            ExpressionKind::Key(key) => self.key(key, at),
            ExpressionKind::BlockName { layer, name } => self.value_in_block(layer, name, at),
            ExpressionKind::Not(operand) => Ok(Value::Bool(!self.condition(operand)?)),
            ExpressionKind::Negative(operand) => {
                let value = self.evaluate(operand)?;
                self.negative(value, at)
            }
            ExpressionKind::Operation(Operator::And, left, right) => {
                Ok(Value::Bool(self.condition(left)? && self.condition(right)?))
            }
            ExpressionKind::Operation(Operator::Or, left, right) => {
                Ok(Value::Bool(self.condition(left)? || self.condition(right)?))
            }
            ExpressionKind::Operation(operator, left, right) => {
                let values = [self.evaluate(left)?, self.evaluate(right)?];
                self.operation(*operator, values, at)
            }
            ExpressionKind::Call { function, function_at, arguments } => {
                self.call(function, function_at, arguments, at)
            }
            ExpressionKind::If { .. } => match self.chosen(expression)? {
                Some(value) => Ok(value),
                None => fail(at, "has no else", "write if CONDITION then VALUE else VALUE"),
            },
        }
    }

    fn condition(&mut self, expression: &'a Expression) -> Result<bool, Mistake> {
        match self.evaluate(expression)? {
            Value::Bool(value) => Ok(value),
            other => {
                let help = "conditions are true or false before a model runs, such as layer == 0";
                fail(&expression.at, self.described(&other), help)
            }
        }
    }

    fn described(&self, value: &Value) -> String {
        value.described(|tensor| self.shape(tensor))
    }

    fn shape(&self, tensor: usize) -> Shape {
        self.nodes[tensor].shape
    }

    /// Adds an operation.
    fn node(
        &mut self,
        operation: Operation,
        inputs: Vec<usize>,
        shape: Shape,
        at: &Range<usize>,
    ) -> Result<Value, Mistake> {
        if self.nodes.len() == MAX_GRAPH_NODES {
            let help = format!("a model has at most {MAX_GRAPH_NODES} operations over all layers");
            return fail(at, "one operation too many", help);
        }
        self.nodes.push(Node { operation, inputs, shape, statement: self.statement, block: self.layer });
        Ok(Value::Tensor(self.nodes.len() - 1))
    }
}

/// Collects the names of this block that an expression reads.
fn names_in(expression: &Expression, found: &mut BTreeSet<Box<str>>) {
    if let ExpressionKind::Name(name) = &expression.kind {
        found.insert(name.clone());
    }
    expression.kind.operands().for_each(|operand| names_in(operand, found));
}

/// Collects the names that an expression reads by `block[i].name`.
fn names_of_blocks(expression: &Expression, found: &mut BTreeSet<Box<str>>) {
    if let ExpressionKind::BlockName { name, .. } = &expression.kind {
        found.insert(name.clone());
    }
    expression.kind.operands().for_each(|operand| names_of_blocks(operand, found));
}
