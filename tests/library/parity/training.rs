//! Three whole steps: loss, gradient norm, clipping, schedule, AdamW.

use crate::parity::fixture::{Fixture, relative};
use crate::parity::formula;
use crate::parity::subject::Subject;

#[test]
fn three_steps_in_fp32() {
    let fixture = Fixture::open("training.safetensors");
    for overrides in [&[] as &[&str], &["training.accumulation=3"]] {
        let mut subject = Subject::new(overrides);
        eprintln!("\nthree steps {overrides:?}");
        for step in 1..=3 {
            subject.train(step);
            for (name, value) in [
                ("loss", subject.get("control.loss")[0]),
                ("grad_norm", subject.get("control.grad_norm")[0]),
                ("lr", subject.plan.schedule.at(step)),
            ] {
                let theirs = fixture.get(name)[step - 1];
                let apart = (value - theirs).abs() / theirs;
                eprintln!("step {step} {name:<10} {value:.6} {apart:.1e} from PyTorch's");
                assert!(apart <= 1e-6, "step {step}: {name} is {value}, PyTorch's {theirs}");
            }
        }
        subject.check_padding();
        for param in &subject.programs.state.params {
            let start = formula::weights(&param.name, &param.spec.shape);
            let moved = |end: Vec<f64>| end.iter().zip(&start).map(|(a, b)| a - b).collect::<Vec<_>>();
            let ours = subject.get(&format!("params.{}", param.name));
            let theirs = fixture.get(&format!("params.{}", param.name));
            let apart = relative(&ours, &theirs);
            let update = relative(&moved(ours), &moved(theirs));
            let own = fixture.number(&format!("error.{}", param.name));
            eprintln!("{:<24} {apart:.1e}, its way {update:.1e}, PyTorch's own to f64 {own:.1e}", param.name);
            assert!(apart <= 1e-6, "{}: {apart:.1e} from PyTorch's", param.name);
            // At most twice PyTorch's error from f64, so at most three times it from PyTorch.
            assert!(update <= 3.0 * own, "{}: its way is {update:.1e} from PyTorch's", param.name);
        }
    }
}
