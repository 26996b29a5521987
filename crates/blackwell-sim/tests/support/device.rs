//! A simulated device for tests: runs PTX snippets on arrays.

use blackwell_sim::{
    fault::Fault,
    launch::Launch,
    machine::{Loaded, run},
    memory::DeviceMemory,
    profile::Profile,
    program::Program,
};
use std::sync::Arc;

/// A device and its memory.
pub struct Device {
    pub profile: &'static Profile,
    pub memory: DeviceMemory,
}

impl Device {
    pub fn new(target: &str) -> Self {
        let profile = Profile::named(target).unwrap();
        Self { profile, memory: DeviceMemory::new(1 << 32) }
    }

    /// Memory that holds `values`.
    pub fn upload(&self, values: &[u8]) -> u64 {
        let address = self.memory.allocate(values.len() as u64).unwrap();
        self.memory.write(address, values).unwrap();
        address
    }

    pub fn download(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.memory.read(address, &mut out).unwrap();
        out
    }

    /// Compiles a module and runs its first kernel.
    pub fn run(&self, source: &str, launch: &Launch<'_>) -> Result<(), Fault> {
        let program = Arc::new(Program::compile(source, self.profile).unwrap());
        let name = program.kernels().next().unwrap().name().to_owned();
        let module = Loaded::new(program, &self.memory).unwrap();
        run(self.profile, &self.memory, &module, &name, launch)
    }

    /// Runs a body of one warp whose kernel has the parameters `out` and `in`; returns 32 results of 8 bytes, one a lane.
    ///
    /// The body finds its lane's input in `%rd8` (u64), its lane in `%r0`, and leaves its result in `%rd9`.
    pub fn warp(&self, body: &str, input: &[u64; 32]) -> Result<[u64; 32], Fault> {
        let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (source, out) = (self.upload(&bytes), self.upload(&[0; 256]));
        let parameters: Vec<u8> = [out, source].iter().flat_map(|value| value.to_le_bytes()).collect();
        self.run(&kernel(self.profile.target, body), &launch(1, 32, &parameters))?;
        let out = self.download(out, 256);
        Ok(core::array::from_fn(|lane| u64::from_le_bytes(out[8 * lane..8 * lane + 8].try_into().unwrap())))
    }
}

/// A module of one kernel around a body, see [`Device::warp`].
pub fn kernel(target: &str, body: &str) -> String {
    format!(
        ".version 8.8\n.target {target}\n.address_size 64\n.visible .entry test(.param .u64 out, .param .u64 in)\n{{\n\
         .reg .pred %p<10>; .reg .b16 %rs<20>; .reg .b32 %r<64>; .reg .b64 %rd<20>; .reg .f32 %f<20>;\n\
         .shared .align 1024 .b8 sm[4096];\n\
         mov.u32 %r0, %tid.x;\nld.param.u64 %rd0, [out];\nld.param.u64 %rd1, [in];\nmul.wide.u32 %rd2, %r0, 8;\n\
         add.s64 %rd3, %rd1, %rd2;\nadd.s64 %rd4, %rd0, %rd2;\nld.global.b64 %rd8, [%rd3];\nmov.b64 %rd9, 0;\n\
         {body}\nst.global.b64 [%rd4], %rd9;\nret;\n}}\n"
    )
}

/// A launch of `grid` CTAs of `threads` threads.
pub fn launch(grid: u32, threads: u32, parameters: &[u8]) -> Launch<'_> {
    Launch {
        grid: [grid, 1, 1],
        block: [threads, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared: 0,
        parameters,
        programmatic: false,
    }
}
