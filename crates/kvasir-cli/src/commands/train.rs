//! `kvasir profile train`: a profile from KV dumps.

use kvasir_codec::train::{Recipe, TrainingContext, train};

use crate::{
    args::{RecipeName, TrainArguments},
    error::{CliError, CliResult, Exit, write_file},
    inputs,
    output::{bytes, columns, print},
    progress::Step,
};

/// Runs the command.
pub(crate) fn run(arguments: &TrainArguments) -> CliResult {
    let mut spec = None;
    let mut contexts = Vec::with_capacity(arguments.kv.len());
    for path in &arguments.kv {
        let dump = inputs::dump(path)?;
        let spec = spec.get_or_insert_with(|| dump.spec.clone());
        if spec.model_id() != dump.spec.model_id() {
            let message =
                format!("{} is of another model than {}", path.display(), arguments.kv[0].display());
            return Err(CliError::new(Exit::Data, message, "A profile is trained from dumps of one model."));
        }
        contexts.push(TrainingContext { tokens: dump.tokens, kv: dump.kv });
    }
    let Some(spec) = spec else {
        return Err(CliError::new(Exit::Data, "no dump was given", "Name at least one with --kv."));
    };
    let recipe = match arguments.recipe {
        RecipeName::Basis => Recipe::default(),
        RecipeName::Direct => Recipe::Direct,
        RecipeName::Cachegen => Recipe::CacheGen,
    };
    let step = Step::start("training");
    let profile = train(&spec, &contexts, &recipe, &mut |what, part| step.at(what, part))
        .map_err(|e| CliError::new(Exit::Data, e, ""))?;
    let file = profile.to_bytes();
    write_file(&arguments.output, &file)?;
    step.done(&format!("{} written to {}", bytes(file.len() as u64), arguments.output.display()));
    print(&levels_table(&profile))
}

/// What training measured about each level.
pub(crate) fn levels_table(profile: &kvasir_codec::Profile) -> String {
    let mut rows = vec![["level", "bits/element", "nmse", "predicted KL"].map(str::to_owned).to_vec()];
    for (index, note) in profile.levels().iter().enumerate() {
        rows.push(vec![
            index.to_string(),
            format!("{:.3}", note.bits_per_element),
            format!("{:.2e}", note.nmse),
            note.kl.map_or_else(|| "–".to_owned(), |kl| format!("{kl:.2e}")),
        ]);
    }
    columns(&rows)
}
