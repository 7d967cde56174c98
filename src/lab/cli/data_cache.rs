//! `xrun data --cached` and `--clear-cached`: the cache of tokenized texts that runs on this machine share.

use super::terminal::{eprint_line, print, print_json};
use crate::data::{CachedText, LIMIT_VARIABLE, TokenCache};
use crate::error::{Error, Result};
use crate::format::{BLANK, Column, Table, plural, thousands};
use serde_json::json;

const MIB: f64 = (1 << 20) as f64;

fn cache() -> Result<TokenCache> {
    TokenCache::user()?.ok_or_else(|| {
        Error::usage(format!(
            "nothing is cached: XRUN_CACHE, XDG_CACHE_HOME and HOME name no folder, or {LIMIT_VARIABLE} is 0"
        ))
    })
}

/// Prints the entries, the folder and the total size.
pub fn list(as_json: bool) -> Result<()> {
    let cache = cache()?;
    let entries = cache.entries()?;
    let bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    if as_json {
        let list = json!({
            "folder": cache.folder, "bytes": bytes, "limit_bytes": cache.limit, "texts": entries,
        });
        return print_json(&list);
    }
    if !entries.is_empty() {
        print(&table(&entries))?;
    }
    print(&format!(
        "{}: {} text{}, {:.1} MiB of {:.1}\n",
        cache.folder.display(),
        entries.len(),
        plural(entries.len()),
        bytes as f64 / MIB,
        cache.limit as f64 / MIB
    ))
}

fn table(entries: &[CachedText]) -> String {
    let sides = [Column::Left, Column::Right, Column::Right, Column::Left, Column::Left];
    let mut table = Table::new(&sides);
    table.row(["LAST USED", "MIB", "TOKENS", "TOKENIZER", "TEXT"]);
    for entry in entries {
        table.row([
            entry.used.strftime("%Y-%m-%d %H:%M").to_string(),
            format!("{:.1}", entry.bytes as f64 / MIB),
            entry.tokens.map_or_else(|| BLANK.to_owned(), |tokens| thousands(tokens as usize)),
            entry.tokenizer.clone().unwrap_or_else(|| BLANK.to_owned()),
            entry.text.clone().unwrap_or_else(|| "damaged".to_owned()),
        ]);
    }
    table.render(0)
}

/// Removes all entries.
pub fn clear() -> Result<()> {
    let cache = cache()?;
    let (texts, bytes) = cache.clear()?;
    eprint_line(&format!(
        "removed {texts} text{} ({:.1} MiB) from {}",
        plural(texts),
        bytes as f64 / MIB,
        cache.folder.display()
    ));
    Ok(())
}
