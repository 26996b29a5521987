//! Matrices in host memory: row-major with a row stride, typed at run time.

use crate::{
    dtype::{DType, FloatSlice, FloatSliceMut},
    error::{Error, check_size},
};

/// A read-only `[rows, cols]` matrix in host memory. Row `r` starts at element `r * row_stride`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MatrixRef<'a> {
    data: FloatSlice<'a>,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

/// Elements that a strided matrix spans, or why the shape is impossible.
fn span(rows: usize, cols: usize, row_stride: usize) -> Result<usize, Error> {
    if row_stride < cols {
        return Err(Error::Size { what: "row stride", expected: cols, found: row_stride });
    }
    let Some(last) = rows.checked_sub(1) else { return Ok(0) };
    last.checked_mul(row_stride)
        .and_then(|v| v.checked_add(cols))
        .ok_or(Error::Overflow { what: "matrix elements" })
}

impl<'a> MatrixRef<'a> {
    /// A dense matrix. `data` must hold exactly `rows * cols` elements.
    pub fn new(data: impl Into<FloatSlice<'a>>, rows: usize, cols: usize) -> Result<Self, Error> {
        let data = data.into();
        check_size("matrix elements", span(rows, cols, cols)?, data.len())?;
        Ok(Self { data, rows, cols, row_stride: cols })
    }

    /// A matrix whose rows lie `row_stride >= cols` elements apart. `data` may be longer than needed.
    pub fn strided(
        data: impl Into<FloatSlice<'a>>,
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> Result<Self, Error> {
        let data = data.into();
        let expected = span(rows, cols, row_stride)?;
        if data.len() < expected {
            return Err(Error::Size { what: "matrix elements", expected, found: data.len() });
        }
        Ok(Self { data, rows, cols, row_stride })
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    pub const fn row_stride(&self) -> usize {
        self.row_stride
    }
    /// Element type.
    pub const fn dtype(&self) -> DType {
        self.data.dtype()
    }
    /// All elements, the gaps between rows included.
    pub const fn data(&self) -> FloatSlice<'a> {
        self.data
    }

    /// Row `r`, or `None` past the last row.
    pub fn row(&self, r: usize) -> Option<FloatSlice<'a>> {
        if r >= self.rows {
            return None;
        }
        let start = r * self.row_stride;
        self.data.slice(start..start + self.cols)
    }
}

/// A writable `[rows, cols]` matrix in host memory. Row `r` starts at element `r * row_stride`.
#[derive(PartialEq, Debug)]
pub struct MatrixMut<'a> {
    data: FloatSliceMut<'a>,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// A dense matrix. `data` must hold exactly `rows * cols` elements.
    pub fn new(data: impl Into<FloatSliceMut<'a>>, rows: usize, cols: usize) -> Result<Self, Error> {
        let data = data.into();
        check_size("matrix elements", span(rows, cols, cols)?, data.len())?;
        Ok(Self { data, rows, cols, row_stride: cols })
    }

    /// A matrix whose rows lie `row_stride >= cols` elements apart. `data` may be longer than needed;
    /// what lies between the rows is never written.
    pub fn strided(
        data: impl Into<FloatSliceMut<'a>>,
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> Result<Self, Error> {
        let data = data.into();
        let expected = span(rows, cols, row_stride)?;
        if data.len() < expected {
            return Err(Error::Size { what: "matrix elements", expected, found: data.len() });
        }
        Ok(Self { data, rows, cols, row_stride })
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub const fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    pub const fn row_stride(&self) -> usize {
        self.row_stride
    }
    /// Element type.
    pub const fn dtype(&self) -> DType {
        self.data.dtype()
    }
    /// All elements, the gaps between rows included.
    pub const fn data_mut(&mut self) -> &mut FloatSliceMut<'a> {
        &mut self.data
    }
    /// The same matrix, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> MatrixMut<'_> {
        MatrixMut { data: self.data.reborrow(), rows: self.rows, cols: self.cols, row_stride: self.row_stride }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_stride() {
        let data: [f32; 8] = core::array::from_fn(|i| i as f32);
        let m = MatrixRef::strided(&data[..], 2, 3, 5).unwrap();
        assert_eq!(m.row(1), Some(FloatSlice::F32(&[5.0, 6.0, 7.0])));
        assert_eq!(m.row(2), None);
        assert!(MatrixRef::strided(&data[..], 2, 4, 5).is_err());
        assert!(MatrixRef::strided(&data[..], 2, 3, 2).is_err());
        assert!(MatrixRef::strided(&data[..], usize::MAX, 3, 5).is_err());
        assert_eq!(MatrixRef::new(&data[..0], 0, 3).unwrap().row(0), None);
    }
}
