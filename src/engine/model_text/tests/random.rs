use super::*;
use proptest::prelude::*;

/// Pieces of texts, right and wrong.
const PIECES: [&str; 64] = [
    "embed:\n",
    "block:\n",
    "head:\n",
    "\n",
    "  x = ",
    "  y = ",
    "  logits = ",
    "x",
    "y",
    "tokens",
    "positions",
    "dim",
    "layer",
    "n_layers",
    "vocab_size",
    "(",
    ")",
    "[",
    "]",
    ", ",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    "^",
    " == ",
    " != ",
    " < ",
    " and ",
    " or ",
    "not ",
    "-",
    "if ",
    " then ",
    " else ",
    "true",
    "none",
    "0",
    "1",
    "2",
    "0.5",
    "1e30",
    "\"rope\"",
    "model.norm",
    "block[layer - 1].x",
    "linear(x, dim)",
    "embedding(tokens, dim)",
    "rms_norm(",
    "attention(x, x, x)",
    "heads(x, 2)",
    "slice(x, 0, ",
    "concat(",
    "shift(x, 1)",
    "dropout(x)",
    "scalar(0)",
    "vector(dim, 1)",
    "sum(",
    "silu(",
    "max(",
    "name = \"a\"",
    "init = normal(",
    "# c\n",
    "é",
];

/// Returns a graph without the lines of its statements, which depend on how the text is spaced.
fn without_lines(mut graph: Graph) -> Graph {
    graph.statements.iter_mut().for_each(|statement| statement.line = 0);
    graph
}

/// Checks what must hold for every text.
fn check(text: &str) -> Result<(), TestCaseError> {
    let points_at = |mistake: &Mistake| text.get(mistake.at.clone()).is_some() && !mistake.label.is_empty();
    let parsed = match ModelText::parse(text) {
        Ok(parsed) => parsed,
        Err(mistake) => {
            prop_assert!(points_at(&mistake), "{text:?}: {mistake:?}");
            return Ok(());
        }
    };
    let again = ModelText::parse(parsed.text());
    prop_assert_eq!(again.as_ref().map(ModelText::text), Ok(parsed.text()), "{}", text);
    for gated in [true, false] {
        let keys = Keys { gated, ..keys() };
        let graph = match resolve(&parsed, &keys) {
            Ok(graph) => graph,
            Err(mistake) => {
                prop_assert!(points_at(&mistake), "{text:?}: {mistake:?}");
                continue;
            }
        };
        let same = resolve(again.as_ref().unwrap(), &keys);
        prop_assert_eq!(same.map(without_lines), Ok(without_lines(graph.clone())));
        let mut read = vec![false; graph.parameters.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            prop_assert!(node.inputs.iter().all(|&input| input < index), "{text}");
            prop_assert!(node.shape.elements() <= MAX_WIDTH && node.shape.elements() > 0, "{text}");
            node.operation.parameters().for_each(|parameter| read[parameter] = true);
        }
        prop_assert!(read.iter().all(|read| *read), "{text}");
        prop_assert_eq!(graph.nodes[graph.logits].shape, Shape { rows: true, heads: 1, width: 16 });
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_breaks_the_parser(text in "(embed:\n)?[-+*/%^()\\[\\]=!<>, .:\"#\n0-9a-zé]{0,80}") {
        check(&text)?;
    }

    #[test]
    fn no_sequence_of_pieces_breaks_the_resolver(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..40),
    ) {
        let text = pieces.concat();
        check(&text)?;
        check(&text_with("", &format!("  y = {text}"), ""))?;
        check(&text_with("", &format!("  x = {text}"), "  x = x + y"))?;
    }

    /// A built-in text with a piece in place of a few bytes, or with two lines exchanged.
    #[test]
    fn no_change_of_a_text_breaks_the_resolver(
        text in prop::sample::select(&TEXTS[..]),
        (from, count, other) in (0..2000_usize, 0..12_usize, 0..40_usize),
        piece in prop::sample::select(&PIECES[..]),
    ) {
        let from = from % text.len();
        let end = (from + count).min(text.len());
        check(&format!("{}{piece}{}", &text[..from], &text[end..]))?;
        let mut lines: Vec<&str> = text.lines().collect();
        let (first, second) = (from % lines.len(), other % lines.len());
        lines.swap(first, second);
        check(&lines.join("\n"))?;
    }
}
