//! Commands that talk to a service: serve, config, context put, lookup, get, admin rebuild-index, admin … --direct.

use std::path::{Path, PathBuf};

use crate::{Bench, KVASIR, Served, dump, empty_bench, exit, json, prose, serve};

#[test]
fn a_context_is_stored_found_and_fetched() {
    let bench = empty_bench();
    dump(&bench, &prose(1, 700), 600, "kv.safetensors");
    dump(&bench, &prose(1, 700), 700, "longer.safetensors");
    let service = serve(&bench);
    let url = &service.url;

    bench
        .run(&format!("context lookup --url {url} --kv kv.safetensors"))
        .fails(exit::NOTHING, &["nothing is stored"]);
    let stored =
        json(&bench.ok(&format!("context put --url {url} --kv kv.safetensors --chunk-tokens 256 --json")));
    assert_eq!(stored["chunks"].as_array().expect("chunks").len(), 3);
    let again = bench.run(&format!("context put --url {url} --kv kv.safetensors --chunk-tokens 256 --json"));
    // The errors of the shipped profile are not measured.
    assert!(
        again.stderr().contains("600 of these tokens are stored below quality transparent, or"),
        "{again:?}"
    );
    assert_eq!(json(&again.succeeds())["bytes"], 0, "what is there is not sent again");

    let found = json(&bench.ok(&format!("context lookup --url {url} --kv longer.safetensors --json")));
    assert_eq!(found["matched_tokens"], 592, "the longest prefix, in whole blocks of 16");
    let other = bench.run(&format!("context lookup --url {url} --namespace other --kv kv.safetensors"));
    other.fails(exit::NOTHING, &["nothing is stored"]);

    let whole =
        json(&bench.ok(&format!("context get --url {url} --kv kv.safetensors -o back.safetensors --json")));
    let base = json(
        &bench
            .ok(&format!("context get --url {url} --kv kv.safetensors --level 0 -o base.safetensors --json")),
    );
    assert!(base["bytes"].as_u64() < whole["bytes"].as_u64(), "a lower level is fewer bytes");
    bench
        .run(&format!("context lookup --url {url} --kv kv.safetensors --quality small"))
        .fails(exit::NOTHING, &["in quality small"]);
    let dump = |name: &str| kvasir_dump::parse_dump(&bench.read(name)).expect("a dump");
    assert_eq!(dump("back.safetensors").tokens, dump("kv.safetensors").tokens);
    bench
        .run(&format!("context get --url {url} --kv kv.safetensors --level 99 -o x.safetensors"))
        .fails(exit::DATA, &["level 99 does not exist"]);
}

/// The shipped model's cache under another name: a model without a trained profile.
#[test]
fn a_model_that_was_never_seen_is_stored_from_its_first_dump() {
    let bench = empty_bench();
    dump(&bench, &prose(5, 700), 600, "shipped.safetensors");
    let known = kvasir_dump::parse_dump(&bench.read("shipped.safetensors")).expect("a dump");
    let spec = kvasir_types::ModelSpec { revision: "tuned".into(), ..known.spec };
    let dtype = kvasir_dump::DumpDtype::of(spec.kv_dtype);
    kvasir_dump::write_dump(&bench.path("kv.safetensors"), &spec, &known.tokens, &known.kv, dtype)
        .expect("written");
    let service = serve(&bench);
    let url = &service.url;
    let stored = bench.run(&format!("context put --url {url} --kv kv.safetensors --json"));
    assert!(!stored.stderr().contains("below quality"), "{stored:?}");
    let stored = json(&stored.succeeds());
    assert!(stored["profile_hash"].is_string(), "{stored}");
    assert_eq!(stored["chunks"][0]["profile_hash"], stored["profile_hash"]);
    let model = spec.model_id();
    let status = json(&bench.ok(&format!("profile status --url {url} --model-id {model} --json")));
    assert_eq!(status["in_force"], stored["profile_hash"]);
    let profile = &status["profiles"][0];
    assert_eq!((profile["state"].as_str(), profile["made"].as_str()), (Some("in_force"), Some("first_save")));
    let bits = profile["transparent_bits"].as_f64().expect("recorded");
    assert!((4.0..7.0).contains(&bits), "{status}");
    assert_eq!(status["sample_chunks"], stored["chunks"].as_array().expect("chunks").len());
    let text = bench.ok(&format!("profile status --url {url} --model-id {model}"));
    assert!(text.contains("in force") && text.contains("profile retrain"), "{text}");
    let explained = json(&bench.ok(&format!("context explain --url {url} --kv kv.safetensors --json")));
    let matched = &explained["profiles"][0];
    assert_eq!(matched["profile_hash"], stored["profile_hash"], "{explained}");
    assert_eq!((&matched["tokens"], &matched["quality"]), (&600.into(), &"transparent".into()));
    let lookup = format!("context lookup --url {url} --kv kv.safetensors --json --quality");
    assert_eq!(json(&bench.ok(&format!("{lookup} transparent")))["matched_tokens"], 600);
    let exact = bench.run(&format!("{lookup} exact"));
    exact.fails(exit::NOTHING, &["no chunk of this context is stored in quality exact"]);
    let text = bench.ok(&format!("context explain --url {url} --kv kv.safetensors"));
    assert!(text.contains("600 tokens of 1 chunks") && text.contains("; transparent, error "), "{text}");
    bench.ok(&format!("context get --url {url} --kv kv.safetensors -o back.safetensors"));
    let back = kvasir_dump::parse_dump(&bench.read("back.safetensors")).expect("a dump");
    let pairs = || known.kv.as_slice().iter().zip(back.kv.as_slice());
    let error: f64 = pairs().map(|(x, y)| f64::from(x - y).powi(2)).sum();
    let power: f64 = pairs().map(|(x, _)| f64::from(*x).powi(2)).sum();
    // Of raw power, which is larger than that about the mean.
    assert!(error < 6.25e-4 * power, "{:.1e}", error / power);
    // The shipped model's contexts are its own.
    bench
        .run(&format!("context lookup --url {url} --kv shipped.safetensors --quality exact"))
        .fails(exit::NOTHING, &["nothing is stored"]);
}

/// The stored data of a model makes its next profile, which is smaller and as good.
#[test]
fn a_profile_is_trained_on_what_is_stored() {
    let bench = empty_bench();
    let service = serve(&bench);
    let url = &service.url;
    let put = |revision: &str, seed: u32| {
        dump(&bench, &prose(seed, 700), 600, "shipped.safetensors");
        let known = kvasir_dump::parse_dump(&bench.read("shipped.safetensors")).expect("a dump");
        let tuned = kvasir_types::ModelSpec { revision: revision.into(), ..known.spec };
        let dtype = kvasir_dump::DumpDtype::of(tuned.kv_dtype);
        let path = bench.path("kv.safetensors");
        kvasir_dump::write_dump(&path, &tuned, &known.tokens, &known.kv, dtype).expect("written");
        bench.ok(&format!("context put --url {url} --kv kv.safetensors --chunk-tokens 512"));
        tuned.model_id()
    };
    let small = put("small", 19);
    let models: Vec<_> = (20..36).map(|seed| put("tuned", seed)).collect();
    let model = models[0];
    let retrain = |rest: &str| {
        json(&bench.ok(&format!("profile retrain --url {url} --model-id {model} --json {rest}")))
    };
    // How it ended for the model among all.
    let among_all = |bandwidth: &str| {
        let all = bench.ok(&format!("profile retrain --url {url} --all --json --bandwidth {bandwidth}"));
        let all = json(&all)["models"].as_array().expect("models").clone();
        assert_eq!(all.len(), 2, "{all:?}");
        let too_few = all.iter().find(|of| of["model_id"] == small.to_string()).expect("listed");
        assert_eq!(too_few["outcome"], "not_published", "{too_few}");
        assert!(too_few["why"].as_str().is_some_and(|why| why.contains("has 600 tokens")), "{too_few}");
        all.into_iter().find(|of| of["model_id"] == model.to_string()).expect("listed")
    };
    // On a link of a terabit decoding alone counts.
    let kept = among_all("1000gbit");
    assert_eq!(
        (&kept["outcome"], &kept["comparison"]["published"]),
        (&"not_published".into(), &false.into())
    );
    // It would be refused again.
    let skipped = among_all("1000gbit");
    assert!(skipped["comparison"].is_null() && skipped["outcome"] == "not_published", "{skipped}");
    let tried = retrain("--bandwidth 1mbit --dry-run");
    assert_eq!(tried["published"], false, "{tried}");
    // The service's random salt decides which chunks are held out. Of few texts, a sample now and then does not generalise to
    // them: then another one does.
    let of = |chunks: u16| (chunks, retrain(&format!("--bandwidth 1mbit --chunks {chunks}")));
    let made = [256, 30, 28].into_iter().map(of);
    let made = made.inspect(|(_, made)| println!("{made}")).find(|(_, made)| made["published"] == true);
    let (chunks, made) = made.expect("a profile that pays");
    let bytes = |of: &str| made[of]["bytes"].as_f64().expect("bytes");
    assert!(bytes("trained") < 0.9 * bytes("in_force"), "{made}");
    let skipped = among_all("1mbit");
    assert!(skipped["why"].as_str().is_some_and(|why| why.contains("only 0 of 32 sampled")), "{skipped}");
    let status = json(&bench.ok(&format!("profile status --url {url} --model-id {model} --json")));
    let said = |key: &str| [0, 1].map(|index| status["profiles"][index][key].as_str().unwrap_or_default());
    // Both are young: the first one stays in force until readers had time to fetch the other.
    assert_eq!(said("state"), ["in_force", "announced"]);
    assert_eq!(said("made"), ["first_save", "trained"]);
    assert_eq!(status["profiles"][1]["profile_hash"], made["profile_hash"]);
    assert!(status["next"].as_str().is_some_and(|next| next.contains("comes into force in")), "{status}");
    // The service was told of all but the dry run.
    let trainings = status["trainings"].as_array().expect("trainings");
    let outcome = |index: usize| trainings[index]["outcome"].as_str().expect("an outcome");
    assert_eq!((outcome(0), outcome(trainings.len() - 1)), ("published", "refused"), "{status}");
    assert_eq!(trainings[0]["trained"], made["profile_hash"]);
    let bits = |of: &str| trainings[0][of].as_f64().expect("bits");
    assert!(bits("trained_bits") < 0.9 * bits("in_force_bits"), "{status}");
    let text = bench.ok(&format!("profile status --url {url} --model-id {model}"));
    assert!(text.contains(": published, ") && text.contains(": refused, "), "{text}");
    bench
        .run(&format!("profile retrain --url {url} --model-id {}", "0".repeat(64)))
        .fails(exit::DATA, &["not registered"]);
    bench.run("profile retrain").fails(exit::USAGE, &["--model-id"]);
    bench.run("profile retrain --all --parameters 9").fails(exit::USAGE, &["cannot be used with"]);
    drop(service);
    a_profile_without_room_is_reported(&bench, &format!("--model-id {model}"), chunks);
}

/// A sample whose profile was published before, at a service whose tenant is full.
fn a_profile_without_room_is_reported(bench: &Bench, model: &str, chunks: u16) {
    let token = json(&bench.ok("token --tenant default --role admin --json"));
    let text = |key: &str| token[key].as_str().expect("text");
    let tenants = format!("{}\n[tenant.default]\nstored_bytes = 1\n", text("entry"));
    std::fs::write(bench.path("tenants.toml"), tenants).expect("written");
    std::fs::write(bench.path("admin.token"), text("token")).expect("written");
    let service = Served::start_with(bench, Path::new(KVASIR), "--auth.tenants_file tenants.toml");
    let there = format!("--url {} --token-file admin.token {model}", service.url);
    bench
        .run(&format!("profile retrain {there} --bandwidth 1mbit --chunks {chunks}"))
        .fails(exit::REFUSED, &["storage_quota"]);
    let status = json(&bench.ok(&format!("profile status {there} --json")));
    let last = &status["trainings"][0];
    assert_eq!(last["outcome"], "failed", "{status}");
    assert!(last["trained"].is_string() && last["trained_bits"].is_number(), "{status}");
    let why = last["reason"].as_str().expect("a reason");
    assert!(why.starts_with("the profile could not be stored: ") && why.contains("storage_quota"), "{why}");
}

/// The store and the cache of a bench's service, for commands that open them.
fn settings(bench: &Bench) -> String {
    let [store, data] = ["store", "data"].map(|name| bench.path(name));
    format!("--store.url file://{} --cache.directory {}", store.display(), data.display())
}

#[test]
fn the_index_can_be_lost_and_rebuilt() {
    let bench = empty_bench();
    dump(&bench, &prose(2, 400), 300, "kv.safetensors");
    let service = serve(&bench);
    bench.ok(&format!("context put --url {} --kv kv.safetensors", service.url));
    drop(service);
    std::fs::remove_dir_all(bench.path("data")).expect("the index is only a cache");
    let settings = settings(&bench);
    let run = bench.run(&format!("admin rebuild-index {settings}"));
    assert!(run.stderr().contains("1 indexed"), "{}", run.stderr());
    run.succeeds();
    let service = serve(&bench);
    let found = json(&bench.ok(&format!("context lookup --url {} --kv kv.safetensors --json", service.url)));
    assert_eq!(found["matched_tokens"], 300);
}

/// A mistyped directory is not made, and is no store without damage.
#[test]
fn a_missing_store_is_not_an_empty_one() {
    let bench = empty_bench();
    let settings = settings(&bench);
    for command in ["gc --direct --dry-run", "scrub --direct", "rebuild-index", "seal --tenant default"] {
        bench
            .run(&format!("admin {command} {settings}"))
            .fails(exit::UNAVAILABLE, &["there is no store at", "store.url"]);
        assert!(!bench.path("store").exists(), "{command}");
    }
}

/// Neither damaged data nor a service that is away: who asks may not.
#[test]
fn a_refused_credential_is_status_77() {
    let bench = empty_bench();
    let token = json(&bench.ok("token --tenant default --role read --json"));
    for (name, key) in [("tenants.toml", "entry"), ("read.token", "token")] {
        bench.write(name, token[key].as_str().expect("text"));
    }
    let service = Served::start_with(&bench, Path::new(KVASIR), "--auth.tenants_file tenants.toml");
    let url = &service.url;
    bench.run(&format!("admin usage --url {url}")).fails(exit::REFUSED, &["unauthorized"]);
    bench.ok(&format!("admin usage --url {url} --token-file read.token"));
    bench.run(&format!("admin gc --url {url} --token-file read.token")).fails(exit::REFUSED, &["forbidden"]);
    bench
        .run(&format!("context list --url {url} --token-file read.token {}", uuid::Uuid::nil()))
        .fails(exit::DATA, &["does not exist"]);
}

/// The only chunk object of a bench's store.
fn stored_object(bench: &Bench) -> PathBuf {
    let mut folders = vec![bench.path("store")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(end) if end == "kvc" => return path,
                _ => {}
            }
        }
    }
    panic!("there is no chunk object");
}

#[test]
fn damage_is_named_and_is_no_success() {
    let bench = empty_bench();
    dump(&bench, &prose(2, 400), 300, "kv.safetensors");
    let service = serve(&bench);
    bench.ok(&format!("context put --url {} --kv kv.safetensors", service.url));
    let settings = settings(&bench);
    bench
        .run(&format!("admin rebuild-index {settings}"))
        .fails(exit::UNAVAILABLE, &["Stop the service that uses this directory"]);
    drop(service);
    let object = stored_object(&bench);
    let mut bytes = std::fs::read(&object).expect("readable");
    bytes[..16].fill(0);
    std::fs::write(&object, bytes).expect("writable");
    bench.run(&format!("admin rebuild-index {settings}")).fails(exit::DATA, &["1 objects could not be read"]);
    let digest = object.file_stem().and_then(|stem| stem.to_str()).expect("a digest");
    bench
        .run(&format!("admin scrub --direct --dry-run {settings}"))
        .fails(exit::DATA, &[digest, "Nothing was quarantined"]);
}

#[test]
fn every_mistake_of_a_configuration_is_listed_at_once() {
    let bench = empty_bench();
    bench
        .write("bad.toml", "[server]\nlisten = \"nowhere\"\nlisten_addr = 1\n[sotre]\nurl = \"file:///x\"\n");
    let run =
        bench.run_with("serve --config bad.toml --server.drain_grace soon", &[("KVASIR_STORE_URLL", "x")]);
    run.fails(
        exit::CONFIG,
        &["listen", "listen_addr", "sotre", "drain_grace", "KVASIR_STORE_URLL", "store.url"],
    );
}

#[test]
fn a_service_that_is_not_there_is_said_to_be_so() {
    let bench = empty_bench();
    bench.write("text.txt", prose(3, 40));
    bench
        .run("context lookup --url http://127.0.0.1:1 --text text.txt")
        .fails(exit::UNAVAILABLE, &["Check that the service runs"]);
    bench.run("context lookup --url ftp://x --text text.txt").fails(exit::CONFIG, &["http://host:port"]);
    bench
        .run("context lookup --text text.txt --kv kv.safetensors")
        .fails(exit::USAGE, &["cannot be used with"]);
}

#[test]
fn the_configuration_is_checked_and_printed() {
    let bench = empty_bench();
    let shown = bench.ok("config --store.url memory:// --listen 127.0.0.1:1 --server.listen 127.0.0.1:2");
    assert!(shown.contains("listen = \"127.0.0.1:1\"") && shown.contains("[store]"), "{shown}");
    let later = bench.ok("config --store.url memory:// --hot.memory 1MiB --hot.memory 2MiB");
    assert!(later.contains("memory = \"2MiB\""), "the later flag counts: {later}");
    assert!(bench.ok("config --example").contains("#listen = "));
    bench.run("config").fails(exit::CONFIG, &["store.url"]);
    bench.run("config --stroe.url memory://").fails(exit::USAGE, &["--store.url"]);
    bench.run("config stray").fails(exit::USAGE, &["'stray'"]);
    bench.run("config --store.url").fails(exit::USAGE, &["--store.url <VALUE>"]);
}

#[test]
fn a_store_is_maintained_directly() {
    let bench = empty_bench();
    dump(&bench, &prose(4, 400), 300, "kv.safetensors");
    let service = serve(&bench);
    bench.ok(&format!("context put --url {} --kv kv.safetensors", service.url));
    let store = format!("--store.url file://{}", bench.path("store").display());
    let report = json(&bench.ok(&format!("admin gc --direct --dry-run --json {store}")));
    assert_eq!((&report["objects"], &report["dry_run"]), (&1.into(), &true.into()), "{report}");
    let report = json(&bench.ok(&format!("admin scrub --direct --json {store}")));
    assert_eq!((&report["objects"], &report["quarantined"]), (&1.into(), &0.into()), "{report}");
    bench.run(&format!("admin gc {store}")).fails(exit::USAGE, &["--direct"]);
    bench.run("admin gc --direct --url http://127.0.0.1:1").fails(exit::USAGE, &["--url"]);
}

#[test]
fn a_tenant_is_moved_over_to_its_first_key() {
    let bench = empty_bench();
    dump(&bench, &prose(5, 400), 300, "kv.safetensors");
    let service = serve(&bench);
    bench.ok(&format!("context put --url {} --kv kv.safetensors", service.url));
    bench.ok(&format!("context create --url {} --kv kv.safetensors --pin", service.url));
    drop(service);
    let key = "7".repeat(64);
    bench.write("keys.toml", format!("[[key]]\ntenant = \"default\"\nid = \"one\"\nkey = \"{key}\"\n"));
    let store = format!("--store.url file://{}", bench.path("store").display());
    bench.run(&format!("admin seal --tenant default {store}")).fails(exit::UNAVAILABLE, &["keys_file"]);
    let keys = format!("--encryption.keys_file {}", bench.path("keys.toml").display());
    let sealed = json(&bench.ok(&format!("admin seal --tenant default --json {store} {keys}")));
    assert_eq!((&sealed["salts"], &sealed["records"], &sealed["objects"]), (&1.into(), &1.into(), &1.into()));
    let again = json(&bench.ok(&format!("admin seal --tenant default --json {store} {keys}")));
    assert_eq!((&again["salts"], &again["objects"]), (&0.into(), &0.into()), "{again}");
}
