//! Our launches equal, to the byte, those that the vendor's host functions made (`cargo xtask launch-records`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nvfp4_cuda::cute_dsl::{
    Configuration, KernelFacts, Launch,
    record::{Record, parse},
};
use std::collections::BTreeMap;

/// The records by configuration.
fn records() -> Vec<(Configuration, Vec<Record>)> {
    let by_name: BTreeMap<_, _> = nvfp4_b12x::configurations::packed().into_iter().map(|c| (c.name(), c)).collect();
    let kernels = include_str!("launches.txt").split("kernel ").skip(1);
    kernels
        .map(|text| {
            let (name, launches) = text.split_once('\n').unwrap();
            (by_name[name], parse(launches).unwrap())
        })
        .collect()
}

fn facts(configuration: Configuration, first: &Record) -> KernelFacts {
    KernelFacts {
        configuration,
        // Eight warps that multiply, or four for the narrow tile, and one that copies.
        threads: if configuration.tile[1] < 64 { 160 } else { 288 },
        shared_memory: first.shared_memory,
        overlap_previous: true,
        persistent: true,
        parameters: Vec::new(),
    }
}

#[test]
fn launches_are_the_vendors() {
    let mut compared = 0;
    for (configuration, records) in records() {
        let facts = facts(configuration, &records[0]);
        for record in &records {
            let launch = Launch::new(&facts, &record.problem).unwrap();
            record.compare(&launch).unwrap_or_else(|e| panic!("{}: {e}", configuration.name()));
            compared += 1;
        }
    }
    assert!(compared > 30, "{compared}");
}

/// A wrong byte anywhere that a kernel reads, another grid, cluster or attribute does not go unseen.
#[test]
fn planted_errors_are_caught() {
    let mut planted = 0;
    for (configuration, records) in records().into_iter().step_by(5) {
        let record = &records[1];
        let facts = facts(configuration, &records[0]);
        let good = Launch::new(&facts, &record.problem).unwrap();
        let mut refuses = |record: &Record, what: &str| {
            assert!(record.compare(&good).is_err(), "{}: {what}", configuration.name());
            planted += 1;
        };
        for (parameter, bytes) in record.parameters.iter().enumerate() {
            for (byte, value) in bytes.iter().enumerate() {
                let Some(value) = value else { continue };
                let mut wrong = record.clone();
                wrong.parameters[parameter][byte] = Some(value ^ 1);
                refuses(&wrong, &format!("parameter {parameter}, byte {byte}"));
            }
        }
        let mut wrong = record.clone();
        wrong.parameters.pop();
        refuses(&wrong, "a missing parameter");
        for axis in 0..3 {
            let mut wrong = record.clone();
            wrong.grid[axis] += 1;
            refuses(&wrong, "grid");
            let mut wrong = record.clone();
            wrong.cluster[axis] += 1;
            refuses(&wrong, "cluster");
        }
        refuses(&Record { overlap_previous: false, ..record.clone() }, "no overlap");
        refuses(&Record { cooperative: true, ..record.clone() }, "cooperative");
        refuses(&Record { shared_memory: record.shared_memory + 1, ..record.clone() }, "shared memory");
    }
    assert!(planted > 1000, "{planted}");
}
