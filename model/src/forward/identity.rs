//! What a rank's packed weights are of.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::matrices;
use crate::checkpoint::Checkpoint;
use crate::shard::Shard;

/// Tells packed weights that are kept for a rank from those of other files or another share of them:
/// what [`WeightStore`](pocket_device::cpu::WeightStore) is made with. Files that were written again or
/// replaced count as others, so that a rank never mixes kept matrices with parameters of a newer file.
///
/// It is the same in all processes of one build, which is as long as packed weights live.
pub fn weights_identity(checkpoint: &Checkpoint, shard: &Shard) -> [u8; 32] {
    let word = |part: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        part(&mut hasher);
        hasher.finish().to_le_bytes()
    };
    let files = word(&|hasher| {
        checkpoint.describe().hash(hasher);
        checkpoint.weight_files().for_each(|file| file.version().hash(hasher));
    });
    let share = word(&|hasher| {
        let Shard { rank, world, heads, kv_heads, key_heads, value_heads, intermediate, vocab } =
            shard;
        (rank, world, heads, kv_heads, key_heads, value_heads, intermediate, vocab).hash(hasher);
    });
    let sizes = word(&|hasher| matrices(checkpoint.config(), shard).hash(hasher));
    let layers = word(&|hasher| {
        checkpoint
            .config()
            .layers
            .iter()
            .for_each(|kind| std::mem::discriminant(kind).hash(hasher));
    });
    let mut identity = [0; 32];
    for (to, from) in identity.chunks_exact_mut(8).zip([files, share, sizes, layers]) {
        to.copy_from_slice(&from);
    }
    identity
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn shard(checkpoint: &Checkpoint, rank: usize, world: usize) -> Shard {
        Shard::new(checkpoint.config(), rank, world).unwrap()
    }

    #[test]
    fn it_is_of_the_files_as_they_are_and_of_the_share() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-tied");
        let directory = tempfile::tempdir().unwrap();
        let copy = |name: &str| {
            let new = directory.path().join("new");
            std::fs::copy(fixture.join(name), &new).unwrap();
            std::fs::rename(new, directory.path().join(name)).unwrap();
        };
        copy("config.json");
        copy("model.safetensors");
        let open = || Checkpoint::open(directory.path()).unwrap();
        let (first, again) = (open(), open());
        let identity = weights_identity(&first, &shard(&first, 0, 2));
        assert_eq!(weights_identity(&again, &shard(&again, 0, 2)), identity);

        let demo = Checkpoint::demo().unwrap();
        copy("model.safetensors");
        let others = [
            weights_identity(&first, &shard(&first, 1, 2)),
            weights_identity(&first, &shard(&first, 0, 1)),
            weights_identity(&demo, &shard(&demo, 0, 2)),
            weights_identity(&open(), &shard(&first, 0, 2)),
        ];
        assert!(!others.contains(&identity));
    }
}
