//! The log-probability of a token after each row of logits, and whether it is the likeliest one, by which
//! tasks score texts.

use super::cross_entropy::cases as formula;
use super::cross_entropy::{IGNORED, Objective, Row, launch_rows, losses_spec};
use super::lanes::rows_per_task;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// `(logits[n, V], targets[n]) → (log_probs[n], likeliest[n] u32)`: the logarithm of the softmax at the
/// target, in nats, and 1 where the target is the likeliest token.
///
/// The softmax is of the logits as the [`Objective`] transforms them, without its further terms. Of equal
/// stored logits, the first is the likeliest, as in `torch.argmax`; scale and cap never change their order.
/// Both outputs are 0 where the target is [`IGNORED`], and the log-probability is NaN where a logit is. The
/// padding of the vocabulary takes no part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScores(pub Objective);

/// Returns true if no logit exceeds the target's, and none before it equals it.
#[inline(always)]
fn is_likeliest<A: Real>(logits: &[A], target: usize) -> bool {
    let own = logits[target];
    let beats = |other: &A| *other > own;
    let equals = |other: &A| *other >= own;
    !logits[..target].iter().any(equals) && !logits[target..].iter().any(beats)
}

impl Op for TokenScores {
    fn name(&self) -> &'static str {
        "token_scores"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [logits, targets] if logits.dtype.is_float() && self.0.terms() == 0 => {
                let scores = losses_spec(logits, targets)?;
                let likeliest = scores.with_dtype(DType::U32);
                Ok(vec![scores, likeliest])
            }
            _ => Err("takes logits and targets, and an objective without further terms".into()),
        }
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let spec = cx.input_spec(0);
        let (rows, vocab, width) = (spec.rows(), spec.shape[1], spec.width());
        let (targets, likeliest) = (cx.input_u32(1), cx.output_u32(1));
        dispatch_float!(spec.dtype, E => {
            type A = <E as Elem>::Acc;
            let (logits, log_probs) = (cx.input::<E>(0), cx.output::<A>(0));
            cx.pool.chunks(rows, rows_per_task(width), #[inline(always)] |start, len| {
                let mut row = Row::new(&self.0, vocab);
                for (r, &target) in (start..).zip(&targets[start..start + len]) {
                    let (log_prob, is_likeliest) = if target == IGNORED {
                        (A::ZERO, false)
                    } else {
                        logits.load(r * width, &mut row.logits);
                        // Before the losses replace the logits.
                        let is_likeliest = is_likeliest(&row.logits, target as usize);
                        (-row.losses(target).plain, is_likeliest)
                    };
                    log_probs.slice(r, 1)[0] = log_prob;
                    likeliest.slice(r, 1)[0] = u32::from(is_likeliest);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let tensors = [cx.input(0).into(), cx.input(1).into(), cx.output(0).into(), cx.output(1).into()];
        launch_rows(cx, "token_scores", (cx.input_spec(0), &self.0), false, &tensors, &[])
    }

    fn cases(precision: Precision) -> Cases {
        let ignoring = Fill::Values(vec![3.0, f64::from(IGNORED), 39.0, 0.0]);
        let [scaled, capped, ..] = formula::OBJECTIVES;
        let plain = ("", Objective::PLAIN);
        let case = |objective, n, vocab, targets| case(precision, objective, n, vocab, targets, SPREAD);
        let mut cases = vec![
            case(plain, 1, (5, 5), Fill::Below(5)),
            case(plain, 17, (300, 320), Fill::Below(300)),
            case(plain, 255, (33, 33), Fill::Below(33)),
            case(plain, 256, (16, 64), Fill::Below(16)),
            case(plain, 12, (40, 64), ignoring),
            case(plain, 3, (20_000, 20_032), Fill::Below(20_000)),
            case(scaled, 17, (300, 320), Fill::Below(300)),
            case(capped, 64, (12, 64), Fill::Below(12)),
        ];
        cases.extend([(1, 3), (70, 70), (33, 64)].map(ties(precision)));
        Cases::Own(cases)
    }
}

/// Logits of cases: mean and standard deviation.
const SPREAD: Fill = Fill::Normal(-3.0, 4.0);

fn case(
    precision: Precision,
    (name, objective): (&str, Objective),
    n: usize,
    (vocab, pad): (usize, usize),
    targets: Fill,
    logits: Fill,
) -> Case {
    let inputs = vec![
        (Spec::padded([n, vocab], [n, pad], precision.act_dtype), logits),
        (Spec::new([n], DType::U32), targets),
    ];
    let name = format!("n{n} v{vocab} {name}");
    Case::new(name.trim_end(), TokenScores(objective), inputs, move |inputs: &[Array]| {
        let vocab = inputs[0].width();
        let (mut log_probs, mut likeliest) = (Array::zeros(&[n]), Array::zeros(&[n]));
        for (r, (row, &target)) in inputs[0].data.chunks(vocab).zip(&inputs[1].data).enumerate() {
            if target == f64::from(IGNORED) {
                continue;
            }
            log_probs.data[r] = -formula::losses(&objective, row, target)[0];
            // `>` keeps the first of equal logits.
            let best = (1..vocab).fold(0, |best, i| if row[i] > row[best] { i } else { best });
            likeliest.data[r] = f64::from(u8::from(best == target as usize));
        }
        vec![log_probs, likeliest]
    })
    .without_gradient()
    .depth(vocab)
}

/// Returns a function that makes the case of equal logits of a vocabulary and its padded size. Every word is
/// a target, and only the first is the likeliest.
fn ties(precision: Precision) -> impl Fn((usize, usize)) -> Case {
    move |(vocab, pad)| {
        let targets = Fill::Values((0..vocab).map(|word| word as f64).collect());
        case(precision, ("equal", Objective::PLAIN), vocab, (vocab, pad), targets, Fill::Values(vec![1.5]))
    }
}
