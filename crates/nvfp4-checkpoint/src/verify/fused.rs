//! Modules that engines run as one matrix.

use super::{
    VerifiedLayer,
    finding::{Fault, Finding, Severity},
    module::Checked,
};
use crate::{Module, Scheme, fused_groups::fused_groups};
use nvfp4_core::GlobalScale;

/// Differences between modules that engines run as one matrix. `others`: modules that are not NVFP4.
pub(super) fn check_fused(
    modules: &[&Module],
    others: &[&Module],
    checked: &[(Checked, VerifiedLayer)],
) -> Vec<Finding> {
    let all: Vec<&Module> = modules.iter().chain(others).copied().collect();
    let mut findings = Vec::new();
    for group in fused_groups(all.iter().map(|m| (m.name.as_str(), m.in_features))) {
        let members: Vec<&Module> = group.members.iter().filter_map(|&m| all.get(m).copied()).collect();
        let schemes: Vec<&Scheme> = members.iter().map(|m| &m.scheme).collect();
        if schemes.windows(2).any(|pair| pair[0] != pair[1]) {
            // A faulty module is a finding already.
            if !schemes.iter().any(|s| matches!(s, Scheme::Faulty(_))) {
                let parts: Vec<_> = members.iter().map(|m| format!("{} is {}", m.name, m.scheme)).collect();
                let message =
                    format!("parts are not quantized alike; engines refuse to fuse them: {}", parts.join(", "));
                findings.push(Finding::warning(Fault::FusedSchemesDiffer, message).in_module(&group.name));
            }
            continue;
        }
        let scales = |of: fn(&Checked) -> Option<GlobalScale>| -> Vec<f32> {
            let members = group.members.iter().filter_map(|&m| checked.get(m));
            members.filter_map(|(checked, _)| of(checked)).map(|scale| scale.decode().get()).collect()
        };
        if let Some((ratio, listed)) = spread(&scales(|c| c.global)) {
            let message = format!(
                "parts have different global scales, up to {ratio:.4} times each other ({listed} as multipliers); \
                 engines with one scale for the fused matrix are wrong by the ratio, this one keeps each part's"
            );
            findings.push(Finding::warning(Fault::FusedScalesDiffer, message).in_module(&group.name));
        }
        if let Some((ratio, listed)) = spread(&scales(|c| c.input)) {
            let message = format!(
                "parts have different input scales, up to {ratio:.4} times each other ({listed} as multipliers); their \
                 input is the same, and the largest is used for all"
            );
            findings.push(Finding::new(Severity::Note, Fault::FusedScalesDiffer, message).in_module(&group.name));
        }
    }
    findings
}

/// The largest ratio and the values, if they differ.
fn spread(scales: &[f32]) -> Option<(f32, String)> {
    let smallest = scales.iter().copied().reduce(f32::min)?;
    let largest = scales.iter().copied().reduce(f32::max)?;
    let listed: Vec<_> = scales.iter().map(|s| format!("{s:e}")).collect();
    (smallest != largest).then(|| (largest / smallest, listed.join(", ")))
}
