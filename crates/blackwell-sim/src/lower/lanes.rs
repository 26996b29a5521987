//! Functions of one lane's operands made into functions of all lanes'.

use super::code::{Compute, LANES};

/// A function of one operand.
pub(super) fn one(function: impl Fn(u64) -> u64 + Send + Sync + 'static) -> Compute {
    Box::new(move |[a, ..], out| {
        for lane in 0..LANES {
            out[lane] = function(a[lane]);
        }
    })
}

/// A function of two operands.
pub(super) fn two(function: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Compute {
    Box::new(move |[a, b, ..], out| {
        for lane in 0..LANES {
            out[lane] = function(a[lane], b[lane]);
        }
    })
}

/// A function of three operands.
pub(super) fn three(function: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static) -> Compute {
    Box::new(move |[a, b, c, _], out| {
        for lane in 0..LANES {
            out[lane] = function(a[lane], b[lane], c[lane]);
        }
    })
}

/// A function of four operands.
pub(super) fn four(function: impl Fn([u64; 4]) -> u64 + Send + Sync + 'static) -> Compute {
    Box::new(move |operands, out| {
        for lane in 0..LANES {
            out[lane] = function(operands.map(|operand| operand[lane]));
        }
    })
}
