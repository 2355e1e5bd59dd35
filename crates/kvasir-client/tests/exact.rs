//! Quality exact: chunks come back bit for bit, whatever profiles there are.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use common::{Server, find, five_minutes_later, kv, load, profiles, save, spec, start, tokens, with_power};
use kvasir_client::{Builder, Error, Kvasir, report::ChunkOutcome, tuning::LoadOptions};
use kvasir_codec::{Profile, STARTER_RECIPE};
use kvasir_types::{KvDtype, Level, LevelError, ModelSpec, ProfileHash, Quality};

fn exact(server: &Server) -> Builder {
    let builder = Kvasir::builder(server.url()).model(spec()).namespace("test").chunk_tokens(256);
    builder.quality(Quality::Exact)
}

/// Profiles like one that come before another: this service says no times, so the lowest hash is preferred.
fn preferred_to(hash: ProfileHash, like: &Profile) -> impl Iterator<Item = Profile> {
    let noted = move |note: u32| {
        let mut parts = like.parts();
        parts.training.note = note.to_string();
        Profile::assemble(parts).unwrap()
    };
    (0..).map(noted).filter(move |other| other.hash() < hash)
}

/// Nothing has to be trained for it, and nobody else's chunks get larger by it.
#[tokio::test]
async fn exact_chunks_of_a_model_without_a_profile_are_stored_from_the_first_cache() {
    let server = start().await;
    let first = exact(&server).connect().await.unwrap();
    assert!(first.profile().is_none());
    let text = tokens(600, 21);
    let report = save(&first, &text).await;
    assert!(report.chunks.iter().all(|chunk| matches!(chunk.outcome, ChunkOutcome::Stored { .. })));
    let made = first.profile().unwrap();
    assert_eq!((made.training().recipe.as_str(), profiles(&first).await), (STARTER_RECIPE, 1));
    let reader = exact(&server).connect().await.unwrap();
    let (loaded, rows) = load(&find(&reader, &text).await, LoadOptions::at_level(Level::BASE)).await;
    assert_eq!((loaded.loaded_tokens(), loaded.loss().error), (600, LevelError::NONE));
    assert_eq!(rows, kv(&text));
    // Others read them, and make a first profile of their own.
    let other = exact(&server).quality(Quality::Transparent).connect().await.unwrap();
    other.preload_profiles().await.unwrap();
    assert_eq!(find(&other, &text).await.matched_tokens(), 600);
    save(&other, &tokens(600, 22)).await;
    assert!(!other.profile().unwrap().is_lossless());
    assert_eq!(profiles(&other).await, 2);
    assert_eq!(reader.profile().unwrap().hash(), made.hash());
    let spec = ModelSpec { kv_dtype: KvDtype::F32, ..spec() };
    let refused = exact(&server).model(spec).connect().await;
    assert!(matches!(refused, Err(Error::Config { .. })), "its values have no exact level: {refused:?}");
}

/// A chunk stays as its first writer stored it, which a client of a higher quality can tell from a miss.
#[tokio::test]
async fn what_others_stored_with_loss_is_counted_and_stays_as_it_is() {
    let server = start().await;
    let client = exact(&server).connect().await.unwrap();
    let text = tokens(600, 23);
    save(&client, &text[..256]).await;
    let lossy = exact(&server).quality(Quality::Transparent).connect().await.unwrap();
    save(&lossy, &text).await;
    client.preload_profiles().await.unwrap();
    for _ in 0..2 {
        let session = find(&client, &text).await;
        assert_eq!((session.matched_tokens(), session.below_floor_tokens()), (256, 344));
        let again = session.save_now(&kv(&text), text.len(), |_| ()).await.unwrap();
        assert!(again.chunks.iter().all(|chunk| chunk.outcome == ChunkOutcome::AlreadyThere), "{again:?}");
    }
    let apart = exact(&server).namespace("exact").connect().await.unwrap();
    save(&apart, &text).await;
    let session = find(&apart, &text).await;
    assert_eq!((session.matched_tokens(), session.below_floor_tokens()), (600, 0));
}

/// Otherwise it would store chunks that it never loads.
#[tokio::test]
async fn a_profile_that_is_given_for_exact_chunks_makes_them() {
    let server = start().await;
    let refused = async |builder: Builder| match builder.connect().await {
        Err(Error::Config { what }) => {
            assert!(what.contains("the given one is none") && what.contains("exact-only"), "{what}");
        }
        other => panic!("{other:?}"),
    };
    refused(common::builder(&server).quality(Quality::Exact)).await;
    let profile = common::other_profile();
    // Its chunks would be exact, but not say so.
    let unmeasured = with_power(&profile, 0.0);
    refused(exact(&server).profile(Arc::clone(&unmeasured))).await;
    let first = exact(&server).quality(Quality::Transparent).connect().await.unwrap();
    save(&first, &tokens(600, 14)).await;
    first.rest().put_profile(&first.model_id(), unmeasured.to_bytes()).await.unwrap();
    let given = exact(&server).profile(Arc::clone(&profile)).connect().await.unwrap();
    save(&given, &tokens(600, 15)).await;
    // Beside the others, whichever of them other clients encode with.
    let automatic = exact(&server).connect().await.unwrap();
    assert_eq!((automatic.profile().unwrap().hash(), profiles(&automatic).await), (profile.hash(), 3));
    let text = tokens(600, 16);
    save(&automatic, &text).await;
    let (loaded, rows) = load(&find(&given, &text).await, LoadOptions::at_level(Level::BASE)).await;
    assert_eq!((loaded.loaded_tokens(), loaded.loss().error), (600, LevelError::NONE));
    assert_eq!(rows, kv(&text));
    // An adapter is a model of its own: the profile serves it, too, given or not.
    for (kvasir, adapter) in [(&given, "style@1"), (&automatic, "style@2")] {
        let adapted = kvasir.session(&text).adapter(adapter).await;
        assert!(adapted.lookup_error().is_none(), "{adapter}: {:?}", adapted.lookup_error());
        adapted.save_now(&kv(&text), text.len(), |_| ()).await.unwrap();
        assert_eq!(kvasir.session(&text).adapter(adapter).await.matched_tokens(), 600, "{adapter}");
    }
}

#[tokio::test]
async fn a_profile_for_exact_chunks_is_found_behind_many_others_and_kept() {
    let server = start().await;
    let profile = common::other_profile();
    let given = exact(&server).profile(Arc::clone(&profile)).connect().await.unwrap();
    save(&given, &tokens(600, 14)).await;
    let publish_preferred = async |like: &Profile, count: usize| {
        for other in preferred_to(profile.hash(), like).take(count) {
            given.rest().put_profile(&given.model_id(), other.to_bytes()).await.unwrap();
        }
    };
    publish_preferred(&common::profile(), 17).await;
    let automatic = exact(&server).connect().await.unwrap();
    assert_eq!(automatic.profile().unwrap().hash(), profile.hash());
    // To see that another one is preferred, it would fetch all of these every five minutes.
    publish_preferred(&profile, 1).await;
    five_minutes_later().await;
    save(&automatic, &tokens(600, 15)).await;
    assert_eq!(automatic.profile().unwrap().hash(), profile.hash());
}

#[tokio::test]
async fn a_first_profile_for_exact_chunks_is_left_for_a_preferred_one() {
    let server = start().await;
    let automatic = exact(&server).connect().await.unwrap();
    let (rest, model) = (automatic.rest(), automatic.model_id());
    // One without an exact level, at which nobody looks twice.
    rest.put_profile(&model, common::profile().to_bytes()).await.unwrap();
    save(&automatic, &tokens(600, 14)).await;
    assert_eq!(server.profile_reads(), 1);
    let first = automatic.profile().unwrap();
    assert_eq!(first.training().recipe, STARTER_RECIPE);
    // An adapter looks for one of its own.
    let text = tokens(600, 15);
    let adapted = ModelSpec { adapter: Some("style@1".to_owned()), ..spec() };
    let mut parts = common::other_profile().parts();
    parts.model_id = adapted.model_id();
    let trained = Profile::assemble(parts).unwrap();
    rest.register_model(&adapted).await.unwrap();
    rest.put_profile(&adapted.model_id(), trained.to_bytes()).await.unwrap();
    let session = automatic.session(&text).adapter("style@1").await;
    session.save_now(&kv(&text), text.len(), |_| ()).await.unwrap();
    let session = automatic.session(&text).adapter("style@1").await;
    assert_eq!(session.matched_tokens(), 600);
    assert!(session.chunks().iter().all(|chunk| chunk.profile_hash == trained.hash()));
    // Another client's first one, so that both end with the same, and a trained one.
    for (seed, like) in [(16, &*first), (17, &*common::other_profile())] {
        let before = automatic.profile().unwrap().hash();
        let preferred = preferred_to(before, like).next().unwrap();
        rest.put_profile(&model, preferred.to_bytes()).await.unwrap();
        five_minutes_later().await;
        save(&automatic, &tokens(600, seed)).await;
        assert_eq!(automatic.profile().unwrap().hash(), preferred.hash());
    }
}
