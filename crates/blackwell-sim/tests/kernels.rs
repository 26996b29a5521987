//! Kernels of FlashInfer's CuTe DSL sources, as packs hold them, against the exact product.
//!
//! `NVFP4_SIM_PACKS` names the folder of packs. Kernels are launched as the product launches them: grid, parameters and tensor
//! maps come from `nvfp4-cuda`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, unreachable_pub, missing_docs, reason = "a part of it is used")]
#[path = "support/device.rs"]
mod device;
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a part of it is used")]
#[path = "support/gemm.rs"]
mod gemm;
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a part of it is used")]
#[path = "support/random.rs"]
mod random;

use blackwell_sim::{
    fault::Fault,
    launch::Launch,
    machine::{Loaded, run},
    program,
};
use device::Device;
use gemm::{Operand, agrees, exact};
use nvfp4_cuda::{
    cute_dsl::{Addresses, KernelFacts, Launch as GemmLaunch, Output, Problem, Program},
    pack::{Manifest, Pack},
};
use random::Random;
use std::{path::PathBuf, sync::Arc};

/// A kernel of a pack.
struct Kernel {
    name: String,
    ptx: String,
    facts: KernelFacts,
}

/// The kernels of a pack whose configuration `wanted` accepts.
fn kernels(backend: &str, target: &str, wanted: impl Fn(&KernelFacts) -> bool) -> Vec<Kernel> {
    let folder = PathBuf::from(std::env::var("NVFP4_SIM_PACKS").expect("NVFP4_SIM_PACKS names a folder of packs"));
    let folder = folder.join(backend).join(target);
    let manifest = Manifest::read(&folder.join("manifest.json")).unwrap();
    let pack = Pack { manifest, folder };
    let images = pack.manifest.images.iter().filter_map(|image| {
        let facts: KernelFacts = serde_json::from_value(image.facts.clone()?).unwrap();
        wanted(&facts).then(|| Kernel {
            name: facts.configuration.name(),
            ptx: String::from_utf8(pack.read_ptx(image).unwrap().unwrap()).unwrap(),
            facts,
        })
    });
    images.collect()
}

/// What is done to the launch or the operands to see that a comparison can fail.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Plant {
    Nothing,
    /// The output's map has another swizzle.
    Swizzle,
    /// The scales of B begin 4 bytes late.
    ScaleLayout,
    /// B as k × n.
    TransposedB,
}

/// Runs `alpha · A · Bᵀ` (m × n) and counts the results that are not the exact ones.
fn wrong_results(target: &str, kernel: &Kernel, [m, n, k]: [usize; 3], plant: Plant) -> Result<usize, Fault> {
    let device = Device::new(target);
    let mut random = Random((m * 1_000_003 + n * 1009 + k) as u64);
    let (a, b) = (Operand::random(m, k, &mut random), Operand::random(n, k, &mut random));
    let alpha = 0.1875f32;
    let transposed = kernel.facts.configuration.transposed();
    let (first, second) = if transposed { (&b, &a) } else { (&a, &b) };
    let c = device.memory.allocate((m * n * 2) as u64).unwrap();
    let mut second_scales = second.scales.clone();
    let mut second_codes = second.codes.clone();
    match plant {
        Plant::ScaleLayout => second_scales.rotate_left(4),
        Plant::TransposedB => {
            let code = |index: usize| second.codes[index / 2] >> (4 * (index % 2)) & 15;
            let (rows, k) = (second.rows, second.k);
            let transposed = |index: usize| code(index % rows * k + index / rows);
            second_codes =
                (0..rows * k / 2).map(|byte| transposed(2 * byte) | transposed(2 * byte + 1) << 4).collect();
        }
        Plant::Nothing | Plant::Swizzle => {}
    }
    let addresses = Addresses {
        a: device.upload(&first.codes),
        b: device.upload(&second_codes),
        c,
        sfa: device.upload(&first.scales),
        sfb: device.upload(&second_scales),
        alpha: device.upload(&alpha.to_le_bytes()),
    };
    let problem = Problem { m: first.rows as u32, n: second.rows as u32, k: k as u32, clusters: 5, addresses };
    let launch = GemmLaunch::new(&kernel.facts, &problem).unwrap();
    let program = Arc::new(program::Program::compile(&kernel.ptx, device.profile).unwrap());
    let entry = program.kernels().next().unwrap();
    let mut parameters = vec![0; entry.parameter_bytes() as usize];
    for (parameter, value) in entry.parameters().iter().zip(launch.parameters.iter()) {
        parameters[parameter.offset as usize..][..value.len()].copy_from_slice(value);
    }
    if plant == Plant::Swizzle {
        // The last map whose address is C's.
        let place = entry.parameters().iter().rev().find(|parameter| {
            parameter.size == 128 && parameters[parameter.offset as usize..][..8] == c.to_le_bytes()
        });
        parameters[place.unwrap().offset as usize + 9] ^= 0x20;
    }
    let name = entry.name().to_owned();
    let module = Loaded::new(program, &device.memory).unwrap();
    let launch = Launch {
        grid: launch.grid,
        block: launch.block,
        cluster: launch.cluster,
        dynamic_shared: launch.shared_memory,
        parameters: &parameters,
        programmatic: launch.overlap_previous,
    };
    run(device.profile, &device.memory, &module, &name, &launch)?;
    let bytes = device.download(c, m * n * 2);
    let (decode, bits): (fn([u8; 2]) -> f64, i32) = match kernel.facts.configuration.output {
        Output::Bf16 => (|bytes| half::bf16::from_le_bytes(bytes).to_f64(), 7),
        Output::F16 => (|bytes| half::f16::from_le_bytes(bytes).to_f64(), 10),
    };
    let found = bytes.chunks_exact(2).map(|bytes| decode([bytes[0], bytes[1]]));
    Ok(found.zip(exact(&a, &b, f64::from(alpha))).filter(|(found, exact)| !agrees(*found, exact, bits)).count())
}

fn check(backend: &str, target: &str, shapes: &[[usize; 3]], wanted: impl Fn(&KernelFacts) -> bool) {
    let kernels = kernels(backend, target, wanted);
    assert!(!kernels.is_empty(), "{backend} {target}: no such kernel in the packs");
    for kernel in &kernels {
        for &shape in shapes {
            let start = std::time::Instant::now();
            let wrong = wrong_results(target, kernel, shape, Plant::Nothing)
                .unwrap_or_else(|fault| panic!("{} {shape:?}: {fault}", kernel.name));
            assert_eq!(wrong, 0, "{} {shape:?}: wrong results of {}", kernel.name, shape[0] * shape[1]);
            println!("{target} {} {shape:?}: {:.2} s", kernel.name, start.elapsed().as_secs_f64());
        }
    }
}

/// Awkward sizes: M, N and K that are no multiples of any tile.
const SHAPES: &[[usize; 3]] = &[[1, 64, 64], [7, 136, 96], [100, 200, 544], [129, 264, 320], [300, 136, 256]];

#[test]
fn b12x_on_sm120() {
    check("b12x", "sm_120a", SHAPES, |facts| {
        let configuration = &facts.configuration;
        matches!(configuration.tile, [128, 128] | [64, 128] | [128, 64])
    });
}

#[test]
fn cute_dsl_on_sm100_with_one_cta() {
    check("cutedsl", "sm_100a", SHAPES, |facts| {
        let configuration = &facts.configuration;
        configuration.program == Program::Persistent
            && configuration.ctas_per_mma() == 1
            && configuration.output == Output::Bf16
    });
}

#[test]
fn cute_dsl_on_sm100_with_pairs_of_ctas() {
    check("cutedsl", "sm_100a", &SHAPES[1..], |facts| facts.configuration.ctas_per_mma() == 2);
}

#[test]
fn a_product_of_middle_size() {
    for target in [("b12x", "sm_120a"), ("cutedsl", "sm_100a")] {
        check(target.0, target.1, &[[256, 512, 1024]], |facts| {
            let configuration = &facts.configuration;
            configuration.tile == [128, 128] && configuration.output == Output::Bf16 && !configuration.prefetch
        });
    }
}

#[test]
fn planted_faults_show() {
    for (backend, target) in [("b12x", "sm_120a"), ("cutedsl", "sm_100a")] {
        let kernels = kernels(backend, target, |facts| facts.configuration.tile == [128, 128]);
        let kernel = kernels.first().unwrap();
        let wrong = |plant| wrong_results(target, kernel, [128, 256, 256], plant).unwrap();
        assert_eq!(wrong(Plant::Nothing), 0, "{backend}");
        for plant in [Plant::Swizzle, Plant::ScaleLayout, Plant::TransposedB] {
            assert_ne!(wrong(plant), 0, "{backend}: {plant:?}");
        }
    }
}
