//! The figure of a comparison: every block of every turn, in the order in which they ran.

use super::text::number;
use crate::error::Result;
use crate::report::chart::{self, Figure, Look, Panel, Series};
use crate::report::series::{Points, Scale, pad};
use crate::report::theme::{Hue, THEMES};
use crate::results::comparison::{Comparison, Turn};
use crate::results::steady::Spread;

/// Half of the width of a turn, in turns.
const REACH: f64 = 0.36;

/// The figure by theme; `None` where no turn has blocks.
pub fn blocks(comparison: &Comparison) -> Option<Result<Vec<(&'static str, String)>>> {
    let values = comparison.turns.iter().flat_map(|turn| &turn.blocks).copied().filter(|v| v.is_finite());
    let range = values.fold(None, |range: Option<(f64, f64)>, value| {
        Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    })?;
    let mut series = Vec::new();
    for (is_after, name, hue) in [(false, "before", Hue::Blue), (true, "after", Hue::Orange)] {
        let turns = || comparison.turns.iter().enumerate().filter(move |(_, turn)| turn.after == is_after);
        let dots: Points = turns().flat_map(|(index, turn)| dots(index, turn)).collect();
        let medians: Points = turns().flat_map(|(index, turn)| median(index, turn)).collect();
        series.push(Series { name: format!("{name}, blocks"), hue, look: Look::Dots, points: dots });
        series.push(Series { name: "median of a turn".to_owned(), hue, look: Look::Bold, points: medians });
    }
    let mut parts = vec![comparison.id.clone()];
    parts.extend(comparison.ratio.map(|ratio| {
        format!("after ÷ before {:.3} ({:.3} to {:.3})", ratio.estimate, ratio.low, ratio.high)
    }));
    parts.push(comparison.verdict.as_str().to_owned());
    let figure = Figure {
        title: format!("{}: before and after", comparison.name),
        subtitle: parts.join("  ·  "),
        panels: vec![Panel {
            y_name: "tokens per second".to_owned(),
            y: pad(range, Scale::Linear, 0.08, 0.08),
            scale: Scale::Linear,
            y_label: whole,
            series,
            marks: Vec::new(),
        }],
        x_name: "turn".to_owned(),
        x: (0.5, comparison.turns.len() as f64 + 0.5),
    };
    Some(THEMES.iter().map(|theme| Ok((theme.name, chart::svg(&figure, theme)?))).collect())
}

/// All digits before the point: sides that differ little must not have the same label.
fn whole(value: f64) -> String {
    number(Some(value), if value.abs() < 100.0 { 2 } else { 0 })
}

/// The blocks of a turn side by side, as they ran.
fn dots(index: usize, turn: &Turn) -> Points {
    let count = turn.blocks.len() as f64;
    let x = |block: usize| index as f64 + 1.0 + REACH * ((2 * block + 1) as f64 / count - 1.0);
    turn.blocks.iter().enumerate().map(|(block, value)| (x(block), *value)).collect()
}

/// A line at the median of a turn, and a gap after it.
fn median(index: usize, turn: &Turn) -> Points {
    let middle = index as f64 + 1.0;
    let Some(spread) = Spread::of(turn.blocks.iter().copied()) else { return Points::new() };
    let end = middle + REACH;
    vec![(middle - REACH, spread.median), (end, spread.median), (end, f64::NAN)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn comparison(turns: &[Turn]) -> Comparison {
        let side = json!({ "label": "", "command": "", "device": "cpu avx512", "measured": {} });
        let comparison = json!({
            "name": "fused",
            "id": "20261122T000000Z-7d757a20",
            "before": side,
            "after": side,
            "changes": [],
            "finished": true,
            "turns": turns,
            "ratio": { "estimate": 1.24, "low": 1.22, "high": 1.257 },
            "min_effect": 0.01,
            "verdict": "faster",
            "gate": { "found": "" },
            "contended": [],
            "notes": [],
            "rule": "",
        });
        serde_json::from_value(comparison).unwrap()
    }

    fn turn(after: bool, around: f64, blocks: u32) -> Turn {
        let blocks = (0..blocks).map(|block| around + f64::from(block * 7 % 20) * 40.0).collect();
        Turn { after, run: None, status: "ok".to_owned(), blocks, metrics_hash: None, final_loss: None }
    }

    #[test]
    fn every_block_is_a_dot_and_every_turn_has_a_median() {
        let around = |i: u32| 20_000.0 + f64::from(i % 2) * 4000.0 + f64::from(i) * 90.0;
        let turns: Vec<Turn> = (0..6).map(|i| turn(i % 2 == 1, around(i), 20)).collect();
        let drawn = blocks(&comparison(&turns)).unwrap().unwrap();
        assert_eq!(drawn.iter().map(|(theme, _)| *theme).collect::<Vec<_>>(), ["light", "dark"]);
        for (theme, svg) in &drawn {
            assert_eq!(svg.matches("<circle").count(), 6 * 20 + 2, "{theme}: blocks and the legend");
            assert!(svg.contains("fused: before and after") && svg.contains("1.240 (1.220 to 1.257)"));
        }
        assert!(blocks(&comparison(&[turn(false, 1.0, 0)])).is_none(), "nothing to draw");
    }
}
