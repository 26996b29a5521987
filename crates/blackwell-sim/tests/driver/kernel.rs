//! Launches: parameters, shapes, attributes.

use crate::module::{kernel, load};
use cudarc::driver::{CudaContext, DevicePtr, sys};
use std::ptr::null_mut;

pub(crate) const TESTS: &[crate::Test] = &[
    ("kernel::adds", adds),
    ("kernel::parameters_arrive", parameters_arrive),
    ("kernel::clusters_and_events", clusters_and_events),
];

/// `y[i] = a * x[i] + y[i]` for `i < n`.
const SAXPY: &str = r"
.version 8.0
.target sm_90
.address_size 64
.visible .entry saxpy(.param .u64 y, .param .u64 x, .param .f32 a, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [x];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r2, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r1, %r3, %r4, %r5;
    setp.ge.s32 %p1, %r1, %r2;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd3, %rd2;
    mul.wide.s32 %rd4, %r1, 4;
    add.s64 %rd5, %rd3, %rd4;
    ld.global.f32 %f2, [%rd5];
    cvta.to.global.u64 %rd6, %rd1;
    add.s64 %rd7, %rd6, %rd4;
    ld.global.f32 %f3, [%rd7];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd7], %f4;
DONE:
    ret;
}
";

fn adds() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let saxpy = kernel(load(SAXPY), "saxpy");
    for n in [1usize, 255, 256, 1000] {
        let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.75).collect();
        let y: Vec<f32> = (0..n).map(|i| 100.0 - i as f32).collect();
        let (device_x, device_y) = (stream.clone_htod(&x).unwrap(), stream.clone_htod(&y).unwrap());
        let (mut at_y, mut at_x) = (device_y.device_ptr(&stream).0, device_x.device_ptr(&stream).0);
        let (mut a, mut count) = (1.5f32, n as u32);
        let mut parameters =
            [(&raw mut at_y).cast(), (&raw mut at_x).cast(), (&raw mut a).cast(), (&raw mut count).cast()];
        let ctas = n.div_ceil(128) as u32;
        // SAFETY: the parameters are those of the kernel, which stays below `n`.
        unsafe {
            let (stream, parameters) = (stream.cu_stream(), parameters.as_mut_ptr());
            sys::cuLaunchKernel(saxpy, ctas, 1, 1, 128, 1, 1, 0, stream, parameters, null_mut()).result().unwrap();
        }
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| a.mul_add(*x, *y)).collect();
        assert_eq!(stream.clone_dtoh(&device_y).unwrap(), expected);
    }
}

/// Writes its parameters, and where it runs, to memory.
const TELL: &str = r"
.version 8.0
.target sm_90
.address_size 64
.visible .entry tell(.param .u64 out, .param .u8 a, .param .align 8 .b8 b[16])
{
    .reg .b16 %h<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u8 %h1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [b+8];
    cvta.to.global.u64 %rd4, %rd1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %cluster_ctarank;
    mov.u32 %r3, %cluster_nctarank;
    mul.wide.u32 %rd5, %r1, 32;
    add.s64 %rd4, %rd4, %rd5;
    cvt.u32.u16 %r4, %h1;
    st.global.u32 [%rd4], %r4;
    st.global.u32 [%rd4+4], %r2;
    st.global.u32 [%rd4+8], %r3;
    st.global.u64 [%rd4+16], %rd2;
    st.global.u64 [%rd4+24], %rd3;
    ret;
}
";

fn words(address: u64, count: usize) -> Vec<u64> {
    crate::memory::bytes_at(address, 8 * count)
        .chunks(8)
        .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// The same from pointers and from a buffer.
fn parameters_arrive() {
    let _context = CudaContext::new(0).unwrap();
    let tell = kernel(load(TELL), "tell");
    let (mut out, mut a, mut b) = (crate::memory::allocate(32), 200u8, [0x0123_4567_89ab_cdefu64, 0xfedc_ba98]);
    let mut pointers = [(&raw mut out).cast(), (&raw mut a).cast(), b.as_mut_ptr().cast()];
    let mut buffer = [out, u64::from(a), b[0], b[1]];
    let mut size = 32usize;
    let key = std::ptr::without_provenance_mut;
    let mut extra = [key(1), buffer.as_mut_ptr().cast(), key(2), (&raw mut size).cast(), null_mut()];
    for from_buffer in [false, true] {
        // SAFETY: the parameters are those of the kernel, which writes 32 bytes.
        unsafe {
            sys::cuMemsetD8_v2(out, 0xee, 32).result().unwrap();
            let (pointers, extra) = match from_buffer {
                true => (null_mut(), extra.as_mut_ptr()),
                false => (pointers.as_mut_ptr(), null_mut()),
            };
            sys::cuLaunchKernel(tell, 1, 1, 1, 1, 1, 1, 0, null_mut(), pointers, extra).result().unwrap();
        }
        assert_eq!(words(out, 4), [200, 0xeeee_eeee_0000_0001, b[0], b[1]]);
    }
    crate::memory::free(out);
}

/// Clusters, a programmatic launch and an event that marks the end of a kernel, as launch attributes.
fn clusters_and_events() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let tell = kernel(load(TELL), "tell");
    let event = context.new_event(None).unwrap();
    let (mut out, mut a, mut b) = (crate::memory::allocate(4 * 32), 1u8, [5u64, 6]);
    let mut pointers = [(&raw mut out).cast(), (&raw mut a).cast(), b.as_mut_ptr().cast()];
    // SAFETY: all-zero is a value of these plain structs; the parameters are those of the kernel.
    unsafe {
        let mut attributes: [sys::CUlaunchAttribute; 3] = std::mem::zeroed();
        attributes[0].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[0].value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 2, y: 1, z: 1 };
        attributes[1].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[1].value.programmaticStreamSerializationAllowed = 1;
        attributes[2].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
        attributes[2].value.launchCompletionEvent.event = event.cu_event();
        let mut configuration: sys::CUlaunchConfig = std::mem::zeroed();
        (configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ) = (4, 1, 1);
        (configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ) = (1, 1, 1);
        configuration.hStream = stream.cu_stream();
        configuration.attrs = attributes.as_mut_ptr();
        configuration.numAttrs = 3;
        sys::cuLaunchKernelEx(&configuration, tell, pointers.as_mut_ptr(), null_mut()).result().unwrap();
        configuration.gridDimX = 3;
        let odd = sys::cuLaunchKernelEx(&configuration, tell, pointers.as_mut_ptr(), null_mut());
        assert_eq!(odd, sys::CUresult::CUDA_ERROR_INVALID_VALUE, "no whole clusters");
        attributes[1].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
        configuration.attrs = attributes.as_mut_ptr();
        let unknown = sys::cuLaunchKernelEx(&configuration, tell, pointers.as_mut_ptr(), null_mut());
        assert_eq!(unknown, sys::CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    event.synchronize().unwrap();
    let told = crate::memory::bytes_at(out, 4 * 32);
    for cta in 0..4 {
        let word = |index: usize| u32::from_le_bytes(told[32 * cta + 4 * index..][..4].try_into().unwrap());
        assert_eq!((word(1), word(2)), (cta as u32 % 2, 2), "rank and size of the cluster of CTA {cta}");
    }
    crate::memory::free(out);
}
