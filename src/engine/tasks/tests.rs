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
    item.requests.iter().map(|request| (text(&request.context), text(&request.continuation))).collect()
}

#[test]
fn every_built_in_definition_is_valid_and_is_in_the_table_under_its_name() {
    let all: Vec<&str> = names().collect();
    for name in &all {
        assert_eq!(find(name).unwrap().name, *name);
    }
    for (set, tasks) in SETS {
        assert!(tasks.iter().all(|task| all.contains(task)), "{set}");
        assert_eq!(select([*set]).unwrap().len(), tasks.len());
    }
    let listed = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/tasks")).unwrap();
    let files = listed.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "toml"));
    assert_eq!(files.count(), all.len(), "every file of data/tasks is in the table");
    let error = find("helaswag").unwrap_err();
    assert!(error.message().contains("did you mean hellaswag?"), "{error}");
}

/// One item a task, in its published layout, and the prompts that the reference harness makes of it.
#[test]
fn prompts_are_those_of_the_reference() {
    let cases: [(&str, &str, &str, &[(&str, &str)], usize); 8] = [
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
