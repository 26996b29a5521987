//! Branches, loops, calls, collectives and barriers, against what the lanes must see.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, unreachable_pub, missing_docs, reason = "a part of it is used")]
#[path = "support/device.rs"]
mod device;
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a part of it is used")]
#[path = "support/random.rs"]
mod random;

use blackwell_sim::{fault::FaultKind, program::Program};
use device::{Device, kernel, launch};
use random::Random;

fn inputs(seed: u64) -> [u64; 32] {
    let mut random = Random(seed);
    core::array::from_fn(|_| {
        u64::from(random.below(1 << 30)) << 34 | u64::from(random.below(1 << 30)) << 4 | u64::from(random.below(16))
    })
}

#[test]
fn lanes_loop_each_as_often_as_they_must() {
    let device = Device::new("sm_100a");
    let input = inputs(1);
    // Collatz steps of a small number, with a branch within the loop; then a shuffle that needs all lanes together again.
    let body = "
        and.b64 %rd10, %rd8, 255; add.s64 %rd10, %rd10, 1; mov.b64 %rd11, 0;
        again: setp.eq.u64 %p0, %rd10, 1; @%p0 bra done;
        and.b64 %rd12, %rd10, 1; setp.eq.u64 %p1, %rd12, 0;
        @%p1 bra even; mad.lo.u64 %rd10, %rd10, 3, 1; bra next;
        even: shr.u64 %rd10, %rd10, 1;
        next: add.s64 %rd11, %rd11, 1; bra again;
        done: cvt.u32.u64 %r1, %rd11; shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;
        mov.b64 %rd9, {%r1, %r2};";
    let steps: Vec<u64> = input
        .iter()
        .map(|value| {
            let (mut n, mut steps) = (value % 256 + 1, 0);
            while n != 1 {
                n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
                steps += 1;
            }
            steps
        })
        .collect();
    let expected: [u64; 32] = core::array::from_fn(|lane| steps[lane] | steps[lane ^ 1] << 32);
    assert_eq!(device.warp(body, &input).unwrap(), expected);
}

#[test]
fn lanes_may_wait_for_each_other() {
    // Lane 5 spins on an mbarrier that lane 9 arrives at, in the other arm of the branch.
    let device = Device::new("sm_90a");
    let body = "
        mov.u32 %r5, sm; setp.ne.u32 %p0, %r0, 0; @%p0 bra ready; mbarrier.init.shared.b64 [%r5], 1; ready: bar.warp.sync -1;
        setp.eq.u32 %p1, %r0, 5; @%p1 bra wait; setp.eq.u32 %p2, %r0, 9; @!%p2 bra leave;
        st.shared.b32 [%r5+16], 77; mbarrier.arrive.shared.b64 %rd10, [%r5]; bra leave;
        wait: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra wait;
        ld.shared.u32 %r6, [%r5+16]; cvt.u64.u32 %rd9, %r6;
        leave:";
    let out = device.warp(body, &[0; 32]).unwrap();
    assert_eq!(out, core::array::from_fn(|lane| if lane == 5 { 77 } else { 0 }));
}

#[test]
fn collectives_see_who_takes_part() {
    let device = Device::new("sm_100a");
    let input = inputs(2);
    let odd = input.iter().enumerate().fold(0u64, |mask, (lane, value)| mask | (value & 1) << lane);
    let body = "
        cvt.u32.u64 %r1, %rd8; and.b32 %r2, %r1, 1; setp.eq.u32 %p0, %r2, 1;
        vote.sync.ballot.b32 %r3, %p0, -1; redux.sync.add.u32 %r4, %r1, -1; elect.sync %r5|%p1, -1; selp.b32 %r6, 1, 0, %p1;
        xor.b32 %r7, %r3, %r4; mov.b64 %rd9, {%r7, %r6};";
    let sum = input.iter().fold(0u32, |sum, &value| sum.wrapping_add(value as u32));
    let expected = core::array::from_fn(|lane| u64::from(odd as u32 ^ sum) | u64::from(lane == 0) << 32);
    assert_eq!(device.warp(body, &input).unwrap(), expected);
}

#[test]
fn functions_take_and_return_values() {
    let device = Device::new("sm_100a");
    let function = ".func (.param .b64 result) triple(.param .b64 value, .param .align 4 .b8 pair[8])\n{\n.reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p<2>;\n\
        ld.param.u64 %rd0, [value]; ld.param.u32 %r0, [pair+4]; cvt.u64.u32 %rd2, %r0;\n\
        setp.gt.u64 %p0, %rd0, 100; @%p0 bra big; mul.lo.u64 %rd1, %rd0, 3; add.u64 %rd1, %rd1, %rd2; st.param.b64 [result], %rd1; ret;\n\
        big: st.param.b64 [result], %rd0; ret;\n}\n";
    let body = "{ .param .b64 a; .param .b64 r; .param .align 4 .b8 b[8]; and.b64 %rd10, %rd8, 255; st.param.b64 [a], %rd10; st.param.b32 [b+4], 7;
        call (r), triple, (a, b); ld.param.b64 %rd9, [r]; }";
    let source = kernel("sm_100a", body).replace(".visible", &format!("{function}.visible"));
    let input = inputs(3);
    let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (from, out) = (device.upload(&bytes), device.upload(&[0; 256]));
    let parameters: Vec<u8> = [out, from].iter().flat_map(|value| value.to_le_bytes()).collect();
    device.run(&source, &launch(1, 32, &parameters)).unwrap();
    let out = device.download(out, 256);
    for (lane, value) in input.iter().enumerate() {
        let value = value & 255;
        let expected = if value > 100 { value } else { 3 * value + 7 };
        assert_eq!(out[8 * lane..8 * lane + 8], expected.to_le_bytes(), "lane {lane}");
    }
}

#[test]
fn a_barrier_orders_warps_and_ctas_add_up() {
    let device = Device::new("sm_100a");
    let out = device.upload(&[0; 8]);
    let source = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry sum(.param .u64 out)\n{\n.reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<3>; .shared .b32 slots[96];\n\
        mov.u32 %r0, %tid.x; mov.u32 %r1, slots; shl.b32 %r2, %r0, 2; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], %r0; bar.sync 0;\n\
        setp.ne.u32 %p0, %r0, 0; @%p0 bra end; mov.u32 %r3, 0; mov.u32 %r4, 0;\n\
        loop: ld.shared.u32 %r5, [%r1]; add.u32 %r3, %r3, %r5; add.u32 %r1, %r1, 4; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 96; @%p1 bra loop;\n\
        ld.param.u64 %rd0, [out]; atom.global.add.u32 %r6, [%rd0], %r3;\n end: ret;\n}\n";
    device.run(source, &launch(50, 96, &out.to_le_bytes())).unwrap();
    assert_eq!(device.download(out, 4), (50u32 * 95 * 96 / 2).to_le_bytes());
}

#[test]
fn what_is_not_modelled_is_named() {
    let device = Device::new("sm_100a");
    let error = Program::compile(&kernel("sm_100a", "tex.1d.v4.f32.s32 {%r1,%r2,%r3,%r4}, [sm];"), device.profile);
    assert!(error.err().unwrap().to_string().contains("line 16"));
    let error = Program::compile(&kernel("sm_120a", ""), device.profile).err().unwrap();
    assert!(error.to_string().contains("sm_120a does not run on NVIDIA B200"), "{error}");
}

#[test]
fn faults_name_line_and_thread() {
    let device = Device::new("sm_100a");
    let fault = |body: &str| device.warp(body, &[0; 32]).unwrap_err();
    let found = fault("setp.eq.u32 %p0, %r0, 7; @%p0 ld.global.u32 %r1, [%rd3+1024];");
    assert_eq!((found.kind, found.line, found.thread), (FaultKind::OutOfBounds, 16, Some([7, 0, 0])));
    assert_eq!(fault("ld.shared.u32 %r1, [sm+8];").kind, FaultKind::Uninitialised);
    assert_eq!(fault("add.s64 %rd3, %rd3, 2; ld.global.u32 %r1, [%rd3];").kind, FaultKind::Misaligned);
    assert_eq!(fault("trap;").kind, FaultKind::Trap);
    assert_eq!(fault("ld.global.u32 %r1, [12345678];").kind, FaultKind::Misaligned);
    assert_eq!(fault("mov.u32 %r5, sm; mbarrier.arrive.shared.b64 %rd10, [%r5];").kind, FaultKind::Barrier);
    let hang = fault(
        "mov.u32 %r5, sm; mbarrier.init.shared.b64 [%r5], 40;\nw: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra w;",
    );
    assert_eq!(hang.kind, FaultKind::Deadlock);
    assert!(hang.message.contains("waits for parity 0") && hang.message.contains("40 of 40 arrivals"), "{hang}");
    let alone = fault("setp.eq.u32 %p0, %r0, 7; @%p0 shfl.sync.idx.b32 %r1, %r0, 0, 31, -1;");
    assert_eq!(alone.kind, FaultKind::Deadlock);
}
