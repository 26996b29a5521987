//! Unquantized matrices in a file, read some rows at a time.

use half::{bf16, f16};
use nvfp4_core::{DType, Error, FloatSlice, MatrixRef, quantize_weight::weight_amax};
use std::ops::Range;

/// Values that a piece of a matrix holds at most, unless one row is longer. Bounds the memory of whole-model
/// operations: a megabyte of f32 for each thread.
const CHUNK_VALUES: usize = 1 << 18;

/// A row-major `[rows, cols]` matrix of little-endian floats, of any alignment (it lies in a mapped file).
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct DenseMatrix<'a> {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

/// Some rows of a [`DenseMatrix`], aligned and in the machine's byte order.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct DenseRows {
    values: Values,
    rows: usize,
    cols: usize,
}

#[derive(Clone, PartialEq, Debug)]
enum Values {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

impl<'a> DenseMatrix<'a> {
    /// `bytes` must hold exactly `rows * cols` elements.
    pub(crate) fn new(dtype: DType, rows: usize, cols: usize, bytes: &'a [u8]) -> Result<Self, Error> {
        let expected = rows
            .checked_mul(cols)
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or(Error::Overflow { what: "matrix bytes" })?;
        if bytes.len() != expected {
            return Err(Error::Size { what: "matrix bytes", expected, found: bytes.len() });
        }
        Ok(Self { dtype, rows, cols, bytes })
    }

    pub(crate) const fn dtype(&self) -> DType {
        self.dtype
    }
    pub(crate) const fn rows(&self) -> usize {
        self.rows
    }
    pub(crate) const fn cols(&self) -> usize {
        self.cols
    }
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Ranges of rows that cover the matrix, in order, each of a bounded number of values.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        row_chunks(self.rows, self.cols)
    }

    /// The rows `range`, cut to the rows that exist.
    pub(crate) fn read(&self, range: Range<usize>) -> DenseRows {
        let range = range.start.min(self.rows)..range.end.min(self.rows);
        let width = self.cols * self.dtype.size();
        let bytes = self.bytes.get(range.start * width..range.end * width).unwrap_or_default();
        let values = match self.dtype {
            DType::Bf16 => Values::Bf16(bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b)).collect()),
            DType::F16 => Values::F16(bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect()),
            _ => Values::F32(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        };
        DenseRows { values, rows: range.len(), cols: self.cols }
    }

    /// The largest magnitude, 0 for an empty matrix; or [`Error::NotFinite`] with the place of the first NaN or
    /// infinity.
    pub(crate) fn amax(&self) -> Result<f32, Error> {
        let mut amax = 0f32;
        for range in self.chunks() {
            let found = weight_amax(self.read(range.clone()).matrix()?).map_err(|e| match e {
                Error::NotFinite { row, column, found } => {
                    Error::NotFinite { row: range.start + row, column, found }
                }
                other => other,
            })?;
            amax = amax.max(found);
        }
        Ok(amax)
    }
}

impl DenseRows {
    /// The rows as a matrix.
    pub(crate) fn matrix(&self) -> Result<MatrixRef<'_>, Error> {
        MatrixRef::new(self.data(), self.rows, self.cols)
    }

    /// The values, row-major.
    pub(crate) fn data(&self) -> FloatSlice<'_> {
        match &self.values {
            Values::Bf16(v) => FloatSlice::Bf16(v),
            Values::F16(v) => FloatSlice::F16(v),
            Values::F32(v) => FloatSlice::F32(v),
        }
    }

    /// Bytes that the rows take in the file.
    pub(crate) fn bytes(&self) -> u64 {
        (self.data().len() * self.data().dtype().size()) as u64
    }

    /// The values, row-major, widened (exact).
    pub(crate) fn widened(&self) -> Vec<f32> {
        let data = self.data();
        let mut out = vec![0.0; data.len()];
        data.widen_into(&mut out);
        out
    }
}

/// Ranges that cover `rows` rows of `cols` values, each of at most [`CHUNK_VALUES`] values or one row.
pub(crate) fn row_chunks(rows: usize, cols: usize) -> impl Iterator<Item = Range<usize>> {
    let step = (CHUNK_VALUES / cols.max(1)).max(1);
    (0..rows).step_by(step).map(move |start| start..(start + step).min(rows))
}

/// Rounds `values` to `dtype` (to nearest, ties to even) and appends their little-endian bytes.
pub(crate) fn append_rounded(values: &[f32], dtype: DType, out: &mut Vec<u8>) {
    match dtype {
        DType::Bf16 => values.iter().for_each(|v| out.extend(bf16::from_f32(*v).to_le_bytes())),
        DType::F16 => values.iter().for_each(|v| out.extend(f16::from_f32(*v).to_le_bytes())),
        _ => values.iter().for_each(|v| out.extend(v.to_le_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunks_cover_every_row_once() {
        for (rows, cols) in [(0, 5), (1, 0), (7, 1), (3, CHUNK_VALUES + 1), (1000, 768), (CHUNK_VALUES + 1, 1)] {
            let chunks: Vec<_> = row_chunks(rows, cols).collect();
            assert_eq!(chunks.iter().map(|c| c.len()).sum::<usize>(), rows);
            assert!(chunks.windows(2).all(|w| w[0].end == w[1].start));
            assert!(chunks.iter().all(|c| c.len() * cols <= CHUNK_VALUES || c.len() == 1), "{rows} {cols}");
        }
    }

    proptest! {
        #[test]
        fn reads_any_alignment(
            values in prop::collection::vec(any::<f32>().prop_filter("finite", |v| v.is_finite()), 1..60),
            dtype in prop::sample::select(&[DType::Bf16, DType::F16, DType::F32][..]),
            shift in 0usize..8,
        ) {
            let mut bytes = vec![0xa5; shift];
            append_rounded(&values, dtype, &mut bytes);
            let matrix = DenseMatrix::new(dtype, 1, values.len(), &bytes[shift..]).unwrap();
            let found = matrix.read(0..1).widened();
            let expected: Vec<f32> = values.iter().map(|v| match dtype {
                DType::Bf16 => bf16::from_f32(*v).to_f32(),
                DType::F16 => f16::from_f32(*v).to_f32(),
                _ => *v,
            }).collect();
            prop_assert_eq!(&found, &expected);
            let amax = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
            match matrix.amax() {
                Ok(found) => prop_assert_eq!(found, amax),
                Err(e) => prop_assert!(amax.is_infinite(), "{e}"), // rounded to infinity
            }
        }
    }

    #[test]
    fn amax_names_the_first_value_that_is_not_finite() {
        let (rows, cols) = (CHUNK_VALUES / 500, 1000);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1f32; rows * cols];
            values[(rows - 1) * cols + 17] = bad;
            values[(rows - 1) * cols + 18] = f32::NAN;
            let mut bytes = Vec::new();
            append_rounded(&values, DType::Bf16, &mut bytes);
            let error = DenseMatrix::new(DType::Bf16, rows, cols, &bytes).unwrap().amax().unwrap_err();
            let Error::NotFinite { row, column, found } = error else { panic!("{error}") };
            assert_eq!((row, column, found.is_nan()), (rows - 1, 17, bad.is_nan()));
        }
        assert!(DenseMatrix::new(DType::F32, 2, 3, &[0; 23]).is_err());
        assert!(DenseMatrix::new(DType::F32, usize::MAX, 3, &[]).is_err());
        assert_eq!(DenseMatrix::new(DType::F32, 0, 3, &[]).unwrap().amax(), Ok(0.0));
    }
}
