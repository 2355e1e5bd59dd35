//! Rules that no compiler checks. Add a rule here together with the text that states it.

use std::{fs, path::Path};

use anyhow::{Result, bail};

use crate::files;

/// Longest Rust file. This limit may only be lowered.
const FILE_LINES_MAX: usize = 500;

/// Longest line of Markdown, except in tables, headings and code blocks.
const LINE_CHARACTERS_MAX: usize = 120;

/// Checks everything and reports all violations together.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut breaches = Vec::new();
    for path in files(root, "rs")? {
        let text = fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        breaches.extend(check_rust(&name, &text));
        breaches.extend(check_layout(root, &path));
    }
    for path in files(root, "md")? {
        let text = fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if matches!(name.as_str(), "SECURITY.md" | "services/kvasir-server/docs/security.md") {
            let missing = named_tests(&text).filter(|test| !is_there(root, test));
            breaches.extend(missing.map(|test| format!("{name}: {test} is no test that is run")));
        }
        breaches.extend(
            long_lines(&text)
                .map(|line| format!("{name}:{line}: longer than {LINE_CHARACTERS_MAX} characters, wrap it")),
        );
        breaches.extend(quotes(&text).filter(|(from, quoted)| !is_quoted(root, from, quoted)).map(
            |(from, _)| format!("{name}: a block is said to be from {from}, which does not have these lines"),
        ));
        let folder = path.parent().unwrap_or(root);
        breaches.extend(
            links(&text)
                .filter(|l| !folder.join(l).exists())
                .map(|l| format!("{name}: link to {l}, which does not exist")),
        );
    }
    for manifest in files(root, "toml")?.iter().filter(|p| p.ends_with("Cargo.toml")) {
        let folder = manifest.parent().unwrap_or(root);
        if !folder.join("README.md").exists() {
            breaches.push(format!("{}: the package needs a README.md", folder.display()));
        }
    }
    if breaches.is_empty() {
        println!("tidy: no violations");
        return Ok(());
    }
    bail!("{} breaches:\n  {}", breaches.len(), breaches.join("\n  "))
}

/// One module layout: a module with files is `mod.rs` in their folder.
fn check_layout(root: &Path, path: &Path) -> Option<String> {
    let folder = path.with_extension("");
    let is_split = folder.is_dir() && path.file_name().is_some_and(|name| name != "build.rs");
    is_split.then(|| {
        let name = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
        format!("{} is next to its folder; move it to {}/mod.rs", name(path), name(&folder))
    })
}

fn check_rust(name: &str, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        breaches
            .push(format!("{name}: {lines} lines, but the limit is {FILE_LINES_MAX}; split it by subject"));
    }
    // Written in two parts, so that this file passes its own check.
    let word = concat!("TO", "DO");
    for (number, line) in text.lines().enumerate().filter(|(_, l)| l.contains(word)) {
        if !line.contains(&format!("{word}(#")) {
            breaches.push(format!("{name}:{}: {word} without an issue; write {word}(#n)", number + 1));
        }
    }
    breaches
}

/// Tests that a threat model names: `file.rs`, `file.rs::function`, or a suite's path with its arguments.
fn named_tests(text: &str) -> impl Iterator<Item = &str> {
    let tops = ["tests/", "services/", "crates/"];
    let codes = text.split('`').skip(1).step_by(2).filter(|code| code.contains('/'));
    codes.filter(move |code| code.contains(".rs") || tops.iter().any(|top| code.starts_with(top)))
}

fn is_there(root: &Path, test: &str) -> bool {
    let Some((file, function)) = test.split_once("::") else {
        return test.split(' ').next().is_some_and(|path| root.join(path).exists());
    };
    fs::read_to_string(root.join(file)).is_ok_and(|text| is_run(&text, function))
}

/// Whether the attributes of a function make it a test, and do not leave it out.
fn is_run(text: &str, function: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let Some(at) = lines.iter().position(|line| line.contains(&format!("fn {function}("))) else {
        return false;
    };
    let above = lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    let attributes: Vec<_> = above.collect();
    let has =
        |starts: &[&str]| attributes.iter().any(|line| starts.iter().any(|start| line.starts_with(start)));
    has(&["#[test", "#[tokio::test"]) && !has(&["#[ignore"])
}

/// Numbers of the lines of text that are too long, from 1.
fn long_lines(text: &str) -> impl Iterator<Item = usize> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let is_text = !is_code && !is_fence && !line.trim_start().starts_with(['|', '#']);
        (is_text && line.chars().count() > LINE_CHARACTERS_MAX).then_some(index + 1)
    })
}

/// Blocks of code after `<!-- from PATH -->`, each with the path from the root.
fn quotes(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("<!-- from ").skip(1).filter_map(|rest| {
        let (from, rest) = rest.split_once(" -->\n```")?;
        Some((from, rest.split_once('\n')?.1.split("\n```").next()?))
    })
}

/// Whether a file has these lines one after the other, wherever they are indented to.
fn is_quoted(root: &Path, from: &str, quoted: &str) -> bool {
    let Ok(text) = fs::read_to_string(root.join(from)) else { return false };
    let [text, quoted] = [&text, quoted].map(|text| text.lines().map(str::trim).collect::<Vec<_>>());
    !quoted.is_empty() && text.windows(quoted.len()).any(|window| window == quoted)
}

/// Targets of relative links `[text](target)` and of pictures `src="target"`, without their fragment.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets =
        [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"')].into_iter().flat_map(move |(start, end)| {
            text.match_indices(start)
                .map(move |(at, _)| text[at + start.len()..].split(end).next().unwrap_or_default())
        });
    targets.filter_map(|target| {
        let path = target.split('#').next().unwrap_or_default();
        (!path.is_empty() && !path.contains("://") && !path.contains(char::is_whitespace)).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaches_are_found() {
        assert!(check_rust("a.rs", "fn a() {}\n").is_empty());
        assert_eq!(check_rust("a.rs", &"x\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
        assert_eq!(check_rust("a.rs", concat!("// TO", "DO: later\n// TO", "DO(#7): later")).len(), 1);
    }

    #[test]
    fn a_module_beside_its_folder_is_found() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        assert_eq!(check_layout(&here, &here.join("docs/mod.rs")), None);
        assert_eq!(check_layout(&here, &here.join("tidy.rs")), None);
        let found = check_layout(&here, &here.join("docs.rs")).expect("src/docs is a folder");
        assert!(found.contains("docs/mod.rs"), "{found}");
    }

    #[test]
    fn a_named_test_that_is_gone_is_found() {
        let text = "held by `src/tidy.rs::only_relative_links_are_checked`, `src/tidy.rs::gone`, `src/gone.rs`, \
                    `src/tidy.rs::check_rust`, `tests/gone/run --long`, `/metrics` and `limits.rs`";
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let missing: Vec<_> = named_tests(text).filter(|test| !is_there(here, test)).collect();
        let expected =
            ["src/tidy.rs::gone", "src/gone.rs", "src/tidy.rs::check_rust", "tests/gone/run --long"];
        assert_eq!(missing, expected);
        assert!(is_run("#[test]\n/// Why.\nfn a() {}", "a") && !is_run("#[test]\n#[ignore]\nfn a() {}", "a"));
    }

    #[test]
    fn long_lines_of_text_are_found() {
        let long = "x".repeat(LINE_CHARACTERS_MAX + 1);
        let text = format!("{long}\n| {long} |\n# {long}\n```text\n{long}\n```\n- {long}\n{}\n", &long[1..]);
        assert_eq!(long_lines(&text).collect::<Vec<_>>(), [1, 7]);
    }

    #[test]
    fn a_quotation_that_its_file_does_not_have_is_found() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "<!-- from Cargo.toml -->\n```toml\n[package]\n  name = \"xtask\"\n```\n\
                    <!-- from Cargo.toml -->\n```toml\nname = \"other\"\n```\n<!-- from gone -->\n```\nx\n```\n";
        let found: Vec<_> = quotes(text).map(|(from, quoted)| is_quoted(here, from, quoted)).collect();
        assert_eq!(found, [true, false, false]);
    }

    #[test]
    fn only_relative_links_are_checked() {
        let text = "[a](x.md#part) [b](https://example.org) [c](#here) [d](dir/y.md) `m[i](j k)` <img src=\"z.svg\">";
        assert_eq!(links(text).collect::<Vec<_>>(), ["x.md", "dir/y.md", "z.svg"]);
    }
}
