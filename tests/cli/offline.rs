//! Commands that need no service: profile train, object encode, inspect, decode.

use std::{fs::File, sync::OnceLock};

use crate::{Bench, browser::Browser, dump, empty_bench, exit, prose};

/// A dump, a direct profile trained on others, and the object made of both. Training is the slow part, so
/// the tests share it.
struct Made {
    dump: Vec<u8>,
    profile: Vec<u8>,
    object: Vec<u8>,
}

fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let bench = empty_bench();
        for seed in 0..3 {
            dump(&bench, &prose(seed, 700), 512, &format!("{seed}.safetensors"));
        }
        dump(&bench, &prose(9, 500), 300, "kv.safetensors");
        let dumps = "0.safetensors 1.safetensors 2.safetensors";
        bench.ok(&format!("profile train --recipe direct --finest-nmse 2.5e-4 --kv {dumps} -o p.kvp"));
        bench.ok("object encode --kv kv.safetensors --profile p.kvp -o out.kvc");
        Made {
            dump: bench.read("kv.safetensors"),
            profile: bench.read("p.kvp"),
            object: bench.read("out.kvc"),
        }
    })
}

/// A folder with everything in it.
fn bench() -> Bench {
    let bench = empty_bench();
    bench.write("kv.safetensors", &made().dump);
    bench.write("p.kvp", &made().profile);
    bench.write("out.kvc", &made().object);
    bench
}

/// Power of the difference over the power of the signal, over all K and V tensors of two dumps.
fn nmse(a: &[u8], b: &[u8]) -> f64 {
    let values = |bytes: &[u8]| {
        let dump = kvasir_dump::parse_dump(bytes).expect("a dump");
        (dump.tokens, dump.kv.as_slice().to_vec())
    };
    let ((tokens_a, a), (tokens_b, b)) = (values(a), values(b));
    assert_eq!(tokens_a, tokens_b, "tokens travel with the cache");
    let square = |v: f32| f64::from(v) * f64::from(v);
    let noise: f64 = a.iter().zip(&b).map(|(x, y)| square(x - y)).sum();
    noise / a.iter().map(|x| square(*x)).sum::<f64>()
}

#[test]
fn a_cache_comes_back_better_with_every_level() {
    let bench = bench();
    let mut before = f64::INFINITY;
    let levels =
        serde_json::from_str::<serde_json::Value>(&bench.ok("object inspect out.kvc --json")).expect("JSON");
    let count = levels["levels"].as_array().expect("levels").len();
    assert!(count >= 2);
    for level in 0..count {
        bench.ok(&format!("object decode out.kvc --profile p.kvp --level {level} -o back.safetensors"));
        let error = nmse(&made().dump, &bench.read("back.safetensors"));
        assert!(error < before, "level {level}: {error} after {before}");
        before = error;
    }
    assert!(before < 0.01, "the finest level loses {before} of the power");
}

#[test]
fn encoding_is_deterministic() {
    let bench = bench();
    bench.ok("object encode --kv kv.safetensors --profile p.kvp -o again.kvc");
    assert_eq!(bench.read("again.kvc"), made().object);
}

#[test]
fn inspect_shows_the_tree_and_the_rates() {
    let bench = bench();
    let text = bench.ok("object inspect out.kvc");
    for needle in ["level 0", "scope 0", "bits per element", "300 from position 0", "all verified"] {
        assert!(text.contains(needle), "{needle} in\n{text}");
    }
    let profile = bench.ok("profile inspect p.kvp");
    assert!(profile.contains("bits/element") && profile.contains("identity"), "{profile}");
    assert!(profile.contains("decoding 1,000 tokens") && profile.contains("cores at 100 Gb/s"), "{profile}");
}

/// The direct profile, and the shipped one with its basis and its prediction from the text.
#[test]
fn decoding_is_measured_at_every_level() {
    let bench = bench();
    let json = |line: &str| serde_json::from_str::<serde_json::Value>(&bench.ok(line)).expect("JSON");
    let lines = ["profile inspect p.kvp --json", "profile inspect --json", "plan --model kvasir-tiny --json"];
    for line in lines {
        let printed = json(line);
        let decoding = printed["decoding"].as_array().expect("levels");
        assert!(decoding.len() >= 2, "{line}: {printed}");
        for level in decoding {
            let number = |of: &serde_json::Value| of.as_f64().expect("a number");
            let seconds = number(&level["seconds_per_1000_tokens"]);
            let encoded = number(&level["bytes_per_1000_tokens"]);
            assert!(seconds > 0.0 && encoded > 0.0, "{level}");
            for link in level["cores"].as_array().expect("links") {
                let expected = number(&link["gbit_per_s"]) * 1.25e8 / encoded * seconds;
                assert!((number(&link["cores"]) / expected - 1.0).abs() < 1e-9, "{level}");
            }
        }
    }
    let assumed = "plan --model llama-3.1-8b";
    assert!(json(&format!("{assumed} --json"))["decoding"].is_null());
    let text = bench.ok(assumed);
    assert!(text.contains("With a --profile of this model, decoding is measured on this machine"), "{text}");
    assert!(
        text.contains("assume a GPU that nobody measured") && text.contains("50.0 GB/s assumed"),
        "{text}"
    );
    // Another model's seconds are not this one's.
    let given = bench.ok(&format!("{assumed} --profile p.kvp"));
    assert!(given.contains("a --profile of this model") && !given.contains("cores at"), "{given}");
    assert!(given.contains("assume a GPU that nobody measured"), "{given}");
}

#[test]
fn links_wait_for_the_decoder_that_was_measured() {
    let bench = empty_bench();
    let line = "plan --model kvasir-tiny --bandwidth 1tbit";
    let printed: serde_json::Value =
        serde_json::from_str(&bench.ok(&format!("{line} --json"))).expect("JSON");
    let number = |of: &serde_json::Value| of.as_f64().expect("a number");
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    let (deployment, cores) = (&printed["request"]["deployment"], number(&printed["decoding_cores"]));
    let levels = printed["decoding"].as_array().expect("levels");
    assert!(cores >= 1.0 && !levels.is_empty(), "{printed}");
    for (index, level) in levels.iter().enumerate() {
        let rate = &deployment["decode_rates"][index];
        assert_eq!(rate["source"], "measured", "{rate}");
        let rate = number(&rate["value"]);
        // A token is 4,096 bytes.
        assert!(close(rate, cores * 4_096e3 / number(&level["seconds_per_1000_tokens"])), "{level}");
        let seconds = number(&deployment["round_trip"]["value"]) + number(&printed["bytes"]["fp16"]) / rate;
        assert!(close(number(&printed["links"][0]["ways"][index]["seconds"]), seconds), "{printed}");
    }
    let text = bench.ok(line);
    assert!(text.contains("/s measured") && text.contains("the cores that a load uses here"), "{text}");
    assert!(!text.contains("nobody measured"), "{text}");
}

#[test]
fn damaged_objects_are_refused_wherever_the_damage_is() {
    let bench = bench();
    let object = &made().object;
    let step = object.len() / 23;
    for at in (0..object.len()).step_by(step) {
        let mut bad = object.clone();
        bad[at] ^= 0x10;
        bench.write("bad.kvc", &bad);
        bench.run("object inspect bad.kvc").fails(exit::DATA, &["bad.kvc"]);
        bench.write("short.kvc", &object[..at]);
        bench.run("object inspect short.kvc").fails(exit::DATA, &["short.kvc"]);
        bench
            .run("object decode short.kvc --profile p.kvp -o never.safetensors")
            .fails(exit::DATA, &["short.kvc"]);
    }
    assert!(!bench.path("never.safetensors").exists(), "nothing is written half");
}

#[test]
fn a_level_that_does_not_exist_is_named_with_those_that_do() {
    let bench = bench();
    bench
        .run("object decode out.kvc --profile p.kvp --level 200 -o x.safetensors")
        .fails(exit::DATA, &["level 200 does not exist", "levels 0 to"]);
}

#[test]
fn the_wrong_profile_is_an_error_and_not_wrong_numbers() {
    let bench = bench();
    let dumps = "kv.safetensors kv.safetensors kv.safetensors";
    bench.ok(&format!("profile train --recipe direct --finest-nmse 2.5e-4 --kv {dumps} -o other.kvp"));
    bench
        .run("object decode out.kvc --profile other.kvp -o x.safetensors")
        .fails(exit::DATA, &["encoded with profile", "load that profile"]);
    bench.write("cut.kvp", &made().profile[..made().profile.len() / 2]);
    bench.run("object decode out.kvc --profile cut.kvp -o x.safetensors").fails(exit::DATA, &["cut.kvp"]);
    bench
        .run("object decode out.kvc --profile out.kvc -o x.safetensors")
        .fails(exit::DATA, &["not a Kvasir profile"]);
    assert!(!bench.path("x.safetensors").exists());
}

/// What is coarser is stored and not loaded: a client that is given a profile has no other.
#[test]
fn a_trained_profile_is_transparent_unless_its_error_is_given() {
    let bench = bench();
    let quality = |options: &str| {
        let dumps = "kv.safetensors kv.safetensors kv.safetensors";
        bench.ok(&format!("profile train --recipe direct {options} --kv {dumps} -o trained.kvp"));
        bench.ok("object encode --kv kv.safetensors --profile trained.kvp -o trained.kvc");
        let found = bench.ok("object inspect trained.kvc --json");
        let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
        found["levels"].as_array().and_then(|levels| levels.last()).expect("a level")["quality"].clone()
    };
    assert_eq!(quality(""), "transparent");
    assert_ne!(quality("--finest-nmse 1e-2"), "transparent");
}

#[test]
fn a_foreign_model_is_refused() {
    let bench = bench();
    let mut dump = kvasir_dump::parse_dump(&made().dump).expect("a dump");
    dump.spec.revision = "another".to_owned();
    let path = bench.path("foreign.safetensors");
    let dtype = kvasir_dump::DumpDtype::F16;
    kvasir_dump::write_dump(&path, &dump.spec, &dump.tokens, &dump.kv, dtype).expect("written");
    bench
        .run("object encode --kv foreign.safetensors --profile p.kvp -o x.kvc")
        .fails(exit::DATA, &["trained for model"]);
    bench
        .run("profile train --kv kv.safetensors foreign.safetensors -o x.kvp")
        .fails(exit::DATA, &["of another model"]);
    bench
        .run("object decode out.kvc --profile p.kvp --spec foreign.safetensors -o x.safetensors")
        .fails(exit::DATA, &["is needed"]);
}

#[test]
fn files_that_are_not_there_or_not_writable_are_told_apart() {
    let bench = bench();
    bench.run("object inspect nothing.kvc").fails(exit::NO_INPUT, &["nothing.kvc"]);
    bench
        .run("object encode --kv nothing.safetensors --profile p.kvp -o x.kvc")
        .fails(exit::NO_INPUT, &["nothing.safetensors"]);
    bench
        .run("object encode --kv kv.safetensors --profile p.kvp -o no/such/folder/x.kvc")
        .fails(exit::NO_OUTPUT, &["x.kvc"]);
    bench.write("empty.txt", "");
    bench.run("context lookup --text empty.txt").fails(exit::DATA, &["empty"]);
    bench.run("object encode --profile p.kvp").fails(exit::USAGE, &["--kv"]);
}

#[test]
fn dumps_are_read_as_hostile_bytes() {
    let bench = bench();
    let dump = &made().dump;
    for at in [0, 1, 7, 8, 9, 100, dump.len() / 2, dump.len() - 1] {
        bench.write("cut.safetensors", &dump[..at]);
        bench
            .run("object encode --kv cut.safetensors --profile p.kvp -o x.kvc")
            .fails(exit::DATA, &["cut.safetensors"]);
    }
}

#[test]
fn numbers_that_training_needs_are_usage() {
    let bench = bench();
    let train = "profile train --kv kv.safetensors -o x.kvp";
    for (line, needle) in [
        (format!("{train} --budget-weights 10%"), "--parameters"),
        (format!("{train} --factors 1"), "--factors takes two numbers"),
    ] {
        bench.run(&line).fails(exit::USAGE, &[needle]);
    }
}

/// Whoever appends the entry to the tenants file gets no secret that no service knows.
#[test]
fn a_full_disk_is_not_a_bug() {
    let bench = empty_bench();
    for line in [
        "config --example",
        "token --tenant default --role read",
        "token --tenant default --role read --s3",
        "token --tenant default --role read --json",
    ] {
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let output = bench.command(bench.binary(), line).stdout(full).output().expect("starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit::NO_OUTPUT), "{line}: {stderr}");
        assert!(stderr.contains("standard output") && !stderr.contains("report it"), "{line}: {stderr}");
        assert!(!stderr.contains("kv_") && !stderr.contains("AWS_SECRET"), "{line}: {stderr}");
    }
}

#[test]
fn commands_without_a_namespace_refuse_one() {
    let bench = empty_bench();
    let id = "00000000-0000-0000-0000-000000000000";
    for command in [
        "admin events",
        "admin gc",
        "admin gc --direct --store.url memory://",
        "admin scrub",
        "admin top",
        "admin usage",
        "context list",
        &format!("context update {id}"),
        &format!("context delete {id}"),
    ] {
        let run = bench.run(&format!("{command} --namespace team"));
        run.fails(exit::USAGE, &["unexpected argument '--namespace'"]);
    }
}

#[test]
fn no_secret_is_taken_from_the_command_line() {
    let bench = empty_bench();
    for (line, variable) in [
        ("context list --token-from-environment canary", "KVASIR_TOKEN"),
        ("selftest --s3 http://127.0.0.1:1 --s3-secret-access-key canary", "AWS_SECRET_ACCESS_KEY"),
        ("config --store.url memory:// --store.secret_access_key canary", "KVASIR_STORE_SECRET_ACCESS_KEY"),
        ("config --store.url memory:// --store.session_token=canary", "KVASIR_STORE_SESSION_TOKEN"),
        ("config --store.url memory:// --encryption.keys canary", "KVASIR_ENCRYPTION_KEYS"),
    ] {
        let run = bench.run(line);
        assert!(!run.stderr().contains("canary"), "{line}: {}", run.stderr());
        run.fails(exit::USAGE, &["not taken from the command line", variable]);
    }
}

/// Token ids are after the `#`: browsers do not send that part, so the ids appear in no log.
#[test]
fn the_consoles_page_of_a_question_has_its_tokens_in_the_fragment() {
    let bench = bench();
    let known = kvasir_dump::parse_dump(&made().dump).expect("a dump");
    let line = "context explain --kv kv.safetensors --open --url http://cache.example:7480 --namespace team";
    let explain = |browser: &Browser| {
        let mut command = bench.command(bench.binary(), line);
        browser.is_used_by(&mut command);
        let output = command.output().expect("starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let address = explain(&Browser::missing(&bench));
    assert_eq!(explain(&Browser::refusing(&bench)), address);
    let browser = Browser::there(&bench);
    assert_eq!(explain(&browser), "", "the page is in the browser");
    assert_eq!(browser.opened(), address.trim());
    let (page, fragment) = address.trim().split_once('#').expect("a fragment");
    assert_eq!(page, "http://cache.example:7480/console/");
    let tokens: Vec<_> = known.tokens.iter().map(u32::to_string).collect();
    let model_id = known.spec.model_id();
    assert_eq!(fragment, format!("/explain?model_id={model_id}&namespace=team&tokens={}", tokens.join(",")));
}

/// A finished output is renamed over its path, and would replace a device or a socket.
#[test]
fn no_output_replaces_what_is_not_a_file() {
    let bench = bench();
    let socket = bench.path("socket");
    let _bound = std::os::unix::net::UnixListener::bind(&socket).expect("binds");
    for command in [
        "object encode --kv kv.safetensors --profile p.kvp -o socket",
        "object decode out.kvc --profile p.kvp -o socket",
    ] {
        bench.run(command).fails(exit::NO_OUTPUT, &["not a regular file"]);
        assert!(!std::fs::metadata(&socket).expect("is there").is_file());
    }
}
