//! `xrun view`.

use super::terminal::{eprint_line, print};
use super::what::Results;
use crate::error::Result;
use crate::format::binary;
use crate::view::{ResultsFolder, Server, SingleFile};
use std::path::PathBuf;

/// Arguments of `xrun view`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What --out writes: runs (folders, names or `latest`), comparisons with their runs (`comparisons/NAME`
    /// for the newest, or NAME/ID), sweeps (`sweeps/NAME`).
    #[arg(value_name = "RUN", requires = "out")]
    pub words: Vec<String>,
    /// Where results are.
    #[command(flatten)]
    pub results: Results,
    /// The port on 127.0.0.1 [default: any free port].
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Instead of serving the page, write it with all its data to this file, which opens without a server or
    /// network.
    #[arg(long, value_name = "FILE.html", conflicts_with = "port", requires = "words")]
    pub out: Option<PathBuf>,
    /// With --out, include environment variables, host names and absolute paths.
    #[arg(long, requires = "out")]
    pub full: bool,
    /// With --out, replace an existing file.
    #[arg(long, requires = "out")]
    pub force: bool,
}

/// Runs the command. A server runs until its process is ended.
///
/// # Errors
/// If the port is taken, a run is not found, or the file already exists or cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let folder = ResultsFolder::new(&args.results.folder);
    if let Some(path) = &args.out {
        let file = SingleFile::new(&folder, &args.words, args.full)?;
        file.write(path, args.force)?;
        let list = |what: &str, of: &[String]| -> String {
            of.iter().map(|one| format!("  {what} {one}\n")).collect()
        };
        let size = binary(file.html.len());
        return print(&format!(
            "{} ({size})\n{}{}",
            path.display(),
            list("has", &file.selection.included),
            list("leaves out", &file.selection.excluded)
        ));
    }
    if !folder.root.is_dir() {
        eprint_line(&format!("there is no folder {} yet; runs appear once it exists", folder.root.display()));
    }
    let server = Server::open(folder, args.port)?;
    print(&format!("{}\n", server.address()))?;
    eprint_line("open this address in a browser on this machine; Ctrl-C stops the server");
    server.serve()
}
