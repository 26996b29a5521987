//! The conformance suite, for the best kernels of this machine and for the portable ones.

use nvfp4_core::DeviceFacts;
use nvfp4_cpu::{CpuNvFp4LinearKernel, facts};
use nvfp4_testkit::Kernel;

mod best {
    use super::*;
    nvfp4_testkit::conformance!(kernel: Kernel::host(&CpuNvFp4LinearKernel::new(), DeviceFacts::Cpu(facts())));
}

mod portable {
    use super::*;
    nvfp4_testkit::conformance!(kernel: Kernel::host(&CpuNvFp4LinearKernel::portable(), DeviceFacts::Cpu(facts())));
}
