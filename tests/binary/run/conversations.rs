//! Runs on conversations: a batch has the same loss however it is cut, the run resumes, keeps its template and
//! talks, and what a file has wrong is said with its place.

use crate::place::{Place, Run};
use std::fmt::Write;
use xrun::results::rows::{MetricsRow, read};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' \
     %}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

/// Settings of a run on the conversations of [`place`], without what makes steps differ at random.
const CHAT: [&str; 9] = [
    "tiny.toml",
    "data.corpus=chat.jsonl",
    "data.format=chat",
    "data.chat_template=t.jinja",
    "data.tokenizer=byte",
    "data.validation=0.2",
    "training.seq_len=48",
    "model.dropout=0",
    "generation.samples=0",
];

/// A folder with uneven conversations, and one that is left out.
fn place() -> Place {
    let place = Place::new();
    let mut lines = String::new();
    for i in 0..60 {
        let (question, answer) = ("a".repeat(1 + i % 7), "b".repeat(1 + i % 11));
        writeln!(lines, r#"{{"prompt": "{question}{i}", "completion": "{answer}"}}"#).unwrap();
    }
    lines += "{\"messages\": [{\"role\": \"user\", \"content\": \"no answer\"}]}\n";
    place.write("chat.jsonl", lines.as_bytes());
    place.write("t.jinja", TEMPLATE.as_bytes());
    place
}

fn first_row(run: &Run) -> (f64, f64) {
    let rows: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
    (f64::from(rows[0].loss), f64::from(rows[0].grad_norm))
}

/// The loss is the mean over the tokens that are trained on in the whole batch: a mean of the means of its
/// parts would differ by percents.
#[test]
fn a_batch_has_one_loss_however_it_is_cut() {
    let cuts = [[8, 1, 1], [1, 8, 1], [2, 2, 2], [1, 2, 4]];
    for (packing, cuts) in [("best_fit", &cuts[..]), ("document", &cuts[1..3])] {
        let mut first = None;
        for &cut in cuts {
            let place = place();
            let [local, accumulation, ranks] = cut;
            let cut = [
                format!("data.packing={packing}"),
                format!("training.local_batch_size={local}"),
                format!("training.accumulation={accumulation}"),
                format!("parallelism.world_size={ranks}"),
            ];
            let cut: Vec<&str> = cut.iter().map(String::as_str).chain(["training.steps=1"]).collect();
            place.xrun(&[&CHAT[..], &cut].concat()).succeeds();
            let (loss, norm) = first_row(&place.run());
            let (expected, expected_norm) = *first.get_or_insert((loss, norm));
            assert!((loss / expected - 1.0).abs() < 1e-6, "{cut:?}: {loss} and not {expected}");
            assert!((norm / expected_norm - 1.0).abs() < 1e-5, "{cut:?}: {norm} and not {expected_norm}");
        }
    }
}

#[test]
fn a_run_on_conversations_resumes_and_talks() {
    let place = place();
    let best_fit = [
        &CHAT[..],
        &["data.packing=best_fit", "training.steps=6", "checkpoint.interval=3", "checkpoint.keep=9"],
    ]
    .concat();
    let done = place.xrun(&best_fit).succeeds();
    done.says(&["60 conversations", "left out: 1 example without an answer to train on", "chat.jsonl:61"]);
    let whole = place.run();
    let rows = whole.text("metrics.csv");
    whole.forget_after(3);
    place.xrun(&["resume", whole.name()]).succeeds().says(&["resuming from step 3 "]);
    assert_eq!(whole.text("metrics.csv"), rows);
    let talks = place.xrun_reading("hi\n", &["sample", whole.name(), "--chat", "--tokens", "3"]);
    talks.succeeds();
}

/// A resume compares the text of a template, and not where it lies. The tokens of these conversations are the
/// same with the other one.
#[test]
fn a_template_may_move_and_not_change() {
    let place = place();
    let settings =
        [&CHAT[..], &["data.packing=best_fit", "training.steps=4", "checkpoint.interval=2"]].concat();
    place.xrun(&settings).succeeds();
    let run = place.run();
    run.forget_after(2);
    place.write("moved/same.jinja", TEMPLATE.as_bytes());
    let other = format!("{TEMPLATE}{{% if tools %}}tools{{% endif %}}");
    place.write("other.jinja", other.as_bytes());
    place
        .xrun(&["resume", run.name(), "data.chat_template=other.jinja"])
        .ended(2)
        .says(&["data.chat_template = ", "other.jinja"]);
    let resumed = place.xrun(&["resume", run.name(), "data.chat_template=moved/same.jinja"]);
    resumed.succeeds().says(&["same.jinja", "with the same content"]);
    let fork = ["resume", run.name(), "--fork", "training.steps=5", "data.chat_template=other.jinja"];
    place.xrun(&fork).succeeds();
    let forked = place.runs().into_iter().find(|other| other.name() != run.name()).unwrap();
    assert_eq!(forked.text("chat_template.jinja"), other);
}

#[test]
fn what_is_wrong_with_conversations_is_said_before_a_run() {
    let place = place();
    let refused = |more: &[&str], says: &str| {
        let key = |setting: &str| setting.split('=').next().unwrap().to_owned();
        let is_kept = |setting: &&str| more.iter().all(|other| key(other) != key(setting));
        let kept: Vec<&str> = CHAT.into_iter().filter(is_kept).collect();
        place.xrun(&[&["plan"], &kept[..], more].concat()).ended(2).says(&[says]);
        kept
    };
    let same_as_a_run = refused(&[], "set data.packing to \"best_fit\"");
    place.xrun(&same_as_a_run).ended(2).says(&["set data.packing to \"best_fit\""]);
    let best_fit = "data.packing=best_fit";
    refused(&[best_fit, "data.chat_template=other.jinja"], "other.jinja does not exist");
    place.write(
        "endless.jinja",
        b"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    );
    refused(&[best_fit, "data.chat_template=endless.jinja"], "does not finish within");
    place.write("open.jinja", TEMPLATE.replace("eos_token", "''").as_bytes());
    refused(
        &[best_fit, "data.chat_template=open.jinja"],
        "chat.jsonl:1: the chat template ends an answer without",
    );
    place.write("bad.jsonl", b"{\"messages\": [{\"role\": \"user\", \"content\": 3}]}\n");
    refused(&[best_fit, "data.corpus=bad.jsonl"], "bad.jsonl:1: \"content\" is a number");
    place
        .xrun(&["data", "--corpus", "chat.jsonl", "--format", "chat", "--tokenizer", "byte", "--out", "o"])
        .ended(2);
}
