//! Loss, logits and every gradient of one batch.

use crate::parity::fixture::{Fixture, cosine, norm, relative, spread};
use crate::parity::subject::Subject;

/// The ways in which the same step can be executed.
const WAYS: [(&str, &[&str]); 8] = [
    ("default", &[]),
    ("no recompute", &["activation_checkpoint.mode=none"]),
    ("full recompute", &["activation_checkpoint.mode=full"]),
    ("unfused ops", &["engine.fused=false"]),
    ("unfused attention", &["engine.attention=unfused"]),
    ("nothing fused", &["engine.fused=false", "engine.attention=unfused"]),
    ("spans", &["data.cross_documents=false"]),
    ("one sequence at a time", &["training.accumulation=3"]),
];

/// Everything that a subject says about the first batch, under the fixture's names. Nothing that PyTorch
/// computed is left out.
fn measure(subject: &mut Subject, fixture: &Fixture) -> Vec<(String, Vec<f64>)> {
    let (logits, eval_loss) = subject.evaluate();
    subject.gradients(1);
    subject.check_padding();
    let loss = subject.get("control.loss");
    let between = (eval_loss - loss[0]).abs() / loss[0];
    assert!(between < 1e-6, "evaluation and training differ by {between:.1e} in the loss");
    let mut found = vec![("loss".to_string(), loss), ("logits".to_string(), logits)];
    let gradients = subject.params().into_iter().map(|p| format!("grads.{p}"));
    found.extend(gradients.map(|slot| (slot.clone(), subject.get(&slot))));
    let theirs = fixture.names().iter().filter(|name| name.starts_with("rest.")).count();
    assert_eq!(found.len(), theirs);
    found
}

#[test]
fn fp32() {
    let fixture = Fixture::open("model.safetensors");
    for (way, overrides) in WAYS {
        eprintln!(
            "\nfp32, {way}\n{:<32} {:>12} {:>9} {:>15}",
            "", "from PyTorch", "from f64", "PyTorch's own"
        );
        for (name, value) in measure(&mut Subject::new(overrides), &fixture) {
            let apart = relative(&value, &fixture.get(&format!("fp32.{name}")));
            let error = relative(&value, &fixture.truth(&name));
            let theirs = fixture.number(&format!("fp32.error.{name}"));
            eprintln!("{name:<32} {apart:>12.1e} {error:>9.1e} {theirs:>15.1e}");
            if name == "loss" {
                assert!(apart <= 1e-6, "{way}: the loss is {apart:.1e} from PyTorch's");
            } else {
                assert!(apart <= 1e-5, "{way}: {name} is {apart:.1e} from PyTorch's");
                assert!(
                    error <= 2.0 * theirs,
                    "{way}: {name} is {error:.1e} from f64, PyTorch's {theirs:.1e}"
                );
            }
        }
    }
}

#[test]
fn bf16() {
    let fixture = Fixture::open("model.safetensors");
    for (way, overrides) in WAYS {
        let mut subject = Subject::new(&[&["training.dtype=bf16"], overrides].concat());
        eprintln!(
            "\nbf16, {way}; in brackets PyTorch under autocast\n{:<32} {:>18} {:>20} {:>18}",
            "", "1 - cosine", "norm ratio - 1", "from f64"
        );
        for (name, value) in measure(&mut subject, &fixture) {
            match name.as_str() {
                "loss" => check_loss(way, &value, &fixture),
                "logits" => check_logits(way, &value, &fixture),
                _ => check_gradient(way, &name, &value, &fixture),
            }
        }
    }
}

fn check_loss(way: &str, value: &[f64], fixture: &Fixture) {
    let apart = relative(value, &fixture.get("fp32.loss"));
    eprintln!("loss: {apart:.1e} from fp32 ({:.1e})", fixture.number("bf16.error.loss"));
    assert!(apart <= 2e-4, "{way}: the loss is {apart:.1e} from that in fp32");
}

fn check_logits(way: &str, value: &[f64], fixture: &Fixture) {
    let (mean, p99) = spread(value, &fixture.get("fp32.logits"));
    let [their_mean, their_p99] = ["mean", "p99"].map(|what| fixture.number(&format!("bf16.logits.{what}")));
    eprintln!("logits: mean {mean:.1e} ({their_mean:.1e}), p99 {p99:.1e} ({their_p99:.1e}) from fp32");
    assert!(mean <= f64::max(2e-3, 2.0 * their_mean), "{way}: logits are {mean:.1e} from fp32 in the mean");
    assert!(
        p99 <= f64::max(7e-3, 2.0 * their_p99),
        "{way}: logits are {p99:.1e} from fp32 at the 99th percentile"
    );
    check_error(way, "logits", value, fixture);
}

fn check_gradient(way: &str, name: &str, value: &[f64], fixture: &Fixture) {
    let wide = fixture.get(&format!("fp32.{name}"));
    let direction = 1.0 - cosine(value, &wide);
    let length = norm(value) / norm(&wide) - 1.0;
    let their_direction = 1.0 - fixture.number(&format!("bf16.cosine.{name}"));
    let their_length = fixture.number(&format!("bf16.norm_ratio.{name}")) - 1.0;
    eprint!("{name:<32} {direction:>8.1e} ({their_direction:.1e}) {length:>9.1e} ({their_length:>8.1e}) ");
    assert!(
        direction <= f64::max(1e-3, 2.0 * their_direction),
        "{way}: {name} points elsewhere: {direction:.1e}"
    );
    assert!(
        length.abs() <= f64::max(0.02, 2.0 * their_length.abs()),
        "{way}: {name} is longer by {length:.1e}"
    );
    let error = check_error(way, name, value, fixture);
    eprintln!("{error:>8.1e} ({:.1e})", fixture.number(&format!("bf16.error.{name}")));
}

/// The error against f64, at most twice PyTorch's under autocast.
fn check_error(way: &str, name: &str, value: &[f64], fixture: &Fixture) -> f64 {
    let error = relative(value, &fixture.truth(name));
    let theirs = fixture.number(&format!("bf16.error.{name}"));
    assert!(error <= 2.0 * theirs, "{way}: {name} is {error:.1e} from f64, PyTorch's {theirs:.1e}");
    error
}

/// Token by token, keys and values from the cache.
#[test]
fn generation() {
    let fixture = Fixture::open("model.safetensors");
    let logits = Subject::new(&[]).generate();
    let apart = relative(&logits, &fixture.get("fp32.logits"));
    let error = relative(&logits, &fixture.truth("logits"));
    let theirs = fixture.number("fp32.error.logits");
    eprintln!("fp32, generation: {apart:.1e} from PyTorch, {error:.1e} from f64, PyTorch's own {theirs:.1e}");
    assert!(apart <= 1e-5 && error <= 2.0 * theirs);
    check_logits("bf16, generation", &Subject::new(&["training.dtype=bf16"]).generate(), &fixture);
}

/// Where rounding is out of sight, only formulas are left to differ.
#[test]
fn f64() {
    let fixture = Fixture::open("model.safetensors");
    eprintln!();
    for (name, value) in measure(&mut Subject::in_f64(), &fixture) {
        let error = relative(&value, &fixture.truth(&name));
        // The fixture holds the truth to 2^-9 of PyTorch's error in fp32.
        let resolution = fixture.number(&format!("fp32.error.{name}")) / 256.0;
        eprintln!("f64 {name:<32} {error:.1e} from PyTorch in f64, which is stored to {resolution:.1e}");
        assert!(error <= resolution, "{name} is {error:.1e} from PyTorch's in f64");
    }
}
