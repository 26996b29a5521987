//! The launch of a GEMM: grid, attributes, and parameters with their tensor maps.

use super::{
    configuration::{Configuration, KernelFacts, Output, Program},
    divisor::FastDivisor,
    record::Addresses,
};
use crate::{
    launch::LaunchConfig,
    tensor_map::{ElementType, Swizzle, TensorMap, TensorMapSpec},
};
use nvfp4_core::Error;

/// What a GEMM is asked for, in the kernel's own orientation: `C[m, n] = alpha * A[m, k] * B[n, k]ᵀ`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Rows of A.
    pub m: u32,
    /// Rows of B.
    pub n: u32,
    /// Columns of A and B, elements; a multiple of 32.
    pub k: u32,
    /// Clusters that fit the device at once.
    pub clusters: u32,
    /// Where the operands are.
    pub addresses: Addresses,
}

/// Bytes and number of parameters that the largest kernel takes.
const PARAMETER_BYTES: usize = 1536;
const PARAMETERS: usize = 32;

/// The parameters of a launch, at the offsets that the kernel reads them from. Nothing is allocated.
#[repr(C, align(64))]
#[derive(Clone, Debug)]
pub struct Parameters {
    bytes: [u8; PARAMETER_BYTES],
    spans: [[u32; 2]; PARAMETERS],
    count: usize,
    end: usize,
}

impl Parameters {
    const EMPTY: Self = Self { bytes: [0; PARAMETER_BYTES], spans: [[0; 2]; PARAMETERS], count: 0, end: 0 };

    /// Appends a parameter at the next multiple of its alignment.
    fn push(&mut self, alignment: usize, value: &[u8]) {
        let start = self.end.next_multiple_of(alignment);
        let end = start + value.len();
        if let (Some(to), Some(span)) = (self.bytes.get_mut(start..end), self.spans.get_mut(self.count)) {
            to.copy_from_slice(value);
            *span = [start as u32, value.len() as u32];
        }
        self.count += 1;
        self.end = end;
    }

    fn words<const N: usize>(&mut self, words: [u32; N]) {
        let mut bytes = [[0; 4]; N];
        for (to, word) in bytes.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        self.push(4, bytes.as_flattened());
    }

    /// A tensor as a structure: address, two extents, the stride, four bytes of padding.
    fn tensor(&mut self, address: u64, extents: [u32; 2], stride: u32) {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        for (to, word) in bytes[8..20].as_chunks_mut::<4>().0.iter_mut().zip([extents[0], extents[1], stride]) {
            *to = word.to_le_bytes();
        }
        self.push(8, &bytes);
    }

    /// Offset and size of each, bytes.
    pub fn spans(&self) -> &[[u32; 2]] {
        &self.spans[..self.count.min(PARAMETERS)]
    }

    /// The bytes of each.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.spans().iter().map(|[start, len]| &self.bytes[*start as usize..(start + len) as usize])
    }

    /// An address of each, as a launch takes them.
    pub fn pointers(&mut self) -> ([*mut std::ffi::c_void; PARAMETERS], usize) {
        let mut pointers = [std::ptr::null_mut(); PARAMETERS];
        let count = self.spans().len();
        for (pointer, [start, _]) in pointers.iter_mut().zip(&self.spans[..count]) {
            *pointer = self.bytes[*start as usize..].as_mut_ptr().cast();
        }
        (pointers, count)
    }
}

/// A launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// CTAs.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster.
    pub cluster: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_memory: u32,
    /// Programmatic dependent launch.
    pub overlap_previous: bool,
    /// The parameters.
    pub parameters: Parameters,
}

/// What the tensor maps of a kernel copy at once.
struct Boxes {
    /// Rows and elements along k of the codes of A and B.
    a: [u32; 2],
    b: [u32; 2],
    /// 128-row tiles and 64-element columns of the scales.
    sfa: [u32; 2],
    sfb: [u32; 2],
    /// Slow and contiguous elements of the output.
    c: [u32; 2],
}

impl Launch {
    /// The launch of a kernel. Errors: a problem that no tensor map describes.
    pub fn new(facts: &KernelFacts, problem: &Problem) -> Result<Self, Error> {
        let configuration = &facts.configuration;
        let [tile_m, tile_n] = configuration.cta_tile();
        let ctas = [problem.m.div_ceil(tile_m), problem.n.div_ceil(tile_n)];
        let [cluster_m, cluster_n] = configuration.cluster;
        let clusters = [ctas[0].div_ceil(cluster_m), ctas[1].div_ceil(cluster_n)];
        let grid = match facts.persistent {
            true => [cluster_m, cluster_n, clusters[0].saturating_mul(clusters[1]).min(problem.clusters.max(1))],
            false => [ctas[0], ctas[1], configuration.split_k],
        };
        Ok(Self {
            grid,
            block: [facts.threads, 1, 1],
            cluster: configuration.cluster_shape(),
            shared_memory: facts.shared_memory,
            overlap_previous: facts.overlap_previous,
            parameters: parameters(configuration, problem, ctas, clusters)?,
        })
    }

    /// The same for the driver.
    pub const fn config(&self) -> LaunchConfig {
        LaunchConfig {
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            shared_memory: self.shared_memory,
            overlap_previous: self.overlap_previous,
        }
    }
}

/// Bytes of a row in shared memory that are permuted together, at most.
const SWIZZLED_BYTES: u32 = 128;
/// Columns of the output that an epilogue with tensor memory makes at a time, at most.
const EPILOGUE_COLUMNS: u32 = 32;
/// A tile width that is no multiple or divisor of a scale tile: the kernel counts the scale tiles of B by fours.
const UNALIGNED_TILE: u32 = 192;
/// Rows of a scale tile, and elements along k of its columns.
const SCALE_ROWS: u32 = 128;
const SCALE_COLUMN: u32 = 64;

fn parameters(
    configuration: &Configuration,
    problem: &Problem,
    ctas: [u32; 2],
    clusters: [u32; 2],
) -> Result<Parameters, Error> {
    let Problem { m, n, k, addresses, .. } = *problem;
    let boxes = boxes(configuration);
    let k_swizzle = if configuration.tile_k <= 128 { Swizzle::B64 } else { Swizzle::B128 };
    let a = codes(addresses.a, m, k, boxes.a, k_swizzle)?;
    let b = codes(addresses.b, n, k, boxes.b, k_swizzle)?;
    let (sfa_tiles, sfa) = scales(addresses.sfa, m, k, boxes.sfa)?;
    let (mut sfb_tiles, sfb) = scales(addresses.sfb, n, k, boxes.sfb)?;
    if configuration.tile[1] == UNALIGNED_TILE {
        sfb_tiles[0] = sfb_tiles[0].div_ceil(4);
    }
    // The contiguous dimension of a transposed output is m.
    let (fast, slow) = if configuration.transposed() { (m, n) } else { (n, m) };
    let c = output(addresses.c, configuration.output, fast, slow, boxes.c)?;
    let grid = [(ctas[0], ctas[1]), (clusters[0], clusters[1])];
    let mut to = Parameters::EMPTY;
    match configuration.program {
        Program::Persistent | Program::SplitK => {
            // Two MMA descriptions whose fields the kernel sets itself.
            to.words([0; 3]);
            to.words([0; 3]);
            for (map, extents) in [(a, [m, k]), (b, [n, k]), (sfa, sfa_tiles), (sfb, sfb_tiles), (c, [m, n])] {
                to.push(64, &map.0);
                to.words(extents);
            }
            if configuration.program == Program::Persistent {
                scheduler(&mut to, grid);
            }
        }
        Program::B12x => {
            let tensors = [
                (a, addresses.a, [m, k], k),
                (b, addresses.b, [n, k], k),
                (sfa, addresses.sfa, sfa_tiles, sfa_tiles[1] * 512),
                (sfb, addresses.sfb, sfb_tiles, sfb_tiles[1] * 512),
                (c, addresses.c, [m, n], n),
            ];
            for (map, address, extents, stride) in tensors {
                to.push(64, &map.0);
                to.words(extents);
                to.tensor(address, extents, stride);
            }
            // Two MMA descriptions whose fields the kernel sets itself, and operands of a variant that is not compiled.
            to.push(8, &[0; 16]);
            to.push(8, &[0; 16]);
            for (map, extents) in [(a, [m, k]), (b, [n, k])] {
                to.push(64, &map.0);
                to.words(extents);
            }
            scheduler(&mut to, grid);
        }
    }
    to.push(8, &addresses.alpha.to_le_bytes());
    Ok(to)
}

/// The order in which tiles are taken, twice.
fn scheduler(to: &mut Parameters, [ctas, clusters]: [(u32, u32); 2]) {
    for _ in 0..2 {
        to.words([ctas.0]);
        to.words([ctas.1]);
        to.push(4, &FastDivisor::new(clusters.0).to_bytes());
        to.push(4, &FastDivisor::new(clusters.1).to_bytes());
    }
}

fn boxes(configuration: &Configuration) -> Boxes {
    let Configuration { tile_k, cluster, .. } = *configuration;
    let [tile_m, tile_n] = configuration.cta_tile();
    // CTAs of a cluster that need the same operand copy a part each and send it to the others.
    let (share_a, share_b) = (cluster[1], cluster[0]);
    let scale_k = tile_k / SCALE_COLUMN;
    let scale_tiles = tile_n.div_ceil(SCALE_ROWS);
    // A row of codes in shared memory has at most as many bytes as are permuted together.
    let code_k = tile_k.min(SWIZZLED_BYTES * 2);
    let c = match configuration.program {
        Program::B12x => [tile_m, tile_n.min(SWIZZLED_BYTES / 2)],
        // The epilogue makes 32 columns at a time; transposed, it stores half of the rows at a time.
        _ if configuration.swap_ab => [tile_n.min(EPILOGUE_COLUMNS), SWIZZLED_BYTES / 2],
        _ => [tile_m, tile_n.min(EPILOGUE_COLUMNS)],
    };
    Boxes {
        a: [tile_m / share_a, code_k],
        b: [tile_n / share_b, code_k],
        sfa: [1, scale_k / share_a],
        // Whole tiles are divided first, then their columns.
        sfb: [(scale_tiles / share_b).max(1), scale_k / (share_b / scale_tiles).max(1)],
        c,
    }
}

/// A map of e2m1 codes `[rows, k]`.
fn codes(address: u64, rows: u32, k: u32, tile: [u32; 2], swizzle: Swizzle) -> Result<TensorMap, Error> {
    let (dims, strides) = ([u64::from(k), u64::from(rows)], [u64::from(k) / 2]);
    TensorMapSpec::new(ElementType::U4Align8B, address, &dims, &strides, &[tile[1], tile[0]], swizzle).pack()
}

/// The extents, and a map, of block scales in 128x4 tiles of 512 bytes: pairs of bytes, tiles along k, tiles along the
/// rows.
fn scales(address: u64, rows: u32, k: u32, tile: [u32; 2]) -> Result<([u32; 2], TensorMap), Error> {
    let tiles = [rows.div_ceil(SCALE_ROWS), k.div_ceil(SCALE_COLUMN)];
    let dims = [256, u64::from(tiles[1]), u64::from(tiles[0])];
    let strides = [512, 512 * u64::from(tiles[1])];
    let spec =
        TensorMapSpec::new(ElementType::U16, address, &dims, &strides, &[256, tile[1], tile[0]], Swizzle::None);
    Ok((tiles, spec.pack()?))
}

/// A map of the output, `fast` columns and `slow` rows.
fn output(address: u64, dtype: Output, fast: u32, slow: u32, tile: [u32; 2]) -> Result<TensorMap, Error> {
    let element = match dtype {
        Output::Bf16 => ElementType::Bf16,
        Output::F16 => ElementType::F16,
    };
    let (dims, strides) = ([u64::from(fast), u64::from(slow)], [u64::from(fast) * 2]);
    let swizzle = match tile[1] * 2 {
        128.. => Swizzle::B128,
        64.. => Swizzle::B64,
        32.. => Swizzle::B32,
        _ => Swizzle::None,
    };
    TensorMapSpec::new(element, address, &dims, &strides, &[tile[1], tile[0]], swizzle).pack()
}
