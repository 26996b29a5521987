//! Launches in the words of the vendor's own host code, and what that code said when it was recorded.

use nvfp4_core::ScaleLayout::{self, Swizzled8x4, Swizzled128x4};
use nvfp4_trtllm::{
    choice::{Problem, valid_tactics},
    launch::{KernelParams, LaunchRecord, Operands, launch_record},
    tactic::{in_order, tactic},
};
use std::fmt::Write as _;

/// Questions and answers of an oracle's output.
pub(crate) fn parse(output: &str) -> Vec<(String, String)> {
    let blocks = output.split("> ").skip(1);
    blocks.map(|block| block.split_once('\n').unwrap()).map(|(q, a)| (q.to_string(), a.to_string())).collect()
}

/// What has been recorded.
pub(crate) fn golden() -> Vec<(String, String)> {
    parse(include_str!("../golden/launches.txt"))
}

/// The made-up addresses of the oracle.
fn operands(n: u32) -> Operands {
    Operands {
        activation: 0x1000_0000,
        activation_scales: 0x1100_0000,
        weight: 0x2000_0000,
        weight_scales: 0x2100_0000,
        alpha: 0x4000_0000,
        output: 0x3000_0000,
        output_row_bytes: u64::from(n) * 2,
    }
}

fn list<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// A launch in the oracle's words. It always gives the attributes that we leave out because they say what is so anyway:
/// a cluster of one CTA, and the default scheduling policy (5).
fn text(record: &LaunchRecord) -> String {
    let config = record.config;
    // The attribute is set above what every kernel may use.
    let allowed = if config.shared_memory > 48 << 10 { config.shared_memory } else { 0 };
    let mut text = format!("workspace 0\nkernel {}\n", record.tactic.kernel);
    let (grid, block, cluster) = (list(&config.grid), list(&config.block), list(&config.cluster));
    let overlap = i32::from(config.overlap_previous);
    writeln!(
        text,
        "grid {grid} block {block} shared {} allowed {allowed} cluster {cluster} attribute 5=0 attribute 6={overlap}",
        config.shared_memory
    )
    .unwrap();
    for (at, map) in record.maps.iter().enumerate() {
        let rank = map.rank;
        writeln!(
            text,
            "map {} {} {:x} {} {} {} {} 0 {} 2 0",
            at * 128,
            map.element as u32,
            map.address,
            list(&map.dims[..rank]),
            list(&map.strides[..rank - 1]),
            list(&map.tile[..rank]),
            list(&vec![1; rank]),
            map.swizzle as u32
        )
        .unwrap();
    }
    text + "words" + &words(record) + "\n"
}

/// The 32-bit words of the parameter block behind the tensor maps that are not zero.
fn words(record: &LaunchRecord) -> String {
    assert_eq!(std::mem::offset_of!(KernelParams, words), 768);
    // SAFETY: the struct is plain integers without padding (its C padding is spelled out), and a multiple of 4 bytes.
    let words: &[u32] = unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(&record.words).cast(),
            std::mem::size_of_val(&record.words) / 4,
        )
    };
    assert_eq!(words.len(), (960 - 768) / 4);
    words.iter().enumerate().filter(|(_, word)| **word != 0).fold(String::new(), |mut text, (at, word)| {
        write!(text, " {}:{word:x}", 768 + at * 4).unwrap();
        text
    })
}

fn layout(name: &str) -> ScaleLayout {
    match name {
        "8x4" => Swizzled8x4,
        "128x4" => Swizzled128x4,
        other => panic!("layout {other}"),
    }
}

/// Our answer to a question of the oracle, but for what `change` does to the launch.
pub(crate) fn answer_with(question: &str, change: impl Fn(&mut LaunchRecord)) -> String {
    let words: Vec<&str> = question.split(' ').collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    let indices = |what: &str, tactics: Vec<u16>| {
        tactics.iter().fold(what.to_string(), |text, index| format!("{text} {index}")) + "\n"
    };
    match words[0] {
        "order" => indices("order", in_order(layout(words[1])).map(|t| t.index).collect()),
        "tactics" => {
            let valid = match Problem::new(number(2), number(3), number(4)) {
                Ok(problem) => valid_tactics(problem, layout(words[1])).map(|t| t.index).collect(),
                Err(_) => Vec::new(),
            };
            indices("valid", valid)
        }
        "launch" => {
            let problem = Problem::new(number(2), number(3), number(4)).unwrap();
            let tactic = tactic(number(1) as u16).unwrap();
            let mut record = launch_record(tactic, problem, &operands(problem.n()));
            change(&mut record);
            text(&record)
        }
        other => panic!("question {other}"),
    }
}

pub(crate) fn answer(question: &str) -> String {
    answer_with(question, |_| {})
}
