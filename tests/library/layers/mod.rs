//! Imports point one way, between rooms and between the files of a room, and `unsafe` stays where it is
//! allowed, with its reason above it.
//!
//! A room is a module at the root of a package (`src/runner/ranks/`, `src/engine/error.rs`). Sources are
//! parsed with `syn`; code under `#[cfg(test)]` is left out. An import is any path that leads out of its
//! file: in a `use`, in an expression, a type or the arguments of a macro, from `crate::`, `xrun::`,
//! `super::` or `self::`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

mod graph;
mod retired;
mod source;

use graph::Graph;
use source::Source;

/// Every room, and the rooms it may use besides itself. A room stands below all that it may use.
const MAY_USE: &[(&str, &str)] = &[
    ("error", "format"),
    ("format", ""),
    // Writes and syncs that are interrupted.
    ("interrupts", ""),
    ("atomic", "interrupts error"),
    // How files of others are opened.
    ("regular", "error"),
    // What long work reports and watchdogs read.
    ("liveness", ""),
    ("lock", ""),
    ("threads", ""),
    // The variables of a key's formulas.
    ("expression", "suggest"),
    // Functions and numbers of formulas, near names, characters that cannot be seen.
    ("model_text", "expression suggest format"),
    ("policy", "expression"),
    // The last sequential design, which threads share; numbers in words, of a power plan.
    ("statistics", "lock format"),
    ("suggest", ""),
    // The table of metrics: columns, headings, units.
    ("metrics", ""),
    ("device", "atomic liveness lock regular error"),
    ("machine", "device suggest error"),
    ("ir", "device error"),
    ("ops", "ir device expression policy lock error"),
    // The words of weight decay.
    ("optim", "ops ir device policy error"),
    ("passes", "ops ir device policy error"),
    ("exec", "passes ir device policy liveness lock error"),
    ("check", "exec passes optim ops ir device policy error"),
    // The names that predictions may use; the names and hyperparameters of optimizers; shortened values.
    ("recipe", "model_text optim metrics machine policy expression suggest format regular error"),
    // Allocations whose refusal is an error, the name of a corpus, names like one that is not there, escaped
    // text from a corpus.
    ("data", "device policy suggest atomic interrupts liveness lock threads format regular error"),
    // The rows of files and the tokenizers, errors of scores, near names.
    ("tasks", "data statistics suggest lock format regular error"),
    // The tasks of evaluations: what their programs compute, and what they tally of held-out sets.
    ("evaluation", "data metrics ops ir device policy error"),
    // Why a mode of recomputation was chosen, in words.
    // The tasks on which a run is scored, and the names of their columns.
    // Architectures, which plans resolve for the keys of recipes.
    (
        "plan",
        "evaluation tasks recipe model_text data optim machine metrics device policy format regular error",
    ),
    (
        "model",
        "evaluation gguf hugging_face expression model_text data checkpoint plan exec passes optim ops ir device policy \
         format error",
    ),
    ("generation", "model exec ir error"),
    // The requests of tasks, and the marker of rows without a target.
    ("scoring", "generation model tasks data exec ir error"),
    // The recipe whose mode of recomputation the plan chooses, the facts about its corpus, and what the items
    // of a task can show.
    ("forecast", "model plan data statistics recipe machine exec passes ir device policy format error"),
    // The keys that the hash of a stored recipe covers; intervals and verdicts of stored comparisons; the
    // similar one of a name that runs have nothing of.
    (
        "results",
        "tasks atomic interrupts statistics recipe metrics machine suggest threads lock format regular error",
    ),
    ("checkpoint", "interrupts liveness lock regular error"),
    ("hugging_face", "liveness regular error"),
    ("gguf", "atomic regular error"),
    // The launcher keys of a recipe, and the line on stderr before a process is ended.
    ("ranks", "results recipe machine device policy liveness threads lock error"),
    // The columns of rows, and what was appended to a file that grows.
    ("curve", "results metrics"),
    // The names and classes of keys, for columns and for what makes two rows alike.
    ("report", "curve atomic results statistics recipe metrics suggest liveness format regular error"),
    (
        "train",
        "task_evaluation tasks scoring generation evaluation hugging_face ranks checkpoint atomic results metrics forecast model \
         model_text plan data recipe machine exec ir device policy liveness threads lock format regular error",
    ),
    // The tokens and figures of tasks, what scores them, files and their lock.
    ("task_evaluation", "tasks scoring results atomic regular format error"),
    // The binary and the process groups of runs, the number of GPUs, scripts of batch systems.
    ("executor", "ranks results device machine atomic regular error"),
    // Which sampler draws the points.
    (
        "sweep",
        // The names of checkpoints, for cells that begin with another one's state.
        "executor train ranks checkpoint atomic results statistics metrics forecast model plan data \
         recipe machine device policy format regular error",
    ),
    // The signals of runs, and the absolute paths of a recipe; comparisons of quality run as cells of sweeps
    // do; the figures of evaluation tasks, and how validation is chosen.
    (
        "compare",
        "executor sweep train ranks task_evaluation tasks evaluation atomic results statistics forecast plan recipe \
         metrics machine device policy suggest format regular error",
    ),
    // The programs and steps of trainings, and the files of what they show.
    ("coordinates", "train atomic results forecast model plan recipe machine device policy format error"),
    // The binary of a commit, trials, blocks of pages, names of generated corpora, tables of algorithms.
    (
        "replay",
        "executor compare report checkpoint data machine device ranks results statistics recipe policy \
         format regular error",
    ),
    // The plan of a stored recipe's memory with the facts about its corpus, cells of sweeps.
    (
        "view",
        "curve compare sweep atomic results metrics forecast plan data recipe machine threads lock format regular \
         error",
    ),
    // Cells and the interval of a comparison by their own rules, the time that a run still takes, signals.
    (
        "watch",
        "curve compare sweep train ranks results statistics metrics recipe machine format regular error",
    ),
    // The tokens and figures of tasks, what scores them, items in training text, where results are, and the
    // recipes of stored runs.
    (
        "eval",
        "compare data task_evaluation tasks scoring train atomic results recipe statistics regular format error",
    ),
    (
        "cli",
        "eval watch view replay compare coordinates device sweep executor train ranks checkpoint report results model_text \
         atomic metrics statistics forecast check model plan tasks data recipe machine policy suggest format \
         regular error",
    ),
    // The binary, which shows the way of a run.
    ("main", "cli train ranks report results forecast model plan data device error"),
];

/// Returns the table as sets of rooms.
fn rooms<'a>(table: &[(&'a str, &'a str)]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    table.iter().map(|(room, uses)| (*room, uses.split_whitespace().collect())).collect()
}

/// Folders inside which files may still import each other in a circle. The list only shrinks: one without a
/// circle fails.
const CIRCLES: &[&str] = &[];

/// Where `unsafe` may stand, and why.
const UNSAFE: [(&str, &str); 2] = [
    ("engine/device/", "memory, and views that several tasks write"),
    ("engine/ir/cpu_node.rs", "an op's tensors: addresses become views"),
];

/// Where files are opened otherwise than through `regular`, with the calls and the reason. Whatever can come
/// from someone else is opened through it, because a FIFO never ends, a link leads anywhere, and a sparse
/// file fills the memory.
const OPENED_DIRECTLY: &[(&str, &[&str], &str)] = &[
    ("engine/regular.rs", &["File::options"], "the one place"),
    ("engine/atomic.rs", &["File::options"], "a new file, where hard links are missing"),
    ("engine/checkpoint/fs.rs", &["OpenOptions::new"], "creates new files"),
    ("engine/data/token_cache/journal.rs", &["File::options"], "tokens and a journal, by open_own"),
    ("engine/data/token_cache/mod.rs", &["File::options"], "a lock, by open_own"),
    ("engine/device/cuda/doctor/mod.rs", &["fs::read_to_string"], "/proc and /sys"),
    ("engine/device/cuda/monitor/nvml.rs", &["fs::read_to_string"], "/sys"),
    ("engine/device/cuda/monitor/versions.rs", &["fs::read_to_string"], "/proc"),
    ("engine/device/cuda/nccl/pinned.rs", &["fs::read_to_string"], "/proc"),
    ("engine/device/cuda/peers/map.rs", &["fs::read_to_string"], "/proc"),
    ("engine/interrupts.rs", &["File::open"], "syncs a folder"),
    ("engine/machine/host_memory.rs", &["fs::read_to_string"], "/proc and cgroups"),
    ("runner/ranks/stop.rs", &["fs::read_to_string"], "/proc"),
    ("runner/results/collection/annotations.rs", &["File::options"], "appends, by open_own"),
    ("runner/results/folder.rs", &["File::options"], "locks and logs, by open_own"),
    ("runner/results/keep.rs", &["File::create"], "a file of a new folder"),
    ("runner/results/ledger/writer.rs", &["File::options", "fs::read_to_string"], "by open_own; /proc"),
    ("runner/results/memory.rs", &["fs::read_to_string"], "/proc"),
    ("runner/results/provenance.rs", &["fs::read_to_string"], "/proc"),
    ("runner/results/rows.rs", &["File::options"], "a new file; rows by open_own"),
    ("runner/results/tensorboard/mod.rs", &["File::options"], "a new file, by open_own"),
    ("runner/train/calibrate.rs", &["File::options"], "a lock, by open_own"),
    ("runner/train/run_ranks.rs", &["File::options"], "a rank's log, by open_own"),
    ("lab/cli/init.rs", &["OpenOptions::new"], "a new recipe and schema"),
    ("lab/compare/cpu_load.rs", &["fs::read_to_string"], "/proc"),
    ("lab/executor/local.rs", &["File::options"], "the output of a run, by open_own; an unnamed file"),
    ("lab/replay/binary.rs", &["fs::copy"], "a binary that was just built"),
];

/// Functions of the standard library that open a file or read one whole.
const OPENING: [(&str, &[&str]); 3] = [
    ("fs", &["read", "read_to_string", "copy", "hard_link"]),
    ("File", &["open", "options", "create", "create_new"]),
    ("OpenOptions", &["new"]),
];

/// Returns the calls in a file that open files by the standard library.
fn opening_calls(source: &Source) -> BTreeSet<String> {
    let used = source.uses.iter().map(|one| &one.path);
    let called = source.paths.iter().map(|named| &named.path);
    let ends = used.chain(called).filter_map(|path| path.last_chunk::<2>());
    let opens = |[of, name]: &&[String; 2]| {
        OPENING.iter().any(|(owner, names)| owner == of && names.contains(&name.as_str()))
    };
    ends.filter(opens).map(|[of, name]| format!("{of}::{name}")).collect()
}

/// Every source file below `src`, read once.
static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(read_sources);

fn read_sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("build.rs") {
                let text = fs::read_to_string(&path).unwrap();
                let relative = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
                found.push(Source::parse(&relative, &text));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "the sources are found");
    found
}

/// Imports that the table does not allow, as `file uses room`.
fn wrong_arrows(graph: &Graph, allowed: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let mut wrong = BTreeSet::new();
    for (file, used) in graph.room_imports() {
        match allowed.get(source::room(&file)) {
            None => _ = wrong.insert(format!("{file} is in no room of the table")),
            Some(rooms) if used == source::room(&file) || rooms.contains(used.as_str()) => {}
            Some(_) => _ = wrong.insert(format!("{file} uses {used}")),
        }
    }
    wrong.into_iter().collect()
}

/// Splits circles into those inside a folder of `excused`, by folder, and all others.
fn split_excused<'a>(circles: &[Vec<String>], excused: &[&'a str]) -> (BTreeSet<&'a str>, Vec<String>) {
    let (mut known, mut new) = (BTreeSet::new(), Vec::new());
    for circle in circles {
        let inside = |folder: &&&str| circle.iter().all(|file| file.starts_with(&format!("{folder}/")));
        match excused.iter().find(inside) {
            Some(folder) => _ = known.insert(*folder),
            None => new.push(circle.join(", ")),
        }
    }
    (known, new)
}

#[test]
fn imports_point_one_way() {
    let allowed = rooms(MAY_USE);
    let wrong = wrong_arrows(&Graph::new(&SOURCES), &allowed);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table itself has no circle, and names every room of the library.
#[test]
fn the_table_is_an_order() {
    let allowed = rooms(MAY_USE);
    let mut below: BTreeSet<&str> = BTreeSet::new();
    while below.len() < allowed.len() {
        let next =
            allowed.iter().find(|(m, uses)| !below.contains(*m) && uses.iter().all(|u| below.contains(u)));
        below.insert(next.unwrap_or_else(|| panic!("a circle above {below:?}")).0);
    }
    let found: BTreeSet<&str> =
        SOURCES.iter().map(|s| source::room(&s.path)).filter(|r| *r != "lib").collect();
    assert_eq!(found, allowed.into_keys().collect(), "the rooms of src and those of the table");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circles = Graph::new(&SOURCES).circles();
    let (known, new) = split_excused(&circles, CIRCLES);
    assert!(new.is_empty(), "circles of imports:\n{}", new.join("\n"));
    let gone: Vec<_> = CIRCLES.iter().filter(|folder| !known.contains(**folder)).collect();
    assert!(gone.is_empty(), "excused, and without a circle: {gone:?}");
}

#[test]
fn unsafe_stays_where_it_is_allowed_and_says_why() {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for source in SOURCES.iter() {
        for site in &source.unsafes {
            let place = format!("{}:{}", source.path, site.line);
            match UNSAFE.iter().find(|(allowed, _)| source.path.starts_with(allowed)) {
                Some((allowed, _)) => _ = used.insert(allowed),
                None => wrong.push(format!("{place}: unsafe is not allowed here")),
            }
            let says = if site.declares { "# Safety" } else { "SAFETY:" };
            if !source.documented(site.line, says) {
                wrong.push(format!("{place}: no {says} above it"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let needless: Vec<_> = UNSAFE.iter().filter(|(path, _)| !used.contains(path)).collect();
    assert!(needless.is_empty(), "allowed and not used: {needless:?}");
}

#[test]
fn files_are_opened_in_one_place() {
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for source in SOURCES.iter().filter(|source| !source.path.ends_with("/tests.rs")) {
        for call in opening_calls(source) {
            let allowed = |(path, calls, _): &&(&str, &[&str], &str)| {
                *path == source.path && calls.contains(&call.as_str())
            };
            match OPENED_DIRECTLY.iter().find(allowed) {
                Some((path, _, _)) => _ = used.insert((*path, call)),
                None => wrong.push(format!("{}: {call}; open it through regular", source.path)),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let listed = OPENED_DIRECTLY.iter().flat_map(|(path, calls, _)| calls.iter().map(|call| (*path, *call)));
    let needless: Vec<_> =
        listed.filter(|(path, call)| !used.contains(&(*path, (*call).to_owned()))).collect();
    assert!(needless.is_empty(), "allowed and not used: {needless:?}");
}

#[test]
fn a_file_that_is_opened_directly_is_caught_wherever_it_stands() {
    for text in [
        "fn f() { std::fs::read(p); }",
        "use std::fs; fn f() { fs::read(p); }",
        "use std::fs::read; fn f() { read(p); }",
        "fn f() { println!(\"{:?}\", std::fs::read(p)); }",
    ] {
        assert_eq!(
            opening_calls(&Source::parse("x.rs", text)),
            BTreeSet::from(["fs::read".to_owned()]),
            "{text}"
        );
    }
    let harmless = "fn f() { std::fs::remove_file(p); regular::read(p, 1); }\n#[cfg(test)] mod t { fn f() { std::fs::read(p); } }";
    assert!(opening_calls(&Source::parse("x.rs", harmless)).is_empty());
}

/// The graph of a planted tree of files.
fn planted(files: &[(&str, &str)]) -> Graph {
    Graph::new(&files.iter().map(|(path, text)| Source::parse(path, text)).collect::<Vec<_>>())
}

const LIB: (&str, &str) = ("lib.rs", "pub mod low; pub mod high;");

#[test]
fn an_upward_arrow_is_caught_wherever_it_stands() {
    let allowed = rooms(&[("low", ""), ("high", "low")]);
    let upward = [
        "use crate::high::Top;",
        "use crate::{high::Top, low};",
        "use super::high;",
        "fn f() { crate::high::top(); }",
        "type T = Vec<crate::high::Top>;",
        "fn f() { println!(\"{}\", crate::high::top()); }",
        "use crate as root; fn f() { root::high::top(); }",
        "pub mod inner { use super::super::high::Top; }",
        "use xrun::high::Top;",
    ];
    for text in upward {
        let graph = planted(&[LIB, ("low.rs", text), ("high.rs", "pub struct Top; pub fn top() {}")]);
        assert_eq!(wrong_arrows(&graph, &allowed), ["low.rs uses high"], "{text}");
    }
    let harmless = [
        "// use crate::high::Top;",
        "const TEXT: &str = \"crate::high::top()\"; fn f() { println!(\"crate::high::top()\"); }",
        "#[cfg(test)] mod tests { use crate::high::Top; }",
        "#[cfg(test)] use crate::high::Top;",
        "/// See [`crate::high::Top`].\nfn f() {}",
    ];
    for text in harmless {
        let graph = planted(&[LIB, ("low.rs", text), ("high.rs", "use crate::low::f;")]);
        assert!(wrong_arrows(&graph, &allowed).is_empty(), "{text}");
        assert!(graph.circles().is_empty(), "{text}");
    }
}

/// Ops speak to `device::gpu`, and do not know whose GPU it is.
#[test]
fn no_vendor_of_gpus_stands_in_ops() {
    let vendor = ["cuda", "nccl", "cublas", "nvrtc", "nvidia", "nvml"];
    let free = ["engine/ops/", "engine/ir/", "engine/passes/", "engine/device/gpu/"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for source in SOURCES.iter().filter(|s| free.iter().any(|room| s.path.starts_with(room))) {
        let text = fs::read_to_string(root.join(&source.path)).unwrap();
        for (number, line) in std::iter::once(source.path.as_str()).chain(text.lines()).enumerate() {
            let code = line.split("//").next().unwrap_or_default().to_lowercase();
            if let Some(name) = vendor.iter().find(|name| code.contains(*name)) {
                wrong.push(format!("{}:{number} names {name}", source.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The library of tokenizers panics on files that others wrote, so that one file alone calls it.
#[test]
fn the_library_of_tokenizers_has_one_door() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let calls = |source: &&Source| {
        let text = fs::read_to_string(root.join(&source.path)).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        code.contains("tokenizers::") && !source.path.ends_with("/tests.rs")
    };
    let files: Vec<&str> = SOURCES.iter().filter(calls).map(|source| source.path.as_str()).collect();
    assert_eq!(files, ["engine/data/tokenizer/guarded.rs"]);
}

#[test]
fn a_circle_is_caught_through_facades_and_bodies() {
    let root = ("lib.rs", "pub mod room;");
    let facade = ("room/mod.rs", "mod a; mod b; pub use a::A; pub use b::{self, B as Bee};");
    let two = "room/a.rs, room/b.rs";
    let circles = [
        ("use super::b::B; pub struct A;", "use super::a::A; pub struct B;", two),
        // The names of the facade lead to the files behind it.
        ("use super::Bee; pub struct A;", "use crate::room::A; pub struct B;", two),
        ("pub struct A; fn f() { super::b::g(); }", "pub fn g() { vec![super::A]; } pub struct B;", two),
        ("use super::*; pub struct A; fn f() -> Bee { Bee }", "use super::a::A; pub struct B;", two),
    ];
    for (a, b, circle) in circles {
        let graph = planted(&[root, facade, ("room/a.rs", a), ("room/b.rs", b)]);
        assert_eq!(split_excused(&graph.circles(), &[]).1, [circle], "{a} | {b}");
        assert!(split_excused(&graph.circles(), &["room"]).1.is_empty(), "it may be excused by its folder");
    }
    // A file that needs code of its parent, which needs the file.
    let parent = ("room/mod.rs", "mod a; mod b; pub use b::B; pub fn run() { a::step(); }");
    let graph = planted(&[
        root,
        parent,
        ("room/a.rs", "pub fn step() { super::run(); }"),
        ("room/b.rs", "pub struct B;"),
    ]);
    assert_eq!(split_excused(&graph.circles(), &[]).1, ["room/a.rs, room/mod.rs"]);
    // A facade alone is none, nor is a test.
    let graph = planted(&[
        root,
        facade,
        ("room/a.rs", "use super::Bee; pub struct A;"),
        ("room/b.rs", "pub struct B; #[cfg(test)] mod tests { use super::super::A; }"),
    ]);
    assert!(graph.circles().is_empty());
}

#[test]
fn unsafe_code_is_found_with_its_comment() {
    let text = "// SAFETY: so\n// and so\nlet x =\nunsafe {};";
    let source = Source::parse("x.rs", &format!("fn f() {{\n{text}\n}}"));
    assert_eq!(
        source.unsafes.iter().map(|site| (site.line, site.declares)).collect::<Vec<_>>(),
        [(5, false)]
    );
    assert!(source.documented(5, "SAFETY:"));
    let source = Source::parse("x.rs", "fn f() {\n// SAFETY: so\nlet y = 1;\nunsafe {}\n}");
    assert!(!source.documented(4, "SAFETY:"));
    let declared =
        "/// # Safety\n/// Never.\n#[inline]\npub unsafe fn f() {}\n// SAFETY: so\nunsafe impl Send for X {}";
    let source = Source::parse("x.rs", declared);
    assert_eq!(
        source.unsafes.iter().map(|site| (site.line, site.declares)).collect::<Vec<_>>(),
        [(4, true), (6, false)]
    );
    assert!(source.documented(4, "# Safety") && source.documented(6, "SAFETY:"));
    let source = Source::parse(
        "x.rs",
        "// unsafe\nconst T: &str = \"unsafe\";\n#[cfg(test)]\nmod t { fn f() { unsafe {} } }",
    );
    assert!(source.unsafes.is_empty());
    let source = Source::parse("x.rs", "fn f() { call!(unsafe { g() }) }");
    assert_eq!(source.unsafes.len(), 1, "also in the arguments of a macro");
}
