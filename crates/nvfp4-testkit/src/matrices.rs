//! Matrices in host memory for tests: any element type, any row stride, the gaps filled with a byte of choice.

use half::{bf16, f16};
use nvfp4_core::{DType, FloatSlice, FloatSliceMut, MatrixMut, MatrixRef};

#[derive(Clone, Debug)]
enum Elements {
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
}

/// A `[rows, cols]` matrix that owns its elements.
#[derive(Clone, Debug)]
pub struct HostMatrix {
    elements: Elements,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl HostMatrix {
    /// A matrix whose every byte, gaps included, is `fill`; rows lie `stride` elements apart.
    pub fn filled(dtype: DType, rows: usize, cols: usize, stride: usize, fill: u8) -> Self {
        let len = rows * stride;
        let elements = match dtype {
            DType::Bf16 => Elements::Bf16(vec![bf16::from_ne_bytes([fill; 2]); len]),
            DType::F16 => Elements::F16(vec![f16::from_ne_bytes([fill; 2]); len]),
            DType::F32 => Elements::F32(vec![f32::from_ne_bytes([fill; 4]); len]),
            other => panic!("no matrix of {other}"),
        };
        Self { elements, rows, cols, stride }
    }

    /// A dense matrix of `values`, rounded to `dtype`.
    pub fn new(dtype: DType, rows: usize, cols: usize, values: &[f32]) -> Self {
        assert_eq!(values.len(), rows * cols);
        let mut matrix = Self::filled(dtype, rows, cols, cols, 0);
        for (i, v) in values.iter().enumerate() {
            matrix.set(i / cols, i % cols, *v);
        }
        matrix
    }

    /// The same values with other gaps.
    pub fn restrided(&self, stride: usize, fill: u8) -> Self {
        let mut matrix = Self::filled(self.dtype(), self.rows, self.cols, stride, fill);
        for r in 0..self.rows {
            for c in 0..self.cols {
                matrix.set(r, c, self.get(r, c));
            }
        }
        matrix
    }

    /// The first `rows` rows.
    pub fn first_rows(&self, rows: usize) -> Self {
        let mut matrix = Self::filled(self.dtype(), rows, self.cols, self.cols, 0);
        for r in 0..rows {
            for c in 0..self.cols {
                matrix.set(r, c, self.get(r, c));
            }
        }
        matrix
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        match &self.elements {
            Elements::Bf16(_) => DType::Bf16,
            Elements::F16(_) => DType::F16,
            Elements::F32(_) => DType::F32,
        }
    }

    /// An element, widened.
    pub fn get(&self, row: usize, col: usize) -> f32 {
        let i = row * self.stride + col;
        match &self.elements {
            Elements::Bf16(v) => v[i].to_f32(),
            Elements::F16(v) => v[i].to_f32(),
            Elements::F32(v) => v[i],
        }
    }

    /// Sets an element to the rounded value.
    pub fn set(&mut self, row: usize, col: usize, value: f32) {
        let i = row * self.stride + col;
        match &mut self.elements {
            Elements::Bf16(v) => v[i] = bf16::from_f32(value),
            Elements::F16(v) => v[i] = f16::from_f32(value),
            Elements::F32(v) => v[i] = value,
        }
    }

    /// The matrix to read.
    pub fn view(&self) -> MatrixRef<'_> {
        let data = match &self.elements {
            Elements::Bf16(v) => FloatSlice::Bf16(v),
            Elements::F16(v) => FloatSlice::F16(v),
            Elements::F32(v) => FloatSlice::F32(v),
        };
        MatrixRef::strided(data, self.rows, self.cols, self.stride)
            .unwrap_or_else(|e| panic!("{}x{} stride {}: {e}", self.rows, self.cols, self.stride))
    }

    /// The matrix to write.
    pub fn view_mut(&mut self) -> MatrixMut<'_> {
        let data = match &mut self.elements {
            Elements::Bf16(v) => FloatSliceMut::Bf16(v),
            Elements::F16(v) => FloatSliceMut::F16(v),
            Elements::F32(v) => FloatSliceMut::F32(v),
        };
        MatrixMut::strided(data, self.rows, self.cols, self.stride)
            .unwrap_or_else(|e| panic!("{}x{} stride {}: {e}", self.rows, self.cols, self.stride))
    }

    /// Every element as bits, gaps included.
    pub fn bits(&self) -> Vec<u32> {
        match &self.elements {
            Elements::Bf16(v) => v.iter().map(|v| v.to_bits().into()).collect(),
            Elements::F16(v) => v.iter().map(|v| v.to_bits().into()).collect(),
            Elements::F32(v) => v.iter().map(|v| v.to_bits()).collect(),
        }
    }

    /// The bits of a row, without the gap.
    pub fn row_bits(&self, row: usize) -> Vec<u32> {
        self.bits()[row * self.stride..row * self.stride + self.cols].to_vec()
    }

    /// True if every byte of the gaps between rows is still `fill`.
    pub fn gaps_are(&self, fill: u8) -> bool {
        let untouched = Self::filled(self.dtype(), self.rows, self.cols, self.stride, fill);
        let (found, expected) = (self.bits(), untouched.bits());
        (0..found.len()).filter(|i| i % self.stride >= self.cols).all(|i| found[i] == expected[i])
    }
}
