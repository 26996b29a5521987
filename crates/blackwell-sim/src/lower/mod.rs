//! From syntax trees to the compact form: names become slots and addresses, modifiers become decoded operations, device
//! functions are put in place of their calls.

pub(crate) mod asynchronous;
pub(crate) mod barrier;
mod bits;
pub(crate) mod code;
pub(crate) mod collective;
mod compare;
mod data;
mod float;
mod flow;
mod integer;
mod lanes;
pub(crate) mod matrix;
pub(crate) mod memory;
mod modifiers;
mod operand;
mod statement;
pub(crate) mod tensor;

use crate::ptx::{Function, Instruction, Module, ParseError, ScalarType, Variable};
use code::{Code, Guard, Operation, Position};
use std::collections::HashMap;

/// Why a module cannot run on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The text is no PTX.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The device does not run the target.
    #[error("PTX for {target} does not run on {device}, whose target is {device_target}")]
    Target {
        /// The module's target.
        target: String,
        /// The device's name.
        device: &'static str,
        /// The device's target.
        device_target: &'static str,
    },
    /// PTX that is not modelled.
    #[error("PTX line {line}, in `{function}`: `{instruction}` is not modelled ({what})")]
    Unsupported {
        /// The line, from 1.
        line: u32,
        /// The kernel or function.
        function: String,
        /// Opcode and modifiers, or what else it is.
        instruction: String,
        /// Which part of it.
        what: String,
    },
    /// Operands that do not fit the instruction, or names that nothing declares.
    #[error("PTX line {line}, in `{function}`: {what}")]
    Invalid {
        /// The line, from 1.
        line: u32,
        /// The kernel or function.
        function: String,
        /// What is wrong.
        what: String,
    },
}

pub(crate) type Result<T> = std::result::Result<T, LoadError>;

/// What a name stands for.
#[derive(Clone, Debug)]
enum Entry {
    Register {
        slot: u32,
        ty: ScalarType,
    },
    /// A kernel's parameter: its offset.
    Param(u32),
    /// A variable in the thread's local memory, function parameters among them: its offset.
    Local(u32),
    /// A static shared variable: its offset.
    Shared(u32),
    DynamicShared,
    Label(usize),
    Targets(Vec<String>),
}

/// Variables of a module that live in device memory, and where to find them.
pub(crate) struct Globals<'a> {
    pub(crate) indices: HashMap<&'a str, u32>,
}

/// Lowers one kernel.
pub(crate) struct Lowerer<'a> {
    module: &'a Module,
    globals: &'a Globals<'a>,
    /// The function whose statements are being lowered, for messages.
    function: String,
    scopes: Vec<HashMap<String, Entry>>,
    /// Places of labels, once they are known.
    labels: Vec<Option<Position>>,
    instructions: Vec<code::Instruction>,
    slots: u32,
    local_bytes: u32,
    static_shared: u32,
    dynamic_alignment: u32,
    /// Functions whose calls are being lowered, innermost last, and the label behind each.
    calls: Vec<(String, usize)>,
    /// The carry flag's slot.
    carry: Option<u32>,
    /// Shared variables of the module that the kernel uses.
    shared: HashMap<String, u32>,
    guard: Option<Guard>,
}

impl<'a> Lowerer<'a> {
    pub(crate) fn new(module: &'a Module, globals: &'a Globals<'a>) -> Self {
        Self {
            module,
            globals,
            function: String::new(),
            scopes: Vec::new(),
            labels: Vec::new(),
            instructions: Vec::new(),
            slots: 0,
            local_bytes: 0,
            static_shared: 0,
            dynamic_alignment: 16,
            calls: Vec::new(),
            carry: None,
            shared: HashMap::new(),
            guard: None,
        }
    }

    /// Lowers a kernel whose parameters have these offsets.
    pub(crate) fn kernel(mut self, kernel: &Function, offsets: &[u32]) -> Result<Code> {
        self.function.clone_from(&kernel.name);
        let params = kernel.params.iter().zip(offsets);
        self.scopes.push(params.map(|(param, &offset)| (param.name.clone(), Entry::Param(offset))).collect());
        self.block(kernel.body.as_deref().unwrap_or_default())?;
        self.emit(0, Operation::Exit);
        let end = self.instructions.len();
        for instruction in &mut self.instructions {
            let resolve = |label: &mut Position| *label = self.labels.get(*label).copied().flatten().unwrap_or(end);
            match &mut instruction.operation {
                Operation::Branch { target, .. } => resolve(target),
                Operation::BranchIndexed { targets, .. } => targets.iter_mut().for_each(resolve),
                _ => {}
            }
        }
        flow::set_reconvergence(&mut self.instructions);
        Ok(Code {
            instructions: self.instructions,
            slots: self.slots as usize,
            local_bytes: self.local_bytes,
            static_shared: self.static_shared,
            dynamic_alignment: self.dynamic_alignment,
        })
    }

    fn emit(&mut self, line: u32, operation: Operation) {
        let guard = self.guard;
        self.instructions.push(code::Instruction { line, guard, operation });
    }

    fn new_label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn place(&mut self, label: usize) {
        self.labels[label] = Some(self.instructions.len());
    }

    /// Slots for a register of type `ty`.
    fn new_register(&mut self, ty: ScalarType) -> u32 {
        let slot = self.slots;
        self.slots += if ty.bits() == 128 { 2 } else { 1 };
        slot
    }

    fn declare(&mut self, name: &str, entry: Entry) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), entry);
        }
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// The offset of a variable in local memory.
    fn new_local(&mut self, variable: &Variable) -> u32 {
        let offset = self.local_bytes.next_multiple_of(alignment(variable));
        self.local_bytes = offset + size(variable);
        offset
    }

    /// The entry of a shared variable.
    fn new_shared(&mut self, variable: &Variable) -> Entry {
        let alignment = alignment(variable);
        if variable.is_extern || variable.array == Some(0) {
            self.dynamic_alignment = self.dynamic_alignment.max(alignment);
            return Entry::DynamicShared;
        }
        let offset = self.static_shared.next_multiple_of(alignment);
        self.static_shared = offset + size(variable);
        Entry::Shared(offset)
    }

    fn unsupported(&self, instruction: &Instruction, what: &str) -> LoadError {
        let mut text = instruction.opcode.clone();
        for modifier in &instruction.modifiers {
            text.push('.');
            text.push_str(modifier);
        }
        let (line, function) = (instruction.line, self.function.clone());
        LoadError::Unsupported { line, function, instruction: text, what: what.into() }
    }

    fn invalid(&self, line: u32, what: impl Into<String>) -> LoadError {
        LoadError::Invalid { line, function: self.function.clone(), what: what.into() }
    }
}

/// Bytes of a variable.
pub(crate) fn size(variable: &Variable) -> u32 {
    let element = u64::from(variable.ty.bits().max(8) / 8 * variable.vector);
    u32::try_from(element * variable.array.unwrap_or(1)).unwrap_or(u32::MAX)
}

/// Alignment of a variable.
pub(crate) fn alignment(variable: &Variable) -> u32 {
    match variable.align {
        0 => variable.ty.bits().max(8) / 8 * variable.vector,
        align => align as u32,
    }
}
