//! Generates text with a model: one token at a time for all samples, keys and values from the cache.

use crate::data::tokenizer::Tokenizer;
use crate::device::philox::philox;
use crate::error::{Error, Result};
use crate::exec::{Engine, Section};
use crate::ir::SlotId;
use crate::plan::{Generation, Sampling};

/// Returns the tokens that every text starts with, the end token first.
///
/// # Errors
/// When they do not leave room for a token in the model's context.
pub fn prompt(generation: &Generation, tokenizer: &Tokenizer, seq_len: usize) -> Result<Vec<u32>> {
    let mut prompt = vec![tokenizer.end_token()];
    prompt.extend(tokenizer.encode(&generation.prompt)?);
    if prompt.len() >= seq_len {
        return Err(Error::usage(format!(
            "the prompt takes {} tokens with its end token, and the model's context is training.seq_len = {seq_len}; \
             shorten generation.prompt",
            prompt.len()
        )));
    }
    Ok(prompt)
}

/// Generates `generation.samples` texts from the prompt; returns them without the prompt.
///
/// A text ends at the end token, after `generation.tokens` tokens, or where the model's context of `seq_len`
/// ends.
///
/// # Errors
/// When the prompt does not leave room, or the engine fails.
pub fn generate(
    engine: &mut Engine,
    section: &Section,
    tokenizer: &Tokenizer,
    generation: &Generation,
    seq_len: usize,
) -> Result<Vec<String>> {
    let prompt = prompt(generation, tokenizer, seq_len)?;
    let slots = Slots::new(engine)?;
    let mut texts: Vec<Vec<u32>> = vec![Vec::new(); generation.samples];
    let mut current = vec![prompt[0]; generation.samples];
    let mut ended = vec![false; generation.samples];
    let last = (prompt.len() + generation.tokens).min(seq_len + 1) - 1;
    for position in 0..last {
        engine.state.write(slots.tokens, &current)?;
        engine.state.write(slots.positions, &vec![position as u32; generation.samples])?;
        engine.run(section)?;
        if let Some(&next) = prompt.get(position + 1) {
            current.fill(next);
            continue;
        }
        let logits = engine.state.values(slots.logits)?;
        let vocab = logits.len() / generation.samples;
        for (sample, row) in logits.chunks_exact(vocab).enumerate() {
            if ended[sample] {
                continue;
            }
            // The model may have entries for which the tokenizer has no text.
            let row = &row[..tokenizer.vocab_size().min(vocab)];
            let token = choose(row, &generation.sampling, sample, position);
            ended[sample] = token == tokenizer.end_token();
            if !ended[sample] {
                texts[sample].push(token);
            }
            current[sample] = token;
        }
        if ended.iter().all(|e| *e) {
            break;
        }
    }
    texts.iter().map(|tokens| tokenizer.decode(tokens)).collect()
}

/// Returns the logits after the last of some tokens, of a program that generates one text.
///
/// # Errors
/// When the engine fails.
pub(super) fn logits_after(engine: &mut Engine, section: &Section, tokens: &[u32]) -> Result<Vec<f64>> {
    let slots = Slots::new(engine)?;
    for (position, token) in tokens.iter().enumerate() {
        engine.state.write(slots.tokens, &[*token])?;
        engine.state.write(slots.positions, &[position as u32])?;
        engine.run(section)?;
    }
    engine.state.values(slots.logits)
}

/// The state that the generation program reads and writes.
struct Slots {
    tokens: SlotId,
    positions: SlotId,
    logits: SlotId,
}

impl Slots {
    fn new(engine: &Engine) -> Result<Self> {
        let slot = |name: &str| engine.state.slot(&format!("generation.{name}"));
        Ok(Self { tokens: slot("tokens")?, positions: slot("positions")?, logits: slot("logits")? })
    }
}

/// Chooses the next token from logits.
///
/// Greedy at temperature 0 (the lowest id of equals). Otherwise the softmax of `logits / temperature`,
/// restricted to the `top_k` likeliest tokens and then to the fewest that hold `top_p` of the mass (Holtzman
/// et al., 2020).
pub fn choose(logits: &[f64], sampling: &Sampling, sample: usize, position: usize) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Likeliest first; equals by id, so that the choice is the same everywhere.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if sampling.temperature == 0.0 {
        return order.first().map_or(0, |&i| i as u32);
    }
    if sampling.top_k > 0 {
        order.truncate(sampling.top_k);
    }
    let highest = order.first().map_or(0.0, |&i| logits[i]);
    let weights: Vec<f64> =
        order.iter().map(|&i| ((logits[i] - highest) / sampling.temperature).exp()).collect();
    let all: f64 = weights.iter().sum();
    let mut kept = weights.len();
    if sampling.top_p < 1.0 {
        let mut mass = 0.0;
        kept = weights
            .iter()
            .position(|w| {
                mass += w / all;
                mass >= sampling.top_p
            })
            .map_or(weights.len(), |i| i + 1);
    }
    let total: f64 = weights[..kept].iter().sum();
    let bits = philox(
        [position as u32, sample as u32, 0, 0],
        [sampling.seed as u32, (sampling.seed >> 32) as u32 ^ 0x5a3b_1e00],
    );
    let unit = (f64::from(bits[0]) + f64::from(bits[1]) / 4_294_967_296.0) / 4_294_967_296.0;
    let mut left = unit * total;
    for (&token, weight) in order.iter().zip(&weights[..kept]) {
        left -= weight;
        if left < 0.0 {
            return token as u32;
        }
    }
    order[kept - 1] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f64; 4] = [0.0, 3.0, 2.0, -1.0];

    fn sampling(temperature: f64, top_k: usize, top_p: f64) -> Sampling {
        Sampling { temperature, top_k, top_p, seed: 7 }
    }

    fn seen(s: Sampling) -> Vec<usize> {
        let mut counts = vec![0; LOGITS.len()];
        for position in 0..20_000 {
            counts[choose(&LOGITS, &s, 0, position) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_likeliest() {
        assert_eq!(choose(&LOGITS, &sampling(0.0, 0, 1.0), 0, 0), 1);
        assert_eq!(choose(&[1.0, 1.0], &sampling(0.0, 0, 1.0), 0, 0), 0);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let counts = seen(sampling(1.0, 0, 1.0));
        let all: f64 = LOGITS.iter().map(|l| l.exp()).sum();
        for (count, logit) in counts.iter().zip(LOGITS) {
            let expected = logit.exp() / all;
            assert!((*count as f64 / 20_000.0 - expected).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let counts = seen(sampling(1.0, 2, 1.0));
        assert!(counts[0] == 0 && counts[3] == 0 && counts[2] > 0);
        // The likeliest token alone holds 0.69 of the mass.
        let counts = seen(sampling(1.0, 0, 0.6));
        assert_eq!(counts[1], 20_000);
        let counts = seen(sampling(1.0, 0, 0.8));
        assert!(counts[2] > 0 && counts[0] == 0);
    }
}
