//! The layer as a custom operation on tensors in host memory.

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, bail};
use nvfp4::{FloatSlice, FloatSliceMut, Linear, MatrixMut, MatrixRef};
use std::sync::Arc;

/// Where the rows of a tensor `[.., cols]` are in its storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// First element.
    start: usize,
    /// Product of the leading dimensions.
    count: usize,
    /// Elements of a row, which are neighbours.
    cols: usize,
    /// Elements from one row to the next, at least `cols`.
    stride: usize,
}

impl Rows {
    /// The rows of a layout, or `None` if they are not whole and evenly spaced.
    pub(crate) fn of(layout: &Layout) -> Option<Self> {
        let (&cols, leading) = layout.dims().split_last()?;
        let (&column_stride, leading_strides) = layout.stride().split_last()?;
        let count = leading.iter().try_fold(1usize, |rows, &dim| rows.checked_mul(dim))?;
        if count == 0 {
            return Some(Self { start: 0, count, cols, stride: cols });
        }
        if column_stride != 1 && cols > 1 {
            return None;
        }
        // From the innermost dimension outwards: each must begin where the one inside it ends.
        let (mut stride, mut whole) = (None, 0);
        for (&dim, &step) in leading.iter().zip(leading_strides).rev().filter(|(dim, _)| **dim > 1) {
            if stride.is_some() && step != whole {
                return None;
            }
            stride = stride.or(Some(step));
            whole = step.checked_mul(dim)?;
        }
        let stride = stride.unwrap_or(cols);
        (stride >= cols).then_some(Self { start: layout.start_offset(), count, cols, stride })
    }
}

/// `y = x · Wᵀ + b` on storage in host memory.
pub(crate) struct HostLinear(pub(crate) Arc<Linear>);

impl HostLinear {
    fn run<T>(&self, x: &[T], rows: Rows) -> Result<Vec<T>>
    where
        T: Clone + Default,
        for<'a> FloatSlice<'a>: From<&'a [T]>,
        for<'a> FloatSliceMut<'a>: From<&'a mut [T]>,
    {
        let n = self.0.out_features();
        let mut y = vec![T::default(); rows.count * n];
        let x = x.get(rows.start..).unwrap_or_default();
        let x = MatrixRef::strided(x, rows.count, rows.cols, rows.stride).map_err(Error::wrap)?;
        let out = MatrixMut::new(&mut y[..], rows.count, n).map_err(Error::wrap)?;
        self.0.forward(x, out).map_err(|e| Error::wrap(e).context(format!("layer `{}`", self.0.name())))?;
        Ok(y)
    }
}

impl CustomOp1 for HostLinear {
    fn name(&self) -> &'static str {
        "nvfp4-linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some(rows) = Rows::of(layout) else {
            return Err(Error::RequiresContiguous { op: "nvfp4-linear" });
        };
        let y = match storage {
            CpuStorage::F32(x) => CpuStorage::F32(self.run(x, rows)?),
            CpuStorage::BF16(x) => CpuStorage::BF16(self.run(x, rows)?),
            CpuStorage::F16(x) => CpuStorage::F16(self.run(x, rows)?),
            _ => bail!("layer `{}`: expected an f32, bf16 or f16 input", self.0.name()),
        };
        let mut shape = layout.dims().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.0.out_features();
        }
        Ok((y, Shape::from(shape)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor};

    /// The rows that are found, read one by one, are those of the tensor.
    #[test]
    fn rows_of_views() {
        let whole = Tensor::arange(0f32, 240.0, &Device::Cpu).unwrap().reshape((2, 3, 5, 8)).unwrap();
        let views = [
            (whole.clone(), true),
            (whole.narrow(3, 2, 4).unwrap(), true),
            (whole.narrow(2, 1, 3).unwrap(), false),
            (whole.narrow(0, 1, 1).unwrap(), true),
            (whole.narrow(0, 1, 1).unwrap().narrow(1, 1, 1).unwrap().narrow(2, 2, 3).unwrap(), true),
            (whole.narrow(2, 4, 1).unwrap(), true),
            (whole.narrow(2, 0, 1).unwrap().narrow(3, 3, 2).unwrap(), true),
            (whole.transpose(1, 2).unwrap(), false),
            (whole.transpose(2, 3).unwrap(), false),
            (whole.narrow(3, 0, 1).unwrap().transpose(2, 3).unwrap(), false),
            (whole.narrow(1, 0, 0).unwrap(), true),
            (whole.flatten_all().unwrap().narrow(0, 7, 9).unwrap(), true),
            (whole.narrow(3, 0, 1).unwrap().broadcast_as((2, 3, 5, 8)).unwrap(), false),
            (Tensor::ones(8, DType::F32, &Device::Cpu).unwrap().broadcast_as((4, 8)).unwrap(), false),
            (Tensor::ones(8, DType::F32, &Device::Cpu).unwrap().broadcast_as((1, 8)).unwrap(), true),
        ];
        for (view, found) in views {
            let rows = Rows::of(view.layout());
            assert_eq!(rows.is_some(), found, "{:?}", view.layout());
            let Some(rows) = rows else { continue };
            let (storage, _) = view.storage_and_layout();
            let candle_core::Storage::Cpu(storage) = &*storage else { panic!("host memory") };
            let all = storage.as_slice::<f32>().unwrap();
            let read: Vec<f32> =
                (0..rows.count).flat_map(|r| &all[rows.start + r * rows.stride..][..rows.cols]).copied().collect();
            assert_eq!(read, view.flatten_all().unwrap().to_vec1::<f32>().unwrap(), "{:?}", view.layout());
        }
        let scalar = Tensor::new(1f32, &Device::Cpu).unwrap();
        assert_eq!(Rows::of(scalar.layout()), None);
    }
}
