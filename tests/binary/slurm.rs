//! A cluster for tests. The commands of Slurm here are scripts that run the tasks at once, or hold them;
//! `scripts/slurm_trial` uses a real cluster.

use crate::place::{Done, Place};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Runs every task of the submitted script, one after another, unless the file `hold` exists.
const SBATCH: &str = r#"#!/bin/sh
[ -f refuse ] && { echo "sbatch: error: Invalid account" >&2; exit 1; }
job=$(($(cat jobs 2>/dev/null || echo 0) + 1))
echo $job >jobs
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\)%.*/\1/p' "$2")
[ -f hold ] || for index in $(seq 0 "$last"); do
    SLURM_ARRAY_JOB_ID=$job SLURM_ARRAY_TASK_ID=$index sh "$2" >>log 2>&1
done
echo $job
"#;
const SQUEUE: &str = "#!/bin/sh\necho \"$@\" >>asked\n[ ! -f queue ] || cat queue\n";
const SCANCEL: &str = "#!/bin/sh\necho \"$@\" >>canceled\n";
/// Arrays have at most two tasks: the limit is above the highest index.
const SCONTROL: &str =
    "#!/bin/sh\n[ \"$1\" = requeue ] && echo \"$2\" >>requeued\necho 'MaxArraySize            = 3'\n";

/// Adds a command of Slurm to a folder.
pub fn add_command(place: &Place, name: &str, text: &str) {
    let path = place.write(&format!("bin/{name}"), text.as_bytes());
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Adds the commands of Slurm and the settings of its site to a folder.
pub fn add_to(place: &Place) {
    for (name, text) in [("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL), ("scontrol", SCONTROL)]
    {
        add_command(place, name, text);
    }
    place.write(
        "xrun.toml",
        b"[executor.slurm]\nminutes = 3\npartition = \"short\"\nextra = [\"--comment=tests\"]\n",
    );
}

/// Lets a shell find the commands of Slurm.
pub const PATH: &str = "PATH=$PWD/bin:/usr/bin:/bin; export PATH";

/// Lets a task know its number.
pub const TASK_PATH: &str = "PATH=$PWD/bin:/usr/bin:/bin; SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=0; \
                             XRUN_BATCH_TASK=7_0; export PATH SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID XRUN_BATCH_TASK";

/// Runs xrun where it finds the commands of Slurm.
pub fn xrun(place: &Place, arguments: &[&str]) -> Done {
    place.start_under(PATH, arguments).ends()
}

/// Returns the folder of the only submission.
pub fn submission(place: &Place) -> PathBuf {
    let only = |folder: PathBuf| {
        let mut found: Vec<PathBuf> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| !path.ends_with("programs"));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    };
    only(only(place.path().join("results/sweeps/.submitted")))
}
