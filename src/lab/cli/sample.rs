//! `xrun sample [RUN]`.

use super::chat;
use super::terminal::{eprint_line, print_exact, print_json_line};
use super::what::{Results, run_and_keys};
use crate::error::Result;
use crate::model::WeightsKind;
use crate::results::find;
use crate::train::{GenerationTime, Sampled, TrainedRun, bench_generation, run_with_checkpoint, sample};
use std::io::IsTerminal;

/// Arguments of `xrun sample`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run (its folder or name) [default: latest, the newest with a checkpoint], then keys to change:
    /// `generation.key=value`, execution keys (`engine.threads=1`), or `training.dtype=fp32`.
    #[arg(value_name = "RUN | KEY=VALUE")]
    pub words: Vec<String>,
    /// What the texts begin with. Repeat it for several prompts, which are generated in one batch.
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// Number of texts per prompt [default: as the run's recipe says, else 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: Option<u32>,
    /// Tokens to generate after each prompt.
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// Sampling temperature; 0 takes the most probable token (greedy).
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Use the checkpoint of this step [default: the newest valid one].
    #[arg(long, value_name = "STEP")]
    pub checkpoint: Option<u64>,
    /// Which weights of the checkpoint to use: as trained, or their moving average (`ema.decay`).
    #[arg(long, value_enum, value_name = "WEIGHTS", default_value = "training")]
    pub weights: WeightsKind,
    /// Where results are.
    #[command(flatten)]
    pub results: Results,
    /// Print one JSON object per text, with prompt, text and tokens.
    #[arg(long)]
    pub json: bool,
    /// Talk to the model with its tokenizer's chat template, one message per line.
    #[arg(long, conflicts_with_all = ["prompt", "samples", "json"])]
    pub chat: bool,
    /// Time the generation instead of printing texts, with prompts of this many tokens, one for each sample.
    /// Prints a JSON object for each repetition.
    #[arg(long, value_name = "TOKENS", conflicts_with_all = ["prompt", "chat", "json"])]
    pub bench: Option<usize>,
}

/// Runs the command.
///
/// # Errors
/// If [`sample`], [`chat::run`] or [`bench_generation`] fails.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let (named, keys) = run_and_keys(&args.words);
    let run = named.unwrap_or(find::LATEST);
    let mut overrides = Vec::new();
    let mut set = |key: &str, value: Option<String>| {
        overrides.extend(value.map(|value| format!("generation.{key}={value}")));
    };
    // Quote the prompt as a TOML string, so that it is never mistaken for another type.
    set("prompt", args.prompt.first().map(|p| toml::Value::from(p.as_str()).to_string()));
    set("samples", args.samples.map(|n| n.to_string()));
    set("tokens", args.tokens.map(|n| n.to_string()));
    set("temperature", args.temperature.map(|t| format!("{t:?}")));
    overrides.extend(keys.iter().cloned());
    let folder = run_with_checkpoint(results, run)?;
    let run = TrainedRun { folder, step: args.checkpoint, weights: args.weights, overrides };
    if args.chat {
        return chat::run(run, args.tokens);
    }
    if let Some(prompt_tokens) = args.bench {
        return bench_generation(&run, prompt_tokens, print_time);
    }
    for Sampled { prompt, text, tokens } in sample(&run, &args.prompt)? {
        if args.json {
            let sampled = serde_json::json!({ "prompt": prompt, "text": text, "tokens": tokens });
            print_json_line(&sampled)?;
        } else {
            print_exact(&format!("{prompt}{text}\n\n"))?;
        }
    }
    let names_seed = keys.iter().any(|key| key.contains("generation.seed"));
    if std::io::stderr().is_terminal() && !args.json && !names_seed {
        eprint_line("the run's generation.seed gives these texts again; add generation.seed=1 for others");
    }
    Ok(())
}

/// Prints the times of one repetition as a line of JSON.
fn print_time(time: GenerationTime) -> Result<()> {
    let GenerationTime { samples, prompt_tokens, new_tokens, prefill, decode } = time;
    let made = (samples * (new_tokens - 1)) as f64;
    let speed = (made > 0.0).then(|| made / decode.as_secs_f64());
    print_json_line(&serde_json::json!({
        "side": "xrun",
        "samples": samples,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "prefill_ms": prefill.as_secs_f64() * 1e3,
        "decode_ms": decode.as_secs_f64() * 1e3,
        "decode_tok_s": speed,
    }))
}
