//! Memory: what the plan says against what the engine's own placements hold.

use crate::plan::{TINY, device, forecast, plan, programs};
use std::sync::Arc;
use xrun::device::Device;
use xrun::device::cpu::Pool;
use xrun::error::ErrorKind;
use xrun::exec::{BlockAllocator, Section, Separate};
use xrun::forecast::{Saving, check_fits};
use xrun::machine::Machine;

const MODES: [&str; 4] = ["none", "emitted", "selective", "full"];

fn tiny(more: &[&str]) -> Vec<String> {
    TINY.iter().chain(more).map(|s| (*s).to_owned()).collect()
}

#[test]
fn numbers_are_those_of_the_programs() {
    for mode in MODES {
        let mode = format!("activation_checkpoint.mode={mode}");
        let plan = plan("v8-dim1024", &[&mode], 50_257);
        let programs = programs(&plan);
        let memory = forecast(&plan, &[]).memory;
        assert_eq!(memory.state_bytes, programs.state.bytes());
        assert_eq!(memory.state.iter().map(|b| b.bytes).sum::<usize>(), memory.state_bytes);
        assert_eq!(memory.arena_bytes, programs.arena_bytes());
        assert_eq!(memory.peak_bytes, programs.state.bytes() + programs.arena_bytes());
        assert_eq!(memory.sections.len(), programs.sections().len());
        let peak = &memory.peak;
        assert_eq!(peak.holders.len(), 10);
        assert!(peak.holders.is_sorted_by(|a, b| a.bytes >= b.bytes));
        assert!(peak.holders.iter().all(|h| h.node <= peak.node && peak.node <= h.until));
    }
}

/// Walks sections the way the executor does; returns the most that was reserved.
fn walk(placement: &mut dyn BlockAllocator, sections: &[&Section]) -> usize {
    let mut most = 0;
    for memory in sections.iter().map(|s| &s.memory) {
        for at in 0..memory.births.len() {
            for &block in &memory.births[at] {
                placement
                    .begin(block, memory.blocks[block].bytes, memory.blocks[block].offset)
                    .expect("memory");
            }
            most = most.max(placement.reserved_bytes());
            for &block in &memory.deaths[at] {
                placement.end(block);
            }
        }
    }
    most
}

/// The simulated reserve of `caching` and the peak of `naive` are what the real placements reach, over
/// several steps and in whichever order sections run.
#[test]
fn other_placements_reserve_what_is_simulated() {
    for mode in MODES {
        let mode = format!("activation_checkpoint.mode={mode}");
        let overrides = tiny(&[&mode, "training.accumulation=3", "generation.samples=2"]);
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).filter(|s| *s != TINY[9]).collect();
        let plan = plan("quickstart", &overrides, 511);
        let programs = programs(&plan);
        let memory = forecast(&plan, &[]).memory;
        let mut sections = programs.sections();
        assert_eq!(walk(&mut Separate::naive(cpu()), &sections), memory.naive_bytes);
        let mut caching = Separate::caching(cpu());
        walk(&mut caching, &sections);
        sections.reverse();
        assert_eq!(walk(&mut caching, &sections), memory.caching_bytes);
        assert!(memory.naive_bytes <= memory.arena_bytes && memory.naive_bytes <= memory.caching_bytes);
    }
}

#[test]
fn the_peak_is_that_of_the_placement() {
    let of = |placement: &str| {
        let placement = format!("engine.placement={placement}");
        forecast(&plan("dim384", &[&placement], 50_257), &[]).memory
    };
    for name in ["arena", "caching", "naive"] {
        let memory = of(name);
        assert_eq!(memory.placement, name);
        let bytes =
            [("arena", memory.arena_bytes), ("caching", memory.caching_bytes), ("naive", memory.naive_bytes)];
        let expected = bytes.iter().find(|(n, _)| *n == name).expect("listed").1;
        assert_eq!((memory.transient_bytes, memory.peak_bytes), (expected, memory.state_bytes + expected));
    }
}

#[test]
fn recompute_lowers_the_peak_and_its_arena() {
    let peaks = MODES.map(|mode| {
        let mode = format!("activation_checkpoint.mode={mode}");
        forecast(&plan("v8-dim1024", &[&mode], 50_257), &[]).memory.arena_bytes
    });
    assert!(peaks[0] > peaks[1] && peaks[1] > peaks[2], "{peaks:?}");
}

/// A model of terabytes is planned within a small part of a gigabyte of address space.
#[cfg(target_os = "linux")]
#[test]
fn planning_allocates_no_tensor() {
    let address_space = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find(|l| l.starts_with("VmPeak:")).expect("a peak");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") << 10
    };
    let before = address_space();
    let huge = ["model.dim=16384", "model.n_heads=128", "model.head_dim=128", "model.ffn_dim=65536"];
    let found = forecast(&plan("v8-dim1024", &huge, 50_257), &[device("h200")]);
    assert!(found.memory.peak_bytes > 1 << 40);
    // Threads of other tests reserve address space too: this is far above theirs and far below the model's.
    assert!(address_space() - before < 8 << 30);
}

fn cpu() -> Device {
    Device::Cpu(Arc::new(Pool::new(1).unwrap()))
}

#[test]
fn a_copy_for_saves_beside_training_is_planned_where_it_fits() {
    let saving = |keys: &[&str], machine: &Machine| {
        let plan = plan("quickstart", &[&TINY[..], keys].concat(), 511);
        let programs = programs(&plan);
        (Saving::new(&plan, &programs, machine), check_fits(&plan, &programs, machine))
    };
    // Parameters and two moments of 41,536 elements each, with their padding, beside 738.50 KiB of the plan.
    let machine = |kib: u64| Machine { memory_bytes: Some(kib << 10), ..Machine::none() };
    let (found, _) = saving(&[], &machine(2 * (739 + 508)));
    assert_eq!((found.beside_training, found.copy_bytes, found.place), (true, 519_936, "host memory"));
    let (found, fits) = saving(&[], &machine(2 * (739 + 507) - 2));
    assert!(!found.beside_training && fits.is_ok(), "half of the memory stays free: {found:?}");
    assert!(found.reason.contains("507.75 KiB besides 738.50 KiB"), "{}", found.reason);
    // What is asked for is refused where it cannot be.
    let always = ["checkpoint.background=always"];
    assert!(saving(&always, &machine(739 + 508)).1.is_ok());
    let refused = saving(&always, &machine(739 + 506)).1.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DoesNotFit);
    assert!(refused.message().contains("checkpoint.background = \"auto\""), "{refused}");
    for (key, reason) in [("background=never", "checkpoint.background"), ("keep=0", "checkpoint.keep = 0")] {
        let (found, _) = saving(&[&format!("checkpoint.{key}")], &machine(1 << 20));
        assert!(!found.beside_training && found.reason.starts_with(reason), "{found:?}");
    }
    // A limit of the recipe is one for the copy, too, and has nothing to leave free.
    let limited = ["engine.memory_limit_gib=0.00119"];
    assert!(saving(&limited, &Machine::none()).0.beside_training);
    assert!(!saving(&["engine.memory_limit_gib=0.00118"], &Machine::none()).0.beside_training);
}
