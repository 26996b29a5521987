//! Padding of codes and scales to what a kernel's tiles need, and its removal from the output.
//!
//! The functions named after vLLM's do one operand each; [`PaddingPlan`] pads all operands of a layer, so that
//! they cannot disagree. Padding is zero codes with zero scales: it adds exactly nothing.

use crate::{
    BLOCK_SIZE,
    activation::QuantizedActivation,
    block_scale::{LinearScales, ScaleLayout, SwizzledScales},
    error::{Error, check_multiple, check_size, checked_mul, checked_round_up},
    global_scale::GlobalScales,
    weights::NvFp4Weights,
};
use alloc::{borrow::Cow, vec, vec::Vec};

/// `n` and `k` of a weight are padded to multiples of this for the W4A4 kernels that read 128x4 block scales.
pub const CUTLASS_ALIGNMENT: usize = 32;
/// `n` and `k` of a weight are padded to multiples of this for FlashInfer's BF16 × FP4 kernels.
pub const BF16_FP4_ALIGNMENT: usize = 64;

/// A packed weight after [`pad_nvfp4_weight_for_cutlass`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PaddedWeight<'a> {
    /// Packed codes, `[rows, row_bytes]`; borrowed if nothing was padded.
    pub packed: Cow<'a, [u8]>,
    /// Rows, a multiple of the alignment.
    pub rows: usize,
    /// Bytes of a row; twice as many elements, a multiple of the alignment.
    pub row_bytes: usize,
    /// Bytes that each row grew by, which is what the packed activation must grow by.
    pub pad_bytes: usize,
}

/// Pads a packed weight `[n, k / 2]` with zeros so that `n` and `k` (elements) are multiples of `alignment`, which
/// is even: [`CUTLASS_ALIGNMENT`] or [`BF16_FP4_ALIGNMENT`].
pub fn pad_nvfp4_weight_for_cutlass(
    packed: &[u8],
    n: usize,
    k: usize,
    alignment: usize,
) -> Result<PaddedWeight<'_>, Error> {
    check_multiple("k (input features)", 2, k)?;
    let padded_k = align("alignment of k", k, alignment)?;
    check_multiple("alignment of k", 2, padded_k)?;
    let rows = align("alignment of n", n, alignment)?;
    let (row_bytes, padded) = (k / 2, padded_k / 2);
    check_size("packed weight bytes", checked_mul("packed weight bytes", n, row_bytes)?, packed.len())?;
    let packed = pad_matrix(packed, row_bytes, padded, &[(n, rows)])?;
    Ok(PaddedWeight { packed, rows, row_bytes: padded, pad_bytes: padded - row_bytes })
}

/// Bytes that a row of a padded weight has beyond `k` elements: `row_bytes - k / 2`.
pub fn nvfp4_weight_padding_bytes(row_bytes: usize, k: usize) -> Result<usize, Error> {
    let expected = k / 2;
    row_bytes.checked_sub(expected).ok_or(Error::Size {
        what: "bytes of a padded weight row",
        expected,
        found: row_bytes,
    })
}

/// Pads packed activations `[rows, row_bytes]` with `pad_bytes` zeros on the right of each row.
pub fn pad_nvfp4_activation_for_cutlass(
    packed: &[u8],
    rows: usize,
    row_bytes: usize,
    pad_bytes: usize,
) -> Result<Cow<'_, [u8]>, Error> {
    check_size("activation codes", checked_mul("activation codes", rows, row_bytes)?, packed.len())?;
    let padded = row_bytes.checked_add(pad_bytes).ok_or(Error::Overflow { what: "padded activation row" })?;
    pad_matrix(packed, row_bytes, padded, &[(rows, rows)])
}

/// The first `n` columns of an output `[rows, padded_n]`.
pub fn slice_nvfp4_output<T: Copy>(
    out: &[T],
    rows: usize,
    padded_n: usize,
    n: usize,
) -> Result<Cow<'_, [T]>, Error> {
    if n > padded_n {
        return Err(Error::Size { what: "padded n (output features)", expected: n, found: padded_n });
    }
    check_size("output elements", checked_mul("output elements", rows, padded_n)?, out.len())?;
    Ok(take_columns(out, padded_n, &[(n, padded_n)]))
}

/// How a layer `[n, k]` is padded: weight, weight scales, activation, activation scales and output, all from one
/// place.
///
/// A fused layer (gate and up, q, k and v) can be padded part by part, for kernels or epilogues that address the
/// parts: then the rows of padding follow each part, and [`slice_output`](Self::slice_output) removes them there.
///
/// ```
/// use nvfp4_core::padding::PaddingPlan;
/// // Gate and up of 176 rows each, for a kernel that needs n to be a multiple of 128.
/// let plan = PaddingPlan::for_parts(&[176, 176], 64, 128, 64)?;
/// assert_eq!(plan.padded_n(), 192 + 192);
/// let out: Vec<usize> = (0..384).collect();
/// let kept = plan.slice_output(&out, 1)?;
/// assert_eq!((kept[175], kept[176]), (175, 192));
/// # Ok::<(), nvfp4_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PaddingPlan {
    /// (rows, rows with padding) of each part.
    parts: Vec<(usize, usize)>,
    k: usize,
    padded_k: usize,
}

impl PaddingPlan {
    /// `n` and `k` padded to multiples of `alignment`, as [`pad_nvfp4_weight_for_cutlass`] does.
    pub fn new(n: usize, k: usize, alignment: usize) -> Result<Self, Error> {
        Self::for_parts(&[n], k, alignment, alignment)
    }

    /// The sum of all padded parts is a multiple of `n_alignment`, and `k` is padded to a multiple of
    /// `k_alignment`, which is itself one of 16. Equal parts stay equal and are padded as little as that allows;
    /// unequal parts are each padded to `n_alignment`.
    pub fn for_parts(parts: &[usize], k: usize, n_alignment: usize, k_alignment: usize) -> Result<Self, Error> {
        let Some(&first) = parts.first() else {
            return Err(Error::Zero { what: "parts of a padded layer" });
        };
        check_multiple("k (input features)", BLOCK_SIZE, k)?;
        check_multiple("alignment of k", BLOCK_SIZE, k_alignment)?;
        let padded_k = align("alignment of k", k, k_alignment)?;
        let equal = parts.iter().all(|&rows| rows == first);
        let part_alignment =
            if equal { n_alignment / greatest_common_divisor(n_alignment, parts.len()) } else { n_alignment };
        let parts = parts
            .iter()
            .map(|&rows| Ok((rows, align("alignment of n", rows, part_alignment)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.1));
        // Everything that is computed from the plan fits if the padded weight with one element a byte does.
        total.and_then(|n| n.checked_mul(padded_k)).ok_or(Error::Overflow { what: "padded weight elements" })?;
        Ok(Self { parts, k, padded_k })
    }

    /// Output features before padding.
    pub fn n(&self) -> usize {
        self.parts.iter().map(|part| part.0).sum()
    }
    /// Output features after padding.
    pub fn padded_n(&self) -> usize {
        self.parts.iter().map(|part| part.1).sum()
    }
    /// Input features before padding.
    pub const fn k(&self) -> usize {
        self.k
    }
    /// Input features after padding.
    pub const fn padded_k(&self) -> usize {
        self.padded_k
    }
    /// Bytes that each row of packed codes grows by.
    pub const fn pad_bytes(&self) -> usize {
        (self.padded_k - self.k) / 2
    }
    /// True if nothing is padded.
    pub fn is_identity(&self) -> bool {
        self.k == self.padded_k && self.parts.iter().all(|part| part.0 == part.1)
    }

    /// The weight `[n, k]` as a weight `[padded_n, padded_k]`: codes and block scales are padded together. The
    /// rows of padding get the global scale of the part before them. The bytes are copied only if there is
    /// something to pad.
    pub fn pad_weights<'a>(&self, weights: NvFp4Weights<'a>) -> Result<NvFp4Weights<'a>, Error> {
        check_size("n (output features)", self.n(), weights.out_features())?;
        check_size("k (input features)", self.k, weights.in_features())?;
        if self.is_identity() {
            return Ok(weights);
        }
        let (packed, scales, global) = weights.into_parts();
        let (cols, padded_cols) = (self.k / BLOCK_SIZE, self.padded_k / BLOCK_SIZE);
        NvFp4Weights::new(
            self.padded_n(),
            self.padded_k,
            pad_matrix(&packed, self.k / 2, self.padded_k / 2, &self.parts)?.into_owned(),
            LinearScales::new(
                self.padded_n(),
                padded_cols,
                pad_matrix(scales.bytes(), cols, padded_cols, &self.parts)?.into_owned(),
            )?,
            self.pad_global(&global)?,
        )
    }

    fn pad_global(&self, global: &GlobalScales) -> Result<GlobalScales, Error> {
        let mut padded = Vec::new();
        let mut start = 0;
        for &(rows, padded_rows) in &self.parts {
            let part = global.slice(start..start + rows)?;
            padded.extend_from_slice(part.parts());
            if let Some(&(_, last)) = part.parts().last() {
                padded.push((padded_rows - rows, last));
            }
            start += rows;
        }
        Ok(GlobalScales::from_parts(padded))
    }

    /// Unquantized activations `[rows, k]` as `[rows, padded_k]`.
    pub fn pad_activation<'a, T: Copy + Default>(&self, x: &'a [T], rows: usize) -> Result<Cow<'a, [T]>, Error> {
        check_size("activation elements", checked_mul("activation elements", rows, self.k)?, x.len())?;
        pad_matrix(x, self.k, self.padded_k, &[(rows, rows)])
    }

    /// An activation that was quantized with any width from `k` to `padded_k`, at width `padded_k`: its codes and
    /// its block scales are padded together.
    pub fn pad_quantized_activation<'a>(
        &self,
        x: &'a QuantizedActivation,
    ) -> Result<Cow<'a, QuantizedActivation>, Error> {
        x.check()?;
        check_size("k (activation columns)", self.k, x.k)?;
        if x.padded_k == self.padded_k {
            return Ok(Cow::Borrowed(x));
        }
        if x.padded_k > self.padded_k {
            return Err(Error::Size {
                what: "padded_k of the activation",
                expected: self.padded_k,
                found: x.padded_k,
            });
        }
        let data = pad_matrix(&x.data, x.padded_k / 2, self.padded_k / 2, &[(x.rows, x.rows)])?.into_owned();
        let (cols, padded_cols) = (x.padded_k / BLOCK_SIZE, self.padded_k / BLOCK_SIZE);
        let linear = match x.scale_layout {
            ScaleLayout::Linear => LinearScales::new(x.rows, cols, &x.scale)?,
            tiled => SwizzledScales::from_bytes(tiled, x.rows, cols, x.scale.clone())?.unswizzle()?,
        };
        let padded = pad_matrix(linear.bytes(), cols, padded_cols, &[(x.rows, x.rows)])?;
        let mut scale = vec![0; x.scale_layout.len(x.rows, padded_cols)?];
        LinearScales::new(x.rows, padded_cols, padded)?.write_into(x.scale_layout, &mut scale)?;
        Ok(Cow::Owned(QuantizedActivation { data, scale, padded_k: self.padded_k, ..x.clone() }))
    }

    /// The output `[rows, padded_n]` as `[rows, n]`: the padding of every part is dropped.
    pub fn slice_output<'a, T: Copy>(&self, out: &'a [T], rows: usize) -> Result<Cow<'a, [T]>, Error> {
        let padded_n = self.padded_n();
        check_size("output elements", checked_mul("output elements", rows, padded_n)?, out.len())?;
        Ok(take_columns(out, padded_n, &self.parts))
    }
}

/// `size` rounded up to a multiple of `alignment`.
fn align(what: &'static str, size: usize, alignment: usize) -> Result<usize, Error> {
    if alignment == 0 {
        return Err(Error::Zero { what });
    }
    checked_round_up(what, size, alignment)
}

const fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Rows of `cols` elements, widened to `padded_cols >= cols` and each of `parts` (rows, rows with padding)
/// lengthened, with zeros. Borrowed if nothing changes.
fn pad_matrix<'a, T: Copy + Default>(
    data: &'a [T],
    cols: usize,
    padded_cols: usize,
    parts: &[(usize, usize)],
) -> Result<Cow<'a, [T]>, Error> {
    if cols == padded_cols && parts.iter().all(|part| part.0 == part.1) {
        return Ok(Cow::Borrowed(data));
    }
    let padded_rows = parts.iter().map(|part| part.1).sum();
    let mut padded = vec![T::default(); checked_mul("padded elements", padded_rows, padded_cols)?];
    let (mut from, mut to) = (data, &mut padded[..]);
    for &(rows, padded_rows) in parts {
        let (part, rest) = from.split_at_checked(rows * cols).unwrap_or((from, &[]));
        let (padded_part, padded_rest) =
            core::mem::take(&mut to).split_at_mut_checked(padded_rows * padded_cols).unwrap_or_default();
        if cols > 0 {
            for (row, padded_row) in part.chunks_exact(cols).zip(padded_part.chunks_exact_mut(padded_cols)) {
                padded_row[..cols].copy_from_slice(row);
            }
        }
        (from, to) = (rest, padded_rest);
    }
    Ok(Cow::Owned(padded))
}

/// Of rows of `padded_cols` elements, the columns that are not padding, for `parts` of (columns, columns with
/// padding). Borrowed if nothing changes.
fn take_columns<'a, T: Copy>(data: &'a [T], padded_cols: usize, parts: &[(usize, usize)]) -> Cow<'a, [T]> {
    if parts.iter().all(|part| part.0 == part.1) || padded_cols == 0 {
        return Cow::Borrowed(data);
    }
    let kept: usize = parts.iter().map(|part| part.0).sum();
    let mut out = Vec::with_capacity(data.len() / padded_cols * kept);
    for row in data.chunks_exact(padded_cols) {
        let mut rest = row;
        for &(cols, padded) in parts {
            out.extend_from_slice(rest.get(..cols).unwrap_or_default());
            rest = rest.get(padded..).unwrap_or_default();
        }
    }
    Cow::Owned(out)
}
