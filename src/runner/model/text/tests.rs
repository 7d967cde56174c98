use super::{Beside, LineCost, TextCost, cost};
use crate::machine::Machine;
use crate::model::{Programs, ScoringPrograms, flops_per_token, parameters};
use crate::model_text::{Graph, ModelText, ROLES, built_in, resolve};
use crate::optim::GroupRole;
use crate::plan::{CorpusFacts, Plan};
use crate::recipe::{self, Type, builtin, section_keys};
use std::sync::Arc;

/// Returns the plan of a recipe for a tokenizer with 500 entries, or the message if it is refused.
fn plan(text: &str, settings: &[String]) -> Result<Plan, String> {
    let machine = Machine::none();
    let recipe = recipe::load_str("test.toml".as_ref(), text, settings, std::iter::empty(), &machine);
    let corpus = CorpusFacts {
        vocab_size: 500,
        train_tokens: 10_000_000,
        exact: true,
        validation_tokens: 10_000_000,
        ..CorpusFacts::default()
    };
    let planned = recipe.and_then(|recipe| Plan::new(&recipe, &corpus, &machine));
    planned.map_err(|e| e.message().to_owned())
}

fn resolved(name: &str, plan: &Plan) -> (ModelText, Graph) {
    let text = ModelText::parse(built_in(name).expect(name)).expect(name);
    let graph = resolve(&text, &plan.model.keys(plan.batch.seq_len));
    let graph = graph.unwrap_or_else(|mistake| panic!("{name}: {mistake:?}"));
    (text, graph)
}

/// Returns the programs of a plan, each as the lines of its nodes, without the names of transient tensors.
fn lines(plan: &Plan) -> Vec<String> {
    let programs = Programs::new(plan).unwrap();
    let of_training = programs.sections().into_iter().map(|section| section.program.to_string());
    let scoring = ScoringPrograms::new(plan, false).unwrap();
    of_training.chain(scoring.sections().map(|section| section.program.to_string())).collect()
}

#[test]
fn the_families_have_the_programs_of_their_recipes() {
    for (name, recipe) in [
        ("gpt2", "gpt2-124m"),
        ("llama", "smollm2-135m"),
        ("qwen3", "qwen3-0.6b"),
        ("nanochat", "nanochat-d12"),
    ] {
        let mut settings = vec!["model.n_layers=3".to_owned(), "generation.samples=2".to_owned()];
        settings.extend((name == "gpt2").then(|| "model.dropout=0.1".to_owned()));
        let plan = plan(builtin::get(recipe).unwrap().1, &settings).unwrap();
        let (text, graph) = resolved(name, &plan);
        let family = Plan { graph: Arc::new(graph), ..plan.clone() };
        let [found, wanted] = [&family, &plan].map(|plan| parameters(&plan.model, &plan.graph));
        assert_eq!(found, wanted, "{name}");
        for (found, wanted) in lines(&family).iter().zip(lines(&plan)) {
            assert_eq!(*found, wanted, "{name}");
        }
        check_flops(&cost(&text, &family.graph, &plan.model, plan.batch.seq_len), &plan, name);
    }
}

/// Checks the FLOPs of a text against the formula of the recipe's keys.
fn check_flops(cost: &TextCost, plan: &Plan, case: &str) {
    let wanted = flops_per_token(plan).value;
    assert!((cost.flops_per_token / wanted - 1.0).abs() < 1e-12, "{case}: {wanted} {}", cost.text(None));
}

#[test]
fn the_text_of_the_keys_has_the_flops_of_every_recipe() {
    for (recipe, text) in builtin::RECIPES {
        let plan = plan(text, &[]).unwrap();
        let (text, graph) = resolved("decoder", &plan);
        check_flops(&cost(&text, &graph, &plan.model, plan.batch.seq_len), &plan, recipe);
    }
}

/// Keys of a model with the values that a case may draw; an empty one leaves the key unset.
const CHOICES: [(&str, &[&str]); 24] = [
    ("model.n_layers", &["1", "2", "3"]),
    ("model.n_heads", &["4"]),
    ("model.n_kv_heads", &["", "2", "1"]),
    ("model.ffn_dim", &["", "64", "72"]),
    ("model.dropout", &["0.0", "0.1"]),
    ("model.norm", &["\"rms_norm\"", "\"layer_norm\""]),
    ("model.norm_weight", &["", "false"]),
    ("model.norm_bias", &["", "", "false"]),
    ("model.norm_placement", &["", "\"post\"", "\"sandwich\""]),
    ("model.embedding_norm", &["", "true"]),
    ("model.parallel_blocks", &["", "", "true"]),
    ("model.activation", &["", "\"gelu\"", "\"relu(x)^3\"", "\"sin(a) * b\""]),
    ("model.bias", &["", "true"]),
    ("model.position", &["", "\"learned\"", "\"none\""]),
    ("model.qk_norm", &["", "false"]),
    ("model.qk_norm_place", &["", "", "\"after_rope\""]),
    ("model.qk_norm_weight", &["", "", "false"]),
    ("model.window", &["", "8"]),
    ("model.global_interval", &["", "2"]),
    ("model.init_std", &["", "0.02"]),
    ("model.residual_init", &["", "\"zero\"", "\"unscaled\""]),
    ("model.head_init", &["", "\"zero\""]),
    ("model.tie_embeddings", &["", "true"]),
    ("model.base_dim", &["", "", "32"]),
];

#[test]
fn the_text_of_the_keys_has_the_flops_of_random_recipes_and_can_be_recorded() {
    let mut state = 1_u64;
    let mut draw = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    let mut accepted = 0;
    for _ in 0..400 {
        let drawn = CHOICES.iter().map(|(key, values)| (key, values[draw(values.len())]));
        let set = drawn.filter(|(_, value)| !value.is_empty());
        let mut settings: Vec<String> = set.map(|(key, value)| format!("{key}={value}")).collect();
        if settings.iter().any(|setting| setting.starts_with("model.base_dim")) {
            settings.push("model.parametrization=\"mup\"".to_owned());
        }
        // Recipes refuse some combinations.
        if let Ok(plan) = plan("", &settings) {
            let (text, graph) = resolved("decoder", &plan);
            let cost = cost(&text, &graph, &plan.model, plan.batch.seq_len);
            check_flops(&cost, &plan, &settings.join(" "));
            Programs::new(&plan).unwrap();
            accepted += 1;
        }
    }
    assert!(accepted >= 100, "{accepted} of the recipes are possible");
}

#[test]
fn texts_read_every_key_of_a_model_and_know_its_words() {
    let plan = plan("", &[]).unwrap();
    let keys = plan.model.keys(plan.batch.seq_len);
    let resolves = |value: &str| {
        let text = format!(
            "embed:\n  x = embedding(tokens, dim)\n  y = {value}\nblock:\nhead:\n  logits = linear(x, vocab_size)"
        );
        resolve(&ModelText::parse(&text).unwrap(), &keys).map(drop)
    };
    let not_read = ["model.init_from", "model.init_optimizer", "model.definition"];
    for key in section_keys("model").filter(|key| !not_read.contains(&key.path)) {
        assert_eq!(resolves(key.path), Ok(()));
        if let Type::Word(words) = key.kind {
            for word in words {
                assert_eq!(resolves(&format!("{} == \"{word}\"", key.path)), Ok(()));
            }
            assert!(resolves(&format!("{} == \"{}y\"", key.path, words[0])).is_err(), "{}", key.path);
        }
    }
    assert!(resolves("model.init_from").is_err(), "not a number or a word of the model");
}

#[test]
fn the_roles_of_texts_are_the_groups_of_optimizers() {
    assert_eq!(GroupRole::ALL.map(GroupRole::word), ROLES);
}

#[test]
fn a_table_shows_what_each_line_costs() {
    let plan = plan("", &["model.window=32".into(), "model.global_interval=2".into()]).unwrap();
    let (text, graph) = resolved("decoder", &plan);
    let cost = cost(&text, &graph, &plan.model, plan.batch.seq_len);
    let line = |start: &str| cost.lines.iter().find(|line| line.statement.starts_with(start)).expect(start);
    assert_eq!((line("qkv = ").blocks, line("qkv = ").parameters), (4, 4 * 3 * 128 * 128));
    assert_eq!(line("qkv = ").flops_per_token, 6.0 * 4.0 * 3.0 * 128.0 * 128.0);
    assert_eq!((line("up = ").blocks, line("up = ").parameters), (0, 0), "the activation has a gate");
    // Two blocks see 32 of 128 keys, two see all.
    let seen = 2.0 * 128.0 + 2.0 * 2.0 * (32.0 - 32.0 * 31.0 / 256.0);
    assert_eq!(line("attended = ").flops_per_token, 6.0 * 128.0 * seen);
    let shown = cost.text(None);
    assert!(shown.contains("blocks.*.qkv (4)") && shown.contains("(128 + 128 + 128) × 128"), "{shown}");
}

#[test]
fn a_text_is_compared_with_the_one_that_it_extends() {
    let plan = plan("", &[]).unwrap();
    let costs = |text: &str| {
        let parsed = ModelText::parse(text).unwrap();
        let graph = resolve(&parsed, &plan.model.keys(plan.batch.seq_len)).unwrap();
        cost(&parsed, &graph, &plan.model, plan.batch.seq_len)
    };
    let text = |block: &str| {
        format!(
            "embed:\n  x = embedding(tokens, dim)\nblock:\n{block}\nhead:\n  logits = linear(x, vocab_size)"
        )
    };
    let base = costs(&text("  y = linear(x, dim)\n  x = x + y"));
    let gated = costs(&text("  y = linear(x, dim)\n  g = sigmoid(linear(x, dim))\n  x = x + g * y"));
    let beside = Beside::new(&gated, &base, "base");
    let statements = |lines: &[LineCost]| lines.iter().map(|line| line.statement.clone()).collect::<Vec<_>>();
    assert_eq!(statements(&beside.here), ["g = sigmoid(linear(x, dim))", "x = x + g * y"]);
    assert_eq!(statements(&beside.there), ["x = x + y"]);
    assert_eq!(beside.parameters[0] - beside.parameters[1], 4 * 128 * 128);
    let share = 100.0 * (4 * 128 * 128) as f64 / base.parameter_count as f64;
    let shown = beside.text(None);
    assert!(
        shown.starts_with(&format!("beside base: parameters +{share:.1} %, FLOPs per token +")),
        "{shown}"
    );
    assert!(shown.contains("-  x = x + y"), "{shown}");
    let same = Beside::new(&base, &base, "base");
    assert_eq!(same.text(None), "beside base: parameters as many, FLOPs per token as many\n");
    // A line that is written alike costs more where what it reads is wider.
    let [wide, wider] =
        [2, 3].map(|n| costs(&text(&format!("  w = linear(x, {n} * dim)\n  x = x + linear(w, dim)"))));
    let beside = Beside::new(&wide, &wider, "wider");
    assert_eq!(statements(&beside.here), ["w = linear(x, 2 * dim)", "x = x + linear(w, dim)"]);
}

#[test]
fn statements_are_cut_to_the_width_of_the_terminal() {
    let plan = plan("", &[]).unwrap();
    let sum = format!("linear(x, dim){}", " + x".repeat(40));
    let text = format!(
        "embed:\n  x = embedding(tokens, dim)\nblock:\n  x = {sum}\nhead:\n  logits = linear(x, vocab_size)"
    );
    let text = ModelText::parse(&text).unwrap();
    let graph = resolve(&text, &plan.model.keys(plan.batch.seq_len)).unwrap();
    let cost = cost(&text, &graph, &plan.model, plan.batch.seq_len);
    let line = |columns| {
        let shown = cost.text(columns);
        shown.lines().find(|line| line.contains("x = linear")).unwrap().to_owned()
    };
    let (statement, cut) =
        (&cost.lines[1].statement, |longest: usize| format!("{}…", &cost.lines[1].statement[..longest]));
    assert!(line(Some(400)).contains(statement));
    assert!(line(None).contains(&cut(100)), "{}", line(None));
    assert!(line(Some(20)).contains(&cut(40)), "{}", line(Some(20)));
    assert_eq!(line(Some(140)).chars().count(), 140, "{}", line(Some(140)));
}

/// A model whose block has these statements, with a stream `x`.
fn ops_of_block(block: &str) -> Vec<String> {
    let text = format!(
        "embed:\n  x = embedding(tokens, dim)\nblock:\n{block}\nhead:\n  logits = linear(x, vocab_size)"
    );
    let sizes = ["n_layers=1", "dim=32", "n_heads=4", "n_kv_heads=2", "head_dim=8"];
    let mut settings: Vec<String> = sizes.map(|size| format!("model.{size}")).to_vec();
    settings.push(format!("model.definition={text}"));
    let programs = Programs::new(&plan("", &settings).unwrap_or_else(|e| panic!("{e}\n{text}"))).unwrap();
    let nodes = programs.evaluate.program.nodes.iter().filter(|node| node.block.is_some());
    nodes.map(|node| format!("{} {}", node.op.name(), node.op.attributes()).trim().to_owned()).collect()
}

/// Returns the ops of a block but for products and attention.
fn ops_between(block: &str) -> Vec<String> {
    let name = |op: &str| op.split(' ').next().unwrap_or_default().to_owned();
    let is_between = |op: &String| !["linear", "flash_attention"].contains(&&*name(op));
    ops_of_block(block).into_iter().filter(is_between).collect()
}

#[test]
fn functions_are_one_op_and_read_parts_in_place() {
    for (block, wanted) in [
        // Scalars, a gate per head, and a vector.
        (
            "  x = scalar(1, name = \"a\") * x + scalar(0, name = \"b\") * tanh(x)",
            &["pointwise x0 * x1 + x2 * tanh(x1)"] as &[&str],
        ),
        (
            "  g = linear(x, 4)\n  y = heads(linear(x, 32), 4)\n  x = x + linear(sigmoid(heads(g, 4)) * y, dim, name = \"o\")",
            &["pointwise sigmoid(a) * b heads=4", "linear_add"],
        ),
        ("  x = x * vector(dim, 1, name = \"gain\")", &["pointwise a * b"]),
        // The halves of a row and a third value.
        (
            "  y = linear(x, 32, 32)\n  x = x + silu(slice(y, 0, 32)) * slice(y, 32, 64)",
            &["pointwise x0 + silu(x1) * x2"],
        ),
        // Half of a row is copied.
        (
            "  y = linear(x, 64)\n  x = x + tanh(slice(y, 0, 32))",
            &["arrange 0[0..32]", "pointwise a + tanh(b)"],
        ),
        // A function of a product, and a plain sum with one.
        ("  x = x + x * linear(x, dim, name = \"y\")", &["pointwise a + a * b"]),
        ("  x = x + linear(x, dim, name = \"y\")", &["linear_add"]),
        // A bias goes into the built-in function that alone reads it.
        ("  x = relu(linear(x, dim, bias = true, name = \"y\"))^2", &["relu2 bias"]),
        (
            "  y = linear(x, dim, bias = true)\n  x = gelu(y) * rms_norm(y)",
            &["add_bias", "rms_norm eps=1e-6", "pointwise gelu(a) * b"],
        ),
        ("  x = x + tanh(linear(x, dim, bias = true, name = \"y\"))", &["add_bias", "pointwise a + tanh(b)"]),
    ] {
        assert_eq!(ops_between(block), wanted, "{block}");
    }
}

#[test]
fn attention_of_values_of_any_origin_is_packed_once() {
    let attention = |more: &str, arguments: &str| {
        format!(
            "  q = heads(linear(x, 32), 4)\n  k = heads(linear(x, 16), 2)\n  v = heads(linear(x, 16), 2)\n{more}  \
             x = linear(attention({arguments}), dim, name = \"o\")"
        )
    };
    let joined = "arrange 0[0..32] 1[0..16] 2[0..16]";
    let changed = "qk_norm_rope heads=4 kv_heads=2 head_dim=8 eps=1e-6 theta=10000";
    let rotated = "  q = rope(rms_norm(q, name = \"qn\"))\n  k = rope(rms_norm(k, name = \"kn\"))\n";
    for (block, wanted) in [
        (attention("", "q, k, v"), vec![joined]),
        (attention(rotated, "q, k, v"), vec![joined, changed]),
        // Factors of rotated heads are factors of scores.
        (attention(rotated, "1.5 * q, 2 * k, v"), vec![joined, changed]),
        // What something else reads is computed by itself.
        (
            attention("  q = rope(q)\n  k = rope(k)\n", "q, k, v + k"),
            vec![
                "rope heads=2 kv_heads=0 head_dim=8 theta=10000",
                "rope heads=4 kv_heads=0 head_dim=8 theta=10000",
                "add",
                joined,
            ],
        ),
    ] {
        let mut ops = ops_between(&block);
        let mut wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        ops.sort();
        wanted.sort();
        assert_eq!(ops, wanted, "{block}");
    }
    let scale = |arguments: &str| {
        let ops = ops_of_block(&attention(rotated, arguments));
        ops.into_iter().find(|op| op.starts_with("flash_attention")).unwrap()
    };
    assert!(scale("1.5 * q, 2 * k, v").contains(&format!("scale={}", 3.0 / 8f64.sqrt())));
    assert!(scale("q, k, v, scale = 0.25").contains("scale=0.25") && !scale("q, k, v").contains("scale"));
    let narrow = "  q = heads(linear(x, 16), 4)\n  k = heads(linear(x, 8), 2)\n  v = heads(linear(x, 20), 2)\n  \
                  x = linear(attention(q, k, v), dim, name = \"o\")";
    let padded = |heads: usize, width: usize| {
        format!("arrange heads={heads} 0[0+{width}h..+{width}] 0*{}", 32 - width)
    };
    let wanted = [
        padded(4, 4),
        padded(2, 4),
        padded(2, 10),
        "arrange 0[0..128] 1[0..64] 2[0..64]".to_owned(),
        "arrange heads=4 0[0+32h..+10]".to_owned(),
    ];
    assert_eq!(ops_between(narrow), wanted);
}
