//! Answers to words that are no commands of xrun: what there is instead, or that there is nothing.

use crate::suggest::nearest_by;

/// Words that people type as commands, what xrun has for them, and the command to try next.
struct Answer {
    words: &'static [&'static str],
    says: &'static str,
    next: &'static str,
}

const ANSWERS: &[Answer] = &[
    Answer {
        words: &["train", "fit", "pretrain", "start", "launch", "execute"],
        says: "`xrun RECIPE` trains a recipe",
        next: "xrun run quickstart",
    },
    Answer {
        words: &["evaluate", "evaluation", "test", "validate", "valid", "perplexity", "ppl", "score"],
        says: "`xrun eval` scores a model on tasks; on `data.validation` and `[validation.sets]`, a run evaluates \
               while it trains",
        next: "xrun eval latest --tasks small --data FOLDER",
    },
    Answer {
        words: &["lm-eval", "lm_eval", "benchmark-model", "mmlu", "hellaswag"],
        says: "`xrun eval` scores a model on tasks",
        next: "xrun eval latest --tasks small --data FOLDER",
    },
    Answer {
        words: &["chat", "talk", "converse", "repl"],
        says: "`xrun sample` talks to a run whose tokenizer has a chat template",
        next: "xrun sample latest --chat",
    },
    Answer {
        words: &["generate", "infer", "inference", "predict", "complete-text", "prompt", "completion"],
        says: "`xrun sample` generates text from a run",
        next: "xrun sample latest --prompt \"Once upon\"",
    },
    Answer {
        words: &["lora", "qlora", "peft", "adapter", "adapters", "dora"],
        says: "a recipe with `model.init_from` and `adapter.kind = \"lora\"` trains adapters; there is no QLoRA and no DoRA",
        next: "xrun import FOLDER",
    },
    Answer {
        words: &["finetune", "fine-tune", "fine_tune", "sft", "instruct"],
        says: "a recipe with `model.init_from` trains a model further, with `data.format = \"chat\"` on conversations",
        next: "xrun import FOLDER",
    },
    Answer {
        words: &["dpo", "ppo", "grpo", "rlhf", "rl", "reward", "orpo", "kto"],
        says: "xrun trains on the loss of the next token; there is no learning from preferences or rewards",
        next: "xrun export latest --to FOLDER",
    },
    Answer {
        words: &["quantize", "quantise", "quantization", "awq", "gptq", "int8", "int4"],
        says: "xrun quantizes nothing; other programs do, from an exported model",
        next: "xrun export latest --to FOLDER",
    },
    Answer {
        words: &["gguf", "ggml", "llama.cpp", "ollama"],
        says: "`xrun export --format gguf` writes a run as a file for llama.cpp",
        next: "xrun export latest --format gguf --to FILE",
    },
    Answer {
        words: &["serve", "server", "api", "deploy", "host"],
        says: "xrun serves no model over a network; other programs serve an exported one",
        next: "xrun export latest --to FOLDER",
    },
    Answer {
        words: &["download", "pull", "fetch", "hub", "push", "upload", "publish", "login", "logout"],
        says: "xrun reads and writes files of this machine only; it downloads and uploads nothing",
        next: "xrun import FOLDER",
    },
    Answer {
        words: &["convert", "save", "checkpoint"],
        says: "`xrun export` writes a run as a HuggingFace folder, and `xrun import` reads one",
        next: "xrun export latest --to FOLDER",
    },
    Answer {
        words: &["merge", "distill", "distillation", "prune-model", "moe"],
        says: "xrun merges, distils and prunes no models",
        next: "xrun ls",
    },
    Answer {
        words: &["tokenize", "tokenise", "preprocess", "prepare", "dataset", "datasets", "corpus"],
        says: "`xrun data` tokenizes a corpus into shards and prints its statistics",
        next: "xrun data --help",
    },
    Answer {
        words: &["tokenizers", "train-tokenizer", "bpe", "vocab", "merges"],
        says: "`xrun tokenizer` trains a tokenizer on text, and shows the tokens of a text",
        next: "xrun tokenizer --help",
    },
    Answer {
        words: &["logs", "log", "tail", "follow", "monitor", "top", "progress"],
        says: "`xrun watch` follows a run, a sweep or a comparison in the terminal",
        next: "xrun watch",
    },
    Answer {
        words: &["ui", "gui", "web", "dashboard", "browse", "board", "plot", "plots", "open"],
        says: "`xrun view` shows the runs here in a browser",
        next: "xrun view",
    },
    Answer {
        words: &["tensorboard", "wandb", "mlflow", "neptune", "comet", "trackio"],
        says: "xrun sends nothing to trackers; `metrics.tensorboard = true` writes TensorBoard files",
        next: "xrun view",
    },
    Answer {
        words: &["status", "list", "show", "history", "ps", "jobs", "results", "experiments"],
        says: "`xrun runs` lists the runs here",
        next: "xrun runs",
    },
    Answer {
        words: &["rm", "delete", "remove", "clean", "prune", "gc"],
        says: "`xrun runs rm` removes runs",
        next: "xrun runs rm --help",
    },
    Answer {
        words: &["diff"],
        says: "`xrun runs diff` shows how two runs differ, and `xrun compare` runs two recipes against each other",
        next: "xrun runs diff --help",
    },
    Answer {
        words: &["stop", "kill", "cancel", "abort", "pause"],
        says: "Ctrl-C (SIGINT) or SIGTERM in its terminal ends a run after a save, and `xrun resume` continues it",
        next: "xrun resume --help",
    },
    Answer {
        words: &["continue", "restart", "retry"],
        says: "`xrun resume` continues a run that did not finish",
        next: "xrun resume",
    },
    Answer {
        words: &["fork", "branch"],
        says: "`xrun resume --fork` begins a new run from a checkpoint of another",
        next: "xrun resume --help",
    },
    Answer {
        words: &["new", "create", "template"],
        says: "`xrun init` creates a recipe from a built-in one",
        next: "xrun init mine.toml",
    },
    Answer {
        words: &["config", "configure", "settings", "keys", "recipe", "recipes", "models"],
        says: "`xrun ls` lists recipes, and `xrun plan RECIPE --explain` prints every key of one",
        next: "xrun ls",
    },
    Answer {
        words: &["search", "tune", "hpo", "hyperparameters", "optuna", "grid", "random-search"],
        says: "`xrun sweep` runs every combination of values, samples of ranges, or successive halving",
        next: "xrun sweep --help",
    },
    Answer {
        words: &["bench", "benchmark", "speed", "time"],
        says: "`xrun profile` measures where the time of a step goes, and `xrun compare` whether a change is faster",
        next: "xrun profile quickstart",
    },
    Answer {
        words: &["abtest", "versus", "vs"],
        says: "`xrun compare` measures a candidate against a baseline",
        next: "xrun compare --help",
    },
    Answer {
        words: &["distributed", "torchrun", "deepspeed", "fsdp", "ddp", "multi-gpu", "accelerate", "mpirun"],
        says: "`parallelism.world_size` is the number of data-parallel ranks; xrun starts them, and there is no \
               tensor or pipeline parallelism",
        next: "xrun plan quickstart parallelism.world_size=2",
    },
    Answer {
        words: &["memory", "estimate", "cost", "fit-check", "dry-run", "dryrun", "check", "flops"],
        says: "`xrun plan` says what a run needs and whether it fits",
        next: "xrun plan quickstart",
    },
    Answer {
        words: &["reproduce", "repeat", "verify"],
        says: "`xrun replay` repeats a stored run and reports the first difference in bits",
        next: "xrun replay --help",
    },
    Answer {
        words: &["coord-check", "mup"],
        says: "`xrun coordinates` shows which activations and updates grow with the width",
        next: "xrun coordinates --help",
    },
    Answer {
        words: &["info", "gpu", "gpus", "device", "devices", "env", "nvidia-smi", "diagnose"],
        says: "`xrun doctor` checks whether GPU runs work on this machine",
        next: "xrun doctor",
    },
    Answer {
        words: &["update", "upgrade", "install", "self-update", "uninstall"],
        says: "xrun does not install itself; use what installed it, such as cargo",
        next: "xrun --version",
    },
    Answer { words: &["version"], says: "`xrun --version` prints the version", next: "xrun --version" },
];

/// Returns what there is for a word that is no command: sentences and the command to try next.
pub(super) fn answer(word: &str) -> Option<String> {
    let word = word.to_lowercase();
    let found = ANSWERS.iter().find(|answer| answer.words.contains(&word.as_str()))?;
    Some(format!(
        "there is no command `xrun {word}`: {}\n  next: {}\n  docs/not-supported.md says what xrun does not do",
        found.says, found.next
    ))
}

/// Shortest word that is taken for a misspelled one.
const LEAST_MISSPELT: usize = 5;

/// Returns the command that the answer to a similarly spelled word names.
pub(super) fn nearest_answered(word: &str) -> Option<&'static str> {
    let long = word.len() >= LEAST_MISSPELT;
    let words = ANSWERS.iter().flat_map(|answer| answer.words.iter().map(move |word| (answer, *word)));
    let answer = nearest_by(word, words.filter(|(_, word)| long && word.len() >= LEAST_MISSPELT))?;
    answer.next.split(' ').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};
    use std::collections::BTreeSet;

    #[test]
    fn a_word_has_one_answer_and_is_no_command_or_recipe() {
        let command = Cli::command();
        let mut seen = BTreeSet::new();
        for word in ANSWERS.iter().flat_map(|answer| answer.words) {
            assert!(seen.insert(*word), "{word} twice");
            assert!(command.find_subcommand(word).is_none(), "{word} is a command");
            assert!(crate::recipe::builtin::find(word).is_none(), "{word} is a recipe");
        }
    }

    /// Every next command exists and parses.
    #[test]
    fn the_next_command_is_one_of_xrun() {
        for answer in ANSWERS {
            let words = answer.next.split(' ').map(std::ffi::OsString::from);
            let words = super::super::arguments::normalize_args(words);
            if let Err(e) = Cli::try_parse_from(words) {
                assert!(!e.use_stderr(), "{}: {e}", answer.next);
            }
        }
    }
}
