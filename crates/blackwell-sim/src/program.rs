//! Modules, made ready to run on a device.

use crate::{
    lower::{self, Globals, Lowerer, code::Code},
    profile::Profile,
    ptx::{self, Directives, FunctionKind, Initializer, StateSpace, Variable},
};

pub use lower::LoadError;

/// A module, lowered once for a device. It owns nothing on the device.
pub struct Program {
    kernels: Vec<Kernel>,
    pub(crate) globals: Vec<GlobalVariable>,
}

/// A kernel of a module.
pub struct Kernel {
    name: String,
    parameters: Vec<Parameter>,
    parameter_bytes: u32,
    directives: Directives,
    pub(crate) code: Code,
}

/// A parameter of a kernel: where it lies in the parameter space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Bytes before it.
    pub offset: u32,
    /// Its bytes.
    pub size: u32,
    /// Its alignment.
    pub align: u32,
}

/// A `.global` or `.const` variable.
pub(crate) struct GlobalVariable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// What it begins with: all of it, unless nothing does.
    pub(crate) initial: Vec<u8>,
    /// Addresses of other variables in it: its offset, the other's index, bytes to add.
    pub(crate) addresses: Vec<(u64, u32, i64)>,
}

impl Program {
    /// Parses and lowers a module for the device of `profile`.
    ///
    /// # Errors
    /// The text is no PTX, the device does not run its target, or it has something that is not modelled; the message names it and its line.
    pub fn compile(source: &str, profile: &'static Profile) -> Result<Self, LoadError> {
        let module = ptx::parse(source)?;
        if !profile.runs_ptx(&module.target) {
            return Err(LoadError::Target {
                target: module.target,
                device: profile.name,
                device_target: profile.target,
            });
        }
        let variables: Vec<&Variable> = module
            .variables
            .iter()
            .filter(|variable| {
                matches!(variable.space, StateSpace::Global | StateSpace::Const) && !variable.is_extern
            })
            .collect();
        let names = Globals {
            indices: variables.iter().zip(0..).map(|(variable, index)| (variable.name.as_str(), index)).collect(),
        };
        let globals = variables.iter().map(|variable| global(variable, &names)).collect::<Result<_, _>>()?;
        let mut kernels = Vec::new();
        for function in &module.functions {
            if function.kind != FunctionKind::Entry || function.body.is_none() {
                continue;
            }
            let mut parameter_bytes = 0u32;
            let mut parameters = Vec::new();
            for variable in &function.params {
                let (size, align) = (lower::size(variable), lower::alignment(variable));
                let offset = parameter_bytes.next_multiple_of(align.max(1));
                parameters.push(Parameter { offset, size, align });
                parameter_bytes = offset + size;
            }
            let offsets: Vec<u32> = parameters.iter().map(|parameter| parameter.offset).collect();
            let code = Lowerer::new(&module, &names).kernel(function, &offsets)?;
            let (name, directives) = (function.name.clone(), function.directives.clone());
            kernels.push(Kernel { name, parameters, parameter_bytes, directives, code });
        }
        Ok(Self { kernels, globals })
    }

    /// The module's kernels, in its order.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter()
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Bytes of its parameter space.
    pub fn parameter_bytes(&self) -> u32 {
        self.parameter_bytes
    }

    /// Bytes of shared memory that it declares.
    pub fn static_shared(&self) -> u32 {
        self.code.static_shared
    }

    /// Bytes of local memory of a thread.
    pub fn local_bytes(&self) -> u32 {
        self.code.local_bytes
    }

    /// What it demands of its launch.
    pub fn directives(&self) -> &Directives {
        &self.directives
    }
}

fn global(variable: &Variable, names: &Globals<'_>) -> Result<GlobalVariable, LoadError> {
    let bytes = u64::from(lower::size(variable)).max(1);
    let element = (variable.ty.bits() / 8) as usize;
    let mut initial = Vec::new();
    let mut addresses = Vec::new();
    let unsupported = |what: &str| LoadError::Unsupported {
        line: 0,
        function: String::new(),
        instruction: format!("variable {}", variable.name),
        what: what.into(),
    };
    for value in &variable.initial {
        if let Initializer::Address { name, offset, .. } = value {
            let &index =
                names.indices.get(name.as_str()).ok_or_else(|| unsupported("the address of a function"))?;
            addresses.push((initial.len() as u64, index, *offset));
        }
        let bits = match value {
            Initializer::Address { .. } => 0,
            value => value.bits(variable.ty).ok_or_else(|| unsupported("its initial value"))?,
        };
        initial.extend_from_slice(&bits.to_le_bytes()[..element]);
    }
    // Variables without an initial value are zero.
    initial.resize(bytes as usize, 0);
    Ok(GlobalVariable { name: variable.name.clone(), bytes, initial, addresses })
}
