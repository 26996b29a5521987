//! GGUF's NVFP4 blocks (type 40): 64 values in 36 bytes, four e4m3 scales, then 32 bytes of codes.
//!
//! Within each group of 16, byte `j` (0..8) holds value `j` in its low nibble and value `j + 8` in its high nibble, where
//! checkpoints hold neighbours. Scales are unsigned: the sign bit is not looked at. The bytes `0x00` and `0x7F` mean 0,
//! and `0xFF` means 480, by ggml's test for the byte `0x7F` alone. Sources: gguf 0.19 `quants.NVFP4`, ggml's
//! `ggml_ue4m3_to_fp32`, llama.cpp's converter.

use crate::{
    BLOCK_SIZE,
    block_scale::LinearScales,
    e2m1, e4m3,
    error::{Error, check_multiple, check_size},
};

/// GGUF type number of NVFP4.
pub const TYPE_ID: u32 = 40;
/// Values of a block.
pub const BLOCK_VALUES: usize = 64;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = 36;

const GROUPS: usize = BLOCK_VALUES / BLOCK_SIZE;
/// The scale byte whose value no e4m3 byte has.
const ABOVE_E4M3: u8 = 0xff;

/// Value of a scale byte, as ggml decodes it (there it is halved, beside doubled codes).
pub const fn decode_scale(byte: u8) -> f32 {
    match byte {
        0x7f => 0.0,
        ABOVE_E4M3 => 480.0,
        byte => e4m3::decode(byte & 0x7f),
    }
}

/// The 64 values of a block. Code 8 is +0.0: GGUF decodes through integers.
pub fn decode_block(block: &[u8; BLOCK_BYTES]) -> [f32; BLOCK_VALUES] {
    let mut values = [0.0; BLOCK_VALUES];
    for (group, values) in values.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        let scale = decode_scale(block[group]);
        let codes = &block[GROUPS + group * 8..][..8];
        for (j, &byte) in codes.iter().enumerate() {
            values[j] = (e2m1::decode(byte & 15) + 0.0) * scale;
            values[j + 8] = (e2m1::decode(byte >> 4) + 0.0) * scale;
        }
    }
    values
}

/// Turns rows of blocks into the checkpoint form: packed codes and linear block scales. `blocks` holds
/// `packed.len() / 32` blocks; `scales` one byte for each 8 bytes of `packed`, of which `columns` make a row.
///
/// Scale bytes that mean 0 become 0, others lose their sign bit, which has no meaning. `0xFF` means 480, which e4m3 does
/// not have: [`Error::BlockScale`] with the place of the first.
pub fn to_checkpoint(blocks: &[u8], columns: usize, packed: &mut [u8], scales: &mut [u8]) -> Result<(), Error> {
    check_sizes(blocks.len(), packed.len(), scales.len())?;
    let mut above = (0, 0);
    let groups = packed.as_chunks_mut::<8>().0.chunks_exact_mut(GROUPS);
    for (i, ((block, packed), scales)) in
        blocks.as_chunks::<BLOCK_BYTES>().0.iter().zip(groups).zip(scales.chunks_exact_mut(GROUPS)).enumerate()
    {
        for (group, (packed, scale)) in packed.iter_mut().zip(scales).enumerate() {
            *scale = match block[group] {
                ABOVE_E4M3 => {
                    above = (if above.1 == 0 { i * GROUPS + group } else { above.0 }, above.1 + 1);
                    0
                }
                0x7f => 0,
                byte => byte & 0x7f,
            };
            let halves = &block[GROUPS + group * 8..][..8];
            let code = |i: usize| if i < 8 { halves[i] & 15 } else { halves[i - 8] >> 4 };
            *packed = core::array::from_fn(|j| code(2 * j) | code(2 * j + 1) << 4);
        }
    }
    match above {
        (_, 0) => Ok(()),
        (at, count) => {
            let columns = columns.max(1);
            Err(Error::BlockScale { row: at / columns, column: at % columns, byte: ABOVE_E4M3, count })
        }
    }
}

/// The inverse of [`to_checkpoint`]: packed codes and linear block scales into blocks.
///
/// NaN and negative scales are refused ([`Error::BlockScale`]): GGUF reads the former as 0 and the latter as positive.
/// (llama.cpp's converter drops the sign bit and goes on.)
pub fn from_checkpoint(packed: &[u8], scales: &LinearScales<'_>, blocks: &mut [u8]) -> Result<(), Error> {
    check_sizes(blocks.len(), packed.len(), scales.bytes().len())?;
    scales.check_values()?;
    let groups = packed.as_chunks::<8>().0.chunks_exact(GROUPS);
    for ((block, packed), scales) in
        blocks.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().zip(groups).zip(scales.bytes().chunks_exact(GROUPS))
    {
        for (group, (packed, scale)) in packed.iter().zip(scales).enumerate() {
            block[group] = *scale;
            let code = |i: usize| packed[i / 2] >> (4 * (i % 2)) & 15;
            for j in 0..8 {
                block[GROUPS + group * 8 + j] = code(j) | code(j + 8) << 4;
            }
        }
    }
    Ok(())
}

fn check_sizes(blocks: usize, packed: usize, scales: usize) -> Result<(), Error> {
    check_multiple("packed bytes of GGUF rows (k must be a multiple of 64)", BLOCK_VALUES / 2, packed)?;
    check_size("GGUF block bytes", packed / (BLOCK_VALUES / 2) * BLOCK_BYTES, blocks)?;
    check_size("block scale bytes", packed / 8, scales)
}
