//! Division by a number that is known before the launch, as kernels take it.

/// A divisor with the factor and shifts that replace the division (Granlund and Montgomery, 1994): `n / d` is
/// `(t + ((n - t) >> shift1)) >> shift2` with `t` the high word of `n * multiplier`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastDivisor {
    divisor: u32,
    multiplier: u32,
    shift1: u8,
    shift2: u8,
}

impl FastDivisor {
    /// Of a divisor; 0 counts as 1.
    pub fn new(divisor: u32) -> Self {
        let divisor = divisor.max(1);
        // The least power of two that is not below the divisor.
        let log = 32 - (divisor - 1).leading_zeros();
        let multiplier = ((1u64 << 32) * ((1u64 << log) - u64::from(divisor)) / u64::from(divisor) + 1) as u32;
        Self { divisor, multiplier, shift1: log.min(1) as u8, shift2: log.saturating_sub(1) as u8 }
    }

    /// As kernels take it: divisor, multiplier, two shifts, two bytes that nobody reads.
    pub fn to_bytes(self) -> [u8; 12] {
        let ([a, b, c, d], [e, f, g, h]) = (self.divisor.to_le_bytes(), self.multiplier.to_le_bytes());
        [a, b, c, d, e, f, g, h, self.shift1, self.shift2, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divide(n: u32, by: FastDivisor) -> u32 {
        let t = ((u64::from(n) * u64::from(by.multiplier)) >> 32) as u32;
        (t + ((n - t) >> by.shift1)) >> by.shift2
    }

    #[test]
    fn divides_like_the_division() {
        for d in (1..=1000).chain([4095, 4096, 4097, 65_535, 65_537, 1 << 31, u32::MAX - 1, u32::MAX]) {
            let by = FastDivisor::new(d);
            for n in (0..500).chain([d - 1, d, d.saturating_add(1), d.saturating_mul(7), u32::MAX - 1, u32::MAX]) {
                assert_eq!(divide(n, by), n / d, "{n} / {d}");
            }
        }
    }
}
