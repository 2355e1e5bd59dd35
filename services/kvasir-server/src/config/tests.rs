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
        "store.urll: is no setting; did you mean store.url?",
        "at least 1",
        "servr.listen: is no setting; did you mean server.listen?",
        "neither text nor json",
        "KVASIR_LOOKUP_NEGATIVE_TTL: \"soon\" is not a duration",
        "KVASIR_LOOKUP_NEGATIV_TTL: names no setting; did you mean lookup.negative_ttl?",
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
