//! The suite judges rightly: a plain right backend passes every tier, and every fault is caught.

use nvfp4_core::{CpuFacts, DeviceFacts};
use nvfp4_testkit::{
    Kernel,
    broken::{BrokenKernel, FAULTS, Fault},
    conformance::{self, Report},
    random::seed,
};

fn cpu() -> DeviceFacts {
    DeviceFacts::Cpu(CpuFacts::new("test", Vec::new(), 1))
}

mod right {
    use super::*;
    nvfp4_testkit::conformance!(kernel: Kernel::host(&BrokenKernel(Fault::None), cpu()));
}

#[test]
fn every_fault_is_caught() {
    let seed = seed();
    for &fault in FAULTS {
        let kernel = BrokenKernel(fault);
        let kernel = Kernel::host(&kernel, cpu());
        type Tier<'a> = Box<dyn Fn() -> Report + 'a>;
        // The cheap tiers first; the first one that catches the fault is enough.
        let tiers: [Tier<'_>; 9] = [
            Box::new(|| conformance::host::run(&kernel, seed)),
            Box::new(|| conformance::negative::run(&kernel, seed)),
            Box::new(|| conformance::batches::run(&kernel, seed)),
            Box::new(|| conformance::poison::run(&kernel, seed)),
            Box::new(|| conformance::quantized::run(&kernel, seed)),
            Box::new(|| conformance::exact::run(&kernel, seed)),
            Box::new(|| conformance::format::run(&kernel, seed)),
            Box::new(|| conformance::random::run(&kernel, seed)),
            Box::new(|| conformance::shapes::run(&kernel, seed)),
        ];
        let caught = tiers.iter().map(|tier| tier()).find(|report| !report.failures().is_empty());
        let Some(report) = caught else { panic!("{fault:?} passes every tier (seed {seed})") };
        println!("{fault:?}: {report}");
    }
}
