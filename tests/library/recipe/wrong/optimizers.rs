//! Settings that the chosen optimizer or the model has no use for.

use super::{check_files, check_settings};

#[test]
fn a_hyperparameter_of_another_optimizer() {
    check_files(&[
        (
            "[optimizer]\nname = \"sgd\"\nbetas = [0.9, 0.95]\n",
            "optimizer.betas optimizer.name",
            "3:1",
            "sgd has lr, momentum, weight_decay",
        ),
        (
            "[optimizer.groups.matrix]\nname = \"lion\"\neps = 1e-6\n",
            "optimizer.groups.matrix.eps optimizer.groups.matrix.name",
            "3:1",
            "lion has lr, betas, weight_decay",
        ),
    ]);
}

#[test]
fn muon_updates_only_the_matrices_of_blocks() {
    check_settings(&[(
        &["optimizer.groups.embedding.name=muon"],
        "optimizer.groups.embedding.name",
        33,
        "optimizer.groups.matrix.name = \"muon\"",
    )]);
}

#[test]
fn sgd_has_no_independent_decay() {
    check_files(&[
        (
            "[optimizer]\nname = \"sgd\"\ndecay = \"independent\"\n",
            "optimizer.decay optimizer.name",
            "3:9",
            "leave optimizer.decay out",
        ),
        (
            "[optimizer.groups.head]\nname = \"sgd\"\ndecay = \"independent\"\n",
            "optimizer.groups.head.decay optimizer.groups.head.name",
            "3:9",
            "leave optimizer.groups.head.decay out",
        ),
    ]);
}

#[test]
fn groups_without_parameters() {
    check_files(&[(
        "[optimizer.groups.positions]\nlr = 0.1\n",
        "optimizer.groups.positions.lr model.position",
        "2:6",
        "set model.position = \"learned\"",
    )]);
    check_settings(&[(
        &["optimizer.groups.head.lr=0.1", "model.tie_embeddings=true"],
        "optimizer.groups.head.lr model.tie_embeddings",
        26,
        "set model.tie_embeddings = false",
    )]);
}
