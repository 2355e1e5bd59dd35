//! A desktop's program that opens files in a browser, as a script that notes what it is asked to open.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use kvasir_tests::command::Bench;

const OPENERS: [&str; 2] = ["xdg-open", "open"];
const OPENED_WITHIN: Duration = Duration::from_secs(30);

pub(crate) struct Browser {
    programs: PathBuf,
}

impl Browser {
    /// No program of that name.
    pub(crate) fn missing(bench: &Bench) -> Self {
        Self::new(bench, "missing", None)
    }

    /// A program that finds no browser, as on a server.
    pub(crate) fn refusing(bench: &Bench) -> Self {
        Self::new(bench, "refusing", Some("exit 3"))
    }

    /// A program that copies the file, with its mode and its name.
    pub(crate) fn there(bench: &Bench) -> Self {
        let folder = bench.path("there");
        let folder = folder.display();
        Self::new(
            bench,
            "there",
            Some(&format!("/bin/cp -p \"$1\" {folder}/page && echo \"$*\" > {folder}/asked")),
        )
    }

    fn new(bench: &Bench, name: &str, script: Option<&str>) -> Self {
        let programs = bench.path(name);
        fs::create_dir_all(&programs).expect("a folder");
        for opener in OPENERS {
            let Some(script) = script else { continue };
            let program = programs.join(opener);
            fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        Self { programs }
    }

    /// The command finds these programs only.
    pub(crate) fn is_used_by(&self, command: &mut Command) {
        command.env("PATH", &self.programs).env("TMPDIR", &self.programs);
    }

    /// The address that the opened page leads to. The page is its reader's alone, and the address is in no argument.
    pub(crate) fn opened(&self) -> String {
        let asked = self.programs.join("asked");
        let begun = Instant::now();
        while fs::read_to_string(&asked).map_or(0, |text| text.len()) == 0 {
            assert!(begun.elapsed() < OPENED_WITHIN, "nothing was opened");
            std::thread::yield_now();
        }
        let asked = fs::read_to_string(&asked).expect("text");
        let page = Path::new(asked.trim());
        assert!(page.starts_with(&self.programs) && !asked.contains("console"), "{asked}");
        for page in [page, &self.programs.join("page")] {
            assert_eq!(fs::metadata(page).expect("it stays").permissions().mode() & 0o777, 0o600);
        }
        let page = fs::read_to_string(page).expect("text");
        let (_, rest) = page.split_once("url=").expect("a redirect");
        rest.split('"').next().expect("the address").replace("&amp;", "&")
    }
}
