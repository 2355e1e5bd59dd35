//! Commands under names of earlier releases: for one release, the error names the new command.

use crate::error::{CliError, Exit};

/// (old command, new command). Remove the entries in release 0.2.0.
const RENAMED: &[(&[&str], &str)] = &[
    (&["serve", "--print-config"], "kvasir config"),
    (&["serve", "--print-example"], "kvasir config --example"),
    (&["store"], "kvasir context put"),
    (&["fetch"], "kvasir context get"),
    (&["lookup"], "kvasir context lookup"),
    (&["explain"], "kvasir context explain"),
    (&["contexts", "create"], "kvasir context create"),
    (&["contexts", "change"], "kvasir context update"),
    (&["contexts", "delete"], "kvasir context delete"),
    (&["contexts", "get"], "kvasir context list CONTEXT_ID"),
    (&["contexts", "versions"], "kvasir context list CONTEXT_ID --versions"),
    (&["contexts"], "kvasir context list"),
    (&["usage"], "kvasir admin usage"),
    (&["gc"], "kvasir admin gc"),
    (&["scrub"], "kvasir admin scrub"),
    (&["maintain", "gc"], "kvasir admin gc --direct"),
    (&["maintain", "scrub"], "kvasir admin scrub --direct"),
    (&["maintain"], "kvasir admin"),
    (&["rebuild-index"], "kvasir admin rebuild-index"),
    (&["events"], "kvasir admin events"),
    (&["top"], "kvasir admin top"),
    (&["encode"], "kvasir object encode"),
    (&["decode"], "kvasir object decode"),
    (&["inspect"], "kvasir object inspect, or kvasir profile inspect"),
    (&["kv"], "kvasir-lab dump"),
    (&["engine"], "kvasir-lab engine"),
    (&["bench"], "kvasir-lab bench"),
    (&["sim"], "kvasir-lab sim"),
];

/// The error for a command with an old name. `arguments` excludes the program's name.
pub(crate) fn advice(arguments: &[String]) -> Option<CliError> {
    let is_old = |old: &[&str]| {
        old.len() <= arguments.len() && old.iter().zip(arguments).all(|(word, argument)| word == argument)
    };
    let (old, new) = RENAMED.iter().find(|(old, _)| is_old(old))?;
    let message = format!("`kvasir {}` was renamed", old.join(" "));
    Some(CliError::new(Exit::Usage, message, format!("Use `{new}`.")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Arguments;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn old_names_are_answered_with_the_new() {
        let told = |line: &str| advice(&words(line)).map(|error| error.to_string());
        assert!(told("gc --dry-run").is_some_and(|text| text.contains("`kvasir admin gc`")));
        assert!(told("maintain gc --json").is_some_and(|text| text.contains("admin gc --direct")));
        assert!(told("serve --print-config").is_some_and(|text| text.contains("kvasir config")));
        assert!(told("serve --listen 127.0.0.1:1").is_none() && told("plan --list").is_none());
    }

    #[test]
    fn new_names_exist_and_hide_none() {
        for (old, new) in RENAMED.iter().filter(|(_, new)| new.starts_with("kvasir ")) {
            let mut command = Arguments::command();
            for word in new
                .split([' ', ','])
                .skip(1)
                .filter(|word| word.chars().all(|c| c.is_lowercase() || c == '-'))
            {
                let Some(found) = command.find_subcommand(word) else { break };
                command = found.clone();
            }
            assert_ne!(command.get_name(), "kvasir", "{old:?} leads nowhere");
            if old.len() == 1 {
                assert!(Arguments::command().find_subcommand(old[0]).is_none(), "{old:?} hides a command");
            }
        }
    }
}
