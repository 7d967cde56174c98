//! Runs `xrun doctor` on whatever machine this is.

use crate::place::Place;
use serde_json::Value;
use std::process::Command;

fn doctor(place: &Place, arguments: &[&str]) -> (String, i32) {
    let output = Command::new(env!("CARGO_BIN_EXE_xrun"))
        .arg("doctor")
        .args(arguments)
        .env("XRUN_CACHE", place.path().join("cache"))
        .output()
        .unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
}

#[test]
fn the_verdict_the_exit_code_and_the_text_agree() {
    let place = Place::new();
    let (json, code) = doctor(&place, &["--json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    let fatal = report["problems"].as_array().unwrap().iter().filter(|p| p["fatal"] == true).count();
    let (said, expected) = match report["verdict"].as_str().unwrap() {
        "no_gpu" => ("no GPU: runs use the CPU\n", 0),
        "works" => ("a run on the GPU works\n", 0),
        "fails" => ("a run on the GPU would fail\n", 1),
        other => panic!("{other}"),
    };
    assert_eq!((code, fatal > 0), (expected, expected == 1), "{json}");
    assert_eq!(report["gpus"].as_array().unwrap().is_empty() && expected == 0, said.starts_with("no GPU"));
    let (text, code) = doctor(&place, &[]);
    assert_eq!(code, expected);
    assert!(text.ends_with(said), "{text}");
    for library in ["driver", "NVRTC", "cuBLASLt", "NCCL", "NVML"] {
        assert!(text.lines().any(|line| line.starts_with(library)), "{text}");
    }
    assert!(!place.path().join("cache").exists(), "looking leaves nothing behind");
}
