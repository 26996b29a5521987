//! Enumerations of the backend API, as open integers.

/// `cudnnStatus_t`: what a call returned.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Status(pub i32);

impl Status {
    /// It worked.
    pub const SUCCESS: Self = Self(0);
}

/// `cudnnBackendDescriptorType_t`: what a descriptor describes.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DescriptorType(pub i32);

impl DescriptorType {
    /// A pointwise operation's parameters.
    pub const POINTWISE: Self = Self(0);
    /// An engine: a way to run a graph.
    pub const ENGINE: Self = Self(2);
    /// An engine with its knobs set.
    pub const ENGINE_CONFIG: Self = Self(3);
    /// A ranking of engine configurations.
    pub const ENGINE_HEURISTICS: Self = Self(4);
    /// A compiled engine configuration.
    pub const EXECUTION_PLAN: Self = Self(5);
    /// A knob's setting.
    pub const KNOB_CHOICE: Self = Self(7);
    /// A pointwise node.
    pub const OPERATION_POINTWISE: Self = Self(13);
    /// Nodes that are computed together.
    pub const OPERATION_GRAPH: Self = Self(15);
    /// Device pointers for one execution.
    pub const VARIANT_PACK: Self = Self(16);
    /// A tensor.
    pub const TENSOR: Self = Self(17);
    /// A matrix product's parameters.
    pub const MATMUL: Self = Self(18);
    /// A matrix product node.
    pub const OPERATION_MATMUL: Self = Self(19);
    /// A node that multiplies blocks by their scales.
    pub const OPERATION_BLOCK_SCALE_DEQUANTIZE: Self = Self(37);
    /// A device, here or described in JSON.
    pub const DEVICE_PROPERTIES: Self = Self(38);
}

/// `cudnnBackendAttributeName_t`: an attribute of a descriptor.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Attribute(pub i32);

impl Attribute {
    /// Which pointwise operation.
    pub const POINTWISE_MODE: Self = Self(0);
    /// Type in which it computes.
    pub const POINTWISE_MATH_PRECISION: Self = Self(1);
    /// Which ranking.
    pub const ENGINE_HEURISTICS_MODE: Self = Self(200);
    /// Of which graph.
    pub const ENGINE_HEURISTICS_OPERATION_GRAPH: Self = Self(201);
    /// The engine configurations, best first.
    pub const ENGINE_HEURISTICS_RESULTS: Self = Self(202);
    /// For a device that is not here.
    pub const ENGINE_HEURISTICS_DEVICE_PROPERTIES: Self = Self(204);
    /// The engine.
    pub const ENGINE_CONFIG_ENGINE: Self = Self(300);
    /// The knobs.
    pub const ENGINE_CONFIG_KNOB_CHOICES: Self = Self(302);
    /// Handle that the plan is made for.
    pub const EXECUTION_PLAN_HANDLE: Self = Self(400);
    /// What is compiled.
    pub const EXECUTION_PLAN_ENGINE_CONFIG: Self = Self(401);
    /// Bytes of scratch memory.
    pub const EXECUTION_PLAN_WORKSPACE_SIZE: Self = Self(402);
    /// The plan as JSON, kernels included.
    pub const EXECUTION_PLAN_JSON: Self = Self(405);
    /// For a device that is not here.
    pub const EXECUTION_PLAN_DEVICE_PROPERTIES: Self = Self(407);
    /// Which knob.
    pub const KNOB_CHOICE_TYPE: Self = Self(600);
    /// Its setting.
    pub const KNOB_CHOICE_VALUE: Self = Self(601);
    /// The operation's parameters.
    pub const OPERATION_POINTWISE_DESCRIPTOR: Self = Self(750);
    /// First input.
    pub const OPERATION_POINTWISE_X: Self = Self(751);
    /// Second input.
    pub const OPERATION_POINTWISE_B: Self = Self(752);
    /// Output.
    pub const OPERATION_POINTWISE_Y: Self = Self(753);
    /// The nodes.
    pub const OPERATION_GRAPH_OPERATIONS: Self = Self(801);
    /// Handle that the graph is made for.
    pub const OPERATION_GRAPH_HANDLE: Self = Self(800);
    /// Alignment of the address, bytes.
    pub const TENSOR_BYTE_ALIGNMENT: Self = Self(900);
    /// Type of the elements.
    pub const TENSOR_DATA_TYPE: Self = Self(901);
    /// Extents.
    pub const TENSOR_DIMENSIONS: Self = Self(902);
    /// Elements from one index to the next.
    pub const TENSOR_STRIDES: Self = Self(903);
    /// The name by which a variant pack gives its address.
    pub const TENSOR_UNIQUE_ID: Self = Self(906);
    /// True if it is never in memory.
    pub const TENSOR_IS_VIRTUAL: Self = Self(907);
    /// Layout of block scales.
    pub const TENSOR_REORDERING_MODE: Self = Self(909);
    /// Names of the tensors.
    pub const VARIANT_PACK_UNIQUE_IDS: Self = Self(1000);
    /// Their addresses.
    pub const VARIANT_PACK_DATA_POINTERS: Self = Self(1001);
    /// Address of the scratch memory.
    pub const VARIANT_PACK_WORKSPACE: Self = Self(1003);
    /// Number of the engine among those of its graph.
    pub const ENGINE_GLOBAL_INDEX: Self = Self(1301);
    /// Type in which it sums.
    pub const MATMUL_COMPUTE_TYPE: Self = Self(1500);
    /// Left operand.
    pub const OPERATION_MATMUL_A: Self = Self(1520);
    /// Right operand.
    pub const OPERATION_MATMUL_B: Self = Self(1521);
    /// Product.
    pub const OPERATION_MATMUL_C: Self = Self(1522);
    /// The parameters.
    pub const OPERATION_MATMUL_DESCRIPTOR: Self = Self(1523);
    /// Codes.
    pub const BLOCK_SCALE_DEQUANTIZE_X: Self = Self(2600);
    /// Block scales.
    pub const BLOCK_SCALE_DEQUANTIZE_SCALE: Self = Self(2601);
    /// Values.
    pub const BLOCK_SCALE_DEQUANTIZE_Y: Self = Self(2602);
    /// Type in which it multiplies.
    pub const BLOCK_SCALE_DEQUANTIZE_MATH_PRECISION: Self = Self(2603);
    /// Elements of a block along the last two dimensions.
    pub const BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE: Self = Self(2604);
    /// CUDA's number of the device.
    pub const DEVICE_PROPERTIES_DEVICE_ID: Self = Self(2700);
    /// The device as JSON.
    pub const DEVICE_PROPERTIES_JSON: Self = Self(2702);
}

/// `cudnnBackendAttributeType_t`: what an attribute's elements are.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AttributeType(pub i32);

impl AttributeType {
    /// `cudnnHandle_t`.
    pub const HANDLE: Self = Self(0);
    /// [`DataType`].
    pub const DATA_TYPE: Self = Self(1);
    /// One byte, 0 or 1.
    pub const BOOLEAN: Self = Self(2);
    /// `i64`.
    pub const INT64: Self = Self(3);
    /// A device address.
    pub const VOID_POINTER: Self = Self(6);
    /// [`HeuristicMode`].
    pub const HEURISTIC_MODE: Self = Self(8);
    /// The number of a knob.
    pub const KNOB_TYPE: Self = Self(9);
    /// [`PointwiseMode`].
    pub const POINTWISE_MODE: Self = Self(14);
    /// A descriptor.
    pub const BACKEND_DESCRIPTOR: Self = Self(15);
    /// [`Reordering`].
    pub const REORDERING_MODE: Self = Self(20);
    /// `i32`.
    pub const INT32: Self = Self(23);
    /// Bytes of text.
    pub const CHAR: Self = Self(24);
}

/// `cudnnDataType_t`: the type of a tensor's elements.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataType(pub i32);

impl DataType {
    /// 32-bit float.
    pub const F32: Self = Self(0);
    /// 16-bit float.
    pub const F16: Self = Self(2);
    /// bfloat16.
    pub const BF16: Self = Self(9);
    /// 8-bit float, 4 exponent bits.
    pub const E4M3: Self = Self(12);
    /// 8-bit power of two.
    pub const E8M0: Self = Self(15);
    /// 4-bit float, two a byte.
    pub const E2M1: Self = Self(16);
}

/// `cudnnPointwiseMode_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PointwiseMode(pub i32);

impl PointwiseMode {
    /// Product of two tensors.
    pub const MUL: Self = Self(1);
}

/// `cudnnBackendTensorReordering_t`: a layout of block scales.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reordering(pub i32);

impl Reordering {
    /// As the strides say.
    pub const NONE: Self = Self(0);
    /// Tiles of 128 rows and 4 columns.
    pub const F8_128X4: Self = Self(3);
}

/// `cudnnBackendHeurMode_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeuristicMode(pub i32);

impl HeuristicMode {
    /// What runs at all.
    pub const FALLBACK: Self = Self(2);
    /// Fast ranking of what is expected to be best.
    pub const A: Self = Self(3);
}
