//! Files of conversations as people have them: each is trained on, left out and counted, or refused with its
//! file and line. Most are in `cases.txt`; those that no text can show are here.

use super::super::chat::DropReason;
use super::ChatFacts;
use super::tests::{Files, TEMPLATE};
use crate::data::{Spec, Validation, open};
use std::fs;

/// A template that shows calls of tools.
const CALLS: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls \
     %}{{ c.function.name }}({{ c.function.arguments }}){% endfor %}{% if m.role == 'assistant' \
     %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// A template that insists on turns that alternate.
const STRICT: &str = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) \
     %}{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' \
     %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// A template that says itself what is an answer.
const MARKS: &str = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation \
     %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";

/// A line that is trained on.
const GOOD: &str = "{\"prompt\": \"p\", \"completion\": \"good\"}\n";

/// What becomes of a file.
#[derive(Debug)]
enum Gives {
    /// These answers are trained on, in order.
    Answers(Vec<String>),
    /// The first line is left out, and [`GOOD`] is trained on.
    LeavesOut(DropReason),
    /// It is refused: what the message says behind the name of the file.
    Refused(String),
}
use Gives::{Answers, LeavesOut, Refused};

struct Case {
    name: String,
    template: &'static str,
    bytes: Vec<u8>,
    gives: Gives,
}

impl Case {
    fn new(name: &str, bytes: impl Into<Vec<u8>>, gives: Gives) -> Self {
        Self { name: name.to_owned(), template: TEMPLATE, bytes: bytes.into(), gives }
    }

    /// Reads a case of `cases.txt`.
    fn parse(block: &str) -> Self {
        let mut case = Self::new("", "", Answers(Vec::new()));
        for line in block.lines() {
            let (key, rest) = line.split_once([' ', ':']).unwrap_or((line, ""));
            match (key, rest.trim_start()) {
                ("=", name) => case.name = name.to_owned(),
                (">", _) => case.bytes.extend(format!("{}\n", line.get(2..).unwrap_or_default()).bytes()),
                ("template", "calls") => case.template = CALLS,
                ("template", "strict") => case.template = STRICT,
                ("template", "marks") => case.template = MARKS,
                ("trains", rest) => {
                    let answers = rest.strip_prefix("on: ").expect(block);
                    case.gives = Answers(answers.split(" | ").map(str::to_owned).collect());
                }
                ("leaves", rest) => {
                    let reason = format!("\"{}\"", rest.strip_prefix("out: ").expect(block));
                    case.gives = LeavesOut(serde_json::from_str(&reason).expect(block));
                    case.bytes.extend(GOOD.bytes());
                }
                ("refused", says) => case.gives = Refused(says.to_owned()),
                _ => panic!("{line}"),
            }
        }
        case
    }

    /// Opens the case as a corpus, and returns what is trained on.
    fn open(&self) -> Result<ChatFacts, String> {
        let files = Files::new(GOOD, self.template);
        let path = files.dir.path().join("case.jsonl");
        fs::write(&path, &self.bytes).unwrap();
        let held_out = Validation::at(files.dir.path().join("chat.jsonl"));
        let corpus = path.to_str().unwrap().into();
        let spec = Spec { corpus, validation: held_out, ..files.spec(96) };
        let mut opened = open(&spec, 96, None, None).map_err(|e| e.message().to_owned())?;
        Ok(opened.chat.remove("").expect("a corpus of conversations has facts"))
    }

    fn check(&self) {
        let name = &self.name;
        match (&self.gives, self.open()) {
            (Answers(expected), Ok(facts)) => assert_eq!(answers(&facts), *expected, "{name}"),
            (LeavesOut(reason), Ok(facts)) => {
                let [dropped] = &facts.dropped[..] else { panic!("{name}: {:?}", facts.dropped) };
                assert_eq!((dropped.reason, dropped.count), (*reason, 1), "{name}");
                assert!(dropped.first.ends_with("case.jsonl:1"), "{name}: {}", dropped.first);
                assert_eq!(answers(&facts), ["good"], "{name}");
            }
            (Refused(says), Err(message)) => {
                let says = if says.starts_with(':') { format!("case.jsonl{says}") } else { says.clone() };
                assert!(message.contains("case.jsonl"), "{name}: {message}");
                assert!(message.contains(&says), "{name}: {message}");
            }
            (expected, found) => panic!("{name}: {found:?} and not {expected:?}"),
        }
    }
}

/// Returns the texts that are trained on, without the token that ends each.
fn answers(facts: &ChatFacts) -> Vec<&str> {
    let parts = facts.shown.iter().flat_map(|shown| &shown.parts).filter(|(is_trained, _)| *is_trained);
    parts.map(|(_, text)| text.strip_suffix("<|endoftext|>").expect("an end token is trained on")).collect()
}

#[test]
fn files_are_trained_on_left_out_or_refused() {
    let blocks = include_str!("cases.txt").split("\n\n").filter(|block| block.starts_with('='));
    let cases: Vec<Case> = blocks.map(Case::parse).collect();
    assert!(cases.len() > 60, "{}", cases.len());
    cases.iter().for_each(Case::check);
}

#[test]
fn files_that_no_text_shows() {
    let good = || Answers(vec!["good".to_owned()]);
    let refused = |says: &str| Refused(says.to_owned());
    let list = format!("[{GOOD}]");
    let with = |field: &str, value: &str| format!("{{{field}: {value}, \"completion\": \"b\"}}\n{GOOD}");
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let utf16: Vec<u8> = GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let message = "{\"role\": \"user\", \"content\": \"a\"}, ".repeat(1024);
    let answer = "{\"role\": \"assistant\", \"content\": \"b\"}";
    let table = include_bytes!("../source/parquet/fixtures/chat.parquet");
    let of_table = ["yes", "weather({\"city\": \"Oslo\"})"].map(str::to_owned);
    let cases = [
        Case::new("a byte order mark", [b"\xef\xbb\xbf", GOOD.as_bytes()].concat(), good()),
        Case::new("a byte order mark before a list", [b"\xef\xbb\xbf", list.as_bytes()].concat(), good()),
        Case::new("carriage returns", GOOD.replace('\n', "\r\n"), good()),
        Case::new("no line break at the end", GOOD.trim_end(), good()),
        Case::new("UTF-16", utf16, refused(":1: a NUL byte")),
        Case::new("not UTF-8", b"{\"prompt\": \"\xff\"}\n", refused(":1: not UTF-8")),
        Case::new(
            "a million characters",
            with("\"prompt\"", &format!("\"{}\"", "a".repeat(1_000_000))),
            LeavesOut(DropReason::TooLong),
        ),
        Case::new(
            "many levels",
            with("\"prompt\"", &deep(10_000)),
            refused(":1: not JSON: recursion limit exceeded"),
        ),
        Case::new("a hundred levels", with("\"id\": \"x\", \"prompt\": \"a\", \"tools\"", &deep(100)), {
            Answers(vec!["b".to_owned(), "good".to_owned()])
        }),
        Case::new(
            "too many messages",
            format!("{{\"messages\": [{message}{answer}]}}\n{GOOD}"),
            LeavesOut(DropReason::TooManyMessages),
        ),
        Case { template: CALLS, ..Case::new("Parquet", &table[..], Answers(of_table.to_vec())) },
    ];
    cases.iter().for_each(Case::check);
}
