//! What a cubin says of its kernels: the attributes in its `.nv.info` sections.

use object::{Object, ObjectSection, ObjectSymbol};

/// A kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KernelFacts {
    /// Bytes of its parameters.
    pub(crate) parameter_bytes: u16,
    /// (offset, bytes) of each parameter.
    pub(crate) parameters: Vec<(u16, u32)>,
    /// Most threads of a CTA.
    pub(crate) max_threads: [u32; 3],
    /// Registers of a thread.
    pub(crate) registers: u32,
    /// Static shared memory, bytes.
    pub(crate) static_shared: u64,
}

// Attribute numbers of `.nv.info` (as `cuobjdump -elf` names them).
const EIATTR_MAX_THREADS: u8 = 0x05;
const EIATTR_KPARAM_INFO: u8 = 0x17;
const EIATTR_CBANK_PARAM_SIZE: u8 = 0x19;
const EIATTR_REGCOUNT: u8 = 0x2f;
/// Values of this form have a size and follow the size; all others lie in the place of the size.
const EIFMT_SVAL: u8 = 4;

/// (attribute, value) of each entry.
fn attributes(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [format, attribute, low, high, rest @ ..] = bytes {
        let size = usize::from(u16::from_le_bytes([*low, *high]));
        let taken = if *format == EIFMT_SVAL { size } else { 0 };
        let value = if *format == EIFMT_SVAL { rest[..size].to_vec() } else { vec![*low, *high] };
        all.push((*attribute, value));
        bytes = &rest[taken..];
    }
    all
}

fn word(value: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(value[at..at + 4].try_into().unwrap())
}

/// The facts of one kernel. Panics if the file is not a cubin or has no such kernel.
pub(crate) fn facts(cubin: &[u8], kernel: &str) -> KernelFacts {
    let file = object::File::parse(cubin).unwrap();
    let section = |name: String| {
        let section = file.section_by_name(&name).unwrap_or_else(|| panic!("no section {name}"));
        section.data().unwrap().to_vec()
    };
    let own = attributes(&section(format!(".nv.info.{kernel}")));
    let one = |attribute: u8| {
        let values: Vec<_> = own.iter().filter(|(a, _)| *a == attribute).map(|(_, v)| v.clone()).collect();
        assert_eq!(values.len(), 1, "attribute {attribute:#x} of {kernel}");
        values[0].clone()
    };
    let parameter_bytes = one(EIATTR_CBANK_PARAM_SIZE);
    let threads = one(EIATTR_MAX_THREADS);
    let parameters = own
        .iter()
        .filter(|(attribute, _)| *attribute == EIATTR_KPARAM_INFO)
        // Words: index into the parameter table, ordinal and offset, flags with the size in the upper 14 bits.
        .map(|(_, value)| ((word(value, 4) >> 16) as u16, word(value, 8) >> 18))
        .collect();
    let symbol = file.symbols().find(|s| s.name() == Ok(kernel)).unwrap().index().0;
    let registers = attributes(&section(".nv.info".into()))
        .iter()
        .find(|(attribute, value)| *attribute == EIATTR_REGCOUNT && word(value, 0) as usize == symbol)
        .map(|(_, value)| word(value, 4))
        .unwrap();
    KernelFacts {
        parameter_bytes: u16::from_le_bytes([parameter_bytes[0], parameter_bytes[1]]),
        parameters,
        max_threads: [word(&threads, 0), word(&threads, 4), word(&threads, 8)],
        registers,
        static_shared: file.section_by_name(&format!(".nv.shared.{kernel}")).map_or(0, |s| s.size()),
    }
}
