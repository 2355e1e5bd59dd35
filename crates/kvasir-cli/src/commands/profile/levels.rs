//! A table of training's measurements for each level.

use kvasir_codec::Profile;
use kvasir_types::Level;

use crate::output::columns;

/// Training's measurements for each level: the loss predicted from the error by layer and its cost, and the
/// measured loss.
pub(crate) fn levels_table(profile: &Profile) -> String {
    let header = ["level", "bits/element", "nmse", "KL predicted", "KL measured"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (index, note) in profile.levels().iter().enumerate() {
        let loss = profile.loss_of_errors(Level(index as u8));
        let predicted = note.kl.filter(|_| loss > 0.0).map(|_| loss);
        let or_dash = |kl: Option<f32>| kl.map_or_else(|| "–".to_owned(), |kl| format!("{kl:.2e}"));
        rows.push(vec![
            index.to_string(),
            format!("{:.3}", note.bits_per_element),
            format!("{:.2e}", note.nmse),
            or_dash(predicted),
            or_dash(note.kl),
        ]);
    }
    columns(&rows)
}
