//! The training path of xrun on one screen. The other commands are in `cli`.

use std::process::ExitCode;
use std::time::Duration;
use xrun::cli::{self, Next, NotParsed, dispatch, eprint_line};
use xrun::device::host_allocator::{HostAllocator, on_refusal};
use xrun::error::{Error, Result};
use xrun::ranks::rendezvous::Secret;
use xrun::ranks::{Launch, LocalRanks, Stop, ignore_file_size_signal, process, stack_fault};
use xrun::report::plots;
use xrun::results::progress::{begin_json_stream, print_json_error};
use xrun::results::provenance::Stamp;
use xrun::results::stdout::{stdout_fault, stdout_has_text};
use xrun::results::streams::drain_at_end;
use xrun::train::{Request, Run, mark_failed, prepare_early};

/// Printed when the first signal arrives.
const STOPS: &str = "stopping after this step; a second signal (Ctrl-C) stops at once, without a save";

/// What `build.rs` found: the commit, whether the tree had uncommitted changes, and the compiler.
const STAMP: Stamp = Stamp {
    commit: option_env!("XRUN_BUILD_COMMIT"),
    dirty: option_env!("XRUN_BUILD_DIRTY"),
    rustc: option_env!("XRUN_BUILD_RUSTC"),
    target: option_env!("XRUN_BUILD_TARGET"),
    profile: option_env!("XRUN_BUILD_PROFILE"),
    opt_level: option_env!("XRUN_BUILD_OPT_LEVEL"),
    crates: option_env!("XRUN_BUILD_CRATES"),
};

#[global_allocator]
static ALLOCATOR: HostAllocator = HostAllocator;

fn main() -> ExitCode {
    STAMP.set();
    if let Some(e) = stack_fault() {
        eprint_line(&e.last_line());
        return ExitCode::from(e.kind().exit_code());
    }
    let json = std::env::args_os().any(|argument| argument == "--json");
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(not_parsed) => return report(&not_parsed, json),
    };
    let trains_with_json = cli.trains_with_json();
    if trains_with_json {
        begin_json_stream();
        on_refusal(|message| print_json_error(&Error::does_not_fit(message)));
    }
    ignore_file_size_signal();
    let ended = dispatch(cli).and_then(|next| match next {
        Next::Done => Ok(()),
        Next::Train(how, request) => launch(how, *request),
        Next::TrainAsWorker => {
            process::run_worker(|request: Request, ranks, stop| run(request.on_this_machine(), ranks, stop))
        }
    });
    let written = drain_at_end(ended.as_ref().err().map(Error::kind));
    // If a thread still waits for a reader, it holds stdout.
    let fault = if written { stdout_fault() } else { None };
    let ended = ended.and_then(|()| fault.map_or(Ok(()), Err));
    let kind = ended.as_ref().err().map(Error::kind);
    let code = match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if trains_with_json || (json && !stdout_has_text()) {
                print_json_error(&e);
            }
            eprint_line(&e.last_line());
            ExitCode::from(e.kind().exit_code())
        }
    };
    if written {
        drain_at_end(kind);
    }
    code
}

/// Prints why a command line runs nothing, or the help that it asks for.
fn report(not_parsed: &NotParsed, json: bool) -> ExitCode {
    let fault = not_parsed.fault();
    if let Some(message) = fault.as_ref().filter(|_| json) {
        print_json_error(&Error::usage(message));
    }
    let code = match not_parsed {
        NotParsed::Clap(e) => {
            if let Err(e) = e.print()
                && e.kind() != std::io::ErrorKind::BrokenPipe
            {
                eprint_line(&format!("error: cannot write to stdout: {e}"));
                return ExitCode::FAILURE;
            }
            u8::try_from(e.exit_code()).unwrap_or(1)
        }
        NotParsed::Answered(text) => {
            eprint_line(&format!("error: {text}"));
            Error::usage("").kind().exit_code()
        }
    };
    drain_at_end(None);
    ExitCode::from(code)
}

/// Launches the ranks of a run: threads of this process, child processes, or this process alone as one rank
/// of an external launcher.
fn launch(launch: Launch, request: Request) -> Result<()> {
    let stop = Stop::on_signals(Some(STOPS))?;
    let timeout = Duration::from_secs_f64(request.recipe.values().parallelism.timeout_s);
    let ranks = match launch {
        Launch::Threads(world) => LocalRanks::threads(world, timeout)?,
        Launch::Processes(world) => {
            return process::supervise(&request, world, timeout, &stop, mark_failed);
        }
        Launch::Member(assignment) => {
            let secret = Secret::from_environment(&assignment.address)?;
            LocalRanks::join_launcher(&assignment, &secret, timeout, &stop)?
        }
    };
    run(request, &ranks, &stop)
}

/// Runs a recipe on the ranks of this process: prepares corpus, plan, programs and fit ([`prepare_early`]),
/// trains ([`Run::train`]) and draws the plots.
fn run(request: Request, ranks: &LocalRanks, stop: &Stop) -> Result<()> {
    let draws = request.recipe.values().metrics.plots;
    let ended = ranks.abort_on_error(|guard| {
        let run = Run::open(request, ranks)?;
        let (planned, data) = prepare_early(run.recipe(), run.machine())?;
        run.train(planned, data, ranks, stop, guard)
    })?;
    // Only rank 0 has a folder. Plots are drawn from its files, whether the run succeeded or failed.
    let Some(folder) = ended.folder else { return ended.outcome };
    let pictures = if ended.was_finished { plots::Pictures::Missing } else { plots::Pictures::All };
    let drawn = ranks.finish_after("draws plots", || match draws {
        true => plots::render(folder.path(), pictures).map(drop),
        false => Ok(()),
    });
    ended.outcome?;
    drawn.map_err(|e| Error::failed(format!("the run is complete, but its plots are not: {e}")))
}
