//! A replica's local disk after a crash: torn, dropped and reverted writes, lost files. It is only a cache,
//! so the only effect may be colder lookups.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::TryStreamExt;
use kvasir_storage::{ByteRange, Lookup, Query, Settings, Storage, index::Index};
use kvasir_store::{OpenStore, StoreConfig, layout::ChunkKey, observe::NoObserver};
use kvasir_tests::{chunks, faulty::Dice};
use kvasir_types::ObjectDigest;
use object_store::ObjectStore;

use crate::{client, wanted};

const SECTOR: usize = 512;

async fn replica(store: &OpenStore, directory: &Path) -> Arc<Storage> {
    let index = Index::sled(directory.into(), store.identity(), 1 << 20).expect("opens whatever it finds");
    let abilities = store.probe().await.expect("memory answers");
    Storage::new(store.clone(), abilities, index, Settings::new(directory.join("spool")), None)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let nested = entries.map(|entry| entry.path());
    let mut files: Vec<_> =
        nested.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("below it"));
        fs::create_dir_all(target.parent().expect("has one")).expect("writable");
        fs::copy(&file, target).expect("copies");
    }
}

/// The files that a crash leaves of `now`, given those `before`.
fn crash(dice: &mut Dice, before: &Path, now: &Path) -> &'static str {
    let all = files(now);
    let Some(file) = all.get(dice.below(all.len())) else { return "nothing there" };
    let mut bytes = fs::read(file).expect("reads");
    let what = match dice.below(6) {
        0 => {
            bytes.truncate(dice.below(bytes.len() + 1));
            "cut short"
        }
        1 => {
            // The file grew, its data did not get there.
            let from = dice.below(bytes.len() + 1);
            bytes[from..].fill(0);
            "zeros at the end"
        }
        2 => {
            let sectors = bytes.len() / SECTOR;
            for _ in 0..1 + dice.below(8) {
                let at = dice.below(sectors) * SECTOR;
                if let Some(sector) = bytes.get_mut(at..at + SECTOR) {
                    sector.fill(0);
                }
            }
            "lost sectors"
        }
        3 => {
            // Unsynced writes that never happened: sectors as they were.
            let old = fs::read(before.join(file.strip_prefix(now).expect("below it"))).unwrap_or_default();
            let common = bytes.len().min(old.len()) / SECTOR;
            for at in (0..common).map(|i| i * SECTOR) {
                if dice.chance(500) {
                    bytes[at..at + SECTOR].copy_from_slice(&old[at..at + SECTOR]);
                }
            }
            "reverted sectors"
        }
        4 => {
            for _ in 0..1 + dice.below(20) {
                let at = dice.below(bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << dice.below(8);
                }
            }
            "flipped bits"
        }
        _ => {
            fs::remove_file(file).expect("removes");
            return "a lost file";
        }
    };
    fs::write(file, bytes).expect("writes");
    what
}

#[tokio::test]
async fn a_crashed_disk_makes_lookups_colder_and_never_wrong() {
    let rounds = wanted("KVASIR_TEST_DISK_CRASHES", 24);
    let mut dice = Dice::new(7);
    let store = OpenStore::open(&StoreConfig::new("memory://".parse().expect("a url")), Arc::new(NoObserver));
    let store = store.expect("opens");
    let home = tempfile::tempdir().expect("a directory");
    let mut at = home.path().join("0");
    let mut contexts = Vec::new();
    let (mut colder, mut replaced) = (0, 0);
    for round in 0..rounds {
        let now = replica(&store, &at).await;
        let root = client::join(&now, &client::tenant()).await.expect("memory");
        let before = home.path().join(format!("{round}-before"));
        now.index().flush();
        copy(&at, &before);
        for i in 0..6 {
            let tokens = chunks::tokens(round * 10 + i, 100 + dice.below(900));
            for chunk in chunks::context(root, &tokens, 256, 20) {
                client::store(&now, &chunk).await.expect("memory");
            }
            contexts.push(tokens);
        }
        now.index().flush();
        let after = home.path().join(format!("{}", round + 1));
        copy(&at, &after);
        drop(now);
        let mut what = "";
        for _ in 0..1 + dice.below(3) {
            what = crash(&mut dice, &before, &after);
        }
        let crashed = replica(&store, &after).await;
        replaced += crashed.index().replaced();
        let rows = crashed.index().len();
        for tokens in contexts.iter().rev().take(20) {
            let query = Query::Tokens(tokens.clone());
            let (tenant, namespace, model_id) = (client::tenant(), client::namespace(), client::model_id());
            let found = crashed.lookup(&Lookup::new(&tenant, &namespace, &model_id, query).fresh(true)).await;
            let found = found.expect("answers");
            assert_eq!(found.matched_tokens, tokens.len() as u64, "round {round} after {what}");
            for hit in found.chunks {
                let (seq_hash, object_digest) = (hit.seq_hash, hit.object_digest);
                let key = ChunkKey { tenant: tenant.clone(), model_id, seq_hash, object_digest };
                let bytes = client::whole(&crashed, &key, ByteRange::Whole).await.expect("reads");
                assert_eq!(ObjectDigest::of(&bytes), object_digest, "round {round} after {what}");
            }
        }
        colder += u64::from(crashed.index().len() > rows);
        drop(crashed);
        for old in [at, before] {
            fs::remove_dir_all(old).expect("removes");
        }
        at = after;
    }
    let objects: Vec<_> = store.objects().list(None).try_collect().await.expect("lists");
    assert!(objects.len() > contexts.len());
    println!("{rounds} crashed disks: {replaced} databases replaced, {colder} times colder, 0 wrong, 0 lost");
    assert!(colder > 0, "the damage never hit anything");
}
