//! Weights for the kernels that read 128x4 tiles, against what vLLM's kernel classes prepare.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_core::{
    GlobalScale, GlobalScales, LinearScales, NvFp4Weights, kernel::WeightLayout, requirements::REQUIREMENTS,
};
use nvfp4_cuda::swizzled::SwizzledBytes;
use nvfp4_testkit::golden::File;

#[test]
fn swizzled_weights_equal_the_golden_ones() {
    let golden = File::open("process_weights.safetensors");
    let readers = REQUIREMENTS.iter().filter(|row| row.weight_layouts[0].2 == WeightLayout::SWIZZLED_128X4);
    let classes: Vec<_> = readers.map(|row| format!("{}_", row.vllm_class)).collect();
    assert_eq!(classes.len(), 4);
    for class in classes {
        let names: Vec<_> = golden.prefixes("_ws").into_iter().filter(|name| name.starts_with(&class)).collect();
        assert!(!names.is_empty(), "{class}");
        for name in names {
            let (_, shape) = name[class.len()..].split_once('_').unwrap();
            let (w, ws) = (golden.get(&format!("in_{shape}_w")), golden.get(&format!("in_{shape}_ws")));
            let (n, k) = (w.shape[0], w.shape[1] * 2);
            let scales = LinearScales::new(n, k / 16, &ws.bytes[..]).unwrap();
            let global = GlobalScales::per_tensor(n, GlobalScale::ONE);
            let weights = NvFp4Weights::new(n, k, &w.bytes[..], scales, global).unwrap();
            let swizzled = SwizzledBytes::new(&weights).unwrap();
            let expected = golden.get(&format!("{name}_w"));
            assert_eq!(swizzled.codes, expected.bytes, "{name}: weight");
            assert_eq!([swizzled.n, swizzled.k / 2], expected.shape[..], "{name}: shape");
            assert_eq!(swizzled.scales, golden.get(&format!("{name}_ws")).bytes, "{name}: scales");
        }
    }
}
