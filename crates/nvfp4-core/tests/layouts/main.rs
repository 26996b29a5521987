//! Layouts of codes and block scales, against the golden data of the upstream functions and by their properties.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod block_scale;
mod block_scale_values;
mod padding;
mod process_weights;
mod shuffle;
mod w4a16;

use nvfp4_testkit::golden::Tensor;

/// Rows and columns of a two-dimensional tensor.
fn extents(tensor: &Tensor) -> (usize, usize) {
    match tensor.shape[..] {
        [rows, cols] => (rows, cols),
        _ => panic!("not a matrix: {:?}", tensor.shape),
    }
}

/// A two-dimensional tensor of bytes as block scales.
fn linear(tensor: &Tensor) -> nvfp4_core::LinearScales<'_> {
    let (rows, cols) = extents(tensor);
    nvfp4_core::LinearScales::new(rows, cols, &tensor.bytes[..]).unwrap()
}

/// Bytes that differ from their neighbours and repeat late; never zero, so that padding is seen.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 * 13 + i / 65536) as u8 | 1).collect()
}
