//! `x · Wᵀ` with dense f32 weights, at the speed that one can expect of an f32 library: what NVFP4 layers are compared
//! with, in error and in time.

use rayon::prelude::*;

/// Rows of `x` up to which every weight is read once and used at once; `matrixmultiply` copies the weights first, which
/// pays only if they are used often.
const FEW_ROWS: usize = 4;

/// Writes `out = x · Wᵀ`: `x` is `[m, k]`, `w` is `[n, k]`, `out` is `[m, n]`, all dense and row-major. Uses rayon's
/// current pool.
///
/// # Panics
///
/// If a slice is shorter than its shape.
pub(crate) fn multiply(x: &[f32], w: &[f32], out: &mut [f32], m: usize, n: usize, k: usize) {
    assert!(x.len() >= m * k && w.len() >= n * k && out.len() >= m * n, "slices shorter than m, n, k");
    if m == 0 || n == 0 || k == 0 {
        return out[..m * n].fill(0.0);
    }
    // Each thread computes some columns of the output, i.e. reads its own rows of W.
    let columns = n.div_ceil(rayon::current_num_threads()).next_multiple_of(8);
    let parts: Vec<(usize, Vec<f32>)> = (0..n)
        .into_par_iter()
        .step_by(columns)
        .map(|start| {
            let width = columns.min(n - start);
            let w = &w[start * k..(start + width) * k];
            (start, if m <= FEW_ROWS { dot_products(x, w, m, k) } else { general(x, w, m, width, k) })
        })
        .collect();
    for (start, part) in parts {
        let width = part.len() / m;
        for (to, from) in out.chunks_exact_mut(n).zip(part.chunks_exact(width)) {
            to[start..start + width].copy_from_slice(from);
        }
    }
}

fn dot_products(x: &[f32], w: &[f32], m: usize, k: usize) -> Vec<f32> {
    let n = w.len() / k;
    let mut out = vec![0.0; m * n];
    for (column, w) in w.chunks_exact(k).enumerate() {
        for (row, x) in x.chunks_exact(k).take(m).enumerate() {
            out[row * n + column] = dot(x, w);
        }
    }
    out
}

/// In 32 sums, so that the compiler can use vectors and the additions overlap.
fn dot(x: &[f32], w: &[f32]) -> f32 {
    let mut sums = [0.0f32; 32];
    let (x_groups, x_rest) = x.as_chunks::<32>();
    let (w_groups, w_rest) = w.as_chunks::<32>();
    for (x, w) in x_groups.iter().zip(w_groups) {
        for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
            *sum += x * w;
        }
    }
    sums.iter().sum::<f32>() + x_rest.iter().zip(w_rest).map(|(x, w)| x * w).sum::<f32>()
}

fn general(x: &[f32], w: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    let mut out = vec![0.0f32; m * n];
    let (stride, out_stride) = (k as isize, n as isize);
    // SAFETY: `x` is `[m, k]`, `w` is `[n, k]` (read as its transpose by exchanged strides), `out` is `[m, n]`, all
    // dense; `multiply` has checked the first, cut the second to `n` rows, and the third is made here.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            x.as_ptr(),
            stride,
            1,
            w.as_ptr(),
            1,
            stride,
            0.0,
            out.as_mut_ptr(),
            out_stride,
            1,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_obvious_sum() {
        let mut state = 1u32;
        let mut values = |len: usize| -> Vec<f32> {
            let next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            };
            std::iter::repeat_with(next).take(len).collect()
        };
        for (m, n, k) in
            [(0, 3, 5), (1, 1, 1), (1, 33, 70), (4, 7, 64), (5, 7, 64), (37, 50, 33), (3, 0, 4), (2, 3, 0)]
        {
            let (x, w) = (values(m * k), values(n * k));
            let mut out = vec![f32::NAN; m * n];
            multiply(&x, &w, &mut out, m, n, k);
            for row in 0..m {
                for column in 0..n {
                    let product = |j: usize| f64::from(x[row * k + j]) * f64::from(w[column * k + j]);
                    let exact: f64 = (0..k).map(product).sum();
                    assert!(
                        (f64::from(out[row * n + column]) - exact).abs() < 1e-5,
                        "{m} {n} {k}: {row}, {column}"
                    );
                }
            }
        }
    }
}
