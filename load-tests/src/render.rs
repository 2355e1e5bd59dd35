//! `kvasir-load report`: the pages of results, from their JSON documents.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    apart::Apart,
    deadlines::Deadlines,
    divided::DividedPath,
    hour::{self, Hour},
    link::Links,
    peers::Comparison,
    projection::Projection,
    scale_out::Scaling,
    scenario::{self, outcome::Outcome},
    speed,
};

/// Draws the pages of results from their JSON documents.
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Results, as the other commands wrote them.
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
    /// Folder for the pages: FILE.html each.
    #[arg(long, default_value = "target/load")]
    out: PathBuf,
}

/// Draws all of them. Returns the paths of the pages.
pub(crate) fn report(arguments: &ReportArguments) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(&arguments.out)?;
    let (mut names, mut pages) = (BTreeSet::new(), Vec::new());
    for file in &arguments.files {
        let name = file.file_stem().context("a result has a name")?.to_owned();
        ensure!(
            names.insert(name.clone()),
            "two results are called {}: draw them into two folders",
            name.display()
        );
        let page = arguments.out.join(name).with_extension("html");
        std::fs::write(&page, page_of(file)?)?;
        pages.push(page);
    }
    Ok(pages)
}

/// The page of one result.
fn page_of(file: &Path) -> Result<String> {
    let drawn = || {
        let text = std::fs::read_to_string(file)?;
        let result: Value = serde_json::from_str(&text)?;
        let has = |field: &str| result.get(field).is_some();
        // By a field that only this kind has.
        if has("scenario") {
            Ok(scenario::page::page(&parsed::<Outcome>(&text)?))
        } else if has("quotients") {
            Ok(parsed::<Comparison>(&text)?.page())
        } else if has("calibration") {
            Ok(parsed::<Projection>(&text)?.page())
        } else if has("hour_seconds") {
            Ok(hour::page(&parsed::<Hour>(&text)?))
        } else if has("tenants_apart") {
            Ok(parsed::<Apart>(&text)?.page())
        } else if has("differences") {
            Ok(parsed::<Deadlines>(&text)?.page())
        } else if has("link_mbps") {
            Ok(parsed::<Scaling>(&text)?.page())
        } else if has("divided") {
            Ok(parsed::<DividedPath>(&text)?.page())
        } else if has("layers") {
            Ok(parsed::<Links>(&text)?.page())
        } else if has("what") {
            speed::page::page(&result)
        } else {
            bail!("no result of kvasir-load")
        }
    };
    drawn().with_context(|| format!("drawing {}", file.display()))
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    Ok(serde_json::from_str(text)?)
}

#[cfg(test)]
mod tests {
    use kvasir_plot::markup::check_markup;

    use super::*;

    fn results(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|e| e == "json")).collect()
    }

    #[test]
    fn every_committed_result_has_a_page() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        let all = [results(&folder), results(&folder.join("minio"))].concat();
        assert!(all.len() >= 40, "{} results", all.len());
        for file in all {
            let page = page_of(&file).unwrap();
            check_markup(&page).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(!page.contains("NaN"), "{}", file.display());
        }
    }

    #[test]
    fn what_is_no_result_is_refused_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("other.json");
        std::fs::write(&file, "{}").unwrap();
        let error = page_of(&file).unwrap_err();
        assert!(format!("{error:#}").contains("other.json"), "{error:#}");
        let (files, out) = (vec![file.clone(), file], directory.path().to_owned());
        assert!(report(&ReportArguments { files, out }).is_err());
    }
}
