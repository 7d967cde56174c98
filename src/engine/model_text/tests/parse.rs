use super::*;

#[test]
fn spellings_of_one_text_have_one_canonical_text() {
    let text = "# A comment: é.\r\nembed:\n\n  x=embedding( tokens,dim , )  # table\r\n  y = (x)*((2)) + (x ^ -1.50)\nblock:\n  \
                x = (x +\n    linear(x, dim))\nhead:\n  logits = if (1 < 2 and not (dim == 3)) then linear(x,vocab_size) \
                else if true then (if false then x else y) else x\n";
    let expected = "embed:
  x = embedding(tokens, dim)
  y = x * 2 + x^-1.5
block:
  x = x + linear(x, dim)
head:
  logits = if 1 < 2 and not dim == 3 then linear(x, vocab_size) else if true then (if false then x else y) else x
";
    assert_eq!(parsed(text).text(), expected);
    assert_eq!(parsed(text), parsed(expected));
    assert_eq!(parsed(text).hash(), parsed(expected).hash());
    assert_ne!(parsed(expected), parsed(&expected.replace("x * 2", "2 * x")), "nothing is rearranged");
}

#[test]
fn parentheses_stay_where_they_change_the_value() {
    for value in [
        "(1 + 2) * 3",
        "1 - (2 - 3)",
        "1 - 2 - 3",
        "2^3^2",
        "(2^3)^2",
        "(-2)^2",
        "-2^2",
        "-(1 + 2)",
        "2^-1",
        "2 * -1",
        "not (1 == 1 and 2 == 2)",
        "(1 == 1) == true",
        "(if true then 1 else 2) + 1",
        "1 == 1 or 2 == 2 and not 3 == 3",
        "(1 == 1 or 2 == 2) and 3 == 3",
        "block[layer - 1].x",
        "model.window == none",
        "7 % 2 / 3",
    ] {
        let text = text_with("", &format!("  y = {value}"), "");
        assert!(parsed(&text).text().contains(&format!("  y = {value}\n")), "{}", parsed(&text).text());
    }
}

#[test]
fn the_canonical_text_of_every_built_in_text_is_its_own() {
    for text in TEXTS {
        let canonical = parsed(text).text().to_owned();
        assert_eq!(parsed(&canonical).text(), canonical);
        assert!(!canonical.contains('#') && canonical.len() < text.len(), "{canonical}");
    }
}

#[test]
fn mistakes_in_the_grammar_are_pointed_at() {
    let block = |block: &str| text_with("", block, "");
    for (text, at, label, help) in [
        (String::new(), "", "ends here", "embed: is missing"),
        ("embed:\n  x = 1\n".into(), "", "ends here", "block: is missing"),
        ("x = 1\n".into(), "x", "outside of a part", "begins with the line embed:"),
        ("block:\n".into(), "block", "before the part embed", "in this order"),
        ("embed:\nblock:\nhead:\nhead:\n".into(), "head", "after the last part", "in this order"),
        ("embed: x = 1\n".into(), "x", "on the line of a part", "new line"),
        (block("  y"), "", "no = before it", "x = linear(x, dim)"),
        (block("  3 = y"), "3", "no statement", "x = linear(x, dim)"),
        (block("  y = "), "", "ends here", "is missing"),
        (block("  if = 2"), "if", "a word of the language", "another name"),
        (block("  y = (x\n  z = 3"), "(", "never closed", "a ) is missing"),
        (block("  y = linear(x, dim"), "(", "never closed", "a ) is missing"),
        (block("  y = block[layer + 1"), "[", "never closed", "a ] is missing"),
        (block("  y = x)"), ")", "closes nothing", "a ( or [ is missing"),
        (block("  y = x, 2"), ",", "a comma", "arguments"),
        (block("  y = 2 x"), "x", "no operator before it", "with *"),
        (block("  y = x = 2"), "=", "an assignment", "=="),
        (
            block("  y = 0 < layer < 2"),
            "<",
            "a second comparison",
            "comparisons do not chain; write 0 < layer and layer < 2",
        ),
        (block("  y = if 0 <= layer < 2 then x"), "<", "a second comparison", "0 <= layer and layer < 2"),
        (
            block(&format!("  y = 1 < {} < 3", ["2"; 40].join(" + "))),
            "<",
            "a second comparison",
            "a < b and b < c",
        ),
        (
            text_with("", "", "").replace("block:", "blocks:"),
            "blocks",
            "no part of a text",
            "did you mean block:?",
        ),
        (text_with("", "", "").replace("embed:", "embedding:"), "embedding", "no part of a text", "embed:?"),
        (
            text_with("", "", "").replace("head:", "output:"),
            "output",
            "no part of a text",
            "block: and head:",
        ),
        (block("  y = 2 // a comment"), "//", "no operator", "begins with #"),
        (block("  /* a comment */"), "/*", "begins no comment", "begins with #"),
        (block("  y = 1 < 2 && 2 < 3"), "&&", "no operator", "with and"),
        (block("  y = 1 < 2 || 2 < 3"), "||", "no operator", "with or"),
        (block("  y = !true"), "!", "no operator", "write not"),
        (block("  y = x @ x"), "@", "no operator", "linear(x, width)"),
        (block("  y = linear(x, 2, init = 'residual')"), "'", "not part of a model text", "double quotes"),
        (block("  x *= 2"), "*=", "assigns nothing", "name = value: write x = x * …"),
        (block("  x == 2"), "==", "a comparison", "with one ="),
        (block("  y = torch.sigmoid(x)"), "torch.sigmoid", "a point after a name", "write sigmoid(…)"),
        (block("  y = torch.nn.softmax(x)"), "torch.nn.softmax", "a point after a name", "model functions"),
        (block("  y = x.shape"), "x.shape", "a point after a name", "only model.KEY and block[i].name"),
        (block("  y = x if true else 2"), "if", "after the value", "if CONDITION then"),
        (block("  y = x + if true then 1 else 2"), "if", "inside an expression", "in parentheses"),
        (block("  y = 1 + (if true then 1)"), "if", "has no else", "only a whole statement"),
        (block("  y = if true 1"), "1", "no then before it", "then"),
        (block("  y = x\n    else 3"), "else", "begins a line", "in parentheses"),
        (block("  y = 1 == not true"), "not", "after an operator", "(not …)"),
        (block("  y = x ** 2"), "**", "no operator", "^"),
        (block("  y = * 2"), "*", "nothing before it", "is missing"),
        (block("  y = +2"), "+", "a sign", "leave the + out"),
        (block("  y = 2. * x"), "2.", "no digit after the point", "2.0"),
        (block("  y = 1e39"), "1e39", "is beyond the numbers of fp32, which end at 3.4e38", "fp32"),
        (block("  y = \"rope"), "\"", "never closed", "\""),
        (block("  y = \"ropé\""), "\"ropé\"", "not ASCII", "recipes"),
        (block("  y = x § 2"), "§", "not part of a model text", "operators"),
        (block("  y = 2 # \u{202e}"), "\u{202e}", "a character that cannot be seen", "remove it"),
        (block("  y = model"), "model", "no name after it", "model.activation"),
        (block("  y = model.3"), "3", "no name", "model.activation"),
        (block("  y = block"), "block", "names a part", "block[layer - 1].x"),
        (block("  y = block[0]"), "block[0]", "no name after it", "block[layer - 1].x"),
    ] {
        let (pointed, mistake) = mistake(&text);
        assert_eq!((pointed.as_str(), mistake.label.as_str()), (at, label), "{text}\n{mistake:?}");
        assert!(mistake.help.contains(help), "{text}\n{mistake:?}");
    }
}

#[test]
fn sizes_are_limited() {
    let block = |block: &str| text_with("", block, "");
    let deep = |depth: usize| block(&format!("  y = {}1{}", "(".repeat(depth), ")".repeat(depth)));
    assert!(ModelText::parse(&deep(MAX_DEPTH)).is_ok());
    let ifs = "if true then 1 else ".repeat(40);
    let statements = "  y = 1\n".repeat(MAX_STATEMENTS);
    let long = format!("  y = {}\n", vec!["1"; 128].join(" + "));
    for (text, label) in [
        (deep(MAX_DEPTH + 1), "too deep"),
        (block(&format!("  y = {}1", "not ".repeat(40))), "too deep"),
        (block(&format!("  y = {}1", "-".repeat(5000))), "too deep"),
        (block(&format!("  y = {}1", "2^".repeat(40))), "too deep"),
        (block(&format!("  y = {ifs}2")), "too deep"),
        (block(&format!("  y = {}1", "f(".repeat(40))), "too deep"),
        (block(&statements), "one statement too many"),
        (block(&format!("  y = {}", vec!["1"; 129].join(" + "))), "too long"),
        (block(&long.repeat(20)), "too long"),
        (block(&format!("  {} = 1", "y".repeat(MAX_NAME + 1))), "65 characters"),
        (block(&"#".repeat(MAX_BYTES)), "65637 bytes"),
    ] {
        assert_eq!(ModelText::parse(&text).map(|_| ()).unwrap_err().label, label);
    }
}
