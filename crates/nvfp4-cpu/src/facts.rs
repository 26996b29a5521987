//! This machine, as backend selection sees it.

use crate::{isa::Selected, threads};
use nvfp4_core::CpuFacts;

/// The CPU's model name, the instruction-set extensions that the kernels use, and the threads they may use (those
/// of rayon's current pool).
pub fn facts() -> CpuFacts {
    let features = Selected::best().features().iter().map(|f| f.to_string()).collect();
    CpuFacts::new(model_name().unwrap_or_else(|| std::env::consts::ARCH.into()), features, threads::count())
}

/// From `/proc/cpuinfo` on Linux; x86 processors also tell it themselves, by `cpuid`.
fn model_name() -> Option<String> {
    brand().or_else(proc_cpuinfo)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn brand() -> Option<String> {
    use std::arch::x86_64::__cpuid;
    // The lint attribute is for toolchains in which `__cpuid` is still an unsafe function.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has the `cpuid` instruction.
    let words = unsafe {
        if __cpuid(0x8000_0000).eax < 0x8000_0004 {
            return None;
        }
        [0x8000_0002, 0x8000_0003, 0x8000_0004].map(|leaf| {
            let r = __cpuid(leaf);
            [r.eax, r.ebx, r.ecx, r.edx]
        })
    };
    let bytes: Vec<u8> = words.into_iter().flatten().flat_map(u32::to_le_bytes).take_while(|&b| b != 0).collect();
    let name = String::from_utf8_lossy(&bytes).trim().to_string();
    (!name.is_empty()).then_some(name)
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn brand() -> Option<String> {
    None
}

fn proc_cpuinfo() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"))?;
    let name = line.split_once(':')?.1.trim();
    (!name.is_empty()).then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_this_machine() {
        let facts = facts();
        assert!(!facts.name.trim().is_empty());
        assert_eq!(facts.threads, threads::count());
        assert!(facts.threads >= 1);
        assert_eq!(facts.features, Selected::best().features());
    }
}
