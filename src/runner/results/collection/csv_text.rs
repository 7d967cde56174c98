//! Runs as CSV for other programs: a header, then a line per run.

use super::field::{Cell, Field, Word, figures, set_figures};
use super::read::{Collection, Run};
use crate::error::{Error, Result};
use crate::recipe::{UNSET, find_path};
use std::collections::HashMap;

/// Returns runs as CSV: words about them, every key that differs among them, every figure, and every figure
/// of a held-out set that at least one of them has. Figures have all digits, in the unit that the column's
/// name gives. Unknown values and unset keys are empty.
///
/// # Errors
/// If a line cannot be written, which only a lack of memory can cause.
pub fn to_csv(runs: &[&Run], collection: &Collection) -> Result<String> {
    let words = Word::ALL.iter().map(|(_, word)| Field::Word(*word));
    let keys = differing_keys(runs, collection).into_iter().map(Field::Key);
    let has_one = |field: &Field| runs.iter().any(|run| field.value(run, collection) != Cell::Blank);
    let held_out_fields = set_figures(runs.iter().copied()).filter(has_one);
    let fields: Vec<Field> =
        words.chain(keys).chain(figures().map(Field::Figure)).chain(held_out_fields).collect();
    let failed = |e: csv::Error| Error::failed(format!("cannot write CSV: {e}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields.iter().map(Field::to_string)).map_err(failed)?;
    for run in runs {
        let cell = |field: &Field| match field.value(run, collection) {
            Cell::Number(value) => value.to_string(),
            Cell::Text(text) => text.into_owned(),
            Cell::Unset | Cell::Blank => String::new(),
        };
        writer.write_record(fields.iter().map(cell)).map_err(failed)?;
    }
    let bytes = writer.into_inner().map_err(|e| Error::failed(format!("cannot write CSV: {e}")))?;
    String::from_utf8(bytes).map_err(|e| Error::failed(format!("cannot write CSV: {e}")))
}

/// Returns the keys that differ among runs, in the order of their recipes. A key that a recipe leaves out
/// counts with its implied value. A run whose recipe is missing is ignored.
pub fn differing_keys(runs: &[&Run], collection: &Collection) -> Vec<String> {
    struct Seen<'a> {
        key: &'a str,
        first: u32,
        runs: usize,
        differs: bool,
    }
    let mut seen: Vec<Seen<'_>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    // Caches the place of each setting's key.
    let mut place_by_setting: Vec<Option<usize>> = vec![None; collection.settings.all().len()];
    let known = runs.iter().filter(|run| !run.settings.is_empty());
    let total = known.clone().count();
    for number in known.flat_map(|run| &run.settings) {
        let Some(((key, _), place)) =
            collection.settings.get(*number).zip(place_by_setting.get_mut(*number as usize))
        else {
            continue;
        };
        let at = *place.get_or_insert_with(|| {
            *places.entry(key).or_insert_with(|| {
                seen.push(Seen { key, first: *number, runs: 0, differs: false });
                seen.len() - 1
            })
        });
        seen[at].runs += 1;
        seen[at].differs |= seen[at].first != *number;
    }
    let differs = |seen: &Seen<'_>| {
        let implied = find_path(seen.key).and_then(|key| key.implied);
        let first = collection.settings.get(seen.first).map(|(_, value)| value.as_deref().unwrap_or(UNSET));
        seen.differs || (seen.runs < total && first != implied)
    };
    seen.iter().filter(|seen| differs(seen)).map(|seen| seen.key.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::read::{add_set, sample};
    use super::*;

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
        for (at, row) in rows.into_iter().enumerate() {
            for (key, value) in row {
                let setting = ((*key).to_owned(), value.map(str::to_owned));
                let number = collection.settings.number(setting);
                collection.runs[at].settings.push(number);
            }
        }
        let runs: Vec<&Run> = collection.runs.iter().collect();
        let text = to_csv(&runs, &collection).unwrap();
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
        let empty = to_csv(&[], &collection).unwrap();
        assert_eq!(empty.lines().count(), 1, "a header without keys: {empty}");
    }
}
