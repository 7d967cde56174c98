use super::*;

/// Returns the names and shapes of a graph's parameters.
fn parameters(graph: &Graph) -> Vec<(String, Vec<usize>)> {
    graph.parameters.iter().map(|p| (p.name.clone(), p.shape.clone())).collect()
}

fn count(graph: &Graph, is_wanted: impl Fn(&Operation) -> bool) -> usize {
    graph.nodes.iter().filter(|node| is_wanted(&node.operation)).count()
}

#[test]
fn parameters_have_the_names_of_their_statements_or_their_own() {
    let text = text_with(
        "",
        "  n = rms_norm(x)\n  qkv = linear(n, 8, 4, 4, bias = true)\n  x = x + linear(silu(qkv), dim, name = \"out\")\n  \
         x = x * vector(dim, 1, name = \"gain\", decay = false, role = \"head\")",
        "",
    );
    let graph = graph(&text);
    let block = |i: usize| {
        [
            (format!("blocks.{i}.n"), vec![8]),
            (format!("blocks.{i}.qkv"), vec![16, 8]),
            (format!("blocks.{i}.qkv_bias"), vec![16]),
            (format!("blocks.{i}.out"), vec![8, 16]),
            (format!("blocks.{i}.gain"), vec![8]),
        ]
    };
    let mut expected = vec![("table".to_owned(), vec![16, 8])];
    expected.extend(block(0));
    expected.extend(block(1));
    expected.push(("logits".to_owned(), vec![16, 8]));
    assert_eq!(parameters(&graph), expected);
    assert_eq!(graph.parameters[2].stacked, [8, 4, 4]);
    let gain = &graph.parameters[5];
    assert_eq!(
        (gain.role.as_deref(), gain.decay, gain.initial),
        (Some("head"), Some(false), Initial::Constant(1.0))
    );
}

#[test]
fn a_parameter_inside_the_call_of_another_is_named_after_its_function() {
    let text = text_with("", "  x = x + dropout(linear(silu(linear(norm(x), 3)), dim))", "");
    let found = parameters(&graph(&text));
    let expected = [("x_norm", vec![8]), ("x_linear", vec![3, 8]), ("x", vec![8, 3])];
    let expected = expected.map(|(name, shape)| (format!("blocks.0.{name}"), shape));
    assert_eq!(found[1..4], expected);
}

#[test]
fn a_block_replaces_values_of_embed_and_its_own_names_end_with_it() {
    let swapped = text_with("  y = 2 * x", "  z = x\n  x = y\n  y = z", "  x = x - y");
    let graph = graph(&swapped);
    // Two swaps restore x and y.
    let last = &graph.nodes[graph.nodes[graph.logits].inputs[0]];
    assert_eq!(last.operation, Operation::Elementwise(Elementwise::Subtract));
    assert!(matches!(graph.nodes[last.inputs[0]].operation, Operation::Embedding { .. }));
    let (at, found) = mistake(&text_with("", "  x = if layer > 0 then x + z else x\n  z = x", ""));
    assert_eq!((at.as_str(), found.layer), ("z", Some(1)));
    assert!(found.help.contains("block[layer - 1].z"), "{found:?}");
    let (at, found) = mistake(&text_with("", "  z = x", "  x = z"));
    assert_eq!((at.as_str(), found.layer), ("z", None));
    assert!(found.help.contains("block[n_layers - 1].z"), "{found:?}");
}

#[test]
fn blocks_read_the_values_of_earlier_blocks() {
    let block =
        "  h = linear(x, dim)\n  x = if layer > 0 then x + block[layer - 1].h + block[0].x * h else x";
    let graph = graph(&text_with("", block, "  x = block[n_layers - 1].x"));
    // The h of both blocks, and the logits.
    assert_eq!(count(&graph, |o| matches!(o, Operation::Linear { .. })), 3);
    let sum = &graph.nodes[graph.nodes[graph.logits].inputs[0]];
    let product = &graph.nodes[sum.inputs[1]];
    assert_eq!(product.operation, Operation::Elementwise(Elementwise::Multiply));
    let embedding = &graph.nodes[product.inputs[0]].operation;
    assert_eq!(*embedding, Operation::Embedding { table: 0, positions: false });
}

#[test]
fn ifs_are_decided_by_keys_and_layers_and_leave_no_trace() {
    let block = "  gate = if layer % 2 == 1 and model.window == none then linear(x, 1)\n  \
                 x = if layer % 2 == 1 then x * sigmoid(gate)\n  \
                 x = 15 * layer / sqrt(layer^2 + 225) * x";
    let graph = graph(&text_with("", block, ""));
    let gates: Vec<&str> =
        graph.parameters.iter().map(|p| p.name.as_str()).filter(|n| n.ends_with("gate")).collect();
    assert_eq!(gates, ["blocks.1.gate"]);
    let constants: Vec<f64> = graph
        .nodes
        .iter()
        .filter_map(|node| match node.operation {
            Operation::Constant(value) => Some(value),
            _ => None,
        })
        .collect();
    assert_eq!(constants, [0.0, 15.0 / 226f64.sqrt()]);
}

#[test]
fn numbers_are_computed_as_in_mathematics() {
    for (value, expected) in [
        ("-7 % 3", 2.0),
        ("7 % -3", -2.0),
        ("-2^2", -4.0),
        ("2^3^2", 512.0),
        ("floor(7 / 2) + ceil(7 / 2)", 7.0),
        ("max(dim, 3) * n_layers", 16.0),
        ("if not (1 > 2) and 2 >= 2 then 1 else 0", 1.0),
        ("if model.norm == \"rms_norm\" then 3 else 4", 3.0),
        ("if false and tokens == 2 then 1 else 2", 2.0),
        ("2 * pi / pi", 2.0),
    ] {
        let graph = graph(&text_with("", "", &format!("  x = x + ({value})")));
        let found = graph.nodes.iter().find_map(|node| match node.operation {
            Operation::Constant(value) => Some(value),
            _ => None,
        });
        assert_eq!(found, Some(expected), "{value}");
    }
}

#[test]
fn shapes_follow_from_heads_slices_and_broadcasts() {
    for (value, heads, width) in [
        ("heads(x, 4)", 4, 2),
        ("heads(heads(x, 4), 2)", 2, 4),
        ("slice(heads(x, 4), 1, 2)", 4, 1),
        ("concat(heads(x, 4), heads(x, 4))", 4, 4),
        ("concat(heads(x, 4), slice(x, 0, 3))", 4, 5),
        ("heads(x, 4) * linear(x, 1)", 4, 2),
        ("heads(x, 4) * heads(linear(x, 4), 4)", 4, 2),
        ("heads(x, 4) * vector(2, 1)", 4, 2),
        ("mean(heads(x, 4))", 4, 1),
        ("attention(heads(x, 4), heads(slice(x, 0, 4), 2), heads(x, 2))", 4, 4),
        ("max(shift(x, 1), 0) + scalar(0.5, name = \"s\")", 1, 8),
        ("linear(heads(x, 4), 3)", 1, 3),
        ("linear(x, 3, stack = 2)", 1, 6),
    ] {
        let text = text_with("", "", &format!("  y = {value}\n  x = x + linear(y, dim, name = \"last\")"));
        let graph = graph(&text);
        let last = graph
            .nodes
            .iter()
            .rev()
            .filter(|n| matches!(n.operation, Operation::Linear { .. }))
            .nth(1)
            .unwrap();
        let shape = graph.nodes[last.inputs[0]].shape;
        assert_eq!(shape, Shape { rows: true, heads, width }, "{value}");
    }
}

#[test]
fn factors_of_one_whole_slices_and_no_dropout_are_no_operations() {
    let graph =
        graph(&text_with("", "  x = dropout(1 * x / 1)", "  x = slice(shift(heads(x, 1), 0), 0, dim)"));
    assert_eq!(graph.nodes.len(), 2, "{:?}", graph.nodes);
}

#[test]
fn every_built_in_text_resolves() {
    for text in TEXTS {
        let gated = text.contains("gate_up");
        let keys = Keys { gated, ..keys() };
        let graph = resolve(&parsed(text), &keys).unwrap_or_else(|mistake| panic!("{text}\n{mistake:?}"));
        assert!(count(&graph, |o| matches!(o, Operation::Attention { .. })) == 2);
    }
}

#[test]
fn mistakes_in_the_meaning_are_pointed_at() {
    let block = |block: &str| text_with("", block, "");
    for (text, at, label, help) in [
        (
            block("  x = dropout(x, 0.00001)"),
            "dropout(x, 0.00001)",
            "the rate 1e-5 would become 1.52587890625e-5",
            "16 random bits",
        ),
        (
            block("  x = x * vector(dim, 1, name = \"gain\", role = \"matrix\")"),
            "vector(dim, 1, name = \"gain\", role = \"matrix\")",
            "gain is a vector",
            "orthogonalize",
        ),
        (
            block("  y = lin(x, dim)"),
            "lin",
            "unknown function",
            "did you mean linear? `xrun model functions` lists the functions",
        ),
        (block("  y = zzz(x)"), "zzz", "unknown function", "`xrun model functions` lists"),
        (block("  y = softmax(x)"), "softmax", "unknown function", "only attention(q, k, v) has a softmax"),
        (
            block("  y = linear(x, 2, init = zero)"),
            "zero",
            "unknown name",
            "init takes a number, normal(std)",
        ),
        (block("  y = linear(x, 2, init = residual)"), "residual", "unknown name", "init = \"residual\""),
        (block("  y = linear(x, 2, bias = yes)"), "yes", "unknown name", "bias takes true or false"),
        (block("  y = linear(x, 2, bias = True)"), "True", "unknown name", "did you mean true?"),
        (block("  y = linear(x, 2, role = body)"), "body", "unknown name", "role takes \"embedding\", "),
        (block("  y = rms_norm(x, eps = tiny)"), "tiny", "unknown name", "eps takes a number"),
        (
            block("  y = linear(x, 16, weight = shared)"),
            "shared",
            "unknown name",
            "the part embed, in quotes",
        ),
        (block("  y = embedding(targets, dim)"), "targets", "unknown name", "never sees targets"),
        (block("  y = linear(x, 2, init = labels)"), "labels", "unknown name", "never sees targets"),
        (block("  y = mean(x, dim = 0)"), "dim", "no argument of mean", "over the width of each head only"),
        (block("  y = sum(x, 0)"), "0", "one argument too many", "over the width of each head only"),
        (block("  y = x + yy"), "yy", "unknown name", "begins with yy ="),
        (block("  y = x + dimm"), "dimm", "unknown name", "dim?"),
        (block("  y = window"), "window", "unknown name", "model.window"),
        (block("  y = linear"), "linear", "a function", "linear(x, width, …"),
        (block("  y = gelu"), "gelu", "a function", "gelu(u)"),
        (block("  y = x + y"), "y", "has no value here", "block[layer - 1].y"),
        (text_with("  y = layer", "", ""), "layer", "outside of the part block", "blocks"),
        (block("  layer = 2"), "layer", "has a meaning in every text", "another name"),
        (block("  y = model.windw"), "model.windw", "no key that texts read", "model.window"),
        (
            block("  y = model.norm == \"rmsnorm\""),
            "model.norm == \"rmsnorm\"",
            "the key is never \"rmsnorm\"",
            "rms_norm",
        ),
        (block("  y = if x then 1 else 2"), "x", "rows of 8", "before a model runs"),
        (block("  y = if 1 then 1 else 2"), "1", "the number 1", "before a model runs"),
        (block("  y = x < 1"), "x < 1", "< of rows of 8", "numbers only"),
        (block("  y = x == 1"), "x == 1", "rows of 8 beside the number 1", "can be compared"),
        (block("  y = x + linear(x, 3)"), "x + linear(x, 3)", "rows of 8 beside rows of 3", "heads(x, n)"),
        (
            block("  y = heads(x, 4) + x"),
            "heads(x, 4) + x",
            "rows of 4 heads of 2 beside rows of 8",
            "heads(x, n)",
        ),
        (block("  y = x + tokens"), "x + tokens", "computes with tokens", "embedding(tokens, dim)"),
        (block("  y = x + true"), "x + true", "computes with true", "numbers"),
        (block("  y = heads(x, 3)"), "3", "8 elements in 3 heads", "divides"),
        (block("  y = linear(x, 0)"), "0", "0", "from 1 to"),
        (block("  y = linear(x, 2.5)"), "2.5", "the number 2.5", "a whole number"),
        (block("  y = linear(x, 1e9)"), "1e9", "1000000000", "from 1 to 16777216"),
        (block("  y = linear(x)"), "linear(x)", "no width", "linear(x, width, …"),
        (block("  y = linear(x, 2, bias = 1)"), "1", "the number 1", "true or false"),
        (block("  y = linear(x, 2, bais = true)"), "bais", "no argument of linear", "bias?"),
        (block("  y = shift(x, n = 1, 2)"), "2", "after a named argument", "shift(x, n)"),
        (block("  y = shift(x, 1, 2)"), "2", "one argument too many", "shift(x, n)"),
        (block("  y = shift(x, x = 1)"), "1", "a second x", "shift(x, n)"),
        (block("  y = shift(x, -1)"), "-1", "the number -1", "from 0 to 64"),
        (block("  y = slice(x, 4, 9)"), "9", "9", "from 5 to 8"),
        (block("  y = max(x)"), "max(x)", "1 of 2 arguments", "max(u, v)"),
        (block("  y = norm(vector(8, 1))"), "vector(8, 1)", "a vector of 8", "one for each token"),
        (block("  y = embedding(x, 8)"), "x", "rows of 8", "tokens or positions"),
        (
            block("  y = attention(heads(x, 2), x, x)"),
            "attention(heads(x, 2), x, x)",
            "queries in rows of 2 heads of 4, and keys in rows of 8",
            "equally wide",
        ),
        (
            block("  y = attention(heads(x, 2), heads(x, 2), x)"),
            "attention(heads(x, 2), heads(x, 2), x)",
            "2 heads of queries, 2 of keys, 1 of values",
            "multiple",
        ),
        (block("  y = attention(x, x, x, window = 0)"), "0", "0", "from 1 to"),
        (block("  y = dropout(x, 1)"), "1", "the number 1", "probability"),
        (block("  y = rope(linear(x, 3))"), "rope(linear(x, 3))", "rotates 3 elements", "of a head of 3"),
        (block("  y = rope(x, width = 3)"), "3", "rotates 3 elements", "pairs"),
        (block("  y = activation(x)"), "activation(x)", "1 values", "activation(a, b)"),
        (
            block("  y = linear(x, dim)"),
            "linear(x, dim)",
            "no logit depends on it",
            "y ends with the block, and later blocks and the head read x: write x = …, or remove it",
        ),
        (
            block("  m = rms_norm(x)\n  up = linear(m, 12)\n  down = x + linear(up, dim, name = \"out\")"),
            "down",
            "no logit depends on it",
            "down ends with the block, and later blocks and the head read x: write x = …",
        ),
        (
            text_with("  z = 2 * x", "  y = z + linear(x, dim)", ""),
            "linear(x, dim)",
            "no logit depends on it",
            "the head read x, z: give it to one of them",
        ),
        (
            block("  h = linear(x, dim)\n  x = if layer > 0 then x + block[0].h"),
            "linear(x, dim)",
            "no logit depends on it",
            "nothing reads the h of block 1",
        ),
        (
            text_with("  y = linear(x, dim)", "", ""),
            "linear(x, dim)",
            "no logit depends on it",
            "use its value, or remove it",
        ),
        (
            block("  x = linear(x, dim) + linear(x, 1)"),
            "linear(x, 1)",
            "a second parameter called x",
            "name = \"x_2\"",
        ),
        (block("  x = linear(x, dim, name = \"a.b\")"), "\"a.b\"", "not a name", "letters"),
        (block("  x = linear(x, dim, init = \"resid\")"), "\"resid\"", "the word \"resid\"", "residual"),
        (block("  x = linear(x, dim, role = \"matrx\")"), "\"matrx\"", "the word \"matrx\"", "matrix"),
        (
            block("  x = linear(x, dim, weight = \"tabel\")"),
            "\"tabel\"",
            "no parameter of the part embed",
            "table",
        ),
        (
            block("  x = linear(x, dim, weight = \"table\")"),
            "\"table\"",
            "table is [16, 8], and the product needs [8, 8]",
            "outputs come first",
        ),
        (
            block("  x = linear(x, 16, weight = \"table\", init = 0)"),
            "0",
            "the weight is another parameter's",
            "attributes",
        ),
        (block("  y = if layer > 9 then zz else x"), "zz", "unknown name", "begins with zz ="),
        (block("  y = if layer > 9 then zz(x) else x"), "zz", "unknown function", "model functions"),
        (
            block("  y = if layer > 9 then model.windw else x"),
            "model.windw",
            "no key that texts read",
            "window",
        ),
        (block("  y = if layer > 9 then shift(x, 3, 4) else x"), "4", "one argument too many", "shift(x, n)"),
        (block("  y = if layer > 9 then block[0].zz else x"), "block[0].zz", "no block has zz", "part block"),
        (block("  y = block[0 - 1].x"), "0 - 1", "block -1 is not before block 0", "if layer > 0 then"),
        (
            block("  y = if layer > 0 then block[layer + 1].x"),
            "layer + 1",
            "block 2 is not before block 1",
            "the blocks before block 1 are 0 to 0; block[layer - 1] is the last of them",
        ),
        (text_with("  y = block[0].x", "", ""), "0", "there is no block 0", "before the part embed"),
        (text_with("", "", "  x = block[2].x"), "2", "there is no block 2", "the blocks are 0 to 1"),
        (text_with("", "", "  x = block[1].z"), "block[1].z", "block 1 has no z", "in the part block"),
        (text_with("", "", "  logits = x\n  x = y"), "y", "unknown name", "begins with"),
        ("embed:\nblock:\nhead:\n".into(), "head:", "gives no logits", "vocab_size"),
        (
            "embed:\n  x = embedding(tokens, dim)\nblock:\nhead:\n  logits = x\n".into(),
            "x",
            "rows of 8, for a vocabulary of 16",
            "vocab_size",
        ),
        (
            block("  y = 1 / (layer - layer)"),
            "1 / (layer - layer)",
            "is beyond the numbers of fp32, which end at 3.4e38",
            "fp32",
        ),
        (block("  y = sqrt(0 - 1)"), "sqrt(0 - 1)", "is not a number", "fp32"),
    ] {
        let (pointed, mistake) = mistake(&text);
        assert_eq!((pointed.as_str(), mistake.label.as_str()), (at, label), "{text}\n{mistake:?}");
        assert!(mistake.help.contains(help), "{text}\n{mistake:?}");
    }
}

#[test]
fn values_that_nothing_reads_and_branches_that_no_block_takes_are_remarked() {
    let remarks = |embed: &str, block: &str, head: &str| {
        let found = parsed(&text_with(embed, block, head)).remarks(&keys());
        found.into_iter().map(|remark| format!("{} {}", remark.statement, remark.text)).collect::<Vec<_>>()
    };
    assert_eq!(remarks("  y = 2 * x", "  x = x + y\n  y = 3 * y", "  x = x + block[0].y"), [""; 0]);
    assert_eq!(remarks("", "  h = 2 * x\n  x = if layer > 0 then x + block[0].h", ""), [""; 0]);
    let unread = |statement: &str| format!("{statement} nothing reads this value");
    // Only another unread value reads y; the block's last value of x replaces the one before.
    let found = remarks("  a = x", "  y = 2 * x\n  z = y + 1\n  x = 3 * x\n  x = a", "");
    assert_eq!(found, ["y = 2 * x", "z = y + 1", "x = 3 * x"].map(unread));
    assert_eq!(remarks("", "  x = x^2\n  x = if layer > 0 then x + 1", "  x = 2 * x\n  x = 1 * x"), [""; 0]);
    assert_eq!(remarks("", "  y = x\n  y = y + 1", "  z = x"), ["y = x", "y = y + 1", "z = x"].map(unread));
    let found = remarks(
        "",
        "  far = layer >= 9\n  x = if far then 2 * x\n  x = if layer < n_layers then x else 3 * x",
        "",
    );
    assert_eq!(
        found,
        [
            "x = if far then 2 * x far is false in every block, so what follows then is never used",
            "x = if layer < n_layers then x else 3 * x layer < n_layers is true in every block, so what follows \
             else is never used",
        ]
    );
    // The recipe chooses, or some block takes the branch.
    let block = "  x = if model.window == none then x else 2 * x\n  x = if n_layers > 9 then 2 * x\n  \
                 x = if dim > 99 then 2 * x\n  x = if layer == 1 then 2 * x else x";
    assert_eq!(remarks("", block, ""), [""; 0]);
}

#[test]
fn texts_in_the_binary_have_names_keys_and_no_unread_values() {
    assert_eq!(BUILT_IN.map(|(name, _)| name), BUILT_IN_NAMES);
    for (name, text) in texts() {
        let found = parsed(text).remarks(&keys());
        assert!(found.iter().all(|remark| !remark.text.contains("nothing reads")), "{name}: {found:?}");
    }
}

#[test]
fn lines_of_the_canonical_text_are_found_in_the_text() {
    let text = parsed(
        "# A comment.\nembed:\n  x = embedding(tokens,\n    dim)\n\n  y = 2\nblock:\nhead:\n\n  logits = x\n",
    );
    let canonical: Vec<&str> = text.text().lines().collect();
    for (line, statement) in [(3, "x = embedding"), (6, "y = 2"), (10, "logits = x")] {
        let index = canonical.iter().position(|found| found.trim_start().starts_with(statement)).unwrap();
        assert_eq!(text.line_of_canonical(index + 1), Some(line), "{statement}");
    }
    assert_eq!(text.line_of_canonical(1), None);
}

#[test]
fn the_table_of_functions_says_how_far_rows_are_shifted() {
    let shift = Signature::find("shift").unwrap();
    assert!(shift.meaning.contains(&format!("from 0 to {MAX_SHIFT},")), "{}", shift.meaning);
}

#[test]
fn the_number_of_operations_is_limited() {
    let keys = Keys::new([1024.0, 8.0, 4.0, 2.0, 2.0, 12.0, 16.0, 1e-6, 32.0], [], true);
    let sums = format!("  x = {}\n", vec!["x"; 127].join(" + ")).repeat(4);
    let found = resolve(&parsed(&text_with("", &sums, "")), &keys).unwrap_err();
    assert_eq!(found.label, "one operation too many");
    assert_eq!(found.layer, Some(MAX_GRAPH_NODES / (4 * 126)));
}

#[test]
fn a_text_says_which_keys_it_reads() {
    let keys = |block: &str, head: &str| {
        let text = parsed(&text_with("", block, head));
        text.keys().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let always = [
        "base_dim",
        "definition",
        "dim",
        "init_from",
        "init_optimizer",
        "init_std",
        "n_layers",
        "parametrization",
        "vocab_size",
    ];
    assert_eq!(keys("", ""), always, "two products and a table");
    let more = |block: &str, head: &str| {
        let found = keys(block, head).into_iter().filter(|key| !always.contains(&key.as_str()));
        found.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(more("  x = dropout(norm(x))", ""), "dropout norm norm_bias norm_eps norm_weight");
    assert_eq!(more("  x = dropout(rms_norm(x, eps = 1e-5), 0.1)", ""), "");
    assert_eq!(more("  x = linear(x, dim, init = \"residual\", name = \"y\")", ""), "residual_init");
    assert_eq!(more("", "  x = if model.norm == \"rms_norm\" then x else x * n_heads"), "n_heads norm");
    let rotated = more("  x = rope(x, 100, reversed = false)", "");
    assert!(
        rotated.contains("rope_fraction rope_high_freq_factor") && !rotated.contains("theta"),
        "{rotated}"
    );
    let reads = |text: &str| (parsed(text).looks_up_positions(), parsed(text).has_own_head());
    assert_eq!(reads(&text_with("", "", "")), (false, true));
    let tied = text_with("  x = x + embedding(positions, dim, name = \"p\")", "", "")
        .replace("(x, vocab_size)", "(x, vocab_size, weight = \"table\")");
    assert_eq!(reads(&tied), (true, false));
    for (block, own) in [
        ("  x = dropout(x)", false),
        ("  x = dropout(x, p = model.dropout)", false),
        ("  x = dropout(x, 0.1)", true),
        ("  h = heads(x, 2)\n  x = heads(attention(h, h, h, dropout = model.dropout), 1)", false),
        ("  h = heads(x, 2)\n  x = heads(attention(h, h, h, dropout = 0.1), 1)", true),
    ] {
        assert_eq!(parsed(&text_with("", block, "")).has_own_dropout(), own, "{block}");
    }
}
