//! Which bytes of global memory a tile has, and where each goes in shared memory.

use super::{Interleave, TensorElement, TensorMap};
use crate::tensor_fault::TensorFault;

/// Up to 16 bytes of a tile, contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Address in shared memory.
    pub shared: u32,
    /// Bytes.
    pub bytes: u32,
    /// Address in global memory; `None` outside the tensor, where a load fills and a store writes nothing.
    pub global: Option<u64>,
}

/// Alignment of a tile in shared memory.
const SHARED_ALIGNMENT: u32 = 128;
/// What the swizzle moves as a whole.
const CHUNK: u32 = 16;

impl TensorMap {
    /// The pieces of the tile whose first element is at `coordinates` (one a dimension, innermost first, in elements; may lie outside the tensor on
    /// any side) and whose shared memory begins at `shared`. Padding bytes of the padded types are in no piece.
    ///
    /// # Errors
    /// Too few coordinates, a misaligned `shared`, or an inner coordinate that splits a byte (or, for padded types, a group of 128).
    pub fn tile(&self, coordinates: &[i32], shared: u32) -> Result<Vec<Piece>, TensorFault> {
        let rows: u32 = (1..5).map(|dimension| self.copied(dimension)).product();
        let first = self.first_coordinates(coordinates, shared)?;
        let mut pieces = Vec::new();
        for row in 0..rows {
            let mut rest = row;
            let mut inside = true;
            let mut global = self.address;
            for (dimension, &origin) in first.iter().enumerate().skip(1) {
                let index = rest % self.copied(dimension);
                rest /= self.copied(dimension);
                let position = origin + i64::from(index * self.element_strides[dimension]);
                inside &= (0..self.dims[dimension] as i64).contains(&position);
                if inside {
                    global += position as u64 * self.strides[dimension - 1];
                }
            }
            self.row(first[0], inside.then_some(global), shared, row, &mut pieces);
        }
        Ok(pieces)
    }

    /// The pieces of four rows of a two-dimensional tensor, each at a row coordinate of its own (`tile::gather4`, `tile::scatter4`).
    ///
    /// # Errors
    /// As [`Self::tile`]; or the map is not of rank 2 with a box of one row.
    pub fn gathered_rows(&self, column: i32, rows: [i32; 4], shared: u32) -> Result<Vec<Piece>, TensorFault> {
        if self.rank != 2 || self.box_dims[1] != 1 {
            let (rank, rows) = (self.rank, self.box_dims[1]);
            return Err(TensorFault::BadTensorMap(format!(
                "a gather of four rows needs a map of rank 2 with a box of one row; this one has rank {rank} and {rows} rows"
            )));
        }
        let mut pieces = Vec::new();
        for (index, row) in rows.into_iter().enumerate() {
            let first = self.first_coordinates(&[column, row], shared)?;
            let inside = (0..self.dims[1] as i64).contains(&first[1]);
            let global = inside.then(|| self.address + first[1] as u64 * self.strides[0]);
            self.row(first[0], global, shared, index as u32, &mut pieces);
        }
        Ok(pieces)
    }

    /// Checks a copy's operands; coordinates as `i64`, 0 beyond the rank.
    fn first_coordinates(&self, coordinates: &[i32], shared: u32) -> Result<[i64; 5], TensorFault> {
        if coordinates.len() < self.rank {
            let (given, rank) = (coordinates.len(), self.rank);
            return Err(TensorFault::BadTensorMap(format!("{given} coordinates for a tensor map of rank {rank}")));
        }
        if self.interleave != Interleave::None {
            return Err(TensorFault::BadTensorMap(
                "interleaved tensors (images of NC/8HWC8 and its like) are not modelled".into(),
            ));
        }
        if !shared.is_multiple_of(SHARED_ALIGNMENT) {
            return Err(TensorFault::Misaligned(format!(
                "a tile's shared memory address {shared:#x} must be a multiple of {SHARED_ALIGNMENT}"
            )));
        }
        let granularity = match self.element {
            TensorElement::U4 => 2,
            TensorElement::U4Padded | TensorElement::U6Padded => 128,
            _ => 1,
        };
        let mut first = [0; 5];
        for (first, &coordinate) in first.iter_mut().zip(coordinates.iter().take(self.rank)) {
            *first = i64::from(coordinate);
        }
        if first[0] % granularity != 0 {
            return Err(TensorFault::BadTensorMap(format!(
                "the inner coordinate {} of {:?} elements must be a multiple of {granularity}",
                first[0], self.element
            )));
        }
        Ok(first)
    }

    /// The pieces of the tile's `row`-th innermost row, whose tensor row begins at `global`.
    fn row(&self, first: i64, global: Option<u64>, shared: u32, row: u32, pieces: &mut Vec<Piece>) {
        let bits = self.element.bits();
        let per_chunk = CHUNK * 8 / self.element.shared_bits();
        let data_bytes = per_chunk * bits / 8;
        let chunks = self.box_dims[0] / per_chunk;
        for chunk in 0..chunks {
            let begin = first + i64::from(chunk * per_chunk);
            let place = self.swizzle.apply(shared + (row * chunks + chunk) * CHUNK);
            // Elements of this chunk before, within and behind the tensor.
            let clamp = |position: i64| (position - begin).clamp(0, i64::from(per_chunk)) as u32 * bits / 8;
            let (low, high) = match global {
                Some(_) => (clamp(0), clamp(self.dims[0] as i64)),
                None => (0, 0),
            };
            let mut put = |from: u32, to: u32, global: Option<u64>| {
                if from < to {
                    pieces.push(Piece { shared: place + from, bytes: to - from, global });
                }
            };
            put(0, low, None);
            // Within the tensor the chunk's first byte is not before the row's.
            let at = global
                .map(|row| row.wrapping_add_signed((begin + i64::from(low * 8 / bits)) * i64::from(bits) / 8));
            put(low, high, at);
            put(high.max(low), data_bytes, None);
        }
    }
}
