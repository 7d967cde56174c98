//! `xrun completions SHELL`.

use super::terminal::print;
use crate::error::Result;
use clap_complete::Shell;

/// Arguments of `xrun completions`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The shell to complete for.
    pub shell: Shell,
}

/// Passes the line up to the cursor to `xrun complete`. Readline splits words at `=` and `:` and replaces
/// only what follows, so the script cuts off what precedes.
const BASH: &str = r#"_xrun() {
    local line="${COMP_LINE:0:COMP_POINT}" current="${COMP_WORDS[COMP_CWORD]}"
    local word="${line##*[[:space:]]}"
    if [[ $current == [=:] ]]; then current=""; fi
    mapfile -t COMPREPLY < <(xrun complete "$line" 2> /dev/null)
    COMPREPLY=("${COMPREPLY[@]#"${word%"$current"}"}")
    if [[ "${COMPREPLY[*]}" == *[=.] ]]; then compopt -o nospace; fi
}
complete -o default -F _xrun xrun
"#;

const ZSH: &str = r#"#compdef xrun
_xrun() {
    local -a found open
    found=("${(@f)$(xrun complete "${(j: :)words[1,CURRENT]}" 2> /dev/null)}")
    open=(${(M)found:#*[=.]})
    found=(${found:#*[=.]})
    compadd -S '' -- $open
    compadd -- $found
    (( $#open + $#found )) || _files
}
compdef _xrun xrun
"#;

const FISH: &str = "complete -c xrun -a '(xrun complete (commandline -cp | string collect) 2> /dev/null)'\n";

/// Prints a completion script for `command`. The scripts for bash, zsh and fish ask `xrun complete`, which
/// knows recipes, keys and runs; the others complete only commands and options.
///
/// # Errors
/// If stdout cannot be written.
pub fn run(args: &Args, command: &clap::Command) -> Result<()> {
    match args.shell {
        Shell::Bash => print(BASH),
        Shell::Zsh => print(ZSH),
        Shell::Fish => print(FISH),
        other => {
            let shown = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
            let mut shown = clap::Command::new("xrun").subcommands(shown);
            let mut script = Vec::new();
            clap_complete::generate(other, &mut shown, "xrun", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}
