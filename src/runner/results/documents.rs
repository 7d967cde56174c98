//! `documents.csv`: the loss of every held-out document at the last evaluation.

use super::atomic;
use super::names::DOCUMENTS;
use crate::error::Result;
pub use crate::metrics::DocumentLoss;
use std::path::Path;

/// Writes `documents.csv` into a run's folder.
///
/// # Errors
/// If the file cannot be written.
pub fn write(run: &Path, documents: &[DocumentLoss]) -> Result<()> {
    atomic::write_csv(&run.join(DOCUMENTS), documents)
}

/// Reads a run's `documents.csv`.
///
/// # Errors
/// If the file cannot be read, or a row is malformed.
pub fn read(run: &Path) -> Result<Vec<DocumentLoss>> {
    atomic::read_csv(&run.join(DOCUMENTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_and_blanks_stay_blank() {
        let run = tempfile::tempdir().unwrap();
        let row = |set: &str, document, bytes, loss| DocumentLoss {
            set: DocumentLoss::set_name(set),
            document,
            tokens: 3,
            bytes,
            loss,
        };
        let rows = [row("", 0, Some(2), 0.1 + 0.2), row("news", 7, None, f64::INFINITY)];
        write(run.path(), &rows).unwrap();
        let text = std::fs::read_to_string(run.path().join(DOCUMENTS)).unwrap();
        assert_eq!(
            text,
            "set,document,tokens,bytes,loss\ndata.validation,0,3,2,0.30000000000000004\nnews,7,3,,inf\n"
        );
        assert_eq!(read(run.path()).unwrap(), rows);
        std::fs::write(run.path().join(DOCUMENTS), text.replace(",7,", ",x,")).unwrap();
        assert!(read(run.path()).unwrap_err().message().contains("documents.csv"));
    }
}
