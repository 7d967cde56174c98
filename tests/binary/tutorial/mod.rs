//! `docs/tutorial.md`, done: every command in order in one folder, and what the page shows of its output.

mod page;
mod shown;

use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/tutorial.md");

/// Runs a block's commands in a folder; stdout and stderr as they came.
#[track_caller]
fn run(block: &page::Block, folder: &Path) -> String {
    let xrun = Path::new(env!("CARGO_BIN_EXE_xrun")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(xrun.to_owned()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let mut command = Command::new("sh");
    command.args(["-euc", &format!("exec 2>&1\n{}", block.commands)]).current_dir(folder);
    command.env_clear().env("PATH", path.unwrap()).envs(block.with.iter().cloned());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "line {}: {}\n{}\n{text}", block.line, output.status, block.commands);
    text
}

#[test]
fn every_command_does_what_the_page_shows() {
    let folder = tempfile::tempdir().unwrap();
    let blocks = page::blocks(PAGE);
    for block in blocks.iter().filter(|block| block.left_out.is_none()) {
        let output = run(block, folder.path());
        if let Some(line) = block.shown.as_ref().and_then(|shown| shown::missing(shown, &output)) {
            panic!("line {}: no `{line}` where the page shows it, in the output:\n{output}", block.line);
        }
    }
    let left_out: Vec<&str> = blocks.iter().filter_map(|block| block.left_out.as_deref()).collect();
    println!("{} of {} blocks were left out: {}", left_out.len(), blocks.len(), left_out.join("; "));
    assert!(left_out.len() <= 1, "only what cannot be run in a test is left out: {left_out:?}");
}
