//! Runs as CSV for other programs: a header, then a line per run.

use super::field::{Cell, Field, Word, figures, set_figures};
use super::read::Run;
use crate::error::{Error, Result};
use crate::results::labels::{self, Settings};
use std::fmt::Display;

/// Returns runs as CSV: words about them, every key that differs among them, every figure, and every figure
/// of a held-out set that at least one of them has. Figures have all digits, in the unit that the column's
/// name gives. Unknown values and unset keys are empty.
///
/// # Errors
/// If a line cannot be written, which only a lack of memory can cause.
pub fn to_csv(runs: &[&Run]) -> Result<String> {
    let words = Word::ALL.iter().map(|word| Field::Word(*word));
    let keys = differing_keys(runs).into_iter().map(Field::Key);
    let has_one = |field: &Field| runs.iter().any(|run| field.value(run) != Cell::Blank);
    let held_out_fields = set_figures(runs.iter().copied()).filter(has_one);
    let fields: Vec<Field> = words.chain(keys).chain(figures()).chain(held_out_fields).collect();
    let failed = |e: &dyn Display| Error::failed(format!("cannot write CSV: {e}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields.iter().map(Field::to_string)).map_err(|e| failed(&e))?;
    for run in runs {
        let cell = |field: &Field| match field.value(run) {
            Cell::Number(value) => value.to_string(),
            Cell::Text(text) => text.into_owned(),
            Cell::Unset | Cell::Blank => String::new(),
        };
        writer.write_record(fields.iter().map(cell)).map_err(|e| failed(&e))?;
    }
    String::from_utf8(writer.into_inner().map_err(|e| failed(&e))?).map_err(|e| failed(&e))
}

/// Returns the keys that differ among runs, in the order of their recipes. A key that a recipe leaves out
/// counts with its implied value. A run whose recipe is missing is ignored.
pub fn differing_keys(runs: &[&Run]) -> Vec<String> {
    let settings: Vec<&Settings> = runs.iter().map(|run| run.entry.settings.as_slice()).collect();
    labels::differing_keys(&settings).into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::read::{add_set, add_settings, sample};
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_value_is_read_back_whole() {
        let third = 1.0_f64 / 3.0;
        let mut collection =
            sample(&[&[("val_loss", third), ("steps", 700.0), ("planned_mib", 1.5 * 1048576.0)], &[]]);
        add_set(&mut collection.runs[1], "news", &[("val_loss", third)]);
        add_set(&mut collection.runs[0], "code", &[("bits_per_byte", f64::NAN)]);
        let note = "a \"quoted\", note\nof two lines \u{1b}[31m";
        collection.runs[0].annotation.note = Some(note.to_owned());
        collection.runs[0].annotation.tags = ["b".to_owned(), "a".to_owned()].into();
        let rows: [&[(&str, Option<&str>)]; 2] = [
            &[
                ("model.dim", Some("64")),
                ("optimizer.lr", Some("1e-9")),
                ("model.norm", Some("\"rms_norm\"")),
            ],
            &[("model.dim", Some("64")), ("optimizer.lr", Some("0.003")), ("engine.threads", None)],
        ];
        for (run, settings) in collection.runs.iter_mut().zip(rows) {
            add_settings(run, settings);
        }
        let runs: Vec<&Run> = collection.runs.iter().collect();
        let text = to_csv(&runs).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let keys: Vec<&str> = header.iter().map(String::as_str).filter(|name| name.contains('.')).collect();
        assert_eq!(keys, ["optimizer.lr", "engine.threads"], "the others are the same");
        assert_eq!(header.len(), Word::ALL.len() + 2 + figures().count() + 1);
        assert_eq!(header.last().unwrap(), "val_loss/news", "the only one that is known");

        let rows: Vec<HashMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
        let first = |name: &str| rows[0][name].as_str();
        assert_eq!(first("val_loss").parse::<f64>().unwrap().to_bits(), third.to_bits());
        assert_eq!(
            (first("steps"), first("planned_mib"), first("optimizer.lr")),
            ("700", "1.5", "0.000000001")
        );
        assert_eq!((first("note"), first("tag"), first("status")), (note, "a b", "ok"));
        assert_eq!((rows[1]["val_loss"].as_str(), rows[1]["engine.threads"].as_str()), ("", ""));
        assert_eq!(rows[0]["val_loss/news"], "");
        assert_eq!(rows[1]["val_loss/news"].parse::<f64>().unwrap().to_bits(), third.to_bits());
        let empty = to_csv(&[]).unwrap();
        assert_eq!(empty.lines().count(), 1, "a header without keys: {empty}");
    }
}
