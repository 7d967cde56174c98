//! Tasks from small files in the layouts in which they are published.

use super::*;
use crate::data::Tokenizer;
use std::fs;
use std::path::Path;

/// A folder with files, by their paths below it.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn encoder(max_len: usize) -> Encoder {
    let tokenizer = Tokenizer::open("byte").unwrap();
    let beginning = Beginning::as_published(&tokenizer);
    Encoder::new(&tokenizer, beginning, max_len)
}

fn prepare(task: &str, dir: &Path, shots: usize) -> crate::Result<Prepared> {
    let definition = find(task)?;
    Loaded::read(&definition, dir, shots, None)?.prepare(&encoder(4096), shots, None)
}

/// The texts of an item's requests.
fn texts(item: &PreparedItem) -> Vec<(String, String)> {
    let text = |tokens: &[u32]| {
        let bytes: Vec<u8> = tokens.iter().map(|&token| u8::try_from(token).unwrap_or(b'^')).collect();
        String::from_utf8(bytes).unwrap()
    };
    item.asked
        .requests()
        .iter()
        .map(|request| (text(&request.context), text(&request.continuation)))
        .collect()
}

#[test]
fn every_built_in_definition_is_valid_and_has_the_name_of_its_file() {
    let all: Vec<&str> = names().collect();
    for name in &all {
        assert_eq!(find(name).unwrap().name, *name);
    }
    for (set, tasks) in SETS {
        assert!(tasks.iter().all(|task| all.contains(task)), "{set}");
        assert_eq!(select([*set]).unwrap().len(), tasks.len());
    }
    let error = find("helaswag").unwrap_err();
    assert!(error.message().contains("did you mean hellaswag?"), "{error}");
}

/// A task, the path of a file and its row, and what comes of it: contexts and continuations, and the place of
/// the right one.
type Case<'c> = (&'c str, &'c str, &'c str, &'c [(&'c str, &'c str)], usize);

/// One item a task, in its published layout, and the prompts that the reference harness makes of it.
#[test]
fn prompts_are_those_of_the_reference() {
    let cases: [Case<'_>; 8] = [
        (
            "hellaswag",
            "Rowan/hellaswag/validation.jsonl",
            r#"{"activity_label": "Baking", "ctx_a": "A [x] man  stands.", "ctx_b": "the Oven", "endings": ["opens [title] Now", "b", "c", "d"], "label": "2"}"#,
            &[
                ("Baking: A man stands. The oven", " opens. Now"),
                ("Baking: A man stands. The oven", " b"),
                ("Baking: A man stands. The oven", " c"),
                ("Baking: A man stands. The oven", " d"),
            ],
            2,
        ),
        (
            "arc_easy",
            "ai2_arc/ARC-Easy/test.jsonl",
            r#"{"question": "Was?", "choices": {"text": ["ä", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "2"}"#,
            &[
                ("Question: Was?\nAnswer:", " ä"),
                ("Question: Was?\nAnswer:", " b"),
                ("Question: Was?\nAnswer:", " c"),
            ],
            1,
        ),
        (
            "piqa",
            "piqa/validation.json",
            r#"[{"goal": "Cut", "sol1": "Saw", "sol2": "See", "label": 0}]"#,
            &[("Question: Cut\nAnswer:", " Saw"), ("Question: Cut\nAnswer:", " See")],
            0,
        ),
        (
            "winogrande",
            "winogrande/winogrande_xl/validation.jsonl",
            r#"{"sentence": "Ann saw Bo, and _ was glad.", "option1": "Ann", "option2": "Bo", "answer": "2"}"#,
            &[("Ann saw Bo, and Ann", " was glad."), ("Ann saw Bo, and Bo", " was glad.")],
            1,
        ),
        (
            "sciq",
            "allenai/sciq/test.jsonl",
            r#"{"support": " Sun.", "question": "What?", "distractor1": "a", "distractor2": "b", "distractor3": "c", "correct_answer": "d"}"#,
            &[
                ("Sun.\nQuestion: What?\nAnswer:", " a"),
                ("Sun.\nQuestion: What?\nAnswer:", " b"),
                ("Sun.\nQuestion: What?\nAnswer:", " c"),
                ("Sun.\nQuestion: What?\nAnswer:", " d"),
            ],
            3,
        ),
        (
            "boolq",
            "super_glue/boolq/validation.jsonl",
            r#"{"question": "is it", "passage": "It is.", "label": 1}"#,
            &[("It is.\nQuestion: is it?\nAnswer:", " no"), ("It is.\nQuestion: is it?\nAnswer:", " yes")],
            1,
        ),
        (
            "copa",
            "super_glue/copa/validation.jsonl",
            r#"{"premise": "It fell.", "choice1": "I ran.", "choice2": "Élan.", "question": "cause", "label": 0}"#,
            &[("It fell because", "  i ran."), ("It fell because", "  élan.")],
            0,
        ),
        (
            "lambada",
            "lambada_openai/default/test.jsonl",
            r#"{"text": "Who  is there"}"#,
            &[("Who  is", " there")],
            0,
        ),
    ];
    for (task, path, row, expected, gold) in cases {
        let dir = folder(&[(path, row)]);
        let prepared = prepare(task, dir.path(), 0).unwrap();
        let [item] = &prepared.items[..] else { panic!("{task}") };
        let owned = |(context, continuation): &(&str, &str)| (context.to_string(), continuation.to_string());
        assert_eq!(texts(item), expected.iter().map(owned).collect::<Vec<_>>(), "{task}");
        assert_eq!(item.item.question.gold().unwrap_or_default(), gold, "{task}");
    }
}

const BOOLQ: &str = "super_glue/boolq/validation.jsonl";

fn boolq(question: &str, passage: &str, label: usize) -> String {
    format!("{{\"question\": {question:?}, \"passage\": {passage:?}, \"label\": {label}}}\n")
}

/// Draws of CPython 3.11.7: `Random(1234).sample(range(4), 2)` twice gives [3, 0] and [0, 3].
#[test]
fn examples_are_drawn_like_those_of_the_reference_and_never_are_the_item_itself() {
    let rows: String = (0..4).map(|i| boolq(&format!("q{i}"), "P", i % 2)).collect();
    let items = boolq("q0", "P", 0) + &boolq("q9", "P", 1);
    let dir = folder(&[(BOOLQ, &items), ("super_glue/boolq/train.jsonl", &rows)]);
    let prepared = prepare("boolq", dir.path(), 1).unwrap();
    let front = |item: usize| texts(&prepared.items[item])[0].0.clone();
    // One more is drawn than needed, and the item is left out if it is among them.
    assert_eq!(front(0), "P\nQuestion: q3?\nAnswer: yes\n\nP\nQuestion: q0?\nAnswer:");
    assert_eq!(front(1), "P\nQuestion: q0?\nAnswer: no\n\nP\nQuestion: q9?\nAnswer:");
    let error = prepare("boolq", dir.path(), 4).unwrap_err();
    assert!(error.message().contains("4 examples are too many: the split \"train\" has 4 rows"), "{error}");
    // A row that is there several times is drawn again without it.
    let twice: String = (0..4).map(|_| boolq("q0", "P", 0)).chain([boolq("q1", "P", 1)]).collect();
    let dir = folder(&[(BOOLQ, &items), ("super_glue/boolq/train.jsonl", &twice)]);
    let prepared = prepare("boolq", dir.path(), 1).unwrap();
    assert_eq!(texts(&prepared.items[0])[0].0, "P\nQuestion: q1?\nAnswer: yes\n\nP\nQuestion: q0?\nAnswer:");
    // The first of the split, and a description of the subject.
    let row = |q: &str| {
        format!("{{\"question\": \" {q}\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 3}}\n")
    };
    let all: String = ["x", "y"].map(row).concat();
    let mmlu =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/tasks/mmlu.toml")).unwrap();
    let (before, after) = mmlu.split_once("configurations = [").unwrap();
    let (_, after) = after.split_once(']').unwrap();
    let two = format!("{before}configurations = [\"world_law\", \"virology\"]{after}");
    let files = ["world_law", "virology"]
        .map(|name| ["dev", "test"].map(|split| format!("mmlu/{name}/{split}.jsonl")));
    let files: Vec<(&str, &str)> = files.iter().flatten().map(|name| (name.as_str(), all.as_str())).collect();
    let dir = folder(&files);
    let definition = Definition::parse(&two, "two.toml").unwrap();
    let loaded = Loaded::read(&definition, dir.path(), 1, None).unwrap();
    let prepared = loaded.prepare(&encoder(4096), 1, Some(1)).unwrap();
    let item = "\nA. a\nB. b\nC. c\nD. d\nAnswer:";
    let about = |subject: &str| {
        format!(
            "The following are multiple choice questions (with answers) about {subject}.\n\nx{item} D\n\nx{item}"
        )
    };
    let contexts: Vec<String> = prepared.items.iter().map(|item| texts(item)[0].0.clone()).collect();
    assert_eq!(contexts, [about("world law"), about("virology")]);
    assert_eq!(prepared.items[0].item.hash, prepared.items[1].item.hash, "equal fields");
}

/// The cases of `TemplateLM._encode_pair` and `HFLM._loglikelihood_tokens`.
#[test]
fn prompts_are_cut_between_context_and_continuation() {
    let byte = Tokenizer::open("byte").unwrap();
    let end = byte.end_token();
    let plain = Beginning { added: None, prefix: end };
    let begun = Beginning { added: Some(end), prefix: end };
    assert_eq!(Beginning::as_published(&byte), plain, "its tokenizer.json adds nothing");
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let with_end = |text: &str| [vec![end], ids(text)].concat();
    let made = |beginning, max_len, context: &str, continuation: &str| {
        let encoder = Encoder::new(&byte, beginning, max_len);
        let made = encoder.continuations(context, &[continuation.to_owned()]);
        let made = made.map_err(|e| e.to_string())?.remove(0);
        Ok((made.request.context, made.request.continuation, made.dropped))
    };
    for (beginning, max_len, context, continuation, expected) in [
        (plain, 99, "ab", " c", (ids("ab"), ids(" c"), 0)),
        (begun, 99, "ab", " c", (with_end("ab"), ids(" c"), 0)),
        (plain, 99, "ab \u{3000}\n", "c", (ids("ab"), ids(" \u{3000}\nc"), 0)),
        (plain, 99, "", " c", (vec![end], ids(" c"), 0)),
        (begun, 99, "", " c", (vec![end], ids(" c"), 0)),
        (plain, 99, "  ", "c", (vec![end], ids("  c"), 0)),
        // The last input is dropped, so one token more than the model reads remains.
        (plain, 4, "abcdef", "xyz", (ids("ef"), ids("xyz"), 4)),
        (begun, 4, "abcdef", "wxyz", (ids("f"), ids("wxyz"), 6)),
    ] {
        assert_eq!(made(beginning, max_len, context, continuation), Ok(expected), "{context:?}");
    }
    let too_long: Result<_, String> = made(plain, 3, "abc", "wxyz");
    assert!(too_long.unwrap_err().contains("the answer has 4 tokens, and the model reads 3 at once"));
    assert!(made(plain, 3, "abc", "").unwrap_err().contains("the answer has no token of its own"));
    // A text that begins with the prefix token's name gets no second one, and the name is that token.
    let name = byte.token_name(end).unwrap();
    let (context, _, _) = made(begun, 99, &format!("{name}ab"), " c").unwrap();
    assert_eq!(context, with_end("ab"));
    // The windows of a text: every token once, from as many before it as fit.
    let windows = Encoder::new(&byte, plain, 4).windows("abcdefghij").unwrap();
    let windows: Vec<_> =
        windows.into_iter().map(|made| (made.request.context, made.request.continuation)).collect();
    assert_eq!(
        windows,
        [(vec![end], ids("abcd")), (ids("d"), ids("efgh")), (ids("fgh"), ids("ij"))],
        "as get_rolling_token_windows and make_disjoint_window"
    );
}

/// Where GPT-2's tokens join over the border, the cut is by the number of the context's own tokens.
#[test]
fn tokens_that_join_over_the_border_belong_to_the_continuation() {
    let gpt2 = Tokenizer::open("gpt2").unwrap();
    let encoder = Encoder::new(&gpt2, Beginning::as_published(&gpt2), 1024);
    let [made] = &encoder.continuations("the ele", &["phant sat".to_owned()]).unwrap()[..] else { panic!() };
    // "the", " ele" and then what follows the first two of "the", " elephant", " sat".
    assert_eq!(made.request.context, gpt2.encode("the ele").unwrap());
    assert_eq!(made.request.continuation, gpt2.encode("the elephant sat").unwrap()[2..]);
}

#[test]
fn wrong_files_are_errors_with_line_and_remedy() {
    let hellaswag = |endings: &str, label: &str| {
        format!(
            "{{\"activity_label\": \"A\", \"ctx_a\": \"b\", \"ctx_b\": \"c\", \"endings\": {endings}, \"label\": {label}}}"
        )
    };
    let four = r#"["a", "b", "c", "d"]"#;
    let good = hellaswag(four, "\"1\"");
    for (row, says) in [
        (hellaswag(r#"["a", "b", "c"]"#, "1"), "endings has 3 choices, and task hellaswag promises 4"),
        (hellaswag(r#"["a", "", "c", "d"]"#, "1"), "choice 2 of 4 is empty, so it cannot be scored"),
        (hellaswag(r#"["a", "[x] ", "c", "d"]"#, "1"), "choice 2 of 4 is empty"),
        (hellaswag("\"a\"", "1"), "endings is no list but \"a\""),
        (hellaswag(four, "4"), "the right choice is \"4\", and the item has the choices 0 to 3"),
        (hellaswag(four, "\"\""), "a split without answers cannot be scored"),
        (
            hellaswag(four, "null"),
            "the item has no \"label\", but activity_label, ctx_a, ctx_b, endings, label",
        ),
        (
            hellaswag("7", "1").replace("ctx_b", "\\u001bx"),
            "the item has no \"ctx_b\", but activity_label, ctx_a, ␛x",
        ),
        (good.replace("\"c\"", "[1]"), "prompt.context: the template fails"),
        (good.replace('}', ""), "not JSON: EOF while parsing an object in column"),
        ("[1]".to_owned(), "a row is an object with fields, and this one is [1]"),
    ] {
        let dir = folder(&[("hellaswag/validation.jsonl", &format!("{good}\n\n{row}\n"))]);
        let error = prepare("hellaswag", dir.path(), 0).unwrap_err();
        let at = format!("{}:3: ", dir.path().join("hellaswag/validation.jsonl").display());
        assert!(error.message().starts_with(&at) && error.message().contains(says), "{says}: {error}");
    }
    for (name, text, says) in [
        ("hellaswag/validation.jsonl", "plain", "neither JSON lines nor a Parquet table"),
        ("hellaswag/validation.jsonl", "\n", "the split \"validation\" of Rowan/hellaswag has no rows"),
        ("hellaswag/train.jsonl", "{}", "no files of the split \"validation\" in"),
        ("hellaswag/train.jsonl", "{}", "; there are hellaswag/train.jsonl. Download Rowan/hellaswag into"),
        ("other", "", "there are no task files"),
    ] {
        let dir = folder(&[(name, text)]);
        let error = prepare("hellaswag", dir.path(), 0).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
    }
    let error = prepare("hellaswag", Path::new("none"), 0).unwrap_err();
    assert!(error.message().starts_with("none: no such folder"), "{error}");
}

/// A definition of two choices, with a key replaced.
fn definition(key: &str, line: &str) -> String {
    let lines = [
        "name = \"own\"",
        "title = \"t\"",
        "citation = \"c\"",
        "follows = \"f\"",
        "rules = \"lm-eval\"",
        "[source]",
        "repository = \"own\"",
        "split = \"test\"",
        "fields = [\"q\", \"a\", \"b\"]",
        "[prompt]",
        "kind = \"choices\"",
        "context = \"{{ q }}\"",
        "choices = [\"{{ a }}\", \"{{ b }}\"]",
        "gold = \"0\"",
        "[examples]",
        "split = \"train\"",
        "take = \"sample\"",
        "[scoring]",
        "metric = \"acc\"",
    ];
    let replaced = lines.iter().map(|own| if own.split(" =").next() == Some(key) { line } else { own });
    replaced.map(|line| format!("{line}\n")).collect()
}

#[test]
fn wrong_definitions_are_errors_with_key_and_remedy() {
    Definition::parse(&definition("", ""), "own.toml").unwrap();
    for (key, line, says) in [
        ("name", "name = \"A b\"", "own.toml: name = \"A b\": a task's name has lower-case letters"),
        ("title", "", "missing field `title`"),
        ("title", "title = 3", "line 2"),
        ("title", "title = \"t\"\ncolour = 1", "unknown field `colour`"),
        ("repository", "repository = \"../own\"", "source.repository = \"../own\": it names a place below"),
        ("split", "split = \"/etc\"", "source.split = \"/etc\""),
        ("fields", "fields = []", "source.fields is empty"),
        ("context", "", "prompt.context is missing: prompt.kind = \"choices\" needs it"),
        (
            "context",
            "context = \"\"\ntext = \"\"",
            "prompt.text has no effect with prompt.kind = \"choices\"",
        ),
        (
            "choices",
            "",
            "needs either prompt.choices, a list of templates, or prompt.each with prompt.choice",
        ),
        ("choices", "each = \"x\"", "prompt.choice is missing"),
        ("choices", "choices = [\"a\"]", "a choice needs two alternatives"),
        (
            "kind",
            "kind = \"text\"",
            "scoring.metric = \"acc\" does not exist for prompt.kind = \"text\"; choose one of bits_per_byte",
        ),
        ("take", "take = \"all\"", "unknown variant `all`"),
        ("take", "take = \"sample\"\ncount = 65", "examples.count = 65: at most 64"),
        ("metric", "metric = \"acc\"\nchance = 1.5", "scoring.chance is a fraction"),
        ("metric", "metric = \"f1\"", "unknown variant `f1`"),
        ("rules", "rules = \"core\"", "scoring.metric = \"acc\" does not exist"),
        ("context", "context = \"{{ q\"", "prompt.context = \"{{ q\": the template fails"),
        ("context", "context = \"{{ q * 9 }}\"", "products are not available"),
        ("context", "context = \"{% set x = q %}\"", "the statement \"set\" is not available"),
        (
            "context",
            "context = \"{%- macro m() %}{% endmacro %}\"",
            "the statement \"macro\" is not available",
        ),
        ("context", "context = \"{% for x in q recursive %}{% endfor %}\"", "must not be recursive"),
    ] {
        let error = Definition::parse(&definition(key, line), "own.toml").unwrap_err();
        assert!(
            error.message().starts_with("own.toml: ") && error.message().contains(says),
            "{says}: {error}"
        );
    }
    let long = format!("context = {:?}", "a".repeat(9000));
    let error = Definition::parse(&definition("context", &long), "own.toml").unwrap_err();
    assert!(error.message().contains("9000 bytes are too many for a template"), "{error}");
    let other = Definition::parse(&definition("title", "title = \"u\""), "own.toml").unwrap();
    assert_ne!(other.hash, Definition::parse(&definition("", ""), "own.toml").unwrap().hash);
}

/// Templates that would take for ever or fill memory, and those that only do much.
#[test]
fn templates_are_bounded() {
    let long = "word ".repeat(9000);
    let rows = [("q", long.as_str()), ("a", "x"), ("b", "y")];
    let row =
        serde_json::Value::from_iter(rows.map(|(name, text)| (name.to_owned(), text.to_owned()))).to_string();
    let dir = folder(&[("own/test.jsonl", &row)]);
    for (template, says) in [
        (
            "{% for x in q %}{% for y in q %}{% for z in q %}{% endfor %}{% endfor %}{% endfor %}",
            "own/test.jsonl:1: prompt.context: the template does not finish within 50000 instructions",
        ),
        ("{% for x in q %}{{ q }}{% endfor %}", "a text of more than 1048576 bytes"),
        ("{{ q | replace('w', q) }}", "a text is too long"),
        ("{{ q | regex_replace('w', q) }}", "a text is too long"),
        ("{{ [q, q, q, q] | join(q ~ q ~ q ~ q ~ q ~ q ~ q ~ q) }}", "a text is too long"),
        ("{{ q | regex_replace('(w|o|r|d| |wo|rd)*(?>c)', '') }}", "prompt.context: the template fails"),
        ("{{ q.split('') }}", "split needs a separator"),
        ("{{ q | sort }}", "unknown filter"),
        ("{{ other }}", "the template uses a field that the item does not have"),
    ] {
        let text = definition("context", &format!("context = {template:?}"));
        let parsed = Definition::parse(&text, "own.toml").unwrap();
        let loaded = Loaded::read(&parsed, dir.path(), 0, None).unwrap();
        let error = loaded.prepare(&encoder(64), 0, None).unwrap_err();
        assert!(error.message().contains(says), "{template}: {error}");
    }
}

/// The result of a model that gives these log-probabilities to all requests, in order.
fn scored(prepared: &Prepared, log_probs: &[f64]) -> crate::Result<TaskResult> {
    let mut rest = log_probs.iter().map(|&log_prob| Score { log_prob, is_greedy: log_prob > -1.0 });
    let answer = |item: &PreparedItem| Answer::Scores(rest.by_ref().take(item.asked.count()).collect());
    prepared.result(&prepared.items.iter().map(answer).collect::<Vec<_>>())
}

/// Choices by the sum, by characters and by bytes differ; equal scores choose the first.
#[test]
fn figures_are_those_of_the_reference() {
    let rows = [
        r#"{"goal": "g", "sol1": "äöüä", "sol2": "abcdef", "label": 1}"#,
        r#"{"goal": "g", "sol1": "a", "sol2": "b", "label": 0}"#,
        r#"{"goal": "g", "sol1": "a", "sol2": "b", "label": 1}"#,
    ];
    let dir = folder(&[("piqa/validation.jsonl", &rows.join("\n"))]);
    let prepared = prepare("piqa", dir.path(), 0).unwrap();
    let result = scored(&prepared, &[-4.0, -4.2, -2.0, -2.0, -1.0, -3.0]).unwrap();
    let value = |metric| result.figure(metric).unwrap();
    // The first item: -4 > -4.2; by characters -1 < -0.7; by bytes -0.5 > -0.7.
    for (metric, right) in [(Metric::Acc, 1.0), (Metric::AccNorm, 2.0), (Metric::AccBytes, 1.0)] {
        assert!((value(metric).value - right / 3.0).abs() < 1e-15, "{metric:?}");
        // `mean_stderr` of the harness: the deviation of 0, 1, 0 or 1, 1, 0 is √(1/3).
        assert!((value(metric).error.unwrap() - 1.0 / 3.0).abs() < 1e-15, "{metric:?}");
        assert_eq!(value(metric).chance, Some(0.5));
        assert_eq!(value(metric).is_within_chance(), Some(true));
    }
    assert_eq!(result.headline().unwrap().metric, Metric::AccNorm);
    assert_eq!((value(Metric::AccNorm).value, value(Metric::AccNorm).chance), (2.0 / 3.0, Some(0.5)));
    let bits = (4.2 / 6.0 + 2.0 + 3.0) / 3.0 / std::f64::consts::LN_2;
    assert!((value(Metric::BitsPerByte).value - bits).abs() < 1e-12);
    assert_eq!(result.figure(Metric::Perplexity), None);
    let chosen: Vec<_> = result.items.iter().map(|item| (item.gold, item.chosen)).collect();
    assert_eq!(chosen, [(Some(1), Some(1)), (Some(0), Some(0)), (Some(1), Some(0))]);

    let error = scored(&prepared, &[-1.0; 5]).unwrap_err();
    assert!(error.message().contains("validation.jsonl:3: 1 scores for 2 requests"), "{error}");
    for wrong in [f64::NAN, f64::NEG_INFINITY] {
        let error = scored(&prepared, &[-4.0, -4.2, -2.0, wrong, -1.0, -3.0]).unwrap_err();
        assert!(
            error.message().contains("validation.jsonl:2: the model gives an answer the log-likelihood"),
            "{error}"
        );
    }

    let fewer = folder(&[("piqa/validation.jsonl", rows[0])]);
    let fewer = scored(&prepare("piqa", fewer.path(), 0).unwrap(), &[-1.0, -2.0]).unwrap();
    assert_eq!(fewer.figure(Metric::Acc).unwrap().error, None, "of one item");
}

#[test]
fn completions_are_greedy_or_not_and_have_perplexities() {
    let rows = "{\"text\": \"a bé\"}\n{\"text\": \"a\"}\n";
    let dir = folder(&[("lambada_openai/data/lambada_test.jsonl", rows)]);
    let prepared = prepare("lambada", dir.path(), 0).unwrap();
    let result = scored(&prepared, &[-0.5, -1.5]).unwrap();
    let value = |metric| result.figure(metric).unwrap().value;
    assert_eq!((value(Metric::Acc), result.figure(Metric::Acc).unwrap().chance), (0.5, Some(0.0)));
    // exp of the mean, as `perplexity` of the harness; per token 4 + 2 with the spaces, per byte 3 + 1.
    assert!((value(Metric::Perplexity) - 1f64.exp()).abs() < 1e-12);
    assert!((value(Metric::TokenPerplexity) - (2.0f64 / 6.0).exp()).abs() < 1e-12);
    assert!((value(Metric::BytePerplexity) - 0.5f64.exp()).abs() < 1e-12);
    // The delta method: exp(1) times the error of 0.5 and 1.5.
    assert!((result.figure(Metric::Perplexity).unwrap().error.unwrap() - 0.5 * 1f64.exp()).abs() < 1e-12);
    assert_eq!(result.figure(Metric::AccNorm), None);

    let text = definition("kind", "kind = \"text\"\ntext = \"{{ q }}\"")
        .replace("metric = \"acc\"", "metric = \"word_perplexity\"");
    let text =
        text.lines().filter(|line| !["context", "choices", "gold"].iter().any(|key| line.starts_with(key)));
    let text = text.map(|line| format!("{line}\n")).collect::<String>().replace(", \"a\", \"b\"", "");
    let task = Definition::parse(&text, "own.toml").unwrap();
    let dir = folder(&[("own/test.jsonl", "{\"q\": \"é bc\\n\\nd \"}\n{\"q\": \"abc\"}")]);
    let prepared = Loaded::read(&task, dir.path(), 0, None).unwrap().prepare(&encoder(4), 0, None).unwrap();
    assert_eq!(prepared.requests().count(), 4, "9 and 3 tokens in windows of 4");
    let result = scored(&prepared, &[-1.0, -2.0, -3.0, -4.0]).unwrap();
    // Words as `re.split` counts them: 4 and 1; bytes 9 and 3.
    assert!((result.headline().unwrap().value - 2f64.exp()).abs() < 1e-12);
    let bits = result.figure(Metric::BitsPerByte).unwrap();
    assert!((bits.value - 10.0 / 12.0 / std::f64::consts::LN_2).abs() < 1e-12);
    // Influences (6 - 9r) / 6 and (4 - 3r) / 6 with r = 10 / 12 nats: ∓ 1.5 / 6, over ln 2.
    assert!((bits.error.unwrap() - 0.25 / std::f64::consts::LN_2).abs() < 1e-12, "{bits:?}");
}

/// Items that share a passage count as one; an empty passage is shared by none.
#[test]
fn items_with_one_passage_are_a_cluster() {
    let rows =
        [("a", "P"), ("b", "P"), ("c", ""), ("d", "")].map(|(question, passage)| boolq(question, passage, 0));
    let dir = folder(&[(BOOLQ, &rows.concat())]);
    let prepared = prepare("boolq", dir.path(), 0).unwrap();
    let result = scored(&prepared, &[-1.0, -2.0, -1.0, -2.0, -2.0, -1.0, -2.0, -1.0]).unwrap();
    assert_eq!(result.items.iter().map(|item| item.cluster).collect::<Vec<_>>(), [0, 0, 1, 2]);
    let figure = result.headline().unwrap();
    assert_eq!((figure.value, figure.items, figure.clusters), (0.5, 4, 3));
    // Sums 1, -1/2, -1/2 of three clusters: √(3/2 · 3/2) / 4.
    assert!((figure.error.unwrap() - 1.5 / 4.0).abs() < 1e-15);
}

#[test]
fn an_items_hash_is_that_of_its_fields() {
    let hashes = |name: &str, text: &str| -> Vec<String> {
        let dir = folder(&[(name, text)]);
        let prepared = prepare("boolq", dir.path(), 0).unwrap();
        prepared.items.into_iter().map(|item| item.item.hash).collect()
    };
    let lines = hashes(BOOLQ, &(boolq("q", "P", 0) + &boolq("q", "P", 1)));
    let array = "[{\"label\": 0, \"idx\": 7, \"passage\": \"P\", \"question\": \"q\"},\n{\"passage\": \"\\u0050\", \"question\": \"q\", \"label\": 1}]";
    assert_eq!(
        hashes("boolq/validation.json", array),
        lines,
        "the order, other fields and escapes do not count"
    );
    assert_ne!(lines[0], lines[1]);
    assert_eq!(lines[0].len(), 64);
}

/// nanochat's rules: whole prompts, the order of `Random(1337)`, examples of `Random(1234 + item)`.
#[test]
fn core_scores_what_prompts_do_not_share() {
    let rows: String = (0..3)
        .map(|i| {
            format!("{{\"query\": \"q{i}\", \"choices\": [\"no{i}\", \"not{i}\", \"nor\"], \"gold\": {i}}}\n")
        })
        .collect();
    let dir = folder(&[("reading_comprehension/boolq.jsonl", &rows)]);
    let prepared = prepare("core_boolq", dir.path(), 1).unwrap();
    let [first, ..] = &prepared.items[..] else { panic!() };
    // Random(1337) leaves three rows in their order, and Random(1234).sample([1, 2], 1) is [2].
    let front = "q2\nAnswer: nor\n\nq0\nAnswer: no";
    let expected = ["0", "t0", "r"].map(|rest| (format!("^{front}"), rest.to_owned()));
    assert_eq!(texts(first), expected);
    let result = scored(&prepared, &[-3.0, -4.0, -2.5, -3.0, -3.0, -9.0, -3.0, -3.0, -9.0]).unwrap();
    // Mean losses 3, 2 and 2.5.
    assert_eq!(result.items[0].chosen, Some(1));
    assert_eq!(result.figures.iter().map(|figure| figure.metric).collect::<Vec<_>>(), [Metric::AccTokens]);
    assert_eq!(result.headline().unwrap().chance, Some(0.62));

    // A choice with which another one begins has no loss: nanochat chooses it if it is the first, and never
    // otherwise.
    let row = "{\"query\": \"q\", \"choices\": [\"a\", \"ab\"], \"gold\": 0}\n{\"query\": \"q\", \"choices\": [\"ab\", \"a\"], \"gold\": 0}";
    let dir = folder(&[("commonsense_reasoning/copa.jsonl", row)]);
    let prepared = prepare("core_copa", dir.path(), 0).unwrap();
    let unscored: Vec<_> =
        prepared.items.iter().map(|item| (item.item.line, item.unscored.clone())).collect();
    assert_eq!(unscored, [(1, vec![0]), (2, vec![1])]);
    let result = scored(&prepared, &[-9.0, -9.0]).unwrap();
    assert_eq!(result.headline().unwrap().value, 1.0);

    let row = "{\"context_options\": [\"Ann\", \"Bob\"], \"continuation\": \"b ran\", \"gold\": 1}";
    let dir = folder(&[("language_understanding/winogrande.jsonl", row)]);
    let prepared = prepare("core_winogrande", dir.path(), 0).unwrap();
    assert_eq!(
        texts(&prepared.items[0]),
        [("^Ann", " b ran"), ("^Bob", " b ran")].map(|(a, b)| (a.into(), b.into()))
    );

    let row = "{\"context\": \" Two words \", \"continuation\": \"and two\"}";
    let dir = folder(&[("reading_comprehension/coqa.jsonl", row)]);
    let prepared = prepare("core_coqa", dir.path(), 0).unwrap();
    assert_eq!(texts(&prepared.items[0]), [("^Two words".to_owned(), " and two".to_owned())]);
    let definition = find("core_coqa").unwrap();
    let loaded = Loaded::read(&definition, dir.path(), 0, None).unwrap();
    // The last tokens that the model reads, of which one is not scored.
    let cut = loaded.prepare(&encoder(9), 0, None).unwrap();
    assert_eq!((texts(&cut.items[0]), cut.cut_items()), (vec![("s".to_owned(), " and two".to_owned())], 1));
    assert!(
        loaded
            .prepare(&encoder(8), 0, None)
            .unwrap_err()
            .message()
            .contains("coqa.jsonl:1: the answer has 8 tokens")
    );
}

const TRIVIA: &str = "trivia_qa/rc.nocontext/validation.jsonl";

fn trivia(question: &str, aliases: &str) -> String {
    format!("{{\"question\": \"{question}\", \"answer\": {{\"aliases\": {aliases}, \"value\": \"v\"}}}}\n")
}

#[test]
fn generated_texts_are_judged_by_every_right_answer() {
    let rows = trivia("Who", r#"["Ann Lee", "Lee"]"#) + &trivia("Where", r#"["Rome"]"#);
    let train = trivia("What", r#"["It", "That"]"#) + &trivia("Else", r#"["No"]"#);
    let dir = folder(&[(TRIVIA, &rows), ("trivia_qa/rc.nocontext/train.jsonl", &train)]);
    let prepared = prepare("triviaqa", dir.path(), 1).unwrap();
    let prompts: Vec<String> = prepared
        .items
        .iter()
        .map(|item| match &item.asked {
            Asked::Text(prompt) => prepared.text(prompt).unwrap(),
            Asked::Scores(_) => panic!(),
        })
        .collect();
    // An example is answered by the first of its right answers.
    for (prompt, question) in prompts.iter().zip(["Who", "Where"]) {
        let examples = ["Question: What?\nAnswer: It\n\n", "Question: Else?\nAnswer: No\n\n"];
        let expected = examples.map(|example| format!("{example}Question: {question}?\nAnswer:"));
        assert!(expected.contains(prompt), "{prompt}");
    }
    assert_eq!((prepared.asked(), prepared.requests().count()), (2, 0));
    let text = |text: &str| Answer::Text(text.to_owned());
    let result = prepared.result(&[text(" lee.\nQuestion"), text(" Milan, Rome")]).unwrap();
    let figure = result.headline().unwrap();
    assert_eq!((figure.metric, figure.value, figure.chance), (Metric::ExactMatch, 0.5, Some(0.0)));
    let generated: Vec<_> = result.items.iter().map(|item| item.generated.clone().unwrap()).collect();
    let expected = [(" lee", "lee", true), (" Milan", "Milan", false)].map(|(text, answer, is_right)| {
        GeneratedAnswer { text: text.to_owned(), answer: answer.to_owned(), is_right }
    });
    assert_eq!(generated, expected);
    let wrong = prepared.result(&[text("a"), Answer::Scores(Vec::new())]).unwrap_err();
    assert!(wrong.message().contains("validation.jsonl:2: an answer of another kind"), "{wrong}");

    // Stop strings are found where the last token completes them, also across tokens.
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert!(prepared.is_stopped(&bytes("Rome.")).unwrap() && !prepared.is_stopped(&bytes("Rome")).unwrap());
}

#[test]
fn prompts_leave_room_for_the_answer() {
    let dir = folder(&[(TRIVIA, &trivia("abcdefghij", r#"["x"]"#))]);
    let loaded = Loaded::read(&find("triviaqa").unwrap(), dir.path(), 0, None).unwrap();
    let cut = loaded.prepare(&encoder(256 + 12), 0, None).unwrap();
    assert_eq!(cut.items[0].dropped, "Question: abcdefghij?\nAnswer:".len() - 12);
    assert_eq!(cut.items[0].asked, Asked::Text("hij?\nAnswer:".bytes().map(u32::from).collect()));
    let refused = loaded.prepare(&encoder(256), 0, None).unwrap_err();
    assert!(refused.message().contains("validation.jsonl:1: an answer has up to 256 tokens"), "{refused}");
}

#[test]
fn items_without_a_right_answer_are_refused() {
    for (aliases, message) in [
        ("[]", "answer.aliases has 0 right answers"),
        (r#"["", " "]"#, "every right answer is empty"),
        ("7", "answer.aliases is no list but 7"),
    ] {
        let dir = folder(&[(TRIVIA, &trivia("q", aliases))]);
        let refused = prepare("triviaqa", dir.path(), 0).unwrap_err();
        assert!(refused.message().contains("validation.jsonl:1"), "{refused}");
        assert!(refused.message().contains(message), "{refused}");
    }
}
