//! Checkpoints on the disk: what is saved comes back, and damage of any kind is found before use.

mod background;
mod damage;
mod faults;
mod faulty_fs;
mod kept;
mod state;

use state::{State, loaded_hash, newest_of};
use std::fs;
use std::path::{Path, PathBuf};
use xrun::checkpoint::{Store, at_step, first_difference, newest, steps};

/// Saves the states in order, keeping all, and returns the checkpoint folder.
fn saved(at: &Path, states: &[&State]) -> PathBuf {
    let dir = at.join("checkpoint");
    let store = Store::open(&dir, usize::MAX).unwrap();
    for s in states {
        let saved = store.save(s.meta(), &s.snapshot()).unwrap();
        assert!(saved.warnings.is_empty() && saved.pruned.is_empty());
    }
    dir
}

#[test]
fn what_is_saved_comes_back() {
    let at = tempfile::tempdir().unwrap();
    let state = State::new(123, 1);
    let dir = saved(at.path(), &[&state]);
    assert_eq!(fs::read_to_string(dir.join("latest")).unwrap(), "step-000123\n");

    let loaded = newest(&dir).unwrap().unwrap();
    assert_eq!(loaded.path(), dir.join("step-000123"));
    assert_eq!(loaded.meta(), state.meta());
    assert!(loaded.warnings().is_empty());
    assert_eq!(loaded.names().len(), state.tensors().count());
    for (name, shape, bytes) in state.tensors() {
        assert_eq!(loaded.read(name, shape).unwrap(), bytes, "{name}");
        let mut out = vec![0xaa; bytes.len()];
        loaded.read_into(name, shape, &mut out).unwrap();
        assert_eq!(out, bytes, "{name}");
    }
    assert_eq!(loaded_hash(&loaded), state.hash());
}

#[test]
fn the_files_are_plain_safetensors() {
    let at = tempfile::tempdir().unwrap();
    let state = State::new(1, 1);
    let dir = saved(at.path(), &[&state]).join("step-000001");
    let (model, optimizer) = (
        fs::read(dir.join("model.safetensors")).unwrap(),
        fs::read(dir.join("optimizer.safetensors")).unwrap(),
    );
    let model = safetensors::SafeTensors::deserialize(&model).unwrap();
    let optimizer = safetensors::SafeTensors::deserialize(&optimizer).unwrap();
    assert_eq!((model.len(), optimizer.len()), (4, 8));
    for (name, shape, bytes) in state.tensors() {
        let file = if name.starts_with("adam.") { &optimizer } else { &model };
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.shape(), tensor.data()), (shape, bytes), "{name}");
        assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
    }
}

#[test]
fn a_tensor_is_only_given_out_with_its_shape() {
    let at = tempfile::tempdir().unwrap();
    let dir = saved(at.path(), &[&State::new(1, 1)]);
    let loaded = newest(&dir).unwrap().unwrap();
    let shape = loaded.read("embedding", &[4, 11]).unwrap_err();
    assert!(shape.message().contains("needs [4, 11]"), "{shape}");
    let missing = loaded.read("../embedding", &[11, 4]).unwrap_err();
    assert!(missing.message().contains("has no tensor ../embedding"), "{missing}");
    let length = loaded.read_into("embedding", &[11, 4], &mut [0; 8]).unwrap_err();
    assert!(length.message().contains("has 176 bytes"), "{length}");
}

#[test]
fn a_checkpoint_of_a_step_is_found_by_its_number() {
    let at = tempfile::tempdir().unwrap();
    let (a, b) = (State::new(100, 1), State::new(200, 2));
    let dir = saved(at.path(), &[&a, &b]);
    assert_eq!(steps(&dir).unwrap(), [100, 200]);
    assert_eq!(loaded_hash(&at_step(&dir, 100).unwrap()), a.hash());
    let error = at_step(&dir, 150).unwrap_err();
    assert!(error.message().contains("no checkpoint of step 150; there are: 100, 200"), "{error}");
}

#[test]
fn only_the_newest_are_kept() {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().join("checkpoint");
    let store = Store::open(&dir, 2).unwrap();
    let save = |step| {
        let state = State::new(step, step as u32);
        store.save(state.meta(), &state.snapshot()).unwrap().pruned
    };
    assert_eq!((save(1), save(2), save(3), save(10)), (vec![], vec![], vec![1], vec![2]));
    assert_eq!(steps(&dir).unwrap(), [3, 10]);
    // Going back to step 3 and on to 7 leaves a step 10 that no longer belongs to the run.
    assert_eq!(save(7), [10]);
    assert_eq!(steps(&dir).unwrap(), [3, 7]);
    // The same step again replaces it.
    let again = State::new(7, 70);
    store.save(again.meta(), &again.snapshot()).unwrap();
    assert_eq!(newest_of(&dir, &[&again]), Some(0));
    assert_eq!(listing(&dir), ["latest", "step-000003", "step-000007"]);
}

#[test]
fn a_new_checkpoint_that_does_not_read_back_costs_no_old_one() {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().join("checkpoint");
    let (a, b) = (State::new(1, 1), State::new(2, 2));
    let calm = faulty_fs::FaultyFs::calm(at.path());
    let store = Store::open_on(Box::new(calm.clone()), &dir, 1).unwrap();
    store.save(a.meta(), &a.snapshot()).unwrap();
    // The disk says it wrote, and did not.
    calm.corrupt_writes();
    let saved = store.save(b.meta(), &b.snapshot()).unwrap();
    assert!(saved.pruned.is_empty());
    assert!(saved.warnings[0].contains("old ones not removed"), "{:?}", saved.warnings);
    assert_eq!(newest_of(&dir, &[&a]), Some(0));
}

#[test]
fn tensors_that_cannot_be_stored_are_refused_and_leave_nothing() {
    use xrun::checkpoint::{Snapshot, TensorView};
    let at = tempfile::tempdir().unwrap();
    let old = State::new(1, 1);
    let dir = saved(at.path(), &[&old]);
    let store = Store::open(&dir, 1).unwrap();
    let view = |name: &str| TensorView::new(name, vec![1], &[0; 4]);
    for (tensors, says) in [
        (vec![view("../x")], "not a valid tensor name"),
        (vec![view("__metadata__")], "not a valid tensor name"),
        (vec![view("a"), view("a")], "two tensors are named a"),
        (vec![TensorView::new("a", vec![2], &[0; 4])], "takes 8 bytes, but 4 were given"),
        (vec![TensorView::new("a", vec![usize::MAX, 9], &[])], "too large"),
    ] {
        let error = store.save(State::new(2, 2).meta(), &Snapshot::new(tensors, [])).unwrap_err();
        assert!(error.message().contains(says), "{error}");
        assert!(error.message().contains("earlier ones are untouched"), "{error}");
        assert_eq!(newest_of(&dir, &[&old]), Some(0));
        assert_eq!(listing(&dir), ["latest", "step-000001"]);
    }
}

#[test]
fn states_are_compared_to_the_bit() {
    let at = tempfile::tempdir().unwrap();
    let (a, b) = (State::new(1, 1), State::new(1, 2));
    (1..4).for_each(|i| fs::create_dir(at.path().join(i.to_string())).unwrap());
    let one = newest(&saved(&at.path().join("1"), &[&a])).unwrap().unwrap();
    let same = newest(&saved(&at.path().join("2"), &[&a])).unwrap().unwrap();
    let other = newest(&saved(&at.path().join("3"), &[&b])).unwrap().unwrap();
    assert_eq!(first_difference(&one, &same).unwrap(), None);
    let difference = first_difference(&one, &other).unwrap().unwrap();
    assert_eq!(difference, "adam.m.blocks.0.qkv differs first at element 0: 0.6875 and 1.125");
}

#[test]
fn no_checkpoint_is_no_error_but_a_lost_one_is() {
    let at = tempfile::tempdir().unwrap();
    assert!(newest(&at.path().join("nowhere")).unwrap().is_none());
    assert!(newest(at.path()).unwrap().is_none());

    let (a, b) = (State::new(1, 1), State::new(2, 2));
    let dir = saved(at.path(), &[&a, &b]);
    fs::remove_dir_all(dir.join("step-000002")).unwrap();
    let loaded = newest(&dir).unwrap().unwrap();
    assert_eq!(loaded_hash(&loaded), a.hash());
    assert!(loaded.warnings()[0].contains("names step-000002, which does not exist"));
    fs::remove_dir_all(dir.join("step-000001")).unwrap();
    assert!(newest(&dir).unwrap_err().message().contains("step-000002, which does not exist"));
}

#[test]
fn a_hostile_pointer_leads_nowhere() {
    let at = tempfile::tempdir().unwrap();
    let state = State::new(1, 1);
    let dir = saved(at.path(), &[&state]);
    for text in [&b"../x"[..], b"/etc/passwd", b"step-1", b"", b"\xff\xfe", &[b'9'; 4096]] {
        fs::write(dir.join("latest"), text).unwrap();
        let loaded = newest(&dir).unwrap().unwrap();
        assert_eq!(loaded_hash(&loaded), state.hash());
        assert!(loaded.warnings()[0].contains("latest is damaged"), "{:?}", loaded.warnings());
    }
}

/// The names in a folder, sorted.
fn listing(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
