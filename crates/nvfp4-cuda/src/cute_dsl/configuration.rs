//! A configuration of a CuTe DSL GEMM: everything that is decided when it is compiled.

use nvfp4_core::DType;
use serde::{Deserialize, Serialize};

/// The vendor's program (a Python class of `flashinfer-python`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `Sm100BlockScaledPersistentDenseGemmKernel`: clusters take output tiles in turn.
    Persistent,
    /// `Sm100BlockScaledSplitKGemmKernel`: the CTAs of a cluster share the sum over k of one output tile.
    SplitK,
    /// `Sm120B12xBlockScaledDenseGemmKernel`: warp-level MMA, CTAs take output tiles in turn.
    B12x,
}

/// Which operand streams are kept in the L2 cache. A hint: results do not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum L2Policy {
    /// No hint.
    None,
    /// The kernel's A is evicted first (it is read once).
    AFirst,
    /// The kernel's B is evicted first.
    BFirst,
    /// Both are evicted last (each is read several times).
    BothLast,
}

/// Element type of the output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// bf16.
    Bf16,
    /// f16.
    F16,
}

impl Output {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::F16];

    /// The output of an element type; `None` if the kernels do not write it.
    pub const fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::Bf16 => Some(Self::Bf16),
            DType::F16 => Some(Self::F16),
            _ => None,
        }
    }
}

/// What is decided when a kernel is compiled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The program.
    pub program: Program,
    /// Rows and columns of the output tile that one MMA instruction (of one or two CTAs) makes, in the kernel's own
    /// orientation. 256 rows are made by two CTAs.
    pub tile: [u32; 2],
    /// CTAs of a cluster along the tile's rows and columns.
    pub cluster: [u32; 2],
    /// CTAs that share the sum over k of a tile.
    pub split_k: u32,
    /// Elements along k of a pipeline stage.
    pub tile_k: u32,
    /// True if the weight is the kernel's A and the activation its B. (In [`Program::B12x`] the operands stay where
    /// they are, and the kernel swaps inside.)
    pub swap_ab: bool,
    /// True if the next tile is prefetched to the L2 cache.
    pub prefetch: bool,
    /// Cache hint.
    pub l2: L2Policy,
    /// Element type of the output.
    pub output: Output,
}

impl Configuration {
    /// The name of the kernel in a pack, e.g. `persistent_256x128x256_2x1_swap_a_first_bf16`.
    pub fn name(&self) -> String {
        let program = match self.program {
            Program::Persistent => "persistent",
            Program::SplitK => "split_k",
            Program::B12x => "b12x",
        };
        let ([m, n], [x, y]) = (self.tile, self.cluster);
        let mut name = format!("{program}_{m}x{n}x{}_{x}x{y}", self.tile_k);
        if self.split_k > 1 {
            name += &format!("_by{}", self.split_k);
        }
        if self.swap_ab {
            name += "_swap";
        }
        if self.prefetch {
            name += "_prefetch";
        }
        name += match self.l2 {
            L2Policy::None => "",
            L2Policy::AFirst => "_a_first",
            L2Policy::BFirst => "_b_first",
            L2Policy::BothLast => "_both_last",
        };
        name + match self.output {
            Output::Bf16 => "_bf16",
            Output::F16 => "_f16",
        }
    }

    /// The same with another output type.
    pub const fn with_output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// True if the operands are given to the kernel in reverse order: the weight first, and the output transposed.
    pub fn transposed(&self) -> bool {
        self.swap_ab && self.program != Program::B12x
    }

    /// CTAs that work together on an MMA instruction.
    pub const fn ctas_per_mma(&self) -> u32 {
        match (self.program, self.tile[0]) {
            (Program::Persistent, 256) => 2,
            _ => 1,
        }
    }

    /// Rows and columns of the output that one CTA writes, in the kernel's own orientation.
    pub const fn cta_tile(&self) -> [u32; 2] {
        [self.tile[0] / self.ctas_per_mma(), self.tile[1]]
    }

    /// CTAs of a cluster along x, y, z.
    pub const fn cluster_shape(&self) -> [u32; 3] {
        [self.cluster[0], self.cluster[1], self.split_k]
    }
}

/// What a pack says about a kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelFacts {
    /// What it was compiled for.
    pub configuration: Configuration,
    /// Threads of a CTA.
    pub threads: u32,
    /// Dynamic shared memory, bytes.
    pub shared_memory: u32,
    /// True if it is launched with programmatic dependent launch.
    pub overlap_previous: bool,
    /// True if the launch has as many clusters as fit the device at once, and no more.
    pub persistent: bool,
    /// Offset and size of each parameter, bytes.
    pub parameters: Vec<[u32; 2]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_survive_json_and_have_a_name() {
        let configuration = Configuration {
            program: Program::Persistent,
            tile: [256, 128],
            cluster: [2, 1],
            split_k: 1,
            tile_k: 256,
            swap_ab: true,
            prefetch: false,
            l2: L2Policy::AFirst,
            output: Output::F16,
        };
        assert_eq!(configuration.name(), "persistent_256x128x256_2x1_swap_a_first_f16");
        assert_eq!(configuration.cta_tile(), [128, 128]);
        let text = serde_json::to_string(&configuration).unwrap();
        assert_eq!(serde_json::from_str::<Configuration>(&text).unwrap(), configuration);
    }
}
