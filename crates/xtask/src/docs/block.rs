//! Finds command blocks in Markdown.

use std::fmt;

use anyhow::{Context as _, Result, bail};

/// How CI treats a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    /// Run from the repository's root.
    Root,
    /// Run in the document's scratch folder.
    Scratch,
    /// Start in the scratch folder and wait until the address answers.
    Background(String),
    /// Left alone, with the reason.
    NotRun(String),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("run"),
            Self::Scratch => f.write_str("run in scratch"),
            Self::Background(address) => write!(f, "run in background: {address}"),
            Self::NotRun(reason) => write!(f, "not run: {reason}"),
        }
    }
}

/// A block of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Line of its fence, from 1.
    pub(crate) line: usize,
    /// How CI treats it.
    pub(crate) how: How,
    /// The commands.
    pub(crate) script: String,
}

/// All command blocks of a Markdown text, in order.
///
/// # Errors
/// A block without a mark, an unknown mark, a fence without end.
pub(crate) fn parse(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    let mut before = "";
    while let Some((index, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            if !line.trim().is_empty() {
                before = line.trim();
            }
            continue;
        };
        let mut content = Vec::new();
        loop {
            let (_, inner) =
                lines.next().with_context(|| format!("line {}: the fence is not closed", index + 1))?;
            if inner.trim_start().starts_with("```") {
                break;
            }
            content.push(inner);
        }
        if let "console" | "sh" = language.trim() {
            let how = how(before).with_context(|| format!("line {}", index + 1))?;
            blocks.push(Block { line: index + 1, how, script: script(language.trim(), &content) });
        }
        before = "";
    }
    Ok(blocks)
}

fn how(mark: &str) -> Result<How> {
    let mark = mark.strip_prefix("<!--").and_then(|m| m.strip_suffix("-->")).map(str::trim);
    Ok(match mark.map(|m| m.split_once(": ").unwrap_or((m, ""))) {
        Some(("run", "")) => How::Root,
        Some(("run in scratch", "")) => How::Scratch,
        Some(("run in background", address)) if !address.is_empty() => How::Background(address.to_owned()),
        Some(("not run", reason)) if !reason.is_empty() => How::NotRun(reason.to_owned()),
        _ => bail!("a block of commands needs <!-- run --> or <!-- not run: REASON --> before it"),
    })
}

/// `console` blocks show `$ command` and output; `sh` blocks are commands throughout.
fn script(language: &str, content: &[&str]) -> String {
    if language == "sh" {
        return content.join("\n");
    }
    let mut commands = Vec::new();
    let mut continued = false;
    for line in content {
        let command = line.trim_start().strip_prefix("$ ").or(continued.then_some(*line));
        continued = command.is_some_and(|c| c.ends_with('\\'));
        commands.extend(command);
    }
    commands.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_marks_are_read() {
        let text = "<!-- run -->\n```console\n$ a \\\n  b\nout\n$ c\n```\n<!-- not run: needs S3 -->\n\n```sh\nd\n```\n\
                    ```rust\nfn x() {}\n```\n<!-- run in background: 127.0.0.1:1 -->\n```sh\ne\n```\n";
        let blocks = parse(text).expect("parses");
        assert_eq!(blocks.len(), 3);
        assert_eq!((blocks[0].how.clone(), blocks[0].script.as_str()), (How::Root, "a \\\n  b\nc"));
        assert_eq!(blocks[1].how, How::NotRun("needs S3".to_owned()));
        assert_eq!(blocks[2].how, How::Background("127.0.0.1:1".to_owned()));
    }

    #[test]
    fn a_block_must_say_what_is_done_with_it() {
        for bad in [
            "```sh\na\n```",
            "<!-- not run: -->\n```sh\na\n```",
            "text\n```console\n$ a\n```",
            "<!-- run -->\n```sh\na",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
