//! The element types of inputs and outputs.

use half::{bf16, f16, slice::HalfFloatSliceExt};

/// A type that converts exactly to f32, and back by rounding to nearest even.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Widens `src` into `out`, which has the same length.
    fn widen(src: &[Self], out: &mut [f32]);
    /// Rounds `src` into `out`, which has the same length. What is too large becomes infinite.
    fn narrow(src: &[f32], out: &mut [Self]);
}

impl Element for f32 {
    #[inline(always)]
    fn widen(src: &[Self], out: &mut [f32]) {
        out.copy_from_slice(src);
    }
    #[inline(always)]
    fn narrow(src: &[f32], out: &mut [Self]) {
        out.copy_from_slice(src);
    }
}

impl Element for bf16 {
    // Written out in bits, so that the compiler can use vectors.
    #[inline(always)]
    fn widen(src: &[Self], out: &mut [f32]) {
        for (o, v) in out.iter_mut().zip(src) {
            *o = f32::from_bits(u32::from(v.to_bits()) << 16);
        }
    }
    #[inline(always)]
    fn narrow(src: &[f32], out: &mut [Self]) {
        for (o, v) in out.iter_mut().zip(src) {
            let bits = v.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // A NaN whose payload is in the lower bits must not become infinite.
            let quiet = (bits >> 16) | 0x40;
            *o = Self::from_bits(if v.is_nan() { quiet } else { rounded } as u16);
        }
    }
}

impl Element for f16 {
    // `half` picks the machine's conversion instructions, once for a slice.
    #[inline(always)]
    fn widen(src: &[Self], out: &mut [f32]) {
        src.convert_to_f32_slice(out);
    }
    #[inline(always)]
    fn narrow(src: &[f32], out: &mut [Self]) {
        out.convert_from_f32_slice(src);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 16-bit pattern in the upper half, with lower halves around the rounding boundary.
    fn patterns() -> impl Iterator<Item = f32> {
        (0..=u16::MAX).flat_map(|hi| {
            [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|lo| f32::from_bits(u32::from(hi) << 16 | lo))
        })
    }

    #[test]
    fn narrowing_is_what_half_does_one_by_one() {
        let src: Vec<f32> = patterns().collect();
        let (mut b, mut h) = (vec![bf16::ZERO; src.len()], vec![f16::ZERO; src.len()]);
        bf16::narrow(&src, &mut b);
        f16::narrow(&src, &mut h);
        for (i, v) in src.iter().enumerate() {
            assert_eq!(b[i].to_bits(), bf16::from_f32(*v).to_bits(), "{v:e}");
            let expected = f16::from_f32(*v);
            assert!(h[i].to_bits() == expected.to_bits() || (h[i].is_nan() && expected.is_nan()), "{v:e}");
        }
    }

    #[test]
    fn widening_is_exact() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let b: Vec<bf16> = bits.iter().map(|&v| bf16::from_bits(v)).collect();
        let h: Vec<f16> = bits.iter().map(|&v| f16::from_bits(v)).collect();
        let mut out = vec![0.0; bits.len()];
        bf16::widen(&b, &mut out);
        assert!(out.iter().zip(&b).all(|(o, v)| o.to_bits() == v.to_f32().to_bits() || v.is_nan()));
        f16::widen(&h, &mut out);
        assert!(out.iter().zip(&h).all(|(o, v)| o.to_bits() == v.to_f32().to_bits() || v.is_nan()));
    }
}
