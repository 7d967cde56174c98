#!/usr/bin/env python3
"""Plants errors (mutants) in the ops, one at a time, and reports the ones that the tests do not see.

    scripts/mutants.py [--only PART] [--work DIR]

A mutant replaces one expression or statement of an op: it flips a sign, reverses a comparison, negates a factor, moves
an index, or makes a result NaN or does not write it. All mutants are compiled into one copy of the tree, each behind a
switch that an environment variable turns on, so a single build is enough. Each mutant faces the ops' checks
(`cargo test --lib check::`), then their unit tests, then the engine's tests, until one of them fails.

Exits with 1 if a mutant survives, and with 2 if a mutant's text is no longer in the source: then update its line below.
Prints a Markdown table for docs/measuring.md. --work DIR keeps the copy and its build for the next call.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPS = pathlib.Path("src/engine/ops")
# Files without CPU computation: lists, test cases, references, and GPU code.
NOT_OPS = {"mod.rs", "segments.rs", "rank_tables.rs", "attention/flash.rs", "attention/gpu.rs",
           "attention/reference.rs", "attention/tests.rs", "attention/tuning.rs", "cross_entropy/cases.rs",
           "elementwise.rs", "formula/code.rs", "head_loss/tests.rs", "qk_norm_rope/cases.rs",
           "qk_norm_rope/gpu.rs", "qk_norm_rope/norm.rs", "row_norm/arithmetic.rs", "row_norm/cases.rs"}

# A file below src/engine/ops (below src/engine for optimizers), a context, the original text, which is its
# first occurrence after the context, and the text that replaces it.
MUTANTS = [
    ("optim/adamw.rs", "one_minus_beta1.fma(", "g - m", "g + m"),
    ("optim/adamw.rs", "fma(g, ", "beta2 * v", "-beta2 * v"),
    ("optim/adamw.rs", "let denominator = ", "v.sqrt() / correction + eps", "v.sqrt() / correction - eps"),
    ("optim/adamw.rs", "let decayed = if ", "decays", "!decays"),
    ("optim/elementwise/update.rs", "if ", "cx.input_u32(4)[0] != 0", "cx.input_u32(4)[0] == 0"),
    ("optim/elementwise/update.rs", "R::update(", "g[i] * clip", "-g[i] * clip"),
    ("optim/elementwise/update.rs", "table.get(", "first + column", "first + column + R::COLUMNS"),
    ("optim/lion.rs", "let direction = ", "m * beta1 + g * one_minus_beta1", "m * beta1 - g * one_minus_beta1"),
    ("optim/lion.rs", "let p = if ", "decays", "!decays"),
    ("optim/lion.rs", "let p = if ", "direction > A::ZERO", "direction < A::ONE"),
    ("optim/lion.rs", "one_minus_beta2.fma(g, ", "m * beta2", "-m * beta2"),
    ("optim/sgd.rs", "if decays { ", "decay.fma(p, g)", "decay.fma(-p, g)"),
    ("optim/sgd.rs", "*m = ", "momentum * *m + step", "momentum * *m - step"),
    ("optim/sgd.rs", "let mut step", "-lr", "lr"),
    ("add.rs", "|a, b| ", "a + b", "a - b"),
    ("advance.rs", "if ", "cx.input_u32(0)[0] == 0", "cx.input_u32(0)[0] != 0"),
    ("advance.rs", "", "cx.output_u32(0).slice(0, 1)[0] += 1;", "cx.output_u32(0).slice(0, 1)[0] += 2;"),
    ("all_reduce.rs", "", "cx.output::<f32>(k).slice(0, len)", "cx.output::<f32>(k).slice(0, len / 2)"),
    ("all_reduce.rs", "", "cx.output::<f64>(k).slice(0, len)", "cx.output::<f64>(k).slice(0, len / 2)"),
    ("attention/backward.rs", "multiply_by(dp, factors);", "*p * (*dp - delta)", "*p * (*dp + delta)"),
    ("attention/backward.rs", "multiply_by(p, factors);", "*p * (*dp - delta)", "*p * (*dp + delta)"),
    ("attention/backward.rs", "let count = ", "queries.min(seq_len - q0)", "1usize.max(queries.min(seq_len - q0) - 1)"),
    ("attention/forward.rs", "let correction = ", "(max[r] - larger).exp()", "(larger - max[r]).exp()"),
    ("attention/forward.rs", "norm[r] = sum;", "norm[r] * correction + sum", "norm[r] * correction - sum"),
    ("attention/forward.rs", "*to = ", "*max + norm.ln()", "*max - norm.ln()"),
    ("attention/layout.rs", "", "1.0 / (self.dim as f64).sqrt()", "-1.0 / (self.dim as f64).sqrt()"),
    ("attention/layout.rs", "None => ", "0..t + 1", "0..t.max(1)"),
    ("attention/layout.rs", "", "(self.query + g) * self.dim", "(self.query + self.kv - 1 - g) * self.dim"),
    ("attention/mod.rs", "step: ", "cx.input_u32(next + 1)[0]", "cx.input_u32(next + 1)[0] + 1"),
    ("attention/rows.rs", "|x| ", "x.fma(scale, -shift).exp()", "x.fma(scale, shift).exp()"),
    ("attention/rows.rs", "|x| ", "*x *= by", "*x *= -by"),
    ("attention/unfused.rs", "scale(sum, <E as Elem>::Acc::from_f64(", "heads.score_scale()", "-heads.score_scale()"),
    ("attention/unfused.rs", "let score_scale = ", "heads.score_scale()", "-heads.score_scale()"),
    ("attention/unfused.rs", "ds.t(), q, dk, rest, ", "i > 0", "i == 0"),
    ("attention/unfused.rs", "p.at(square, 0).t(), d_o, dv, rest, ", "i > 0", "i == 0"),
    ("cast.rs", "|x: <E as Elem>::Acc| ", "<F as Elem>::Acc::from_f64(x.to_f64())", "<F as Elem>::Acc::from_f64(-x.to_f64())"),
    ("copy.rs", "|x, old| ", "x + old", "x - old"),
    ("copy.rs", "let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));", "cx.adds(0)", "!cx.adds(0)"),
    ("cross_entropy/mod.rs", "d.z_loss = ", "from.get(r)", "-from.get(r)"),
    ("cross_entropy/objective.rs", "label_smoothing != 0.0).then_some(", "from + usize::from(z_loss.is_some())", "from"),
    ("cross_entropy/rows.rs", "plain: ", "sum.ln() + (highest - wanted)", "sum.ln() - (highest - wanted)"),
    ("cross_entropy/rows.rs", "", "row[target as usize] -= target_grad;", "row[target as usize] += target_grad;"),
    ("cross_entropy/rows.rs", "let factor = ", "softmax_grad / of.sum", "-softmax_grad / of.sum"),
    ("cross_entropy/rows.rs", "*slope = self.scale * (", "A::ONE - t * t", "A::ONE + t * t"),
    ("cross_entropy/rows.rs", "self.smoothing * (", "wanted - sum(row) / self.count", "wanted + sum(row) / self.count"),
    ("cross_entropy/rows.rs", "softmax_grad += (", "self.z_loss + self.z_loss", "self.z_loss"),
    ("cross_entropy/rows.rs", "", "target_grad -= spread;", "target_grad += spread;"),
    ("dropout.rs", "*factor = if ", "u32::from(u16::from_le(draw)) < self.threshold",
     "u32::from(u16::from_le(draw)) >= self.threshold"),
    ("dropout.rs", "|(x, f)| ", "*x *= *f", "*x *= -*f"),
    ("dropout.rs", "", "y.store(r * width, &row);", "();"),
    ("dropout.rs", "65536.0 / f64::from(", "65536 - threshold", "65536 + threshold"),
    ("embedding.rs", "|(sum, dy)| ", "*sum += dy.up()", "*sum -= dy.up()"),
    ("embedding.rs", "w.slice(", "token as usize * d", "(token as usize + 1) * d % w.len()"),
    ("grad_norm.rs", "zip(lanes)", "g.fma(*g, *sum)", "g.fma(*g, -*sum)"),
    ("grad_norm.rs", "zip(rest)", "g.fma(*g, *sum)", "g.fma(*g, -*sum)"),
    ("grad_norm.rs", "(max_norm / (", "total_norm + 1e-6", "total_norm - 1e-6"),
    ("grad_norm.rs", "if ", "!(total_norm.is_finite() && loss.finite())", "!(total_norm.is_finite() || loss.finite())"),
    ("half.rs", "x.slice(", "(2 * r + self.index) * f", "(2 * r + 1 - self.index) * f"),
    ("half.rs", "row[", "self.index * f", "(1 - self.index) * f"),
    ("head_loss/mod.rs", "x, w.t(), Matrix::rows(logits, width), ", "false", "true"),
    ("head_loss/mod.rs", "d_logits, w, dx, ", "false", "true"),
    ("head_loss/mod.rs", "d_logits.t(), x, dw, ", "cx.adds(DW)", "!cx.adds(DW)"),
    ("kv_cache.rs", "cache.slice(", "(sample * self.capacity + row) * kept",
     "(sample * self.capacity + (row + 1) % self.capacity) * kept"),
    ("cached_attention.rs", "*o = ", "p.fma(*v, *o)", "p.fma(*v, -*o)"),
    ("cached_attention.rs", "let end = ", "position + 1", "position.max(1)"),
    ("cached_attention.rs", "cache.slice(", "(b * capacity + *position as usize) * kv_width",
     "(b * capacity + (*position as usize + 1) % capacity) * kv_width"),
    ("lanes.rs", "zip(a).zip(b)", "a.fma(*b, *lane)", "a.fma(*b, -*lane)"),
    ("lanes.rs", "zip(b_rest)", "a.fma(*b, *lane)", "a.fma(-*b, *lane)"),
    ("lanes.rs", "|(sum, part)| ", "*sum += *part", "*sum -= *part"),
    ("lanes.rs", "fold(x, A::ZERO, |a, b| ", "a + b", "a - b"),
    ("linear.rs", "x, w.t(), y, ", "false", "true"),
    ("linear.rs", "dy, w, dx, ", "false", "true"),
    ("linear_few_rows.rs", "|(sum, bias)| ", "*sum += *bias", "*sum -= *bias"),
    ("linear_few_rows.rs", "|(value, up)| ", "*value *= *up", "*value *= -*up"),
    ("layer_norm.rs", "let mean = ", "sum(x) / self.count", "-sum(x) / self.count"),
    ("layer_norm.rs", "", "dot(x, x) / self.count + self.eps", "dot(x, x) / self.count - self.eps"),
    ("layer_norm.rs", "E::down(", "x.fma(*w, *b)", "x.fma(*w, -*b)"),
    ("layer_norm.rs", "*dw = ", "dy.fma(*x, *dw)", "dy.fma(-*x, *dw)"),
    ("layer_norm.rs", "", "*db += *dy", "*db -= *dy"),
    ("layer_norm.rs", "s * (", "*g - mean - *x * pull", "*g + mean - *x * pull"),
    ("rope.rs", "chunks_exact_mut(heads.dim)", "inverse", "!inverse"),
    ("select_rows.rs", "let from = ", "*position as usize", "(*position as usize + 1) % rows"),
    ("soft_cap.rs", "|x| ", "cap * (x / cap).tanh()", "-cap * (x / cap).tanh()"),
    ("soft_cap.rs", "dy * ", "t.fma(-t, Acc::ONE)", "t.fma(t, Acc::ONE)"),
    ("window_spans.rs", "seen.start.max(", "(t + 1)", "(t + 2)"),
    ("linear.rs", "dy.t(), x, dw, ", "cx.adds(0)", "!cx.adds(0)"),
    ("mul.rs", "|a, b| ", "a * b", "-(a * b)"),
    ("qk_norm_rope/cpu.rs", "E::Acc::ONE / ", "(mean + self.eps).sqrt()", "(mean - self.eps).sqrt()"),
    ("qk_norm_rope/cpu.rs", "norm * (", "*g - *x * mean", "*g + *x * mean"),
    ("qk_norm_rope/cpu.rs", "|((dw, g), x)| ", "*dw += *g * *x", "*dw -= *g * *x"),
    ("row_norm.rs", "E::down(", "*sum + *addend", "*sum - *addend"),
    ("row_norm.rs", "", "dx.store(r * d, x_row);", "();"),
    ("rms_norm.rs", "", "dot(x, x) / self.count + self.eps", "dot(x, x) / self.count - self.eps"),
    ("rms_norm.rs", "*dw = ", "dy.fma(*x * s, *dw)", "dy.fma(-(*x * s), *dw)"),
    ("rms_norm.rs", "g.fma(s, ", "-(*x * pull)", "*x * pull"),
    ("rms_norm.rs", "*y = E::down(", "*x * s * *w", "*x * s * *w * <<E as crate::device::Elem>::Acc as crate::device::Real>::from_f64(f64::NAN)"),
    ("rotary.rs", "(*x, *y) = (", "*x * *c - *y * *s", "*x * *c + *y * *s"),
    ("rotary.rs", "(*x, *y) = (*x * *c + *y * *s, ", "*y * *c - *x * *s", "*y * *c + *x * *s"),
    ("rotary.rs", "theta.powf(", "-2.0 * i as f64 / self.rotated_dim as f64", "2.0 * i as f64 / self.rotated_dim as f64"),
    ("scale.rs", "|x| ", "factor * x", "-factor * x"),
    ("softmax.rs", "[0] = ", "shift + sum.ln()", "shift - sum.ln()"),
    ("softmax.rs", "*dp = ", "*p * (*dp - mean)", "*p * (*dp + mean)"),
    ("softmax.rs", "", "ds.store(r * t, &row);", "();"),
    ("sum.rs", "Acc::from_f64(", "before + scale * total(x)", "before - scale * total(x)"),
    ("sum.rs", "E::down(", "A::from_f64(self.scale.value(cx)) * d_total", "-A::from_f64(self.scale.value(cx)) * d_total"),
    ("sum.rs", "Self::Reciprocal => ", "1.0 / f64::from(cx.input_u32(cx.inputs.len() - 1)[0])",
     "2.0 / f64::from(cx.input_u32(cx.inputs.len() - 1)[0])"),
    ("activate.rs", "", "*d *= *slope", "*d *= -*slope"),
    ("activation.rs", "A::ONE / ", "(A::ONE + (-x).exp())", "(A::ONE + x.exp())"),
    ("activation.rs", "s * ", "x.fma(A::ONE - s, A::ONE)", "x.fma(A::ONE + s, A::ONE)"),
    ("activation.rs", "(x * cumulative, ", "x.fma(density, cumulative)", "x.fma(-density, cumulative)"),
    ("add_bias.rs", "|(x, b)| ", "*x += *b", "*x -= *b"),
    ("add_bias.rs", "|(sum, d)| ", "*sum += *d", "*sum -= *d"),
    ("gated.rs", "*y = E::down(", "*value * up.up()", "-*value * up.up()"),
    ("gated.rs", "*d_gate = E::down(", "*dy * *up * *slope", "-*dy * *up * *slope"),
    ("gated.rs", "*d_up = E::down(", "*dy * *value", "-*dy * *value"),
    ("all_gather.rs", "None => (&*cx.output_bytes(part.tensor), ", "part.to", "part.to.saturating_sub(1)"),
    ("all_gather.rs", "cx.output_bytes(part.tensor)[", "part.to * size", "part.to.saturating_sub(1) * size"),
    ("ema.rs", "*average = weight.fma(", "master - *average", "master + *average"),
    ("ema.rs", "if ", "cx.input_u32(3)[0] != 0", "cx.input_u32(3)[0] == 0"),
    ("embedding_owners.rs", "", "count += 1;", "count += 2;"),
    ("embedding_owners.rs", "|(sum, dy)| ", "*sum += dy.up()", "*sum -= dy.up()"),
    ("embedding_owners.rs", "dy.slice(", "position as usize * d", "(position as usize).saturating_sub(1) * d"),
    ("erfc.rs", "if x < A::ZERO { ", "two - tail", "two + tail"),
    ("erfc.rs", "let t = if ", "t > limit", "t < limit"),
    ("erfc.rs", "let at = ", "(t - two) / (t + two)", "(t + two) / (t + two)"),
    ("fingerprint.rs", "let mut z = ", "word ^ at.wrapping_mul(STEP)", "word ^ at"),
    ("fingerprint.rs", "sums(&bytes[start..start + len], ", "start / WORD", "0 * start"),
    ("formula/mod.rs", "*d = E::down(", "*dy * *slope", "-*dy * *slope"),
    ("formula/mod.rs", "y.store(", "row * width + at", "row * width"),
    ("formula/registers.rs", "Binary::Subtract => map(u, v, to, |u, v| ", "u - v", "v - u"),
    ("formula/registers.rs", "Unary::Sign => map(u, to, |u| ", "greater(u, A::ZERO) - greater(A::ZERO, u)", "greater(u, A::ZERO)"),
    ("formula/registers.rs", "Binary::Chain => map(u, v, to, |u, v| if ", "v == A::ZERO", "v != A::ZERO"),
    ("gather_rows.rs", "", "to.copy_from_slice(part);", "to.fill(0);"),
    ("affine.rs", "self == ", "Self::WeightAndBias", "Self::Weight"),
    ("matrices.rs", "self.rows * ", "self.columns", "(self.columns - 1)"),
    ("muon_momentum.rs", "let gradient = ", "g[first + i] * clip", "-g[first + i] * clip"),
    ("muon_momentum.rs", "lerp(gradient, average, ", "keep", "take"),
    ("muon_momentum.rs", "*x = E::down(x.up() / ", "norms[matrix]", "norms[0]"),
    ("muon_update.rs", "(-step).fma(x.up(), ", "*p * decay", "-*p * decay"),
    ("newton_schulz.rs", "(side, side, side), ", "c", "-c"),
    ("newton_schulz.rs", "1.0, factors, (", "a", "-a"),
    ("qk_norm_rope/mod.rs", "let packed = if ", "first", "!first"),
    ("qk_norm_rope/mod.rs", "QkNormRopeGrad(*self), &inputs, &", "[0, 1, 2]", "[0, 2, 1]"),
    ("reduce_scatter.rs", "filter(|range| ", "range.rank == rank", "range.rank != rank"),
    ("sample_tokens.rs", "*position = (", "*position + 1", "*position + 2"),
    ("sample_tokens.rs", "if ", "mass >= wanted", "mass < wanted"),
    ("share_rows.rs", "gather(cx.comm, name, ", "cx.input_bytes(1)", "cx.input_bytes(0)"),
    ("swap_ema.rs", "compute_copy.store(", "segment.start + start", "segment.start"),
    ("swap_ema.rs", "", "masters.swap_with_slice(average.slice(segment.offset + start, len));", "();"),
    ("with_gradient.rs", "v.set_input_grad(1, ", "v.input(2)", "v.input(1)"),
]

# Tests in the order in which they run until one fails: a name for the table, and the arguments of `cargo
# test`.
TESTS = [
    ("check", ["-p", "xrun-engine", "--lib", "check::tests::every_case_holds_in_f64"]),
    ("check", ["-p", "xrun-engine", "--lib", "check::"]),
    ("unit tests", ["-p", "xrun-engine", "--lib", "ops::"]),
    ("engine tests", ["--test", "library", "engine::"]),
]
LIMIT_S = 300
SWITCH = "XRUN_MUTANT"
SWITCHES = """
/// Returns whether the mutant with this number is switched on.
pub fn planted(number: usize) -> bool {
    static ON: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("%s").ok().and_then(|n| n.parse().ok()));
    *ON == Some(number)
}
""" % SWITCH


def plant(copy, mutants):
    """Puts every mutant behind its switch; returns the mutants whose original text is not in the source."""
    lost, edits = [], {}
    for number, (file, before, original, mutant) in enumerate(mutants):
        path = copy / ("src/engine" if file.startswith("optim/") else OPS) / file
        text = path.read_text()
        context = text.find(before)
        start = text.find(original, context + len(before))
        if context < 0 or start < 0:
            lost.append((file, f"{before} … {original}"))
            continue
        choice = f"if crate::planted({number}) {{ {mutant} }} else {{ {original} }}"
        edits.setdefault(path, []).append((start, len(original), choice if original.endswith(";") else f"({choice})"))
    for path, places in edits.items():
        text = path.read_text()
        places.sort(reverse=True)
        for (start, *_), (previous, length, _) in zip(places, places[1:]):
            if previous + length > start:
                sys.exit(f"two mutants overlap in {path.name}: {text[previous:previous + length]!r}")
        for start, length, choice in places:
            text = text[:start] + choice + text[start + length:]
        path.write_text(text)
    library = copy / "src/engine/lib.rs"
    library.write_text("#![allow(unused_parens)]\n" + library.read_text() + SWITCHES)
    return lost


def cargo(copy, arguments, number=None, build=False):
    """Runs `cargo test` in the copy and returns whether it passes."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(copy.parent / "target"), "RUST_BACKTRACE": "0"}
    environment.pop(SWITCH, None)
    if number is not None:
        environment[SWITCH] = str(number)
    command = ["cargo", "test", "--offline", "--quiet", *arguments, *(["--no-run"] if build else [])]
    quiet = None if build else subprocess.DEVNULL
    try:
        return subprocess.run(command, cwd=copy, env=environment, stdout=quiet, stderr=quiet,
                              timeout=None if build else LIMIT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def copy_tree(work):
    copy = work / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    copied = ["Cargo.toml", "Cargo.lock", "build.rs", "kernels", "src", "recipes", "tests", "docs", "data"]
    for path in map(ROOT.joinpath, copied):
        copy.mkdir(exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, copy / path.name)
    return copy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="try only mutants of files whose names contain this")
    parser.add_argument("--work", type=pathlib.Path, help="keep the copy and its build in this folder")
    arguments = parser.parse_args()

    sources = {str(p.relative_to(ROOT / OPS)) for p in (ROOT / OPS).rglob("*.rs")} - NOT_OPS
    without = sources - {file for file, *_ in MUTANTS}
    if without:
        sys.exit(f"these files have no mutant, so add one to MUTANTS or the file to NOT_OPS: {', '.join(sorted(without))}")
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or pathlib.Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        copy = copy_tree(work)
        lost = plant(copy, MUTANTS)
        if lost:
            print("\n".join(f"{file} no longer has {text!r}: update MUTANTS" for file, text in lost), file=sys.stderr)
            sys.exit(2)
        for name, test in TESTS:
            if not cargo(copy, test, build=True) or not cargo(copy, test):
                sys.exit(f"a test fails even without a mutant: {name}")
        sys.exit(try_all(copy, arguments.only))


def try_all(copy, only):
    print("| op file | planted | instead of | seen by |\n|---|---|---|---|", flush=True)
    tried, survivors = 0, 0
    for number, (file, _, original, mutant) in enumerate(MUTANTS):
        if only not in file:
            continue
        started = time.monotonic()
        seen_by = next((name for name, test in TESTS if not cargo(copy, test, number)), None)
        tried += 1
        survivors += seen_by is None
        shown = [re.sub(r"\s+", " ", text).replace("|", "\\|") for text in (mutant, original)]
        print(f"| `{file}` | `{shown[0]}` | `{shown[1]}` | {seen_by or '**nothing**'} |", flush=True)
        print(f"{number + 1}/{len(MUTANTS)} in {time.monotonic() - started:.0f} s", file=sys.stderr)
    print(f"\n{survivors} of {tried} survive", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    main()
