//! The list of linear modules that are not quantized.

use super::{CheckpointFormat, QuantizedModule};

/// The ignore list that names the `dense` modules and does not cover any of the quantized ones.
///
/// A ModelOpt entry covers every module whose name contains it (as vLLM reads it), so that `layers.1.fc` would also
/// ignore `layers.1.fc2`. Such an entry is written as a shell pattern that matches the one name only, with its last
/// character in brackets: `layers.1.f[c]`.
pub(crate) fn ignore_list(
    format: CheckpointFormat,
    dense: &[String],
    quantized: &[QuantizedModule],
) -> Vec<String> {
    let mut list: Vec<String> = dense
        .iter()
        .map(|name| match format {
            CheckpointFormat::CompressedTensors => name.clone(),
            CheckpointFormat::ModelOpt if quantized.iter().any(|q| q.name.contains(name.as_str())) => {
                glob_literal(name)
            }
            CheckpointFormat::ModelOpt => name.clone(),
        })
        .collect();
    list.sort();
    list.dedup();
    list
}

/// A shell pattern that matches `name` only, and is contained in no module name.
fn glob_literal(name: &str) -> String {
    let mut characters = name.chars();
    match characters.next_back() {
        Some(last) => format!("{}[{last}]", characters.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_covers_a_quantized_module() {
        let quantized: Vec<_> = ["layers.1.fc2", "layers.10.fc"]
            .map(|name| QuantizedModule { name: name.into(), quantized_activations: false })
            .into();
        let dense: Vec<String> = ["lm_head", "layers.1.fc", "layers.1", "layers.10.gate"].map(String::from).into();
        assert_eq!(
            ignore_list(CheckpointFormat::ModelOpt, &dense, &quantized),
            ["layers.10.gate", "layers.[1]", "layers.1.f[c]", "lm_head"]
                .map(String::from)
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        );
        assert_eq!(
            ignore_list(CheckpointFormat::CompressedTensors, &dense, &quantized),
            ["layers.1", "layers.1.fc", "layers.10.gate", "lm_head"]
        );
    }
}
