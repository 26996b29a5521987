//! The device codecs, for every f32.

use crate::setup::Gpu;
use nvfp4_cuda::{DeviceBuffer, codec_check::Codecs};

pub(crate) const TESTS: &[crate::Test] =
    &[("codecs::every_f32", every_f32), ("codecs::decode_tables", decode_tables)];

/// e2m1 and e4m3 of all 2^32 bit patterns equal their definitions.
fn every_f32(gpu: &Gpu) {
    let check = Codecs::load(&gpu.device, &nvfp4_cuda::pack::search_path()).unwrap();
    assert_eq!(check.mismatches().unwrap(), (0, 0), "(e2m1, e4m3) on {}", gpu.device.describe());
}

/// Values of all bytes and codes equal the host's.
fn decode_tables(gpu: &Gpu) {
    let check = Codecs::load(&gpu.device, &nvfp4_cuda::pack::search_path()).unwrap();
    let decoded = check.decode_tables().unwrap();
    for byte in 0..128u8 {
        let (found, expected) = (decoded[usize::from(byte)], nvfp4_core::e4m3::decode(byte));
        assert!(found == expected || (found.is_nan() && expected.is_nan()), "{byte:#04x}: {found} {expected}");
    }
    for code in 0..16u8 {
        let (found, expected) = (decoded[128 + usize::from(code)], nvfp4_core::e2m1::decode(code));
        assert_eq!(found.to_bits(), expected.to_bits(), "code {code}");
    }
    let empty = DeviceBuffer::new(&gpu.device, 0).unwrap();
    assert!(empty.is_empty() && empty.to_host().unwrap().is_empty());
}
