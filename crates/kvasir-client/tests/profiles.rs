//! Profiles that make themselves: a model that nobody trained anything for is stored from its first request.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{
    Fault, Server, find, five_minutes_later, kv, load, profiles, range, save, save_kv, spec, start, tokens,
    warnings::Warnings, with_power,
};
use kvasir_client::{
    Builder, Deadline, Error, Kvasir, QualityFloor, Session,
    limits::PROFILE_ELEMENT_MACS_MAX,
    report::{ChunkOutcome, SaveOutcome, SaveRefusal},
    tuning::{LoadOptions, RecomputeModel},
};
use kvasir_codec::{
    KvBuffer, Profile, STARTER_RECIPE,
    authoring::{Basis, CoefficientCoding, PackedRows},
    starter,
};
use kvasir_train::{BasisRecipe, Recipe, TrainingContext, train, train_transparent};
use kvasir_types::{Level, LevelError, Loss, Plane, Quality};

fn builder(server: &Server) -> Builder {
    Kvasir::builder(server.url()).model(spec()).namespace("test").chunk_tokens(256)
}

/// A session of a new client of a quality.
async fn session_of(server: &Server, quality: Quality, text: &[u32]) -> Session {
    let kvasir = builder(server).quality(quality).connect().await.unwrap();
    kvasir.preload_profiles().await.unwrap();
    find(&kvasir, text).await
}

/// Loads a session of 600 tokens and returns the level of its chunks, and the error.
async fn level_of(session: &Session, options: LoadOptions) -> (Option<Level>, LevelError) {
    let (loaded, _) = load(session, options).await;
    assert_eq!(loaded.loaded_tokens(), 600);
    let levels: Vec<_> = loaded.report().unwrap().chunks.iter().map(|chunk| chunk.level).collect();
    assert!(levels.iter().all(|level| *level == levels[0]), "{levels:?}");
    (levels[0], loaded.loss().error)
}

/// Error of `found` over the power of `truth` about its mean.
fn error(truth: &KvBuffer, found: &KvBuffer) -> f64 {
    let truth = truth.as_slice();
    let mean = truth.iter().map(|x| f64::from(*x)).sum::<f64>() / truth.len() as f64;
    let power: f64 = truth.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
    let error: f64 = truth.iter().zip(found.as_slice()).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    error / power
}

#[tokio::test]
async fn a_model_without_a_profile_is_stored_from_its_first_cache() {
    let server = start().await;
    let first = builder(&server).connect().await.unwrap();
    assert!(first.profile().is_none());
    let text = tokens(600, 1);
    assert_eq!(find(&first, &text).await.matched_tokens(), 0);
    assert_eq!(profiles(&first).await, 0, "nothing is made before something is saved");
    let report = save(&first, &text).await;
    assert!(report.chunks.iter().all(|chunk| matches!(chunk.outcome, ChunkOutcome::Stored { .. })));
    let made = first.profile().unwrap();
    assert_eq!((made.training().recipe.as_str(), profiles(&first).await), (STARTER_RECIPE, 1));
    // Another client takes it, for reading and for writing.
    let second = builder(&server).connect().await.unwrap();
    second.preload_profiles().await.unwrap();
    let session = find(&second, &text).await;
    assert_eq!(session.matched_tokens(), 600);
    let (loaded, found) = load(&session, LoadOptions::at_level(Level(2))).await;
    assert_eq!(loaded.loaded_tokens(), 600);
    let found = error(&kv(&text), &found);
    assert!(found < 6.25e-4, "{found:.2e}");
    let (loaded, _) = load(&session, LoadOptions::from(Deadline::none())).await;
    assert_eq!(loaded.missing(), [range(599, 600)]);
    save(&second, &tokens(600, 2)).await;
    assert_eq!((second.profile().unwrap().hash(), profiles(&second).await), (made.hash(), 1));
}

/// The encoder measures, the lookup says it, the load keeps to it, and what is computed over it carries it.
#[tokio::test]
async fn a_named_quality_is_measured_and_kept() {
    let server = start().await;
    let first = builder(&server).connect().await.unwrap();
    let text = tokens(600, 11);
    save(&first, &text).await;
    for (quality, level) in [(Quality::Small, 0), (Quality::Balanced, 1), (Quality::Transparent, 2)] {
        let session = session_of(&server, quality, &text).await;
        let (found, error) = level_of(&session, LoadOptions::at_level(Level::BASE)).await;
        assert_eq!(found, Some(Level(level)), "{quality}");
        assert!(error <= quality.error_max(), "{quality}: {error}");
    }
    let errors = find(&first, &text).await.chunks()[0].errors.clone().unwrap();
    assert_eq!((errors.beneath, errors.hops, errors.levels.len()), (LevelError::NONE, 0, 3));

    // Over two transparent loads the third turn is not stored: each adds its error, and nobody knows what they cost.
    let (mut turn, mut stored) = (text.clone(), Vec::new());
    for i in 0..3 {
        turn.extend(tokens(256, 60 + i));
        let session = find(&first, &turn).await;
        let options = LoadOptions { last_token: false, ..LoadOptions::at_level(Level(2)) };
        let _ = load(&session, options).await;
        match session.save(&kv(&turn), turn.len()).outcome().await {
            SaveOutcome::Saved(_) => {
                stored.push(find(&first, &turn).await.chunks().last().unwrap().errors.clone().unwrap())
            }
            SaveOutcome::Refused(SaveRefusal::Beneath { hops, .. }) => assert_eq!((i, hops), (2, 3)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stored.iter().map(|errors| errors.hops).collect::<Vec<_>>(), [1, 2]);
    assert!(
        stored.iter().all(|errors| Quality::of(errors.beneath) == Some(Quality::Transparent)),
        "{stored:?}"
    );
    // And none over a coarse one, or one that was not measured.
    for (error, hops) in [(LevelError::at_least(8.0), 1), (LevelError::UNKNOWN, 0)] {
        let session = find(&first, &text).await;
        session.reused(Loss { kl: 0.0, error, hops });
        let outcome = session.save(&kv(&text), text.len()).outcome().await;
        let SaveOutcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
        assert_eq!(refusal, SaveRefusal::Beneath { error, hops });
    }
}

/// A load may go below the connection's quality where it names a lower one, and no further.
#[tokio::test]
async fn a_soft_floor_lets_one_load_go_below_the_quality() {
    let server = start().await;
    let text = tokens(600, 11);
    save(&builder(&server).connect().await.unwrap(), &text).await;
    let session = session_of(&server, Quality::Transparent, &text).await;
    let coarsest = |soft_floor| LoadOptions { soft_floor, ..LoadOptions::at_level(Level::BASE) };
    for (soft, level) in [(None, 2), (Some(Quality::Balanced), 1), (Some(Quality::Small), 0)] {
        let (found, error) = level_of(&session, coarsest(soft)).await;
        assert_eq!(found, Some(Level(level)), "{soft:?}");
        assert!(error <= soft.unwrap_or(Quality::Transparent).error_max(), "{soft:?}: {error}");
    }
    for soft in [Quality::Transparent, Quality::Exact] {
        let refused = session.load([], coarsest(Some(soft))).err();
        assert!(matches!(refused, Some(Error::Config { .. })), "{soft}: {refused:?}");
    }
    // Without a named quality every level is allowed already.
    let adaptive = builder(&server).quality(QualityFloor::Adaptive).connect().await.unwrap();
    let adaptive = find(&adaptive, &text).await;
    assert!(matches!(adaptive.load([], coarsest(Some(Quality::Small))).err(), Some(Error::Config { .. })));
}

/// With time, a load over a soft floor is as good as one without.
#[tokio::test]
async fn progressive_falls_to_the_soft_floor_only_where_there_is_no_time() {
    let server = start().await;
    let text = tokens(600, 11);
    save(&builder(&server).connect().await.unwrap(), &text).await;
    let session = session_of(&server, Quality::Transparent, &text).await;
    let levels_within = async |time: Duration, soft_floor: Option<Quality>| {
        // Computing is out of the question.
        let recompute = Some(RecomputeModel::from_seconds(100.0, 1.0, 0.0));
        let (deadline, suffix_time) = (Deadline::within(time), Some(Duration::ZERO));
        let options = LoadOptions { soft_floor, recompute, suffix_time, last_token: true, ..deadline.into() };
        let (loaded, _) = load(&session, options).await;
        let report = loaded.report().unwrap();
        assert_eq!((loaded.loaded_tokens(), report.policy), (600, "progressive"));
        report.chunks.iter().map(|chunk| chunk.level).collect::<Vec<_>>()
    };
    for (soft, coarsest) in [(None, 2), (Some(Quality::Balanced), 1), (Some(Quality::Small), 0)] {
        assert_eq!(levels_within(Duration::ZERO, soft).await, [Some(Level(coarsest)); 3], "{soft:?}");
        assert_eq!(levels_within(Duration::from_secs(30), soft).await, [Some(Level(2)); 3], "{soft:?}");
    }
}

/// By default, clients load no chunks of unknown error: neither do they make any.
#[tokio::test]
async fn a_profile_whose_chunks_record_no_errors_is_not_taken_over() {
    let server = start().await;
    let unmeasured = with_power(&common::other_profile(), 0.0);
    let automatic = builder(&server).connect().await.unwrap();
    automatic.rest().put_profile(&automatic.model_id(), unmeasured.to_bytes()).await.unwrap();
    let text = tokens(600, 7);
    save(&automatic, &text).await;
    assert_eq!(automatic.profile().unwrap().training().recipe, STARTER_RECIPE);
    assert_eq!(find(&automatic, &text).await.matched_tokens(), 600);
    // Who gives it is told, and gets what it asks for.
    let warnings = Warnings::collect();
    let given = builder(&server).profile(unmeasured).connect().await.unwrap();
    assert_eq!(warnings.with("do not record their errors"), 1);
    let text = tokens(600, 8);
    save(&given, &text).await;
    assert_eq!(find(&given, &text).await.matched_tokens(), 0);
}

/// Errors behind anchors are not measured, whatever the profile says.
#[tokio::test]
async fn a_chunk_whose_error_is_not_measured_is_stored_with_the_first_profile() {
    let server = start().await;
    let text = tokens(1024, 97);
    let context = TrainingContext { first_position: 0, kv: kv(&text), tokens: text };
    let anchored = train(&spec(), &[context], &Recipe::CacheGen, 0.01, &mut |_, _| ()).unwrap();
    let mut parts = with_power(&anchored, 1.0).parts();
    parts.levels.iter_mut().for_each(|level| level.nmse = 1e-4);
    let anchored = Profile::assemble(parts).unwrap();
    let kvasir = builder(&server).connect().await.unwrap();
    let text = tokens(600, 7);
    // The chunks of an unmeasured first profile would record no errors, either.
    let unmeasured = with_power(&starter(&spec(), &text, 0, &kv(&text)).unwrap(), 0.0);
    for profile in [&anchored, &*unmeasured] {
        kvasir.rest().put_profile(&kvasir.model_id(), profile.to_bytes()).await.unwrap();
    }
    save(&kvasir, &text).await;
    assert_eq!(kvasir.profile().unwrap().hash(), anchored.hash());
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 600);
}

#[tokio::test]
async fn clients_that_begin_together_read_each_other() {
    let server = start().await;
    let clients = [builder(&server).connect().await.unwrap(), builder(&server).connect().await.unwrap()];
    let texts = [tokens(600, 3), tokens(600, 4)];
    tokio::join!(save(&clients[0], &texts[0]), save(&clients[1], &texts[1]));
    for (client, text) in clients.iter().zip(texts.iter().rev()) {
        client.preload_profiles().await.unwrap();
        assert_eq!(find(client, text).await.matched_tokens(), 600);
    }
    // Later ones agree on one of the two.
    let later = [builder(&server).connect().await.unwrap(), builder(&server).connect().await.unwrap()];
    for (i, client) in later.iter().enumerate() {
        save(client, &tokens(600, 5 + i as u32)).await;
    }
    assert_eq!(later[0].profile().unwrap().hash(), later[1].profile().unwrap().hash());
    assert!(profiles(&later[0]).await <= 2);
}

#[tokio::test]
async fn a_profile_that_loses_much_is_not_taken_over() {
    let server = start().await;
    // Its finest level has an error of 1e-2.
    let coarse = common::connect(&server).await;
    save(&coarse, &tokens(600, 7)).await;
    let careful = builder(&server).connect().await.unwrap();
    save(&careful, &tokens(600, 8)).await;
    assert_ne!(careful.profile().unwrap().hash(), coarse.profile().unwrap().hash());
    assert_eq!(careful.profile().unwrap().training().recipe, STARTER_RECIPE);
}

/// KV of three directions, all of which a profile of a truncated basis holds, beside the toy model's, which it does not.
#[tokio::test]
async fn a_chunk_that_a_trained_profile_does_not_fit_is_stored_with_the_first_one() {
    let smooth = |tokens: &[u32]| {
        let mut kv = KvBuffer::new(&spec(), tokens.len());
        let rows = kv.as_mut_slice().chunks_exact_mut(8).enumerate();
        rows.for_each(|(i, row)| row.fill((tokens[i % tokens.len()] as f32 * 0.37).sin()));
        kv
    };
    let context = |seed| {
        let tokens = tokens(600, seed);
        TrainingContext { first_position: 0, kv: smooth(&tokens), tokens }
    };
    let contexts: Vec<_> = (200..206).map(context).collect();
    let basis = BasisRecipe {
        rank_max: Some(3),
        token_factors: [0, 0],
        unrope: false,
        exact_tokens: Some(0),
        ..BasisRecipe::default()
    };
    let trained = train_transparent(&spec(), &contexts, &Recipe::Basis(basis), &mut |_, _| ()).unwrap();
    let server = start().await;
    let kvasir = builder(&server).connect().await.unwrap();
    kvasir.rest().put_profile(&kvasir.model_id(), trained.to_bytes()).await.unwrap();
    let profiles_of = async |text: &[u32]| {
        let session = session_of(&server, Quality::Transparent, text).await;
        assert_eq!(session.matched_tokens(), 600);
        session.chunks().iter().map(|chunk| chunk.profile_hash).collect::<Vec<_>>()
    };
    let text = tokens(600, 210);
    let _ = kvasir.session(&text).await.save(&smooth(&text), text.len()).outcome().await;
    assert_eq!(profiles_of(&text).await, [trained.hash(); 3]);
    assert_eq!(profiles(&kvasir).await, 1);
    // Where too few different tokens make no first profile, each chunk asks for one, and none fetches the trained one again.
    let few: Vec<u32> = tokens(600, 213).into_iter().map(|token| token % 8).collect();
    let fetched = server.profile_reads();
    save(&kvasir, &few).await;
    assert_eq!((server.profile_reads() - fetched, profiles(&kvasir).await), (1, 1));
    // The first profile of clients for exact chunks is not for that.
    let exact = builder(&server).quality(Quality::Exact).connect().await.unwrap();
    save(&exact, &tokens(600, 212)).await;
    let others = [trained.hash(), exact.profile().unwrap().hash()];
    let unlike = tokens(600, 211);
    save(&kvasir, &unlike).await;
    assert_eq!(profiles(&kvasir).await, 3, "it made one");
    assert_eq!(kvasir.profile().unwrap().hash(), trained.hash(), "which is for what the other does not fit");
    assert!(profiles_of(&unlike).await.iter().all(|profile| !others.contains(profile)));
}

/// Values that repeat have the same error at all tokens, which does not average out.
#[tokio::test]
async fn what_repeats_is_found_by_a_client_with_a_floor_and_stored_once() {
    let server = start().await;
    let kvasir = builder(&server).quality(Quality::Transparent).connect().await.unwrap();
    save(&kvasir, &tokens(600, 1)).await;
    let (text, mut rows) = (tokens(600, 2), kv(&tokens(600, 2)));
    for layer in 0..spec().layers.len() {
        rows.rows_mut(layer, Plane::V, 0)[256 * 8..512 * 8].fill(half::f16::from_f32(0.1234).to_f32());
    }
    let uploaded = server.puts();
    save_kv(&kvasir, &text, &rows).await;
    assert_eq!(server.puts(), uploaded + 3);
    let session = session_of(&server, Quality::Transparent, &text).await;
    assert_eq!(session.matched_tokens(), 600);
    let again = session.save_now(&rows, text.len(), |_| ()).await.unwrap();
    assert!(again.chunks.iter().all(|chunk| chunk.outcome == ChunkOutcome::AlreadyThere), "{again:?}");
}

/// By default nothing coarser than `transparent` is loaded. Encoding it again would give the same.
#[tokio::test]
async fn a_chunk_below_the_floor_is_neither_loaded_nor_encoded_again() {
    let server = start().await;
    let coarse = builder(&server).profile(common::profile()).connect().await.unwrap();
    let text = tokens(600, 1);
    save(&coarse, &text).await;
    let adaptive = find(&common::connect(&server).await, &text).await;
    assert_eq!(adaptive.matched_tokens(), 600);
    let warnings = Warnings::collect();
    let session = find(&coarse, &text).await;
    assert_eq!(session.matched_tokens(), 0, "its profile is coarser than that");
    let again = session.save_now(&kv(&text), text.len(), |_| ()).await.unwrap();
    assert!(again.chunks.iter().all(|chunk| chunk.outcome == ChunkOutcome::AlreadyThere), "{again:?}");
    assert_eq!(find(&coarse, &text).await.matched_tokens(), 0);
    assert_eq!(warnings.with("600 stored tokens are below the quality floor"), 1, "once a client");
}

#[tokio::test]
async fn a_cache_that_makes_no_profile_is_not_stored_and_the_next_one_is() {
    let server = start().await;
    let kvasir = builder(&server).connect().await.unwrap();
    let same = vec![7; 600];
    let session = kvasir.session(&same).await;
    let error = session.save_now(&kv(&same), 600, |_| ()).await.unwrap_err();
    assert!(matches!(error, Error::Starter(_)), "{error}");
    assert!(!error.is_retryable());
    assert_eq!((profiles(&kvasir).await, server.puts()), (0, 0));
    save(&kvasir, &tokens(600, 9)).await;
    save(&kvasir, &same).await;
    assert_eq!(find(&kvasir, &same).await.matched_tokens(), 600);
}

#[tokio::test]
async fn a_service_that_lost_everything_gets_the_profile_again() {
    let server = start().await;
    let kvasir = builder(&server).connect().await.unwrap();
    let text = tokens(600, 10);
    save(&kvasir, &text).await;
    server.clear();
    save(&kvasir, &text).await;
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 600);
    // An adapter is a model of its own, with a profile of its own.
    let session = kvasir.session(&text).adapter("style@1").await;
    session.save_now(&kv(&text), 600, |_| ()).await.unwrap();
    assert_eq!(kvasir.session(&text).adapter("style@1").await.matched_tokens(), 600);
    // A service that does not answer makes no profile, and loses no later one.
    let other =
        Kvasir::builder(server.url()).model(kvasir_types::ModelSpec { revision: "2".into(), ..spec() });
    let other = other.namespace("test").connect().await.unwrap();
    server.fail(Fault::PutUnavailable(1));
    save(&other, &text).await;
    assert_eq!(find(&other, &text).await.matched_tokens(), 600);
}

/// A client asks every five minutes which profile is in force.
#[tokio::test]
async fn a_profile_is_kept_until_a_newer_one_is_in_force() {
    let server = start().await;
    let kvasir = builder(&server).connect().await.unwrap();
    save(&kvasir, &tokens(600, 11)).await;
    let made = kvasir.profile().unwrap().hash();
    five_minutes_later().await;
    save(&kvasir, &tokens(600, 12)).await;
    assert_eq!((kvasir.profile().unwrap().hash(), profiles(&kvasir).await), (made, 1));
    // The service has lost it: it gets the same one again, not another one of another text.
    server.clear();
    five_minutes_later().await;
    save(&kvasir, &tokens(600, 13)).await;
    assert_eq!((kvasir.profile().unwrap().hash(), profiles(&kvasir).await), (made, 1));
}

/// Whoever may publish a profile decides what others encode with, but not how much it takes them.
#[tokio::test]
async fn a_profile_that_takes_too_much_is_neither_encoded_nor_decoded_with() {
    let server = start().await;
    let text = tokens(600, 7);
    let mut parts = starter(&spec(), &text, 0, &kv(&text)).unwrap().parts();
    parts.training.recipe = "basis".to_owned();
    for scope in &mut parts.scopes {
        let (rank, elements) = (PROFILE_ELEMENT_MACS_MAX + 1, scope.elements());
        let packed = PackedRows::quantise(&vec![1.0; rank * elements], elements, &vec![1; rank]);
        scope.basis =
            Basis::Trained { synthesis: packed.rows(elements), analysis: None, packed: Some(packed) };
        scope.coding = vec![CoefficientCoding::ABSENT; rank];
    }
    let costly = Profile::assemble(parts).unwrap();
    let kvasir = builder(&server).connect().await.unwrap();
    kvasir.rest().put_profile(&kvasir.model_id(), costly.to_bytes()).await.unwrap();
    let warnings = Warnings::collect();
    kvasir.preload_profiles().await.unwrap();
    assert_eq!(warnings.with("multiply-adds"), 1);
    save(&kvasir, &text).await;
    assert_eq!(kvasir.profile().unwrap().training().recipe, STARTER_RECIPE);
    assert_eq!(find(&kvasir, &text).await.matched_tokens(), 600);
    five_minutes_later().await;
    save(&kvasir, &tokens(600, 8)).await;
    assert_eq!(server.profile_reads(), 1, "what a hash names does not change");
}
