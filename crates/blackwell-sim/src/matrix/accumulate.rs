//! The inner loop of every matrix instruction: D += A · B in `f64`.

/// Adds `a` (rows × `k`) times `b` (`k` × `n`) to `d` (rows × `n`), all row-major. Each element of D gets its products from
/// low k to high.
pub(super) fn multiply_accumulate(a: &[f64], b: &[f64], d: &mut [f64], k: usize, n: usize) {
    if k == 0 || n == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the CPU has the features that the function is compiled for.
        unsafe { with_avx2(a, b, d, k, n) };
        return;
    }
    // A product of operand elements is exact, so adding it needs no fused operation to round once.
    by_four_rows(a, b, d, k, n, |sum, x, y| sum + x * y);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2(a: &[f64], b: &[f64], d: &mut [f64], k: usize, n: usize) {
    by_four_rows(a, b, d, k, n, |sum, x, y| x.mul_add(y, sum));
}

/// Four rows of D at a time, so that each row of B is read from the cache a quarter as often.
#[inline(always)]
fn by_four_rows(a: &[f64], b: &[f64], d: &mut [f64], k: usize, n: usize, add: impl Fn(f64, f64, f64) -> f64) {
    let mut rows_of_d = d.chunks_exact_mut(4 * n);
    let mut rows_of_a = a.chunks_exact(4 * k);
    for (d, a) in (&mut rows_of_d).zip(&mut rows_of_a) {
        let (d0, rest) = d.split_at_mut(n);
        let (d1, rest) = rest.split_at_mut(n);
        let (d2, d3) = rest.split_at_mut(n);
        for (index, b) in b.chunks_exact(n).take(k).enumerate() {
            let [x0, x1, x2, x3] = core::array::from_fn(|row| a.get(row * k + index).copied().unwrap_or(0.0));
            for ((((d0, d1), d2), d3), &y) in d0.iter_mut().zip(&mut *d1).zip(&mut *d2).zip(&mut *d3).zip(b) {
                *d0 = add(*d0, x0, y);
                *d1 = add(*d1, x1, y);
                *d2 = add(*d2, x2, y);
                *d3 = add(*d3, x3, y);
            }
        }
    }
    for (d, a) in rows_of_d.into_remainder().chunks_exact_mut(n).zip(rows_of_a.remainder().chunks_exact(k)) {
        for (&x, b) in a.iter().zip(b.chunks_exact(n)) {
            for (d, &y) in d.iter_mut().zip(b) {
                *d = add(*d, x, y);
            }
        }
    }
}
