//! Groups of parameters by role: each is updated by its own rule, on every path.

use crate::engine::harness::{Setup, Trained};
use crate::engine::optimizers::meta;
use std::collections::BTreeMap;
use std::sync::Arc;
use xrun::checkpoint::{Store, newest};
use xrun::error::Result;
use xrun::ir::{Builder, OptimizerSlot, Precision};
use xrun::optim::{GroupRole, Optimizer, Rates, Update};
use xrun::train::Rank;

const STEPS: usize = 4;
const SHARDED: &str = "parallelism.shard=optimizer";

/// A rule for every role, from three optimizers.
pub const MIXED: &[&str] = &[
    "model.position=learned",
    "model.bias=true",
    "optimizer.groups.embedding.lr=2e-2",
    "optimizer.groups.embedding.decay=independent",
    "optimizer.groups.positions.name=lion",
    "optimizer.groups.positions.lr=1e-3",
    "optimizer.groups.head.betas=[0.8, 0.9]",
    "optimizer.groups.matrix.name=sgd",
    "optimizer.groups.matrix.lr=0.1",
    "optimizer.groups.vector.weight_decay=0.5",
];

#[test]
fn rules_that_are_equal_are_one_group_with_the_programs_and_bits_of_one_rule() {
    let equal = [
        "optimizer.groups.embedding.lr=1e-2",
        "optimizer.groups.matrix.name=adamw",
        "optimizer.groups.head.betas=[0.9, 0.95]",
        "optimizer.groups.vector.weight_decay=0.0",
        "optimizer.groups.vector.decay=coupled",
    ];
    for more in [&[][..], &["parallelism.world_size=2", SHARDED, "training.dtype=bf16"]] {
        let [one, joined] = [&[][..], &equal].map(|groups| Setup::new(&[groups, more].concat()));
        assert_eq!(one.listing(), joined.listing(), "{more:?}");
        assert_eq!(joined.train(STEPS)[0].difference(&one.train(STEPS)[0]), None, "{more:?}");
    }
}

/// After one step from the same start, the parameters of a role and their slots are the same as in a run in
/// which all parameters have this rule; the others are the same as in a run without the group.
#[test]
fn every_role_follows_its_own_rule_and_leaves_the_others() {
    let of = |settings: &[&str]| Setup::new(&[&MIXED[..2], settings].concat());
    let trained = |setup: &Setup| setup.train_one(1).tensors.into_iter().collect::<BTreeMap<_, _>>();
    let base = trained(&of(&[]));
    // Groups inherit some values from AdamW that another optimizer has other defaults for.
    for (key, value, inherited) in [
        ("name", "sgd", &["optimizer.weight_decay=0.1"][..]),
        ("name", "lion", &["optimizer.betas=[0.9, 0.95]"]),
        ("lr", "3e-3", &[]),
        ("decay", "independent", &[]),
        ("betas", "[0.8, 0.9]", &[]),
        ("weight_decay", "0.5", &[]),
    ] {
        let all = trained(&of(&[&[format!("optimizer.{key}={value}").as_str()], inherited].concat()));
        for role in GroupRole::ALL {
            let setting = format!("optimizer.groups.{}.{key}={value}", role.word());
            let setup = of(&[&setting]);
            let own: Vec<_> = setup.programs.state.params.iter().map(|p| (&p.name, p.role)).collect();
            let found = trained(&setup);
            let decays_too = key == "weight_decay" && role == GroupRole::Vector;
            let mut changed = false;
            for (name, bytes) in &found {
                let (_, param_role) = own.iter().find(|(param, _)| name.ends_with(param.as_str())).unwrap();
                let is_own = GroupRole::from_role(*param_role) == role;
                if !(is_own && decays_too) {
                    let expected = if is_own { &all } else { &base }.get(name);
                    assert!(Some(bytes) == expected, "{setting}: {name}");
                }
                changed |= is_own && base.get(name) != Some(bytes);
            }
            // Zero biases have nothing to lose yet, but norm weights have.
            let spared = key == "decay" && role == GroupRole::Vector;
            assert_eq!(changed, !spared, "{setting}");
        }
    }
}

/// With powers of two, every product is exact, so both forms of decay give the same bits.
#[test]
fn independent_decay_is_what_coupled_decay_is_at_another_peak() {
    let of = |settings: &[&str]| Setup::new(settings).train_one(STEPS);
    let peak = "optimizer.lr=0.0625";
    let coupled = of(&[peak, "optimizer.weight_decay=4.0"]);
    let independent = of(&[peak, "optimizer.decay=independent", "optimizer.weight_decay=0.25"]);
    assert_eq!(coupled.difference(&independent), None);
}

fn assert_same_bits(whole: &[Trained], sharded: &[Trained], what: &str) {
    assert_eq!(sharded[0].tensors.len(), whole[0].tensors.len(), "{what}");
    for rank in whole.iter().chain(sharded) {
        assert_eq!(rank.difference(&whole[0]), None, "{what}");
    }
}

#[test]
fn any_number_of_ranks_gives_the_same_bits_with_slots_whole_and_divided() {
    for ranks in [1, 2, 3] {
        let world = format!("parallelism.world_size={ranks}");
        for more in [&["training.dtype=fp32"][..], &["training.dtype=bf16", "parallelism.bucket_mib=0.01"]] {
            let run = |shard: &[&str]| {
                let setup = Setup::new(&[MIXED, &[&world], more, shard].concat());
                let state_bytes = setup.programs.state.bytes();
                let trained = setup.train(STEPS);
                assert!(trained.iter().all(|rank| rank.state_bytes == state_bytes), "planned to the byte");
                trained
            };
            assert_same_bits(&run(&[]), &run(&[SHARDED]), &format!("{ranks} ranks, {more:?}"));
        }
    }
}

/// A group's slots are exactly as long as its parameters.
#[test]
fn slots_have_room_for_the_parameters_of_their_group_alone() {
    let state = Setup::new(MIXED).programs.state.clone();
    let bytes = |name: &str| state.buffers.iter().find(|buffer| buffer.name == name).map(|b| b.bytes);
    let role_bytes = |role: GroupRole| {
        let own = state.params.iter().filter(|param| GroupRole::from_role(param.role) == role);
        own.map(|param| param.spec.elements().next_multiple_of(64) * 4).sum::<usize>()
    };
    assert_eq!(bytes("momentum.matrix"), Some(role_bytes(GroupRole::Matrix)));
    assert_eq!(bytes("momentum.positions"), Some(role_bytes(GroupRole::Positions)));
    for slot in ["m", "v"] {
        assert_eq!(bytes(&format!("{slot}.embedding")), Some(role_bytes(GroupRole::Embedding)));
        assert_eq!(bytes(slot), None);
    }
}

pub type Tensors = BTreeMap<String, Vec<u8>>;

pub fn snapshot(rank: &Rank) -> Result<Tensors> {
    let mut tensors = BTreeMap::new();
    if rank.engine().comm.rank() == 0 {
        for tensor in rank.snapshot().tensors() {
            tensors.insert(tensor.name.clone(), tensor.bytes()?.into_owned());
        }
        rank.end_snapshot()?;
    } else {
        rank.answer_snapshot()?;
    }
    Ok(tensors)
}

/// A checkpoint has whole tensors under the names of parameters, whoever wrote it.
#[test]
fn a_checkpoint_of_ranks_that_share_the_state_goes_on_with_any_number() {
    let setup = |world: usize, more: &[&str]| {
        Setup::new(&[MIXED, &[&format!("parallelism.world_size={world}")], more].concat())
    };
    let folder = tempfile::tempdir().unwrap();
    let written = setup(3, &[SHARDED, "training.dtype=bf16"]);
    let saved = written.on_ranks(
        |_| Arc::clone(&written.plan),
        |rank| {
            (0..STEPS).try_for_each(|_| rank.train_step().map(drop))?;
            rank.gather_parameters()?;
            if rank.engine().comm.rank() == 0 {
                Store::open(folder.path(), 1)?.save(&meta(STEPS as u64), &rank.snapshot())?;
                rank.end_snapshot()?;
            } else {
                rank.answer_snapshot()?;
            }
            snapshot(rank)
        },
    );
    let saved = saved.unwrap().remove(0);
    for name in ["adam.m.embedding", "lion.momentum.positions", "sgd.momentum.blocks.0.qkv"] {
        assert!(saved.contains_key(name), "{name} of {:?}", saved.keys());
    }
    for (world, more) in [(1, &[][..]), (2, &[SHARDED]), (3, &[])] {
        let read = setup(world, &[&["training.dtype=bf16"], more].concat());
        let restored = read.on_ranks(
            |_| Arc::clone(&read.plan),
            |rank| {
                let loaded = newest(folder.path())?.filter(|_| rank.engine().comm.rank() == 0);
                rank.restore(STEPS as u64, loaded.as_ref())?;
                snapshot(rank)
            },
        );
        assert!(restored.unwrap()[0] == saved, "{world} ranks, {more:?}");
    }
}

/// Makes an optimizer of whole parameters out of another optimizer's rule.
#[derive(Debug)]
struct Whole(Arc<dyn Optimizer>);

impl Optimizer for Whole {
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot> {
        self.0.slots(precision)
    }

    fn slots_in_words(&self) -> &'static str {
        self.0.slots_in_words()
    }

    fn schedule_width(&self) -> usize {
        self.0.schedule_width()
    }

    fn schedule_row(&self, rates: Rates, step: u64) -> Vec<f64> {
        self.0.schedule_row(rates, step)
    }

    fn owns_whole_parameters(&self) -> bool {
        true
    }

    fn record(&self, b: &mut Builder, update: &Update) -> Result<()> {
        self.0.record(b, update)
    }
}

#[test]
fn ranks_own_whole_matrices_where_an_optimizer_needs_them_and_no_bit_changes() {
    for ranks in [2, 3] {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let run = |more: &[&str]| {
                let world = format!("parallelism.world_size={ranks}");
                let overrides = [MIXED, &[&world, dtype], more].concat();
                Setup::planned(&overrides, |plan| {
                    let is_matrix =
                        |group: &&mut xrun::optim::UpdateGroup| group.roles.contains(&GroupRole::Matrix);
                    let group = plan.update_groups.iter_mut().find(is_matrix).unwrap();
                    group.optimizer = Arc::new(Whole(Arc::clone(&group.optimizer)));
                })
            };
            let (whole, sharded) = (run(&[]), run(&[SHARDED]));
            let state = &sharded.programs.state;
            let shards = state.shards.as_ref().unwrap();
            let mut owned = vec![0; ranks];
            for param in state.params.iter().filter(|p| GroupRole::from_role(p.role) == GroupRole::Matrix) {
                let owners: Vec<_> = shards.within(param.flat()).collect();
                assert_eq!(owners.len(), 1, "{ranks} ranks: {} has one owner", param.name);
                owned[owners[0].rank] += param.spec.elements();
            }
            assert!(owned.iter().all(|&elements| elements > 0), "{owned:?}");
            assert_same_bits(&whole.train(STEPS), &sharded.train(STEPS), &format!("{ranks} ranks, {dtype}"));
        }
    }
}
