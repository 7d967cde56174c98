//! A sliding window, global layers and capped scores against Gemma 2's attention in transformers.

use crate::parity::fixture::{Fixture, relative};
use crate::parity::subject::Subject;

const KEYS: &[&str] = &["model.window=7", "model.global_interval=2", "model.score_cap=1.5"];

const WAYS: [&[&str]; 5] = [
    &[],
    &["activation_checkpoint.mode=full"],
    &["engine.fused=false", "engine.attention=unfused"],
    &["data.cross_documents=false"],
    &["training.accumulation=3"],
];

#[test]
fn windows_and_caps_are_those_of_gemma_2() {
    let fixture = Fixture::open("attention.safetensors");
    for way in WAYS {
        let mut subject = Subject::new(&[KEYS, way].concat());
        let (logits, _) = subject.evaluate();
        subject.gradients(1);
        for name in fixture.names() {
            let value = match name.as_str() {
                "logits" => logits.clone(),
                "loss" => subject.get("control.loss"),
                gradient => subject.get(gradient),
            };
            let apart = relative(&value, &fixture.get(&name));
            let bound = if name == "loss" { 1e-6 } else { 1e-5 };
            eprintln!("{way:?} {name:<24} {apart:.1e} from transformers");
            assert!(apart <= bound, "{way:?}: {name} is {apart:.1e} from transformers'");
        }
    }
    let apart = relative(&Subject::new(KEYS).generate(), &fixture.get("logits"));
    assert!(apart <= 1e-5, "token by token, logits are {apart:.1e} from transformers'");
}
