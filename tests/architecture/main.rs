//! The shape of the workspace, checked over `cargo metadata`: allowed dependency edges, folders, lints.
//!
//! The picture is in ARCHITECTURE.md; a new edge enters both places together, with its reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// `package → workspace packages it may depend on` (direct edges of the library or binary).
const EDGES: &[(&str, &[&str])] = &[
    ("kvasir-types", &[]),
    ("kvasir-plot", &[]),
    ("kvasir-container", &["kvasir-types"]),
    ("kvasir-codec", &["kvasir-container", "kvasir-types"]),
    ("kvasir-train", &["kvasir-codec", "kvasir-types"]),
    ("kvasir-dump", &["kvasir-codec", "kvasir-types"]),
    ("kvasir-model", &["kvasir-types"]),
    ("kvasir-kernels", &["kvasir-codec"]),
    ("kvasir-kernels-emulator", &["kvasir-kernels"]),
    ("kvasir-cuda", &["kvasir-client", "kvasir-codec", "kvasir-kernels", "kvasir-types"]),
    ("kvasir-api", &["kvasir-types"]),
    ("kvasir-eviction", &[]),
    ("kvasir-store", &["kvasir-api", "kvasir-types"]),
    (
        "kvasir-storage",
        &["kvasir-api", "kvasir-container", "kvasir-eviction", "kvasir-store", "kvasir-types"],
    ),
    ("kvasir-replay", &["kvasir-eviction"]),
    ("kvasir-client", &["kvasir-api", "kvasir-codec", "kvasir-types"]),
    ("kvasir-engine", &["kvasir-client", "kvasir-codec", "kvasir-train", "kvasir-types"]),
    (
        "kvasir-python",
        &[
            "kvasir-api",
            "kvasir-client",
            "kvasir-codec",
            "kvasir-dump",
            "kvasir-model",
            "kvasir-train",
            "kvasir-types",
        ],
    ),
    (
        "kvasir-server",
        &["kvasir-api", "kvasir-eviction", "kvasir-model", "kvasir-storage", "kvasir-store", "kvasir-types"],
    ),
    (
        "kvasir-cli",
        &[
            "kvasir-api",
            "kvasir-client",
            "kvasir-codec",
            "kvasir-container",
            "kvasir-dump",
            "kvasir-engine",
            "kvasir-model",
            "kvasir-plot",
            "kvasir-replay",
            "kvasir-server",
            "kvasir-storage",
            "kvasir-train",
            "kvasir-types",
        ],
    ),
];

/// What a client or a server must not link, however deep: a trainer's and an engine's libraries, and the peers'.
const LEAN: &[&str] = &["kvasir-client", "kvasir-server"];
const HEAVY: &[&str] = &["faer", "candle-core", "tokenizers", "constriction"];

/// Packages that may depend on anything, and on which nothing depends.
const TOPS: &[&str] = &["kvasir-lab", "kvasir-lab-gpu", "kvasir-load-tests", "kvasir-tests", "xtask"];

/// Folders of the repository's root; tool folders start with a dot.
const FOLDERS: &[&str] = &["crates", "deploy", "helm", "kernels", "load-tests", "services", "tests"];

/// The codec side of the house: no IO, no async, no environment, no logging.
const PURE: &[&str] =
    &["kvasir-types", "kvasir-container", "kvasir-codec", "kvasir-eviction", "kvasir-train"];
const IMPURE_DEPENDENCIES: &[&str] = &[
    "tokio",
    "tokio-util",
    "futures",
    "axum",
    "reqwest",
    "hyper",
    "object_store",
    "sled",
    "tracing",
    "prometheus",
    "log",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_path_buf()
}

fn metadata() -> Metadata {
    // Offline and without resolution: manifests are enough, and nothing is fetched.
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata runs")
}

/// `package → dependencies that are part of what it ships` (dev-dependencies may point anywhere below).
fn shipped_dependencies(metadata: &Metadata) -> BTreeMap<String, BTreeSet<String>> {
    let shipped = |package: &cargo_metadata::Package| {
        let dependencies = package.dependencies.iter().filter(|d| d.kind != DependencyKind::Development);
        dependencies.map(|d| d.name.clone()).collect()
    };
    metadata.workspace_packages().into_iter().map(|p| (p.name.to_string(), shipped(p))).collect()
}

/// Edges of `found` that the picture does not have, as text.
fn forbidden_edges(found: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut forbidden = Vec::new();
    for (package, dependencies) in found.iter().filter(|(p, _)| !TOPS.contains(&p.as_str())) {
        let Some(allowed) = allowed.get(package.as_str()) else {
            forbidden.push(format!("{package} is not in the picture: add it with its allowed edges"));
            continue;
        };
        let ours = dependencies.iter().filter(|d| found.contains_key(*d));
        forbidden.extend(
            ours.filter(|d| !allowed.contains(&d.as_str()))
                .map(|d| format!("{package} must not depend on {d}")),
        );
    }
    forbidden
}

/// Edges of the picture that `found` does not have, as text.
fn unused_edges(found: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let allowed = EDGES.iter().flat_map(|(package, edges)| edges.iter().map(move |edge| (*package, *edge)));
    let unused = allowed.filter(|(package, edge)| found.get(*package).is_none_or(|d| !d.contains(*edge)));
    unused.map(|(package, edge)| format!("{package} does not depend on {edge}")).collect()
}

#[test]
fn dependency_edges_are_those_of_the_picture() {
    let found = shipped_dependencies(&metadata());
    assert_eq!(forbidden_edges(&found), Vec::<String>::new());
    assert_eq!(unused_edges(&found), Vec::<String>::new());
}

#[test]
fn a_forbidden_edge_is_noticed() {
    let edge = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
    let found = BTreeMap::from([
        edge("kvasir-server", "kvasir-codec"),
        edge("kvasir-codec", "kvasir-types"),
        edge("kvasir-types", "serde"),
    ]);
    assert_eq!(forbidden_edges(&found), ["kvasir-server must not depend on kvasir-codec"]);
    let unused = unused_edges(&found);
    assert!(unused.contains(&"kvasir-codec does not depend on kvasir-container".to_owned()), "{unused:?}");
    assert!(!unused.contains(&"kvasir-codec does not depend on kvasir-types".to_owned()), "{unused:?}");
    let stranger = BTreeMap::from([edge("kvasir-new", "serde")]);
    assert_eq!(forbidden_edges(&stranger).len(), 1);
}

#[test]
fn the_codec_side_does_no_io() {
    let found = shipped_dependencies(&metadata());
    for package in PURE {
        let impure: Vec<_> =
            found[*package].iter().filter(|d| IMPURE_DEPENDENCIES.contains(&d.as_str())).collect();
        assert!(impure.is_empty(), "{package} depends on {impure:?}");
    }
}

/// All that `package` links, as cargo resolves it for a build without default features of others.
fn linked(package: &str) -> BTreeSet<String> {
    let tree = ["tree", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--package"];
    let cargo = option_env!("CARGO").unwrap_or("cargo");
    let output = std::process::Command::new(cargo).args(tree).arg(package).current_dir(root()).output();
    let output = output.expect("cargo tree runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn clients_and_servers_link_no_trainer_and_no_engine() {
    for package in LEAN {
        let linked = linked(package);
        assert!(linked.contains("kvasir-types"), "the tree of {package} was read: {linked:?}");
        let heavy: Vec<_> = HEAVY.iter().filter(|heavy| linked.contains(**heavy)).collect();
        assert!(heavy.is_empty(), "{package} links {heavy:?}");
    }
    assert!(linked("kvasir-engine").contains("faer"), "what is looked for would be found");
}

#[test]
fn nothing_depends_on_the_tops() {
    for (package, dependencies) in shipped_dependencies(&metadata()) {
        // The load generator makes its chunks with the tests' own tools.
        if TOPS.contains(&package.as_str()) {
            continue;
        }
        let tops: Vec<_> = dependencies.iter().filter(|d| TOPS.contains(&d.as_str())).collect();
        assert!(tops.is_empty(), "{package} depends on {tops:?}");
    }
}

#[test]
fn every_member_inherits_the_workspace() {
    for package in metadata().workspace_packages() {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("manifests are readable");
        let inherits = |section: &str| manifest.contains(section);
        assert!(
            inherits("[lints]\nworkspace = true"),
            "{}: [lints] workspace = true is missing",
            package.name
        );
        for field in ["version", "edition", "rust-version", "license"] {
            assert!(inherits(&format!("{field}.workspace = true")), "{}: {field} is its own", package.name);
        }
    }
}

#[test]
fn the_root_holds_the_given_folders() {
    let entries = std::fs::read_dir(root()).expect("the root is readable");
    let folders: BTreeSet<String> = entries
        .filter_map(Result::ok)
        .filter(|e| e.path().is_dir())
        .map(|e| e.file_name().to_string_lossy().into_owned())
        // Ignored by git: build output, and what the commands of the README leave behind.
        .filter(|n| !n.starts_with('.') && !["target", "kvasir-demo", "kvasir-data"].contains(&n.as_str()))
        .collect();
    assert_eq!(folders.iter().map(String::as_str).collect::<Vec<_>>(), FOLDERS);
}
