//! Checkpoints that stay besides the newest: named steps, the best one, and weights alone.

use crate::checkpoint::state::{State, scratch};
use std::path::Path;
use xrun::checkpoint::{Meta, Store, at_step, newest, newest_resumable, steps};

/// Saves a step with a validation loss, weights alone or whole.
fn save(store: &Store, step: u64, loss: Option<f32>, weights_only: bool) {
    let state = State::new(step, step as u32);
    let mut meta: Meta = state.meta().clone();
    meta.set_validation_loss(loss);
    meta.set_weights_only(weights_only);
    let snapshot = state.snapshot();
    let snapshot = if weights_only { snapshot.weights_only(Some("adam.m.")) } else { snapshot };
    let saved = store.save(&meta, &snapshot).unwrap();
    assert_eq!(saved.warnings, [""; 0]);
}

fn open(dir: &Path, keep: usize) -> Store {
    Store::open(dir, keep).unwrap()
}

#[test]
fn the_best_stays_until_a_better_one_is_saved() {
    let at = scratch();
    let dir = at.path().join("checkpoint");
    let mut store = open(&dir, 1);
    store.keeps_best = true;
    let best = || std::fs::read_to_string(dir.join("best")).ok();
    save(&store, 10, None, false);
    assert_eq!(best(), None, "nothing was evaluated");
    for (step, loss, left) in [
        (20, Some(3.0), [10, 20]),
        (30, Some(3.5), [20, 30]),
        (40, None, [20, 40]),
        (50, Some(2.5), [40, 50]),
    ] {
        save(&store, step, loss, false);
        assert_eq!(steps(&dir).unwrap(), left, "after step {step}");
    }
    assert_eq!(best().unwrap(), "step-000050\n");
    save(&store, 60, Some(2.5), false);
    assert_eq!(steps(&dir).unwrap(), [50, 60], "the first of equals stays");
    save(&store, 70, Some(f32::NAN), false);
    assert_eq!(steps(&dir).unwrap(), [50, 70]);
    assert_eq!((store.best_loss(70).unwrap(), store.best_loss(49).unwrap()), (Some(2.5), None));
    // A run that goes back forgets what was better later.
    save(&store, 45, Some(2.9), false);
    assert_eq!((steps(&dir).unwrap(), best().unwrap()), (vec![45], "step-000045\n".to_owned()));
}

#[test]
fn weights_alone_do_not_take_the_place_of_what_can_be_resumed() {
    let at = scratch();
    let dir = at.path().join("checkpoint");
    let mut store = open(&dir, 1);
    (store.kept_steps, store.keeps_best) = (vec![25], true);
    save(&store, 20, None, false);
    save(&store, 25, None, true);
    save(&store, 30, Some(3.0), true);
    save(&store, 35, Some(2.0), true);
    assert_eq!(steps(&dir).unwrap(), [20, 25, 35]);
    let (any, resumable) = (newest(&dir).unwrap().unwrap(), newest_resumable(&dir).unwrap().unwrap());
    assert_eq!((any.meta().step, resumable.meta().step), (35, 20));
    assert!(any.is_weights_only() && !resumable.is_weights_only());
    assert!(any.names().contains(&"adam.m.embedding") && !any.names().contains(&"adam.v.embedding"));
    assert_eq!(at_step(&dir, 25).unwrap().parameter_names().count(), 4);
}

#[test]
fn a_run_of_weights_alone_keeps_the_newest_of_them() {
    let at = scratch();
    let dir = at.path().join("checkpoint");
    let store = open(&dir, 2);
    for step in [10, 20, 30] {
        save(&store, step, None, true);
    }
    assert_eq!(steps(&dir).unwrap(), [20, 30]);
    assert!(newest_resumable(&dir).unwrap().unwrap().is_weights_only());
}
