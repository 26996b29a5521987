//! How far quantized weights are from the original.

use serde::Serialize;

/// Sums over pairs of an original and a quantized value, in f64, from which the usual measures follow.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ErrorSums {
    difference: f64,
    original: f64,
    quantized: f64,
    product: f64,
}

/// Measures of the distance between original and quantized values.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct ErrorMeasures {
    /// ‖quantized − original‖ / ‖original‖. About 0.095 for NVFP4. 0 if both are zero, infinite if only the original
    /// is.
    pub relative_error: f64,
    /// Cosine of the angle between them; 1 if both are zero, 0 if one is.
    pub cosine: f64,
    /// ‖quantized‖ / ‖original‖. 1 if both are zero, infinite if only the original is.
    pub norm_ratio: f64,
}

impl ErrorSums {
    /// Adds pairs; stops at the shorter of the two.
    pub fn add(&mut self, original: &[f32], quantized: &[f32]) {
        for (&a, &b) in original.iter().zip(quantized) {
            let (a, b) = (f64::from(a), f64::from(b));
            self.difference += (a - b) * (a - b);
            self.original += a * a;
            self.quantized += b * b;
            self.product += a * b;
        }
    }

    /// Adds the sums of other pairs.
    pub fn merge(&mut self, other: &Self) {
        self.difference += other.difference;
        self.original += other.original;
        self.quantized += other.quantized;
        self.product += other.product;
    }

    /// The measures.
    pub fn measures(&self) -> ErrorMeasures {
        let ratio = |a: f64, b: f64, both_zero: f64| match (a == 0.0, b == 0.0) {
            (true, true) => both_zero,
            (false, true) => f64::INFINITY,
            _ => (a / b).sqrt(),
        };
        ErrorMeasures {
            relative_error: ratio(self.difference, self.original, 0.0),
            cosine: match (self.original == 0.0, self.quantized == 0.0) {
                (true, true) => 1.0,
                (false, false) => self.product / (self.original.sqrt() * self.quantized.sqrt()),
                _ => 0.0,
            },
            norm_ratio: ratio(self.quantized, self.original, 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_of_known_pairs() {
        let mut sums = ErrorSums::default();
        sums.add(&[3.0, 0.0], &[3.0, 4.0]);
        let m = sums.measures();
        assert_eq!((m.relative_error, m.cosine, m.norm_ratio), (4.0 / 3.0, 0.6, 5.0 / 3.0));
        let mut opposite = ErrorSums::default();
        opposite.add(&[1.0, -2.0], &[-1.0, 2.0]);
        let m = opposite.measures();
        assert_eq!((m.relative_error, m.norm_ratio), (2.0, 1.0));
        assert!((m.cosine + 1.0).abs() < 1e-15);
        sums.merge(&opposite);
        assert_eq!(sums.measures().relative_error, (36.0f64 / 14.0).sqrt());
    }

    #[test]
    fn zeros_are_not_nan() {
        let zero = ErrorSums::default().measures();
        assert_eq!((zero.relative_error, zero.cosine, zero.norm_ratio), (0.0, 1.0, 1.0));
        let mut lost = ErrorSums::default();
        lost.add(&[1.0], &[0.0]);
        assert_eq!(
            (lost.measures().relative_error, lost.measures().cosine, lost.measures().norm_ratio),
            (1.0, 0.0, 0.0)
        );
        let mut invented = ErrorSums::default();
        invented.add(&[0.0], &[1.0]);
        assert_eq!(
            (invented.measures().relative_error, invented.measures().norm_ratio),
            (f64::INFINITY, f64::INFINITY)
        );
    }
}
