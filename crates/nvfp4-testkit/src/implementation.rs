//! What the conformance suite can judge: a backend ([`Kernel`]) in any kind of memory, or anything else that runs
//! layers.

use nvfp4_core::{
    DeviceFacts, Error, Host, LinearPlan, MatrixMut, MatrixRef, Memory, NvFp4LinearKernel, NvFp4LinearLayer,
    NvFp4LinearLayerConfig, PreparedWeights, QuantKey, QuantizedActivation, Unsupported, kernel::LinearInput,
};
use std::{
    cell::RefCell,
    collections::{BTreeMap, btree_map::Entry},
    fmt::Debug,
    sync::Arc,
};

/// The input of a layer, in host memory.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Values.
    Matrix(MatrixRef<'a>),
    /// Values that a producer has quantized.
    Quantized(&'a QuantizedActivation),
}

impl Input<'_> {
    /// Rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Matrix(x) => x.rows(),
            Self::Quantized(x) => x.rows,
        }
    }
}

/// Something that runs NVFP4 layers.
pub trait Implementation: Debug {
    /// Its name, for messages.
    fn name(&self) -> String;
    /// `Ok` if it can run such a layer.
    fn can_run(&self, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported>;
    /// Prepares a layer.
    fn load(
        &self,
        layer: &NvFp4LinearLayer<'_>,
        config: &NvFp4LinearLayerConfig,
    ) -> Result<Box<dyn LoadedLayer + '_>, Error>;
}

/// A layer that is ready to run.
pub trait LoadedLayer: Debug {
    /// The key of quantized inputs that it takes.
    fn input_quant_key(&self) -> Option<QuantKey>;
    /// Runs it, planned for `planned >= x.rows()` rows, with scratch memory whose bytes are all `fill` before. Where
    /// operands must be copied elsewhere and back, all of `out` is, gaps included.
    fn run(&self, planned: usize, x: Input<'_>, out: MatrixMut<'_>, fill: u8) -> Result<(), Error>;
}

/// Runs plans in some kind of memory on operands that are in host memory: all that the suite needs to know about a
/// device.
pub trait TestMemory: Debug {
    /// The kind of memory.
    type Memory: Memory + Debug;
    /// The device.
    fn device(&self) -> DeviceFacts;
    /// Where weights are prepared.
    fn context(&self) -> &<Self::Memory as Memory>::Context;
    /// Copies the operands in (`out` as it is, gaps included), applies `plan` with `workspace` bytes of scratch
    /// memory that are all `fill`, waits, and copies all of `out` back.
    fn apply(
        &self,
        plan: &dyn LinearPlan<Self::Memory>,
        x: Input<'_>,
        bias: Option<&[f32]>,
        out: MatrixMut<'_>,
        workspace: usize,
        fill: u8,
    ) -> Result<(), Error>;
}

/// Host memory.
#[derive(Clone, Debug)]
pub struct HostMemory(pub DeviceFacts);

impl TestMemory for HostMemory {
    type Memory = Host;

    fn device(&self) -> DeviceFacts {
        self.0.clone()
    }
    fn context(&self) -> &() {
        &()
    }
    fn apply(
        &self,
        plan: &dyn LinearPlan<Host>,
        x: Input<'_>,
        bias: Option<&[f32]>,
        out: MatrixMut<'_>,
        workspace: usize,
        fill: u8,
    ) -> Result<(), Error> {
        let mut scratch = vec![u64::from_ne_bytes([fill; 8]); workspace.div_ceil(8)];
        let x = match x {
            Input::Matrix(x) => LinearInput::Matrix(x),
            Input::Quantized(x) => LinearInput::Quantized(x),
        };
        plan.apply_weights((), x, bias, out, &mut scratch)
    }
}

/// A backend with the memory that it works in.
#[derive(Debug)]
pub struct Kernel<'a, T: TestMemory> {
    /// The backend.
    pub kernel: &'a dyn NvFp4LinearKernel<T::Memory>,
    /// The memory.
    pub memory: T,
}

impl<'a> Kernel<'a, HostMemory> {
    /// A backend that works in host memory, on this `device`.
    pub fn host(kernel: &'a dyn NvFp4LinearKernel<Host>, device: DeviceFacts) -> Self {
        Self { kernel, memory: HostMemory(device) }
    }
}

impl<T: TestMemory> Implementation for Kernel<'_, T> {
    fn name(&self) -> String {
        self.kernel.id().to_string()
    }

    fn can_run(&self, config: &NvFp4LinearLayerConfig) -> Result<(), Unsupported> {
        self.kernel.is_supported(&self.memory.device())?;
        self.kernel.can_implement(&self.memory.device(), config)
    }

    fn load(
        &self,
        layer: &NvFp4LinearLayer<'_>,
        config: &NvFp4LinearLayerConfig,
    ) -> Result<Box<dyn LoadedLayer + '_>, Error> {
        let prepared = self.kernel.process_weights_after_loading(self.memory.context(), config, &layer.weights)?;
        Ok(Box::new(PreparedLayer {
            kernel: self,
            config: *config,
            prepared,
            input_scale: layer.input_scale,
            bias: layer.bias.clone(),
            plans: RefCell::default(),
        }))
    }
}

type Plan<T> = Box<dyn LinearPlan<<T as TestMemory>::Memory>>;

#[derive(Debug)]
struct PreparedLayer<'a, T: TestMemory> {
    kernel: &'a Kernel<'a, T>,
    config: NvFp4LinearLayerConfig,
    prepared: Arc<dyn PreparedWeights>,
    input_scale: Option<nvfp4_core::GlobalScale>,
    bias: Option<Vec<f32>>,
    /// By the number of rows planned for. They are kept, so that what one call leaves behind shows in the next.
    plans: RefCell<BTreeMap<usize, Plan<T>>>,
}

impl<T: TestMemory> LoadedLayer for PreparedLayer<'_, T> {
    fn input_quant_key(&self) -> Option<QuantKey> {
        self.kernel.kernel.input_quant_key(&self.config)
    }

    fn run(&self, planned: usize, x: Input<'_>, out: MatrixMut<'_>, fill: u8) -> Result<(), Error> {
        let mut plans = self.plans.borrow_mut();
        let plan = match plans.entry(planned) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(new) => {
                new.insert(self.kernel.kernel.plan(&self.config, &self.prepared, self.input_scale, planned)?)
            }
        };
        if plan.rows() < planned {
            return Err(Error::Size { what: "rows of a plan", expected: planned, found: plan.rows() });
        }
        self.kernel.memory.apply(plan.as_ref(), x, self.bias.as_deref(), out, plan.workspace_size(), fill)
    }
}
