use kvasir_eviction::PolicyKind;

use super::*;

fn pairs(items: &[(&str, &str)]) -> Vec<(String, String)> {
    items.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    file
}

#[test]
fn layers_cover_each_other() {
    let toml =
        file("[store]\nurl = \"file:///from-file\"\nregion = \"file\"\n[server]\ndrain_grace = \"1s\"\n");
    let env = pairs(&[
        ("AWS_REGION", "aws"),
        ("AWS_ENDPOINT", "http://127.0.0.1:9001"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"),
        ("KVASIR_STORE_URL", "s3://bucket/env"),
        ("KVASIR_SERVER_DRAIN_GRACE", "2s"),
        ("KVASIR_SERVICE_HOST", "10.0.0.1"),
        ("KVASIR_PORT_7480_TCP_ADDR", "10.0.0.1"),
    ]);
    let layers = Layers { file: Some(toml.path().into()), env, ..Layers::default() };
    let config = layers.with_flags([("server.drain_grace", "3s")]).load().expect("sound");
    assert_eq!(config.store.url.as_str(), "s3://bucket/env");
    assert_eq!(config.store.region.as_deref(), Some("file"));
    assert_eq!(config.store.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
    assert_eq!(config.server.drain_grace, Duration::from_secs(3));
    assert_eq!(config.storage.spool_directory, config.cache.directory.join("spool"));
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let toml =
        file("[store]\nurll = \"x\"\nrequests_max = 0\n[servr]\nlisten = \"x\"\n[log]\nformat = \"xml\"\n");
    let env = pairs(&[("KVASIR_LOOKUP_NEGATIVE_TTL", "soon"), ("KVASIR_LOOKUP_NEGATIV_TTL", "1s")]);
    let layers = Layers { file: Some(toml.path().into()), env, ..Layers::default() };
    let flags = [
        ("server.listen", "0.0.0.0:1"),
        ("server.connection_memory", "1KiB"),
        ("gc.tombstone_retention", "0s"),
    ];
    let error = layers.with_flags(flags).load().expect_err("mistakes");
    let text = error.to_string();
    assert_eq!(error.mistakes.len(), 10, "{text}");
    for part in [
        "must be 128KiB to 16MiB",
        "must be at least 1m",
        "store.urll: is not a setting; did you mean store.url?",
        "at least 1",
        "servr.listen: is not a setting; did you mean server.listen?",
        "neither text nor json",
        "KVASIR_LOOKUP_NEGATIVE_TTL: \"soon\" is not a duration",
        "KVASIR_LOOKUP_NEGATIV_TTL: does not name a setting; did you mean lookup.negative_ttl?",
        "store.url: is not set",
        "allow_unauthenticated = true",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn the_printed_configuration_is_the_same_configuration_without_its_secrets() {
    let env = pairs(&[
        ("KVASIR_STORE_URL", "s3://b"),
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("KVASIR_LOG_FORMAT", "json"),
    ]);
    let config = Layers { env, ..Layers::default() }.load().expect("sound");
    let printed = config.to_toml();
    assert!(printed.contains("secret_access_key = \"***\""), "{printed}");
    assert!(!printed.contains("hunter2") && !format!("{config:?}").contains("hunter2"));
    let toml = file(&printed);
    let again = Layers { file: Some(toml.path().into()), ..Layers::default() }.load().expect("sound");
    assert_eq!(again.to_toml(), printed);
}

#[test]
fn the_example_equals_the_defaults() {
    let example = include_str!("../../kvasir-server.example.toml");
    assert_eq!(example, Config::default().to_example(), "regenerate it with `kvasir config --example`");
    // And its lines are settings that load: `#key = value` is a setting, `# text` is not.
    let live: Vec<_> =
        example.lines().map(|l| l.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(l)).collect();
    let toml = file(&live.join("\n"));
    let loaded =
        Layers { file: Some(toml.path().into()), ..Layers::default() }.load().expect("the example loads");
    assert_eq!(loaded.store.url.as_str(), "file:///var/lib/kvasir/store");
    assert_eq!(loaded.server.listen, Config::default().server.listen);
}

#[test]
fn loopback_only_without_authentication() {
    let load = |flags: &[(&str, &str)]| {
        Layers::default().with_flags([("store.url", "memory://")]).with_flags(flags.iter().copied()).load()
    };
    assert!(load(&[("server.listen", "[::1]:1")]).is_ok());
    assert!(load(&[("server.listen", "10.0.0.1:1")]).is_err());
    assert!(load(&[("server.listen", "10.0.0.1:1"), ("server.allow_unauthenticated", "true")]).is_ok());
}

#[test]
fn a_number_beyond_what_a_semaphore_holds_is_refused() {
    let load = |key: &str, most: usize| {
        let (store, most) = (("store.url", "memory://"), most.to_string());
        Layers::default().with_flags([store, (key, most.as_str())]).load()
    };
    let most = tokio::sync::Semaphore::MAX_PERMITS;
    for key in ["server.connections_max", "store.requests_max", "lookup.parallel"] {
        assert!(load(key, most).is_ok(), "{key}");
        let error = load(key, most + 1).expect_err(key).to_string();
        assert!(error.contains(&format!("--{key}: must be at least 1 and at most {most}")), "{error}");
    }
}

#[test]
fn a_url_that_outlives_its_object_or_that_s3_refuses_is_a_mistake() {
    let load_over = |store, url_ttl, grace| {
        let flags = [("store.url", store), ("direct.url_ttl", url_ttl), ("gc.grace", grace)];
        Layers::default().with_flags(flags).load()
    };
    let load = |url_ttl, grace| load_over("s3://b", url_ttl, grace);
    assert!(load("1s", "15m").is_ok() && load("168h", "200h").is_ok());
    for (url_ttl, grace) in [("999ms", "15m"), ("16m", "15m"), ("168h", "100h"), ("169h", "200h")] {
        let error = load(url_ttl, grace).expect_err(url_ttl).to_string();
        assert!(error.contains("direct.url_ttl: is") && error.contains("at most 168h"), "{error}");
    }
    for store in ["file:///store", "memory://"] {
        load_over(store, "169h", "200h").expect("it signs no URLs");
    }
}

#[test]
fn a_bucket_that_belongs_into_host_names_must_be_in_that_of_each_endpoint() {
    let (with, without) = ("https://kv.s3.example.com:9443/", "https://kv-s3.example.com");
    for (style, endpoint, public, wrong) in [
        ("true", with, "http://kv", None),
        ("true", "", with, None),
        ("FALSE", without, without, None),
        ("", without, without, None),
        ("true", without, with, Some("store.endpoint: has")),
        ("Yes", with, without, Some("store.public_endpoint: has")),
        ("1", "", without, Some("store.public_endpoint: has")),
    ] {
        let env = pairs(&[
            ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", style),
            ("AWS_ENDPOINT_URL", endpoint),
            ("KVASIR_STORE_PUBLIC_ENDPOINT", public),
            ("KVASIR_STORE_URL", "s3://kv/prefix"),
        ]);
        let error = Layers { env, ..Layers::default() }.load().err().map(|error| error.to_string());
        match (&error, wrong) {
            (None, None) => {}
            (Some(text), Some(wrong)) => {
                assert!(text.contains(wrong) && text.contains("has 1 mistake\n"), "{text}");
                assert!(text.contains("https://kv.s3.example.com, or unset the variable"), "{text}");
            }
            _ => panic!("{style} {endpoint} {public}: {error:?}"),
        }
    }
}

#[test]
fn an_unknown_policy_is_refused_and_a_known_one_is_taken() {
    let load = |policy| {
        let flags = [("store.url", "memory://"), ("hot.policy", policy), ("gc.eviction", policy)];
        Layers::default().with_flags(flags).load()
    };
    for kind in PolicyKind::ALL {
        let config = load(kind.name()).expect("sound");
        assert_eq!((config.hot.policy, config.gc.policy.eviction), (kind, kind));
    }
    let error = load("arc").expect_err("no policy");
    assert_eq!(error.mistakes.len(), 2, "{error}");
    assert!(error.to_string().contains("there are adaptive and lru"), "{error}");
}

/// What is secret is neither repeated in a mistake nor printed, wherever it stands.
#[test]
fn secrets_in_wrong_places_are_refused_and_not_repeated() {
    const SECRET: &str = "canary-5b1f";
    let sound = [("KVASIR_STORE_URL", "s3://bucket/prefix")];
    let wrong = [
        ("KVASIR_STORE_URL", format!("s3://id:{SECRET}@bucket/prefix")),
        ("KVASIR_STORE_URL", format!("file:///store?secret={SECRET}")),
        ("KVASIR_STORE_URL", format!("id:{SECRET}@bucket /\u{0}")),
        ("KVASIR_STORE_URL", SECRET.to_owned()),
        ("KVASIR_STORE_ENDPOINT", format!("https://id:{SECRET}@minio:9000")),
        ("KVASIR_STORE_ENDPOINT", format!("https://{SECRET}@minio:9000")),
        ("KVASIR_STORE_ENDPOINT", format!("minio:{SECRET}")),
        ("KVASIR_STORE_PUBLIC_ENDPOINT", format!("https://s3.example.com/?X-Amz-Signature={SECRET}")),
        ("AWS_ENDPOINT_URL", format!("https://id:{SECRET}@minio:9000")),
        ("AWS_ENDPOINT_URL", format!("minio:{SECRET}")),
        ("AWS_ENDPOINT", format!("minio:{SECRET}")),
        ("KVASIR_ENCRYPTION_KEYS", format!("team-a:2026-11:{SECRET}")),
    ];
    for (name, value) in wrong {
        let env = pairs(&[&sound[..], &[(name, value.as_str())]].concat());
        let error = Layers { env, ..Layers::default() }.load().expect_err(name).to_string();
        assert!(!error.contains(SECRET), "{name}={value}: {error}");
    }
    let toml = file(&format!("[store]\nurl = \"file:///store\"\nsecret_access_key = \"{SECRET}\n"));
    let error = Layers { file: Some(toml.path().into()), ..Layers::default() }.load().expect_err("no TOML");
    let error = error.to_string();
    assert!(error.contains("line 3") && !error.contains(SECRET), "{error}");
    let env =
        pairs(&[&sound[..], &[("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_SESSION_TOKEN", SECRET)]].concat());
    let config = Layers { env, ..Layers::default() }.load().expect("sound");
    assert!(!format!("{config:?}{}", config.to_toml()).contains(SECRET));
}

/// A damaged configuration file is taken or refused, and no refusal repeats a secret.
#[test]
fn damaged_files_never_panic_and_never_leak() {
    let store =
        "[store]\nurl = \"s3://bucket/prefix\"\nsecret_access_key = \"canary-5b1f\"\nrequests_max = 8\n";
    let other = "[gc]\nttl = \"24h\"\ncapacity = \"1GiB\"\n[encryption]\nkeys = \"a:b:canary-5b1f\"\n[server]\nlisten = \"127.0.0.1:1\"\n";
    let file = tempfile::NamedTempFile::new().expect("a file");
    let (mut taken, mut refused) = (0, 0);
    crate::mutation::of(&[store, other], 1_500, |text| {
        std::fs::write(file.path(), text).expect("writes");
        match (Layers { file: Some(file.path().into()), ..Layers::default() }).load() {
            Ok(config) => {
                taken += 1;
                assert!(!config.to_toml().contains("secret_access_key = \"canary"));
            }
            Err(error) => {
                refused += 1;
                let moved = String::from_utf8_lossy(text);
                // A secret that damage made the value of another setting is not known to be one.
                let is_in_place = moved.contains("secret_access_key = \"canary-5b1f")
                    || moved.contains("keys = \"a:b:canary-5b1f");
                assert!(!is_in_place || !error.to_string().contains("canary"), "{moved}\n{error}");
            }
        }
    });
    assert!(taken > 50 && refused > 500, "{taken} taken, {refused} refused");
}
