//! Questions with known answers, asked of a device image before it is trusted.
//!
//! An image of the wrong flavour runs without an error and returns zeros or NaN, for some numbers of rows only
//! (FlashInfer #3398: right for 1 and 8 rows, wrong for 32 to 1536).

use crate::{error::CudaError, memory::DeviceBuffer, quantize::Quantizer, stream::Stream};
use half::bf16;
use nvfp4_core::{DType, GlobalScale, ScaleLayout, quantize::QuantizeOptions};

/// Rows of the block 0, 1, … 15 with encode scale 179.2 become these codes and this scale (448).
const CODES: [u8; 8] = [0x10, 0x22, 0x43, 0x54, 0x65, 0x66, 0x76, 0x77];
const SCALE: u8 = 0x7e;
const K: usize = 2048;
const ROWS: [usize; 3] = [1, 32, 1024];

/// `Ok` if the quantizer gives the known answer for 1, 32 and 1024 rows in every layout.
pub fn quantizer(quantizer: &Quantizer) -> Result<(), CudaError> {
    let device = quantizer.device();
    let stream = Stream::new(device)?;
    let stream = stream.as_ref();
    let wrong = |detail: String| CudaError::SelfTest {
        kernel: format!("quantize ({})", quantizer.target()),
        device: device.describe(),
        detail,
    };
    let scale = GlobalScale::from_encode(179.2)?;
    for m in ROWS {
        let x: Vec<u8> = (0..m * K).flat_map(|i| bf16::from_f32((i % 16) as f32).to_le_bytes()).collect();
        let x = DeviceBuffer::from_host(device, &x)?;
        for layout in [ScaleLayout::Linear, ScaleLayout::Swizzled128x4, ScaleLayout::Swizzled8x4] {
            let options = QuantizeOptions { layout, padded_n: None, exact: false };
            let mut out = quantizer.allocate(DType::Bf16, m, K, options)?;
            quantizer.scaled_fp4_quant(stream, x.as_matrix(DType::Bf16, m, K)?, scale, options, &mut out)?;
            let (codes, scales) = (out.data.to_host()?, out.scale.to_host()?);
            if let Some(at) = codes.chunks_exact(8).position(|block| block != CODES) {
                return Err(wrong(format!(
                    "{m} rows, {layout:?}: block {at} is {:02x?}, expected {CODES:02x?}",
                    &codes[at * 8..at * 8 + 8]
                )));
            }
            let columns = K / 16;
            for (row, column) in (0..m).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                let found = scales.get(layout.offset(row, column, columns)).copied();
                if found != Some(SCALE) {
                    return Err(wrong(format!(
                        "{m} rows, {layout:?}: scale ({row}, {column}) is {found:02x?}, expected {SCALE:#04x}"
                    )));
                }
            }
            let padding = scales.iter().filter(|&&byte| byte != 0 && byte != SCALE).count();
            let set = scales.iter().filter(|&&byte| byte == SCALE).count();
            if padding != 0 || set != m * columns {
                return Err(wrong(format!("{m} rows, {layout:?}: scale padding is not zero")));
            }
        }
    }
    Ok(())
}
