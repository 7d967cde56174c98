//! `--fit` and the changes that are suggested: checked by planning the recipe anew with what they say.

use crate::plan::{device, forecast, plan, programs};
use xrun::forecast::{Budget, FitRow, fit_local_batch};

const GPT2: usize = 50_257;

/// Peak memory of a built-in recipe with overrides: through the recipe, not through the search.
fn peak(name: &str, overrides: &[&str]) -> usize {
    let programs = programs(&plan(name, overrides, GPT2));
    programs.state.bytes() + programs.arena_bytes()
}

#[test]
fn what_is_found_fits_and_one_more_does_not() {
    let plan = plan("dim384", &[], GPT2);
    let budget = Budget::new(&plan, &device("rtx3090"));
    let rows = fit_local_batch(&plan, &budget).expect("rows");
    assert_eq!(rows.len(), 8);
    for FitRow { dtype, recompute, local_batch_size, peak_bytes, capped, .. } in &rows {
        let needs = |n: usize| {
            let (dtype, mode) =
                (format!("training.dtype={dtype}"), format!("activation_checkpoint.mode={recompute}"));
            peak("dim384", &[&dtype, &mode, &format!("training.local_batch_size={n}")])
        };
        assert!(!capped && *local_batch_size > 0);
        assert_eq!(needs(*local_batch_size), *peak_bytes, "{dtype} {recompute}");
        assert!(budget.holds(*peak_bytes), "{dtype} {recompute}");
        assert!(!budget.holds(needs(local_batch_size + 1)), "{dtype} {recompute}");
    }
    let batch = |dtype: &str, mode: &str| {
        let row = rows.iter().find(|r| r.dtype == dtype && r.recompute == mode);
        row.expect("a row of each").local_batch_size
    };
    for dtype in ["bf16", "fp32"] {
        assert!(batch(dtype, "none") < batch(dtype, "emitted"));
        assert!(batch(dtype, "emitted") < batch(dtype, "selective"));
        assert!(batch(dtype, "selective") < batch(dtype, "full"));
    }
    for mode in ["none", "emitted", "selective", "full"] {
        assert!(batch("fp32", mode) < batch("bf16", mode));
    }
}

#[test]
fn more_memory_fits_no_smaller_batch() {
    let plan = plan("dim384", &[], GPT2);
    let of = |name: &str| fit_local_batch(&plan, &Budget::new(&plan, &device(name))).expect("rows");
    for (small, large) in of("rtx4090").iter().zip(of("a100-40")) {
        assert!(small.local_batch_size <= large.local_batch_size);
    }
}

#[test]
fn a_batch_beyond_the_largest_is_capped() {
    let small = plan("quickstart", &["training.seq_len=1"], 511);
    let budget = Budget { hardware: None, name: "nothing", bytes: None, reserve: 0, ranks: 1 };
    let rows = fit_local_batch(&small, &budget).expect("rows");
    assert!(rows.iter().all(|row| row.capped && row.local_batch_size == 1 << 20));
}

/// Every suggestion, given as overrides, needs what it says.
#[test]
fn suggestions_hold() {
    let cases: [(&str, &[&str], &str); 4] = [
        ("v8-dim1024", &["training.local_batch_size=512"], "rtx4090"),
        (
            "dim768",
            &["training.local_batch_size=256", "training.dtype=fp32", "engine.placement=caching"],
            "rtx4090",
        ),
        ("dim768", &["training.local_batch_size=2048", "engine.fused=false"], "rtx3090"),
        (
            "dim768",
            &["training.local_batch_size=64", "engine.attention=unfused", "training.seq_len=2048"],
            "rtx5090",
        ),
    ];
    for (name, overrides, on) in cases {
        let found = forecast(&plan(name, overrides, GPT2), &[device(on)]);
        let verdict = &found.on[0];
        assert_eq!(verdict.fits, Some(false), "{name} {overrides:?}");
        assert!(!verdict.advice.is_empty(), "{name} {overrides:?}");
        for advice in &verdict.advice {
            let keys: Vec<&str> = advice.set.iter().filter_map(|s| s.split('=').next()).collect();
            let kept = overrides.iter().copied().filter(|o| !keys.iter().any(|k| o.starts_with(k)));
            let all: Vec<&str> = kept.chain(advice.set.iter().map(String::as_str)).collect();
            let changed = plan(name, &all, GPT2);
            let memory = forecast(&changed, &[]).memory;
            assert_eq!(memory.peak_bytes, advice.peak_bytes, "{name} {all:?}");
            assert!(
                advice.fits && Budget::new(&changed, &device(on)).holds(memory.peak_bytes),
                "{name} {all:?}"
            );
            let before = plan(name, overrides, GPT2);
            assert_eq!(changed.batch.global, before.batch.global, "{name} {all:?}");
            assert_eq!(changed.precision == before.precision, advice.same_curve, "{name} {all:?}");
        }
    }
}

#[test]
fn a_state_that_is_too_large_is_said_to_be() {
    let huge = plan("v8-dim1024", &["model.dim=8192", "model.n_heads=64", "model.n_layers=48"], GPT2);
    let found = forecast(&huge, &[device("rtx3090")]);
    assert!(found.on[0].advice.iter().all(|a| !a.fits));
    assert!(found.to_string().contains("nothing fits: the state alone takes"));
}

#[test]
fn the_recipes_own_limit_counts() {
    let limited = plan("dim384", &["engine.memory_limit_gib=2"], GPT2);
    let found = forecast(&limited, &[]);
    assert_eq!((found.on[0].on, found.on[0].fits), ("engine.memory_limit_gib", Some(false)));
    // On a device, the smaller of the two.
    let on = forecast(&limited, &[device("h200")]);
    assert_eq!(on.on[0].budget_bytes, Some(2 << 30));
    let unknown = forecast(&plan("dim384", &[], GPT2), &[device("cpu")]);
    assert_eq!((unknown.on[0].fits, unknown.on[0].step.is_none()), (None, true));
}
