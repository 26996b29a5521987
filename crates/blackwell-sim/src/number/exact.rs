//! Sums, products, quotients and roots as the `f64` that is the exact result *rounded to odd*: a result that `f64` lacks
//! becomes the neighbour whose last bit is one. Rounding that once more, in any mode, to a format of at most 51
//! significant bits gives what rounding the exact result would give: the odd last bit says on which side it lies and
//! keeps it off every tie and every value of the format.
//!
//! The operands are values of formats with at most 24 significant bits and f32's exponent range, so products are exact
//! in `f64` and nothing here overflows or becomes subnormal.

/// `a + b`, rounded to odd.
pub fn sum(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    // Knuth's TwoSum: a + b is sum + error, exactly.
    let from_b = sum - a;
    let error = (a - (sum - from_b)) + (b - from_b);
    to_odd(sum, error)
}

/// `a · b + c`, rounded to odd.
pub fn fused_multiply_add(a: f64, b: f64, c: f64) -> f64 {
    sum(a * b, c)
}

/// `a / b`, rounded to odd.
pub fn quotient(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    if !quotient.is_finite() || b.is_infinite() {
        return quotient;
    }
    let remainder = (-quotient).mul_add(b, a);
    to_odd(quotient, if b < 0.0 { -remainder } else { remainder })
}

/// `√a`, rounded to odd.
pub fn root(a: f64) -> f64 {
    let root = a.sqrt();
    if !root.is_finite() || root == 0.0 {
        return root;
    }
    to_odd(root, (-root).mul_add(root, a))
}

/// The odd neighbour of `rounded` on the side that the sign of `error` (exact − rounded) names.
fn to_odd(rounded: f64, error: f64) -> f64 {
    if error == 0.0 || rounded.to_bits() & 1 == 1 {
        return rounded;
    }
    let bits = rounded.to_bits();
    // Away from zero raises the bits of either sign.
    let away = (error > 0.0) == (rounded > 0.0);
    f64::from_bits(if away { bits + 1 } else { bits - 1 })
}
