//! The columns of `metrics.csv` for the sources of a mixture.

/// The training loss, whose name the columns begin with.
const TRAIN_LOSS: &str = "train_loss";

/// Returns the column of the training loss on a source, `train_loss/SOURCE`.
pub fn source_column(source: &str) -> String {
    format!("{TRAIN_LOSS}/{source}")
}

/// Returns the source that a column is of; `None` for columns of other kinds.
pub fn source_of_column(column: &str) -> Option<&str> {
    let (figure, source) = column.split_once('/')?;
    (figure == TRAIN_LOSS && !source.is_empty()).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_read_as_they_are_written() {
        assert_eq!(source_of_column(&source_column("web-2_a")), Some("web-2_a"));
        for other in ["train_loss", "train_loss/", "val_loss/web", "loss/web", "/web", ""] {
            assert_eq!(source_of_column(other), None, "{other}");
        }
    }
}
