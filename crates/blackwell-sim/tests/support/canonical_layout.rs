//! CuTe's canonical operand layouts, written as CuTe writes them: strides over modes, then a swizzle of the offset.

/// A layout of a matrix operand in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct CanonicalLayout {
    /// Bits of the swizzle (0 to 3): spans of 16, 32, 64, 128 bytes.
    pub swizzle: u32,
    /// Whether k runs along contiguous bytes.
    pub k_major: bool,
    /// Leading and stride byte offsets.
    pub leading: usize,
    pub stride: usize,
}

impl CanonicalLayout {
    /// A layout without gaps for `rows` × `k` elements of `bits` bits.
    pub fn dense(swizzle: u32, k_major: bool, rows: usize, k: usize, bits: usize) -> Self {
        let span = 16 << swizzle;
        let (leading, stride) = match (k_major, swizzle) {
            // 8×16-byte core matrices, those along the rows next to each other.
            (true, 0) => (rows * 16, 128),
            (true, _) => (0, 8 * span),
            (false, 0) => (128, k * 16),
            // Atoms of 8 k by one span of rows; along k next to each other.
            (false, _) => (k * span, 8 * span),
        };
        assert!(!k_major || swizzle == 0 || k * bits / 8 <= span, "a K-major row must fit the span");
        Self { swizzle, k_major, leading, stride }
    }

    /// Byte offset of the 16-byte chunk and bit offset in it of element (row, k), before the matrix's start is added.
    pub fn bit(&self, row: usize, k: usize, bits: usize) -> usize {
        let t = 128 / bits;
        let width = 1usize << self.swizzle;
        let offset = if self.k_major {
            // ((8,m),(T,2)) : ((width·T, SBO), (1, T or LBO)), in bytes.
            let chunk = k / t;
            let across = if self.swizzle == 0 { chunk * self.leading } else { chunk * 16 };
            row % 8 * width * 16 + row / 8 * self.stride + across
        } else {
            // ((T,width,m),(8,k)) : ((1, T, LBO), (width·T, SBO)); without a swizzle ((T,1,m),(8,k)) : ((1, T, SBO), (T, LBO)).
            let chunk = row / t;
            match self.swizzle {
                0 => chunk * self.stride + k % 8 * 16 + k / 8 * self.leading,
                _ => chunk % width * 16 + chunk / width * self.leading + k % 8 * width * 16 + k / 8 * self.stride,
            }
        };
        let offset = offset ^ ((offset >> 7 & (width - 1)) << 4);
        let within = if self.k_major { k % t } else { row % t };
        offset * 8 + within * bits
    }
}
