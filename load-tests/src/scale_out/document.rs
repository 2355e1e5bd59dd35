//! The document of the measurement: whole after each part, with what an earlier run left of those that are not measured yet.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;

use super::{Part, Scaling, conversation::Conversations, membership::ReplicasChanged};
use crate::report;

const NAME: &str = "scale-out";

impl Scaling {
    /// The parts that there are results of.
    fn measured(&self) -> BTreeSet<Part> {
        let hot = self.rows.first().map(|_| Part::Hot);
        let conversations = self.conversations.iter().map(Conversations::part);
        let restarts = self.restarts.iter().map(ReplicasChanged::part);
        hot.into_iter().chain(conversations).chain(restarts).collect()
    }

    /// The others.
    pub(super) fn not_measured(&self) -> Vec<Part> {
        let measured = self.measured();
        Part::value_variants().iter().copied().filter(|part| !measured.contains(part)).collect()
    }

    pub(super) fn leave_out(&mut self, parts: &[Part]) {
        self.rows.retain(|_| !parts.contains(&Part::Hot));
        self.conversations.retain(|row| !parts.contains(&row.part()));
        self.restarts.retain(|row| !parts.contains(&row.part()));
        self.earlier.retain(|part, _| !parts.contains(part));
    }

    /// Takes over the document in `out`; if it was measured otherwise, nothing of it.
    ///
    /// # Errors
    ///
    /// If what was measured otherwise has others than these parts, or the document cannot be read.
    pub(super) fn take_over(&mut self, out: &Path, parts: &[Part]) -> Result<()> {
        let path = out.join(NAME).with_extension("json");
        if !path.exists() {
            return Ok(());
        }
        let read = || anyhow::Ok(serde_json::from_str::<Self>(&fs::read_to_string(&path)?)?);
        let before = read().with_context(|| format!("reading {}", path.display()))?;
        let measured = before.measured();
        if (&before.what, before.link_mbps, before.seed) != (&self.what, self.link_mbps, self.seed) {
            ensure!(
                measured.iter().all(|part| parts.contains(part)),
                "{} has other parts, of {} with {} Mb/s and seed {}: write to another folder",
                path.display(),
                before.what,
                before.link_mbps,
                before.seed
            );
            return Ok(());
        }
        let machine = |part: Part| (part, before.earlier.get(&part).unwrap_or(&before.machine).clone());
        self.earlier = measured.into_iter().map(machine).collect();
        self.rows = before.rows;
        self.conversations = before.conversations;
        self.restarts = before.restarts;
        Ok(())
    }

    /// Writes document and page.
    pub(super) fn write(&self, out: &Path) -> Result<()> {
        report::write(out, NAME, self, &self.page())
    }

    /// Writes them if there are none: nothing was measured.
    pub(super) fn write_if_first(&self, out: &Path) -> Result<()> {
        if out.join(NAME).with_extension("json").exists() { Ok(()) } else { self.write(out) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::scale_out::samples;

    fn document(out: &Path) -> Value {
        let text = fs::read_to_string(out.join("scale-out.json")).expect("a document");
        serde_json::from_str(&text).expect("JSON")
    }

    /// A run that has measured nothing yet.
    fn begun(commit: &str) -> Scaling {
        let mut scaling = samples::kept(&samples::machine(commit));
        scaling.leave_out(Part::value_variants());
        scaling
    }

    #[test]
    fn a_second_run_completes_the_document_of_one_that_was_interrupted() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path();
        let mut first = begun("first");
        first.rows = samples::kept(&samples::machine("first")).rows;
        first.write(out).expect("written");
        let named = [Part::Conversation, Part::Template, Part::Restart];
        for commit in ["second", "third"] {
            let mut next = begun(commit);
            next.take_over(out, &named).expect("another part of the same measurement");
            next.leave_out(&named);
            let Scaling { conversations, restarts, .. } = samples::kept(&samples::machine(commit));
            next.conversations.extend(conversations);
            next.restarts.extend(restarts.into_iter().filter(|row| row.part() == Part::Restart));
            next.write(out).expect("written");
            let document = document(out);
            assert_eq!(next.not_measured(), [Part::Leave, Part::Join]);
            assert_eq!(document["machine"]["commit"], commit);
            assert_eq!(document["earlier"].as_object().expect("parts").len(), 1);
            assert_eq!(document["earlier"]["hot"]["commit"], "first");
            let rows = ["rows", "conversations", "restarts"].map(|of| document[of].as_array().map(Vec::len));
            assert_eq!(rows, [Some(2), Some(5), Some(2)]);
            assert!(
                next.page().contains("Part hot, of an earlier run") && next.page().contains("commit first")
            );
        }
    }

    #[test]
    fn a_part_stays_until_it_is_measured_again() {
        let folder = tempfile::tempdir().expect("a folder");
        samples::kept(&samples::machine("first")).write(folder.path()).expect("written");
        for part in Part::value_variants().iter().filter(|part| **part != Part::Join) {
            let mut next = begun("second");
            next.take_over(folder.path(), Part::value_variants()).expect("a document");
            assert_eq!(next.not_measured(), [Part::Join]);
            next.leave_out(&[*part]);
            assert_eq!(next.not_measured(), [*part, Part::Join]);
            assert!(next.earlier.keys().copied().eq(next.measured()));
        }
    }

    #[test]
    fn parts_that_were_measured_otherwise_are_neither_mixed_in_nor_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        samples::kept(&samples::machine("first")).write(folder.path()).expect("written");
        let worse: [fn(&mut Scaling); 3] =
            [|s| s.what = "over another store".to_owned(), |s| s.link_mbps = 400, |s| s.seed = 2];
        for change in worse {
            let mut next = begun("second");
            change(&mut next);
            let refused = next.take_over(folder.path(), &[Part::Hot]).expect_err("other conditions");
            assert!(refused.to_string().contains("another folder"), "{refused}");
            next.take_over(folder.path(), Part::value_variants()).expect("nothing to keep");
            assert!(next.measured().is_empty());
        }
    }

    #[test]
    fn a_run_that_can_measure_nothing_leaves_a_document_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let skipped = || Scaling { skipped: Some("no root".to_owned()), ..begun("second") };
        skipped().write_if_first(folder.path()).expect("written");
        assert_eq!(document(folder.path())["skipped"], "no root");
        samples::kept(&samples::machine("first")).write(folder.path()).expect("written");
        skipped().write_if_first(folder.path()).expect("nothing to do");
        assert_eq!(document(folder.path())["machine"]["commit"], "first");
    }

    /// What is renamed over a name is another file; what is written into it can be read when half of it is there.
    #[test]
    fn a_document_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path();
        for file in ["scale-out.json", "scale-out.html"] {
            begun("first").write(out).expect("written");
            let former = out.join("former");
            fs::hard_link(out.join(file), &former).expect("a second name");
            let text = fs::read_to_string(&former).expect("text");
            samples::kept(&samples::machine("second")).write(out).expect("written");
            assert_eq!(fs::read_to_string(&former).expect("text"), text);
            assert_ne!(fs::read_to_string(out.join(file)).expect("text"), text);
            fs::remove_file(former).expect("removed");
        }
        assert_eq!(fs::read_dir(out).expect("a folder").count(), 2);
    }
}
