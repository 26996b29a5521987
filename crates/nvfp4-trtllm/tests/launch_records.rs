//! Launches against those of the vendor's own host code: `golden/launches.txt`, recorded by `launches/oracle.cpp` (the test
//! target `vendor` compiles it anew and compares).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod launches;

use launches::{answer, answer_with, golden};
use nvfp4_core::ScaleLayout::{self, Swizzled8x4, Swizzled128x4};
use nvfp4_trtllm::{
    choice::{Problem, chosen_tactic, default_tactic, tuning_candidates},
    launch::LaunchRecord,
    tactic::TACTICS,
};

#[test]
fn answers_equal_the_recorded_ones() {
    let recorded = golden();
    let (mut launches, mut tactics) = (0, std::collections::BTreeSet::new());
    for (question, expected) in &recorded {
        assert_eq!(&answer(question), expected, "{question}");
        if let Some(rest) = question.strip_prefix("launch ") {
            launches += 1;
            tactics.insert(rest.split(' ').next().unwrap().parse::<u16>().unwrap());
        }
    }
    assert!(launches >= 300, "{launches} launches");
    assert_eq!(tactics.into_iter().collect::<Vec<_>>(), TACTICS.iter().map(|t| t.index).collect::<Vec<_>>());
    assert!(recorded.iter().any(|(_, answer)| answer == "valid\n"), "problems that no kernel runs are among them");
}

/// A wrong box, stride, dimension, swizzle, grid or word in any one launch would be seen.
#[test]
fn planted_errors_are_caught() {
    type Change = fn(&mut LaunchRecord);
    let changes: [Change; 9] = [
        |record| record.maps[0].tile[1] /= 2,
        |record| record.maps[1].tile[0] *= 2,
        |record| record.maps[2].strides[0] += 16,
        |record| record.maps[3].dims[2] += 1,
        |record| record.maps[4].strides[0] *= 2,
        |record| record.maps[4].swizzle = nvfp4_cuda::tensor_map::Swizzle::B32,
        |record| record.config.grid[1] += 1,
        |record| record.words.k += 64,
        |record| record.words.ptr_scale_c = 0,
    ];
    for (question, expected) in golden().iter().filter(|(question, _)| question.starts_with("launch")) {
        for (which, change) in changes.iter().enumerate() {
            assert_ne!(&answer_with(question, change), expected, "{question}: change {which} is not seen");
        }
    }
}

#[test]
fn choices() {
    let problem = |m, n, k| Problem::new(m, n, k).unwrap();
    // Two K tiles of 256: the unrolled kernel leads, and the list ends with the first that is not.
    assert_eq!(default_tactic(problem(64, 128, 512), Swizzled128x4).unwrap().index, 25);
    let tuned = |m, n, k, layout| -> Vec<u16> {
        tuning_candidates(problem(m, n, k), layout).iter().map(|t| t.index).collect()
    };
    assert_eq!(tuned(64, 128, 512, Swizzled128x4), [25, 31, 55, 62, 15]);
    // An odd number of tiles: no unrolled kernel of that tile size, but those of 128 follow.
    assert_eq!(tuned(64, 128, 256, Swizzled128x4), [15, 30, 46, 54, 57, 63, 52]);
    assert_eq!(default_tactic(problem(1, 32, 64), Swizzled8x4).unwrap().index, 33);
    for (m, n, k) in [(1, 32, 64), (33, 352, 192), (4096, 28_672, 8192)] {
        for layout in [Swizzled8x4, Swizzled128x4] {
            let candidates = tuning_candidates(problem(m, n, k), layout);
            assert_eq!(candidates.first(), default_tactic(problem(m, n, k), layout).as_ref());
            assert!(candidates.iter().all(|t| t.is_valid(problem(m, n, k)) && t.activation_scales == layout));
        }
    }
    assert_eq!(default_tactic(problem(1, 32, 64), ScaleLayout::Linear), None);
}

/// A measured choice is used where it can run the problem; nothing else replaces the default.
#[test]
fn measured_choices() {
    let problem = Problem::new(100, 128, 512).unwrap();
    let index = |measured| chosen_tactic(problem, Swizzled128x4, measured).unwrap().index;
    let default = default_tactic(problem, Swizzled128x4).unwrap().index;
    assert_eq!(index(None), default);
    for tactic in tuning_candidates(problem, Swizzled128x4) {
        assert_eq!(index(Some(tactic.index)), tactic.index);
    }
    // Unknown, of the other layout, and one that needs an even number of K tiles where there is one.
    assert_eq!((index(Some(9999)), index(Some(35))), (default, default));
    let odd = Problem::new(100, 128, 256).unwrap();
    assert_eq!(chosen_tactic(odd, Swizzled128x4, Some(25)), default_tactic(odd, Swizzled128x4));
}

#[test]
fn impossible_problems_are_refused() {
    for (m, n, k, text) in [
        (0, 128, 128, "m (tokens) must not be zero"),
        (1, 100, 128, "n (output features) must be a multiple of 32, found 100"),
        (1, 128, 96, "k (input features) must be a multiple of 64, found 96"),
        (1 << 31, 128, 128, "m (tokens): size overflows"),
    ] {
        assert!(Problem::new(m, n, k).unwrap_err().to_string().starts_with(text), "{m} {n} {k}");
    }
}
