//! A row-major matrix that can be cut between columns, so that threads write disjoint parts of the same rows.

use std::marker::PhantomData;

/// Exclusive access to some columns of a row-major matrix. Elements between and beside them are never touched.
#[derive(Debug)]
pub(crate) struct ColumnsMut<'a, T> {
    /// First element of the first row.
    start: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: a `ColumnsMut` is exclusive access to its elements, as `&mut [T]` is.
unsafe impl<T: Send> Send for ColumnsMut<'_, T> {}

impl<'a, T> ColumnsMut<'a, T> {
    /// All `cols` columns of the matrix whose row `r` starts at `data[r * stride]`. `None` if `data` is too short
    /// or rows overlap.
    pub(crate) fn new(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Option<Self> {
        let needed = match rows.checked_sub(1) {
            None => 0,
            Some(last) => last.checked_mul(stride)?.checked_add(cols)?,
        };
        (stride >= cols && needed <= data.len()).then_some(Self {
            start: data.as_mut_ptr(),
            rows,
            cols,
            stride,
            data: PhantomData,
        })
    }

    /// Number of columns.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// The columns before `col` (at most all), and the others.
    pub(crate) fn split_at(self, col: usize) -> (Self, Self) {
        let col = col.min(self.cols);
        // SAFETY: with at least one row, `start + col` is at most one past the first row's last element, which lies
        // in the slice that `new` was given. Without rows the pointer does not move.
        let start = unsafe { self.start.add(if self.rows == 0 { 0 } else { col }) };
        (Self { cols: col, ..self }, Self { start, cols: self.cols - col, ..self })
    }

    /// The part of row `r` in these columns; empty past the last row.
    pub(crate) fn row(&mut self, r: usize) -> &mut [T] {
        if r >= self.rows {
            return &mut [];
        }
        // SAFETY: `new` checked that `rows` rows of `cols` elements, `stride` apart, lie in the slice it was given,
        // and that rows do not overlap. `split_at` hands each element of a row to one of two values, neither of
        // which can be cloned, so this one has exclusive access to its own for as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(r * self.stride), self.cols) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_gaps_untouched() {
        let mut data = vec![-1i32; 3 * 10 - 3];
        let all = ColumnsMut::new(&mut data, 3, 7, 10).unwrap();
        let (a, rest) = all.split_at(2);
        let (b, c) = rest.split_at(3);
        assert_eq!((a.cols(), b.cols(), c.cols()), (2, 3, 2));
        std::thread::scope(|scope| {
            for (mut part, value) in [(a, 0), (b, 1), (c, 2)] {
                scope.spawn(move || {
                    for r in 0..3 {
                        part.row(r).fill(value + 10 * r as i32);
                    }
                    assert!(part.row(3).is_empty());
                });
            }
        });
        for (i, &v) in data.iter().enumerate() {
            let (r, c) = (i / 10, i % 10);
            let part = [0, 0, 1, 1, 1, 2, 2].get(c);
            assert_eq!(v, part.map_or(-1, |p| p + 10 * r as i32), "row {r} column {c}");
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let mut data = [0u8; 10];
        assert!(ColumnsMut::new(&mut data, 2, 5, 5).is_some());
        assert!(ColumnsMut::new(&mut data, 2, 5, 6).is_none());
        assert!(ColumnsMut::new(&mut data, 2, 5, 4).is_none());
        assert!(ColumnsMut::new(&mut data, usize::MAX, 5, 5).is_none());
        let (mut a, mut b) = ColumnsMut::new(&mut data[..0], 0, 5, 5).unwrap().split_at(3);
        assert!(a.row(0).is_empty() && b.row(0).is_empty());
    }
}
