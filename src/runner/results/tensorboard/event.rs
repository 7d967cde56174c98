//! Encodes events as TensorBoard's messages by hand. The field numbers come from
//! `tensorboard/compat/proto/{event,summary,tensor}.proto`.

use super::record::frame;
use crate::results::rows::{MetricsRow, Phase, TimingRow};
use crate::results::summary::Sample;
use std::borrow::Borrow;

pub const SAMPLES: &str = "samples";

/// An encoded protocol buffers message.
#[derive(Clone, Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Begins a field with its number and the encoding of its value.
    fn key(&mut self, field: u32, encoding: u32) {
        self.varint(u64::from(field << 3 | encoding));
    }

    fn integer(mut self, field: u32, value: u64) -> Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }
}

/// An event: the values of one step. TensorBoard's scalars have 32 bits, so 64-bit numbers are rounded.
#[derive(Clone, Debug)]
pub struct Event {
    message: Message,
    summary: Message,
}

impl Event {
    /// Creates an event without values. `wall_s` is in seconds since 1970.
    fn new(wall_s: f64, step: u64) -> Self {
        let message = Message::default().double(1, wall_s).integer(2, step);
        Self { message, summary: Message::default() }
    }

    /// Returns the first event of a file.
    pub fn first(wall_s: f64) -> Self {
        let mut event = Self::new(wall_s, 0);
        event.message = event.message.bytes(3, b"brain.Event:2");
        event
    }

    /// Returns an event that restarts the session at step 0, which makes TensorBoard discard everything from
    /// earlier files.
    pub fn start(wall_s: f64) -> Self {
        const START: u64 = 1;
        let mut event = Self::new(wall_s, 0);
        event.message = event.message.message(7, &Message::default().integer(1, START));
        event
    }

    /// Returns the values in a row of `metrics.csv`, as `metrics/COLUMN`.
    pub fn from_metrics(row: &MetricsRow, wall_s: f64) -> Self {
        let mut event = Self::new(wall_s, row.step);
        for column in MetricsRow::COLUMNS.iter().skip_while(|column| **column == "step") {
            event.add_number("metrics", column, row.number(column));
        }
        for (column, &value) in &row.further {
            event.add_number("metrics", column, Some(value.into()));
        }
        event
    }

    /// Returns the values in a row of `timing.csv`: as `timing/COLUMN` for training steps, and as
    /// `timing_PHASE/COLUMN` for other phases.
    pub fn from_timing(row: &TimingRow, wall_s: f64) -> Self {
        let group = match row.phase {
            Phase::Warmup | Phase::Train => "timing".to_owned(),
            // The phase's name as in the file: the variant's, in lower case.
            phase => format!("timing_{phase:?}").to_lowercase(),
        };
        let mut event = Self::new(wall_s, row.step);
        for column in TimingRow::COLUMNS.iter().skip_while(|column| **column == "step") {
            event.add_number(&group, column, row.number(column));
        }
        if let Some(reasons) = &row.throttle {
            event.add_text(&format!("{group}/throttle"), &[reasons]);
        }
        event
    }

    /// Returns the texts generated after one step, as one list.
    pub fn from_samples(samples: &[impl Borrow<Sample>], wall_s: f64) -> Self {
        let samples: Vec<&Sample> = samples.iter().map(Borrow::borrow).collect();
        let mut event = Self::new(wall_s, samples.first().map_or(0, |sample| sample.step));
        let texts: Vec<String> =
            samples.iter().map(|sample| format!("{}{}", sample.prompt, sample.text)).collect();
        event.add_text(SAMPLES, &texts);
        event
    }

    fn add(&mut self, value: &Message) {
        self.summary = std::mem::take(&mut self.summary).message(1, value);
    }

    fn add_number(&mut self, group: &str, column: &str, number: Option<f64>) {
        let Some(number) = number else { return };
        let tag = format!("{group}/{column}");
        self.add(&Message::default().bytes(1, tag.as_bytes()).float(2, number as f32));
    }

    /// Adds a list of texts for TensorBoard's `text` plugin, as a tensor of strings.
    fn add_text(&mut self, tag: &str, texts: &[impl AsRef<str>]) {
        const STRING: u64 = 7;
        let shape = Message::default().message(2, &Message::default().integer(1, texts.len() as u64));
        let mut tensor = Message::default().integer(1, STRING).message(2, &shape);
        for text in texts {
            tensor = tensor.bytes(8, text.as_ref().as_bytes());
        }
        let plugin = Message::default().message(1, &Message::default().bytes(1, b"text"));
        self.add(&Message::default().bytes(1, tag.as_bytes()).message(8, &tensor).message(9, &plugin));
    }

    /// Encodes the event as a record of an event file.
    pub fn record(self) -> Vec<u8> {
        let Self { message, summary } = self;
        let whole = if summary.0.is_empty() { message } else { message.message(5, &summary) };
        frame(&whole.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the data of a record, without its framing.
    fn data(event: Event) -> Vec<u8> {
        let record = event.record();
        record[12..record.len() - 4].to_vec()
    }

    #[test]
    fn messages_are_those_of_protocol_buffers() {
        assert_eq!(Message::default().integer(2, 300).0, [0x10, 0xac, 0x02]);
        assert_eq!(Message::default().float(2, 1.0).0, [0x15, 0, 0, 0x80, 0x3f]);
        assert_eq!(Message::default().double(1, 1.0).0, [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        let inner = Message::default().bytes(1, b"ab");
        assert_eq!(Message::default().message(5, &inner).0, [0x2a, 4, 0x0a, 2, b'a', b'b']);
        let first = data(Event::first(0.0));
        assert_eq!(first, [&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0x1a, 13][..], b"brain.Event:2"].concat());
        assert!(data(Event::start(0.0)).ends_with(&[0x3a, 2, 8, 1]));
    }

    #[test]
    fn a_row_has_a_value_for_each_column_that_is_not_blank() {
        let mut row = MetricsRow { step: 7, loss: f32::NAN, val_loss: Some(2.5), ..MetricsRow::default() };
        row.further.insert("val_loss/news".to_owned(), 1.5);
        let found = data(Event::from_metrics(&row, 1.0));
        let has = |text: &str| found.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(has("metrics/loss") && has("metrics/val_loss/news") && has("metrics/tokens_seen"));
        assert!(!has("metrics/step") && !has("metrics/z_loss"), "no step, no blank");
        let nan = [&[0x15][..], &f32::NAN.to_le_bytes()].concat();
        assert!(
            found.windows(nan.len()).any(|window| window == nan),
            "what is not finite is written as it is"
        );
        let row =
            TimingRow { throttle: Some("thermal".into()), ..TimingRow::timed(7, Phase::Eval, 1.0, 2.0) };
        let found = String::from_utf8_lossy(&data(Event::from_timing(&row, 1.0))).into_owned();
        assert!(found.contains("timing_eval/step_ms") && found.contains("timing_eval/throttle"), "{found}");
        assert!(found.contains("thermal") && !found.contains("timing_eval/tok_s"), "{found}");
    }
}
