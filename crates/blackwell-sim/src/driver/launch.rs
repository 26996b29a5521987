//! Launching kernels.

use super::{
    boundary::{Failure, call},
    context::Context,
    event::Event,
    function::Function,
    handle::Handle,
    log, occupancy,
    operation::Operation,
    pointer::{Host, In},
    state::{Driver, driver},
    status::Status,
    stream::enqueue,
};
use crate::{
    fault::FaultKind,
    launch::{Launch, MAX_PORTABLE_CLUSTER},
    machine,
};
use std::sync::Arc;

/// A launch with everything that was given for it.
pub(super) struct KernelLaunch {
    function: Arc<Function>,
    shape: Shape,
    /// The image of the parameter space.
    parameters: Vec<u8>,
    /// Addresses of the parameters in that image, for who asks a graph's node.
    pointers: Vec<usize>,
    /// Events that happen when the kernel has run.
    events: Vec<Arc<Event>>,
}

/// The size of a launch, and how it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// CTAs of a cluster; all zero if none were given.
    pub(super) cluster: [u32; 3],
    pub(super) shared: u32,
    pub(super) programmatic: bool,
    pub(super) cooperative: bool,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Configuration {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: In<Attribute>,
    attribute_count: u32,
}

/// `CUlaunchAttribute`: what is set, and 64 bytes of value.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Attribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NodeParameters {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    parameters: In<Host>,
    extra: In<usize>,
    kernel: Handle,
    context: Handle,
}

/// `CUlaunchAttributeID`.
mod id {
    pub(super) const IGNORE: u32 = 0;
    pub(super) const COOPERATIVE: u32 = 2;
    pub(super) const CLUSTER: u32 = 4;
    pub(super) const PROGRAMMATIC: u32 = 6;
    pub(super) const PROGRAMMATIC_EVENT: u32 = 7;
    pub(super) const PREFERRED_CLUSTER: u32 = 11;
    pub(super) const COMPLETION_EVENT: u32 = 12;
    /// Those that change speed and priority alone: access policy, waiting policy, cluster scheduling, priority, memory
    /// synchronization domains, share of shared memory, NVLink.
    pub(super) const HINTS: [u32; 8] = [1, 3, 5, 8, 9, 10, 14, 16];
}

impl Configuration {
    /// Shape and events; the events are marked when the kernel has run.
    pub(super) fn resolve(&self) -> Result<(Shape, Vec<Handle>), Failure> {
        let Self { grid, block, shared, .. } = *self;
        let mut shape = Shape { grid, block, shared, ..Shape::default() };
        let mut events = Vec::new();
        for Attribute { id: which, value, .. } in self.attributes.array("attrs", self.attribute_count as usize)? {
            match which {
                id::CLUSTER => shape.cluster = [value[0], value[1], value[2]],
                id::PROGRAMMATIC => shape.programmatic = value[0] != 0,
                id::COOPERATIVE => shape.cooperative = value[0] != 0,
                id::PROGRAMMATIC_EVENT | id::COMPLETION_EVENT => {
                    events.push((u64::from(value[0]) | u64::from(value[1]) << 32) as Handle);
                }
                // The preferred size may be ignored; the size that is required is `CLUSTER`.
                id::IGNORE | id::PREFERRED_CLUSTER => {}
                hint if id::HINTS.contains(&hint) => {}
                other => {
                    return Err(Failure::loud(
                        Status::NOT_SUPPORTED,
                        format!("launch attribute {other} is not modelled"),
                    ));
                }
            }
        }
        Ok((shape, events))
    }
}

impl KernelLaunch {
    fn new(
        function: Arc<Function>,
        shape: Shape,
        parameters: In<Host>,
        extra: In<usize>,
        events: &[Handle],
    ) -> Result<Self, Failure> {
        let driver = driver()?;
        let parameters = gather(&function, parameters, extra)?;
        let offsets = function.kernel()?.parameters().iter().map(|p| p.offset as usize);
        let pointers = offsets.map(|offset| parameters.as_ptr() as usize + offset).collect();
        let shape = check(driver, &function, shape)?;
        let events = events.iter().map(|&event| driver.events.get(event)).collect::<Result<_, _>>()?;
        Ok(Self { function, shape, parameters, pointers, events })
    }

    /// What a graph's node says.
    pub(super) fn of_node(node: &NodeParameters) -> Result<Self, Failure> {
        let NodeParameters { function, grid, block, shared, parameters, extra, kernel, .. } = *node;
        let function = driver()?.functions.get(if function == 0 { kernel } else { function })?;
        Self::new(function, Shape { grid, block, shared, ..Shape::default() }, parameters, extra, &[])
    }

    /// The launch as a graph's node tells it. The pointers lead into this launch.
    pub(super) fn node_parameters(&self, context: Handle) -> NodeParameters {
        let Shape { grid, block, shared, .. } = self.shape;
        NodeParameters {
            function: self.function.handle,
            grid,
            block,
            shared,
            parameters: In::of_addresses(&self.pointers),
            extra: In::null(),
            kernel: 0,
            context,
        }
    }

    /// Runs the kernel. If it fails, the context is spoiled, and this call too fails only with `CUDA_LAUNCH_BLOCKING`.
    pub(super) fn execute(&self, driver: &Driver, context: &Context) -> Result<(), Failure> {
        let Shape { grid, block, cluster, shared, programmatic, .. } = self.shape;
        let launch =
            Launch { grid, block, cluster, dynamic_shared: shared, parameters: &self.parameters, programmatic };
        let outcome = {
            let _busy = driver.occupy();
            let module = self.function.module.loaded();
            let Some(module) = module.as_ref() else {
                let message = format!("the module of kernel `{}` was unloaded", self.function.name);
                return Err(Failure::loud(Status::INVALID_HANDLE, message));
            };
            machine::run(driver.profile, &driver.memory, module, &self.function.name, &launch)
        };
        let Err(fault) = outcome else {
            self.events.iter().for_each(|event| event.happen());
            return Ok(());
        };
        if fault.kind == FaultKind::BadLaunch {
            return Err(Failure::loud(Status::INVALID_VALUE, fault.to_string()));
        }
        let status = status_of(fault.kind);
        log::error(&format!("{}: {fault}", status.name()));
        context.spoil(status);
        let blocking = std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value == "1");
        if blocking { Err(Failure::quiet(status)) } else { Ok(()) }
    }
}

/// The code for a kernel's fault.
fn status_of(kind: FaultKind) -> Status {
    match kind {
        FaultKind::OutOfBounds | FaultKind::UseAfterFree => Status::ILLEGAL_ADDRESS,
        FaultKind::Misaligned => Status::MISALIGNED_ADDRESS,
        FaultKind::Deadlock | FaultKind::Timeout => Status::LAUNCH_TIMEOUT,
        FaultKind::Barrier
        | FaultKind::TensorMap
        | FaultKind::Descriptor
        | FaultKind::TensorMemory
        | FaultKind::Unsupported => Status::ILLEGAL_INSTRUCTION,
        _ => Status::LAUNCH_FAILED,
    }
}

/// The image of the parameter space, from pointers to the parameters or from one buffer.
fn gather(function: &Function, parameters: In<Host>, extra: In<usize>) -> Result<Vec<u8>, Failure> {
    let kernel = function.kernel()?;
    let mut image = vec![0; kernel.parameter_bytes() as usize];
    if !extra.is_null() {
        let mut buffer = buffer_of(extra)?;
        if buffer.len() < image.len() {
            let message =
                format!("{} bytes of parameters; `{}` takes {}", buffer.len(), function.name, image.len());
            return Err(Failure::loud(Status::INVALID_VALUE, message));
        }
        buffer.truncate(image.len());
        return Ok(buffer);
    }
    let pointers = parameters.array("kernelParams", kernel.parameters().len())?;
    for (index, (parameter, pointer)) in kernel.parameters().iter().zip(pointers).enumerate() {
        if pointer.0 == 0 {
            return Err(Failure::loud(Status::INVALID_VALUE, format!("kernelParams[{index}] is null")));
        }
        let (offset, size) = (parameter.offset as usize, parameter.size as usize);
        image[offset..offset + size].copy_from_slice(&pointer.read(size));
    }
    Ok(image)
}

/// The buffer that `extra` names: pairs of keys and values, up to a zero.
fn buffer_of(extra: In<usize>) -> Result<Vec<u8>, Failure> {
    const END: usize = 0;
    const POINTER: usize = 1;
    const SIZE: usize = 2;
    const MOST_KEYS: usize = 2;
    let (mut pointer, mut size) = (None, None);
    for pair in 0..=MOST_KEYS {
        match extra.at(2 * pair) {
            END => break,
            POINTER => pointer = Some(Host(extra.at(2 * pair + 1))),
            // The value is a pointer to the size.
            SIZE => {
                size = Host(extra.at(2 * pair + 1)).read(8).first_chunk().map(|bytes| usize::from_ne_bytes(*bytes))
            }
            key => return Err(Failure::loud(Status::INVALID_VALUE, format!("`extra` has key {key}"))),
        }
    }
    match (pointer, size) {
        (Some(pointer), Some(size)) if pointer.0 != 0 => Ok(pointer.read(size)),
        _ => Err(Failure::loud(Status::INVALID_VALUE, "`extra` lacks the buffer or its size")),
    }
}

/// Checks a launch against kernel and device, and completes it.
pub(super) fn check(driver: &Driver, function: &Function, mut shape: Shape) -> Result<Shape, Failure> {
    let (kernel, settings, name) = (function.kernel()?, function.settings(), &function.name);
    let bad = |message: String| Failure::loud(Status::INVALID_VALUE, format!("kernel `{name}`: {message}"));
    let directives = kernel.directives();
    let most = function.max_dynamic_shared()?;
    if shape.shared > most {
        return Err(bad(format!(
            "{} bytes of dynamic shared memory; {most} are allowed (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)",
            shape.shared
        )));
    }
    let threads = shape.block.into_iter().map(u64::from).product::<u64>();
    if threads > u64::from(function.max_threads()?) {
        return Err(bad(format!("a CTA of {threads} threads; the kernel allows {}", function.max_threads()?)));
    }
    if let Some(required) = directives.reqntid
        && shape.block != required
    {
        return Err(bad(format!("a CTA of {:?} threads; the kernel requires {required:?}", shape.block)));
    }
    let given = shape.cluster != [0; 3];
    let fixed = directives.reqnctapercluster.or(Some(settings.cluster).filter(|sizes| !sizes.contains(&0)));
    shape.cluster = match fixed {
        Some(fixed) if given && fixed != shape.cluster => {
            let message =
                format!("kernel `{name}`: clusters of {:?} CTAs; the kernel has {fixed:?}", shape.cluster);
            return Err(Failure::loud(Status::INVALID_CLUSTER_SIZE, message));
        }
        Some(fixed) => fixed,
        None if given => shape.cluster,
        None if directives.explicitcluster => {
            return Err(bad("no size of clusters was given; the kernel demands one".into()));
        }
        None => [1; 3],
    };
    if directives.blocksareclusters {
        for (grid, cluster) in shape.grid.iter_mut().zip(shape.cluster) {
            *grid = grid.checked_mul(cluster).ok_or_else(|| bad("a grid of too many clusters".into()))?;
        }
    }
    let ctas: u32 = shape.cluster.iter().fold(1, |product, size| product.saturating_mul(*size));
    let largest = if settings.large_clusters { driver.profile.max_cluster } else { MAX_PORTABLE_CLUSTER };
    if ctas > largest || directives.maxclusterrank.is_some_and(|most| ctas > most) {
        let message = format!("kernel `{name}`: clusters of {ctas} CTAs; {largest} are allowed");
        return Err(Failure::loud(Status::INVALID_CLUSTER_SIZE, message));
    }
    let Shape { grid, block, cluster, shared, programmatic, .. } = shape;
    let launch = Launch { grid, block, cluster, dynamic_shared: shared, parameters: &[], programmatic };
    launch.check(driver.profile, kernel.static_shared()).map_err(|cause| bad(cause.message))?;
    if shape.cooperative {
        let resident = occupancy::resident(driver, function, threads as u32, shared)?;
        let most = u64::from(resident) * u64::from(driver.profile.sm_count);
        if launch.ctas() > most {
            let message = format!("kernel `{name}`: a cooperative launch of {} CTAs; {most} fit", launch.ctas());
            return Err(Failure::loud(Status::COOPERATIVE_LAUNCH_TOO_LARGE, message));
        }
    }
    Ok(shape)
}

fn launch(
    function: Handle,
    (shape, events): (Shape, Vec<Handle>),
    stream: Handle,
    parameters: In<Host>,
    extra: In<usize>,
) -> Result<(), Failure> {
    let function = driver()?.functions.get(function)?;
    let launch = KernelLaunch::new(function, shape, parameters, extra, &events)?;
    enqueue(stream, Operation::Kernel(Arc::new(launch)))
}

super::entries! { cuLaunchKernel, cuLaunchKernelEx, cuLaunchCooperativeKernel }

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the signature is the API's")]
extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    parameters: In<Host>,
    extra: In<usize>,
) -> Status {
    call("cuLaunchKernel", || {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, ..Shape::default() };
        launch(function, (shape, Vec::new()), stream, parameters, extra)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernelEx(
    configuration: In<Configuration>,
    function: Handle,
    parameters: In<Host>,
    extra: In<usize>,
) -> Status {
    call("cuLaunchKernelEx", || {
        let configuration = configuration.read("config")?;
        launch(function, configuration.resolve()?, configuration.stream, parameters, extra)
    })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the signature is the API's")]
extern "C" fn cuLaunchCooperativeKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    parameters: In<Host>,
) -> Status {
    call("cuLaunchCooperativeKernel", || {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, cooperative: true, ..Shape::default() };
        launch(function, (shape, Vec::new()), stream, parameters, In::null())
    })
}
