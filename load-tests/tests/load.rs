//! The program as it is called.

use std::process::Command;

fn load(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kvasir-load"))
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

#[test]
fn a_projection_says_what_it_assumes() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().to_str().unwrap();
    let (passed, text) = load(&["project", "--results", out, "--out", out]);
    assert!(passed, "{text}");
    assert!(text.contains("ASSUMED") && text.contains("GC, listing everything, h"), "{text}");
    let json = std::fs::read_to_string(format!("{out}/projection.json")).unwrap();
    assert!(json.contains("index_gb_of_a_replica"), "{json}");
}

#[test]
fn a_scenario_with_a_mistake_is_refused_with_its_place() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("wrong.toml");
    std::fs::write(&path, "name = \"x\"\nabout = \"\"\nsecondz = 3\n").unwrap();
    let (passed, text) = load(&["run", path.to_str().unwrap()]);
    assert!(!passed && text.contains("secondz"), "{text}");
}

#[test]
fn a_report_is_drawn_from_the_document_alone() {
    let out = tempfile::tempdir().unwrap();
    let (folder, results) = (out.path().to_str().unwrap(), "load-tests/results");
    let (soak, get) = (format!("{results}/soak.json"), format!("{results}/speed-get.json"));
    let (passed, text) = load(&["report", &soak, &get, "--out", folder]);
    assert!(passed && text.contains("soak.html"), "{text}");
    let page = std::fs::read_to_string(out.path().join("soak.html")).unwrap();
    assert!(page.contains("<h2>Thresholds</h2>") && page.contains("service.resident_mib_max"), "{page}");
    assert!(out.path().join("speed-get.html").exists());
}

#[test]
fn single_operations_are_a_subcommand_with_their_flags() {
    let (passed, text) = load(&["speed", "rebuild", "--help"]);
    assert!(passed && text.contains("--pairs") && text.contains("--chunks"), "{text}");
}
