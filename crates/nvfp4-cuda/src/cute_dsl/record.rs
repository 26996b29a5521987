//! What a vendor's host function launched, as the recorder of the pack builder wrote it down.
//!
//! The text has, for each shape, a line `shape M N K CLUSTERS`, a line
//! `launch GRID BLOCK CLUSTER SHARED PDL COOPERATIVE` (three numbers joined by commas for each of the first three), and
//! a line `param INDEX HEX` for each parameter: of a tensor map the half that kernels read. `M`, `N` and `K` are the kernel's own, in its own orientation. Bytes of a
//! parameter that the host function leaves unset are written `..`.

use super::launch::{Launch, Problem};
use std::fmt::Write as _;

/// Bytes of a tensor map, the one parameter of that size.
const TENSOR_MAP: usize = 128;

/// Addresses that the recorder passes for the operands. Nobody reads through them.
pub const ADDRESSES: Addresses = Addresses {
    a: 0x7fa0_0000_0000,
    b: 0x7fb0_0000_0000,
    c: 0x7fc0_0000_0000,
    sfa: 0x7fd0_0000_0000,
    sfb: 0x7fe0_0000_0000,
    alpha: 0x7ff0_0000_0000,
};

/// Device addresses of the operands of a GEMM, in the kernel's own orientation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// Codes of A, `[m, k / 2]` bytes.
    pub a: u64,
    /// Codes of B, `[n, k / 2]` bytes.
    pub b: u64,
    /// The output: `[m, n]`, or `[n, m]` if it is transposed.
    pub c: u64,
    /// Block scales of A in 128x4 tiles.
    pub sfa: u64,
    /// Block scales of B in 128x4 tiles.
    pub sfb: u64,
    /// The f32 factor of the output.
    pub alpha: u64,
}

/// One launch of the vendor's host function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it was asked for.
    pub problem: Problem,
    /// CTAs, threads, CTAs of a cluster.
    pub grid: [u32; 3],
    /// Threads of a CTA.
    pub block: [u32; 3],
    /// CTAs of a cluster.
    pub cluster: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_memory: u32,
    /// Programmatic dependent launch.
    pub overlap_previous: bool,
    /// Cooperative launch.
    pub cooperative: bool,
    /// Bytes of each parameter; `None` for those that are not set.
    pub parameters: Vec<Vec<Option<u8>>>,
}

/// Text that is no record, or a record that differs from a launch.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(String);

impl RecordError {
    fn line(number: usize, text: &str) -> Self {
        Self(format!("line {}: `{text}` is not part of a launch record", number + 1))
    }
}

/// Reads the launches of a text.
pub fn parse(text: &str) -> Result<Vec<Record>, RecordError> {
    let mut records: Vec<Record> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let error = || RecordError::line(number, line);
        let mut words = line.split(' ');
        match (words.next(), records.last_mut()) {
            (Some("shape"), _) => {
                let [m, n, k, clusters] =
                    numbers(line.trim_start_matches("shape ").split(' ')).ok_or_else(error)?;
                records.push(Record {
                    problem: Problem { m, n, k, clusters, addresses: ADDRESSES },
                    grid: [0; 3],
                    block: [0; 3],
                    cluster: [0; 3],
                    shared_memory: 0,
                    overlap_previous: false,
                    cooperative: false,
                    parameters: Vec::new(),
                });
            }
            (Some("launch"), Some(record)) => {
                let mut three = || numbers::<3>(words.next()?.split(','));
                record.grid = three().ok_or_else(error)?;
                record.block = three().ok_or_else(error)?;
                record.cluster = three().ok_or_else(error)?;
                let [shared_memory, overlap, cooperative] = numbers(words).ok_or_else(error)?;
                record.shared_memory = shared_memory;
                record.overlap_previous = overlap != 0;
                record.cooperative = cooperative != 0;
            }
            (Some("param"), Some(record)) => {
                let index = words.next().and_then(|word| word.parse::<usize>().ok());
                let bytes = words.next().and_then(bytes).ok_or_else(error)?;
                if index != Some(record.parameters.len()) {
                    return Err(error());
                }
                record.parameters.push(bytes);
            }
            _ => return Err(error()),
        }
    }
    Ok(records)
}

fn numbers<'a, const N: usize>(words: impl Iterator<Item = &'a str>) -> Option<[u32; N]> {
    let numbers: Vec<u32> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

fn bytes(hex: &str) -> Option<Vec<Option<u8>>> {
    let byte = |pair: &[u8]| match pair {
        b".." => Some(None),
        _ => u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().map(Some),
    };
    hex.as_bytes().chunks(2).map(byte).collect()
}

impl Record {
    /// `Ok` if a launch is this one, to the byte; else what differs.
    pub fn compare(&self, launch: &Launch) -> Result<(), RecordError> {
        let mut text = String::new();
        let mut differs = |what: &str, expected: String, found: String| {
            let _ = write!(text, "; {what}: the vendor's host function has {expected}, ours {found}");
        };
        for (what, expected, found) in [
            ("grid", self.grid, launch.grid),
            ("threads", self.block, launch.block),
            ("cluster", self.cluster, launch.cluster),
            ("shared memory", [self.shared_memory; 3], [launch.shared_memory; 3]),
            ("overlap", [self.overlap_previous.into(); 3], [launch.overlap_previous.into(); 3]),
            ("cooperative", [self.cooperative.into(); 3], [0; 3]),
        ] {
            if expected != found {
                differs(what, format!("{expected:?}"), format!("{found:?}"));
            }
        }
        let ours: Vec<&[u8]> = launch.parameters.iter().collect();
        if ours.len() != self.parameters.len() {
            differs("number of parameters", self.parameters.len().to_string(), ours.len().to_string());
        }
        for (index, (expected, found)) in self.parameters.iter().zip(ours).enumerate() {
            let same = expected.len() == read(found.len())
                && expected.iter().zip(found).all(|(expected, found)| expected.is_none_or(|byte| byte == *found));
            if !same {
                let found = found.iter().take(read(found.len())).map(|byte| Some(*byte)).collect::<Vec<_>>();
                differs(&format!("parameter {index}"), hex(expected), hex(&found));
            }
        }
        let Problem { m, n, k, clusters, .. } = self.problem;
        match text.is_empty() {
            true => Ok(()),
            false => Err(RecordError(format!("m {m}, n {n}, k {k}, {clusters} clusters{text}"))),
        }
    }
}

/// Bytes of a parameter that kernels read: half of a tensor map, all of anything else.
const fn read(len: usize) -> usize {
    if len == TENSOR_MAP { len / 2 } else { len }
}

fn hex(bytes: &[Option<u8>]) -> String {
    bytes.iter().map(|byte| byte.map_or("..".into(), |byte| format!("{byte:02x}"))).collect()
}
