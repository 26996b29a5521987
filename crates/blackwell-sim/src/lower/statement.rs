//! Statements: declarations, labels, scopes, branches, calls.

use super::{
    Entry, LoadError, Lowerer, Result,
    code::{Destination, Guard, Operation, Source},
    lanes,
};
use crate::ptx::{Function, FunctionKind, Instruction, Operand, ScalarType, StateSpace, Statement, Variable};
use std::collections::HashMap;

/// How deep calls may nest.
const MAX_DEPTH: usize = 64;

impl Lowerer<'_> {
    /// Lowers a block with a scope of its own.
    pub(super) fn block(&mut self, statements: &[Statement]) -> Result<()> {
        self.scopes.push(HashMap::new());
        for statement in statements {
            match statement {
                Statement::Label(name, _) => {
                    let label = self.new_label();
                    self.declare(name, Entry::Label(label));
                }
                Statement::BranchTargets { label, targets } => self.declare(label, Entry::Targets(targets.clone())),
                _ => {}
            }
        }
        for statement in statements {
            self.statement(statement)?;
        }
        self.scopes.pop();
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        match statement {
            Statement::Label(name, line) => {
                if let Some(&Entry::Label(label)) = self.find(name) {
                    if self.labels[label].is_some() {
                        return Err(self.invalid(*line, format!("label `{name}` is there twice")));
                    }
                    self.place(label);
                }
            }
            Statement::Registers { ty, prefix, count: None } => self.declare_register(prefix, *ty),
            Statement::Registers { ty, prefix, count: Some(count) } => {
                for index in 0..*count {
                    self.declare_register(&format!("{prefix}{index}"), *ty);
                }
            }
            Statement::Variable(variable) => self.variable(variable)?,
            Statement::Block(statements) => self.block(statements)?,
            Statement::BranchTargets { .. } | Statement::CallPrototype { .. } => {}
            Statement::Instruction(instruction) => self.instruction(instruction)?,
        }
        Ok(())
    }

    fn declare_register(&mut self, name: &str, ty: ScalarType) {
        let slot = self.new_register(ty);
        self.declare(name, Entry::Register { slot, ty });
    }

    fn variable(&mut self, variable: &Variable) -> Result<()> {
        let entry = match variable.space {
            StateSpace::Reg => {
                for part in ["x", "y", "z", "w"].into_iter().take(variable.vector as usize) {
                    self.declare_register(&format!("{}.{part}", variable.name), variable.ty);
                }
                return Ok(());
            }
            StateSpace::Local | StateSpace::Param => Entry::Local(self.new_local(variable)),
            StateSpace::Shared => self.new_shared(variable),
            StateSpace::Global | StateSpace::Const => {
                return Err(LoadError::Unsupported {
                    line: 0,
                    function: self.function.clone(),
                    instruction: format!("variable {}", variable.name),
                    what: "a global variable within a function".into(),
                });
            }
        };
        self.declare(&variable.name, entry);
        Ok(())
    }

    fn instruction(&mut self, instruction: &Instruction) -> Result<()> {
        self.guard = None;
        if let Some(guard) = &instruction.guard {
            let Some(&Entry::Register { slot, ty: ScalarType::Pred }) = self.find(&guard.register) else {
                return Err(self.invalid(instruction.line, format!("`{}` is no predicate", guard.register)));
            };
            self.guard = Some(Guard { slot, negated: guard.negated });
        }
        let result = self.guarded(instruction);
        self.guard = None;
        result
    }

    fn guarded(&mut self, instruction: &Instruction) -> Result<()> {
        let line = instruction.line;
        match instruction.opcode.as_str() {
            "bra" => {
                let target = self.label(instruction, self.operand(instruction, 0)?)?;
                self.emit(line, Operation::Branch { target, reconverge: 0 });
                return Ok(());
            }
            "brx" => return self.indexed_branch(instruction),
            "ret" => {
                let operation = match self.calls.last() {
                    Some(&(_, target)) => Operation::Branch { target, reconverge: 0 },
                    None => Operation::Exit,
                };
                self.emit(line, operation);
                return Ok(());
            }
            "exit" => {
                self.emit(line, Operation::Exit);
                return Ok(());
            }
            "trap" => {
                self.emit(line, Operation::Trap("the kernel executed `trap`".into()));
                return Ok(());
            }
            "call" => return self.call(instruction),
            _ => {}
        }
        if self.integer(instruction)?
            || self.bits(instruction)?
            || self.float(instruction)?
            || self.compare(instruction)?
            || self.data(instruction)?
        {
            return Ok(());
        }
        if self.is_nothing(instruction) {
            return Ok(());
        }
        let operation = match self.memory(instruction)? {
            Some(operation) => Some(operation),
            None => match self.collective(instruction)? {
                Some(operation) => Some(operation),
                None => match self.barrier(instruction)? {
                    Some(operation) => Some(operation),
                    None => match self.asynchronous(instruction)? {
                        Some(operation) => Some(operation),
                        None => match self.tensor(instruction)? {
                            Some(operation) => Some(operation),
                            None => self.matrix(instruction)?,
                        },
                    },
                },
            },
        };
        let operation = operation.ok_or_else(|| self.unsupported(instruction, "instruction"))?;
        self.emit(line, operation);
        Ok(())
    }

    fn label(&self, instruction: &Instruction, operand: &Operand) -> Result<usize> {
        match operand {
            Operand::Name(name) => match self.find(name) {
                Some(&Entry::Label(label)) => Ok(label),
                _ => Err(self.invalid(instruction.line, format!("no label `{name}`"))),
            },
            _ => Err(self.unsupported(instruction, "target")),
        }
    }

    fn indexed_branch(&mut self, instruction: &Instruction) -> Result<()> {
        let index = self.source(instruction, 0, ScalarType::U32)?;
        let targets = match self.operand(instruction, 1)? {
            Operand::Name(name) => match self.find(name) {
                Some(Entry::Targets(targets)) => targets.clone(),
                _ => return Err(self.invalid(instruction.line, format!("no list of targets `{name}`"))),
            },
            _ => return Err(self.unsupported(instruction, "list of targets")),
        };
        let targets = targets
            .into_iter()
            .map(|name| self.label(instruction, &Operand::Name(name)))
            .collect::<Result<Vec<_>>>()?;
        self.emit(instruction.line, Operation::BranchIndexed { index, targets, reconverge: 0 });
        Ok(())
    }

    /// Puts the function's body in the place of its call.
    fn call(&mut self, instruction: &Instruction) -> Result<()> {
        let line = instruction.line;
        let Operand::Call { returns, function, arguments, .. } = self.operand(instruction, 0)? else {
            return Err(self.invalid(line, "a call without a function"));
        };
        let Operand::Name(name) = function.as_ref() else {
            return Err(self.unsupported(instruction, "function"));
        };
        match name.as_str() {
            "__assertfail" | "__assert_fail" => {
                self.emit(line, Operation::Trap("an assertion of the kernel failed".into()));
                return Ok(());
            }
            // What a kernel prints is not shown; the number of arguments that it returns is not set.
            "vprintf" => return Ok(()),
            _ => {}
        }
        let module = self.module;
        let defined = |candidate: &&Function| {
            candidate.name == *name && candidate.kind == FunctionKind::Device && candidate.body.is_some()
        };
        let Some(callee) = module.functions.iter().find(defined) else {
            return Err(self.unsupported(instruction, &format!("`{name}` is no function that the module defines")));
        };
        if self.calls.len() >= MAX_DEPTH || self.calls.iter().any(|(caller, _)| caller == name) {
            return Err(self.unsupported(instruction, "recursion"));
        }
        if (callee.returns.len(), callee.params.len()) != (returns.len(), arguments.len()) {
            return Err(self.invalid(line, format!("`{name}` is called with the wrong number of operands")));
        }
        let end = self.new_label();
        let mut scope = HashMap::new();
        for (param, argument) in callee.params.iter().zip(arguments) {
            let entry = match self.named(argument) {
                Some(entry @ Entry::Local(_)) if param.space == StateSpace::Param => entry.clone(),
                _ if param.space == StateSpace::Reg => {
                    let source = self.lower_source(line, argument, param.ty)?;
                    let slot = self.new_register(param.ty);
                    let destination = Destination { slot, mask: super::operand::mask(param.ty) };
                    self.compute(line, destination, vec![source], lanes::one(|a| a));
                    Entry::Register { slot, ty: param.ty }
                }
                _ => return Err(self.unsupported(instruction, "argument")),
            };
            scope.insert(param.name.clone(), entry);
        }
        for (result, variable) in callee.returns.iter().zip(returns) {
            match self.named(variable) {
                Some(entry) => scope.insert(result.name.clone(), entry.clone()),
                None => return Err(self.unsupported(instruction, "result")),
            };
        }
        // A guarded call is a branch around the body.
        if let Some(guard) = self.guard {
            self.guard = Some(Guard { negated: !guard.negated, ..guard });
            self.emit(line, Operation::Branch { target: end, reconverge: 0 });
            self.guard = None;
        }
        let caller = std::mem::replace(&mut self.function, name.clone());
        let outer = std::mem::take(&mut self.scopes);
        self.scopes.push(scope);
        self.calls.push((name.clone(), end));
        self.block(callee.body.as_deref().unwrap_or_default())?;
        self.calls.pop();
        self.scopes = outer;
        self.function = caller;
        self.place(end);
        Ok(())
    }

    fn named(&self, operand: &Operand) -> Option<&Entry> {
        match operand {
            Operand::Name(name) => self.find(name),
            _ => None,
        }
    }

    /// The register that holds what `compute` makes of `sources`.
    pub(super) fn computed(&mut self, line: u32, sources: Vec<Source>, compute: super::code::Compute) -> Source {
        let slot = self.new_register(ScalarType::B64);
        self.compute(line, Destination { slot, mask: u64::MAX }, sources, compute);
        Source::Register(slot)
    }

    /// Emits an operation on each lane by itself.
    pub(super) fn compute(
        &mut self,
        line: u32,
        destination: Destination,
        sources: Vec<Source>,
        compute: super::code::Compute,
    ) {
        self.emit(line, Operation::Compute { destination, sources, compute });
    }

    /// Instructions that have nothing to do here: everything is done in the order of issue, and nothing is cached.
    fn is_nothing(&self, instruction: &Instruction) -> bool {
        let mods = super::modifiers::Modifiers::new(instruction);
        match (instruction.opcode.as_str(), mods.first()) {
            (
                "fence" | "membar" | "prefetch" | "prefetchu" | "setmaxnreg" | "griddepcontrol" | "pmevent"
                | "brkpt",
                _,
            )
            | ("discard" | "applypriority" | "nanosleep", _) => true,
            ("cp", Some("async")) if mods.has("bulk") => {
                mods.has("commit_group") || mods.has("wait_group") || mods.has("prefetch")
            }
            ("cp", Some("async")) => mods.has("commit_group") || mods.has("wait_group") || mods.has("wait_all"),
            ("wgmma", Some("fence" | "commit_group" | "wait_group")) => true,
            ("tcgen05", Some(first)) => first.starts_with("wait::") || first.starts_with("fence::"),
            _ => false,
        }
    }
}
