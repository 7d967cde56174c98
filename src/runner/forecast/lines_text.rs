//! Prints the lines of a model's text beside what they take in a step.

use super::lines::{HERE, ModelLines, PARTS, StepCosts};
use crate::format::Column::{Left, Right};
use crate::format::{Table, binary, decimal, metric, plural, shortened, thousands};
use crate::model::text::fitted;

/// Heading of the column of statements.
const MODEL: &str = "MODEL";

/// Says what the columns are.
const NOTE: &str = "\
FLOPS are those of products, and MOVED are bytes to and from memory: forward, backward and recomputation of a step.
KEPT are bytes that stay from the forward of a micro-step to its backward. An op that computes several lines counts
in the last of them, and the op of the logits also computes the losses. The rest is the update, the sums of losses,
what windows show, and reductions of gradients.
";

impl ModelLines {
    /// Returns the canonical text of the model beside what each line takes, for a terminal of this many
    /// columns.
    pub fn text(&self, columns: Option<usize>) -> String {
        let table = fitted(columns, MODEL, |longest| self.table(longest));
        let no_time: String =
            self.no_time.iter().map(|why| format!("No time is predicted: {why}.\n")).collect();
        format!(
            "{}: a step of {} tokens in {} micro-step{}, on one rank of {}\n\n{table}\n{NOTE}{no_time}",
            self.recipe,
            thousands(self.tokens_per_step),
            thousands(self.micro_steps),
            plural(self.micro_steps),
            thousands(self.ranks),
        )
    }

    fn table(&self, longest: usize) -> String {
        let mut columns = vec![Right, Left, Right, Right, Right, Right, Right];
        columns.resize(columns.len() + self.on.len(), Right);
        let mut table = Table::new(&columns);
        let times = self.on.iter().map(|name| match &**name {
            HERE => "MS".to_owned(),
            name => format!("MS {name}"),
        });
        let heads = ["LINE", MODEL, "BLOCKS", "PARAMETERS", "FLOPS", "KEPT", "MOVED"];
        table.row(heads.map(str::to_owned).into_iter().chain(times));
        let mut number = 1;
        for part in PARTS {
            table.row([number.to_string(), shortened(&format!("{part}:"), longest)]);
            number += 1;
            for line in self.lines.iter().filter(|line| line.part == part) {
                let statement = shortened(&format!("  {}", line.statement), longest);
                let start = [line.line.to_string(), statement, count(line.blocks)];
                table.row(start.into_iter().chain(cells(&line.costs)));
                number += 1;
            }
        }
        for (name, costs) in [("rest", &self.rest), ("all", &self.total)] {
            let start = [String::new(), shortened(name, longest), String::new()];
            table.row(start.into_iter().chain(cells(costs)));
        }
        table.render(0)
    }
}

/// Returns the cells of costs; nothing for 0.
fn cells(costs: &StepCosts) -> impl Iterator<Item = String> {
    let unless_zero = |value: f64, text: String| if value == 0.0 { String::new() } else { text };
    let bytes = |bytes: f64| unless_zero(bytes, binary(bytes.round() as usize));
    let flops = unless_zero(costs.product_flops, metric(costs.product_flops).trim_end().to_owned());
    let start =
        [count(costs.parameters), flops, bytes(costs.kept_bytes as f64), bytes(costs.bytes)].into_iter();
    let times =
        costs.seconds.iter().map(move |&seconds| unless_zero(seconds, decimal(Some(1e3 * seconds), 3)));
    start.chain(times.collect::<Vec<_>>())
}

/// Returns a number; nothing for 0.
fn count(count: usize) -> String {
    if count == 0 { String::new() } else { thousands(count) }
}
