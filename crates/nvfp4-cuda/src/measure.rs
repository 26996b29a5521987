//! How long a plan takes on the device, for the tuner.

use crate::{Cuda, Device, DeviceBuffer, Event, StreamRef};
use nvfp4_core::{Error, LinearPlan, NvFp4LinearLayerConfig, kernel::LinearInput};

/// Calls before the first that is timed.
const WARM_UP: u32 = 3;
/// Timed stretches, of which the fastest counts, and calls in each.
const STRETCHES: u32 = 5;
const CALLS: u32 = 20;

/// Operands of a layer with `m` rows, to run plans on. Allocated once, so that all plans are measured on the same memory.
#[derive(Debug)]
pub struct Bench {
    config: NvFp4LinearLayerConfig,
    m: usize,
    device: Device,
    x: DeviceBuffer,
    out: DeviceBuffer,
}

impl Bench {
    /// Allocates the operands.
    pub fn new(device: &Device, config: &NvFp4LinearLayerConfig, m: usize) -> Result<Self, Error> {
        let bytes = |columns: usize, element: usize| {
            m.checked_mul(columns)
                .and_then(|v| v.checked_mul(element))
                .ok_or(Error::Overflow { what: "operands to measure with" })
        };
        let x = bytes(config.in_features, config.input_dtype.size())?;
        let out = bytes(config.out_features, config.output_dtype.size())?;
        Ok(Self {
            config: *config,
            m,
            device: device.clone(),
            // Small positive numbers in every type. Values do not matter to the time.
            x: DeviceBuffer::from_host(device, &vec![0x3c; x])?,
            out: DeviceBuffer::new(device, out)?,
        })
    }

    /// Seconds that a call of the plan takes in a row of calls. Waits for the device, and allocates the workspace.
    ///
    /// Errors: the plan does not run; or the stream is being captured.
    pub fn seconds(&mut self, stream: StreamRef<'_>, plan: &dyn LinearPlan<Cuda>) -> Result<f64, Error> {
        stream.refuse_capture("measuring")?;
        let mut workspace = DeviceBuffer::new(&self.device, plan.workspace_size())?;
        let (start, end) = (Event::new(&self.device)?, Event::new(&self.device)?);
        let mut run = || {
            let x = self.x.as_matrix(self.config.input_dtype, self.m, self.config.in_features)?;
            let out = self.out.as_matrix_mut(self.config.output_dtype, self.m, self.config.out_features)?;
            plan.apply_weights(stream, LinearInput::Matrix(x), None, out, workspace.as_bytes_mut())
        };
        for _ in 0..WARM_UP {
            run()?;
        }
        let mut best = f64::INFINITY;
        for _ in 0..STRETCHES {
            start.record(stream)?;
            for _ in 0..CALLS {
                run()?;
            }
            end.record(stream)?;
            end.synchronize()?;
            best = best.min(f64::from(start.elapsed_ms(&end)?) / 1e3 / f64::from(CALLS));
        }
        Ok(best)
    }
}
