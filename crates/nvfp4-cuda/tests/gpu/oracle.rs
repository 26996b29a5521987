//! The arithmetic of activation quantization on the host, with the reciprocals of the device: `rcp.approx` errs by at
//! most one unit in the last place, in a way that only the hardware knows, so the device is asked for the handful of
//! reciprocals that a global scale needs; everything else is computed here, from the definitions.

use crate::setup::Gpu;
use nvfp4_cuda::codec_check::Codecs;
use std::collections::HashMap;

/// Quantizes blocks with one global scale.
pub(crate) struct Oracle {
    encode: f32,
    exact: bool,
    rcp6: f32,
    /// Multiplier for each scale byte.
    multipliers: Vec<f32>,
}

fn e4m3_value(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3), f32::from(byte & 7));
    match exponent {
        15 if byte == 0x7f => f32::NAN,
        0 => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// Nearest byte; ties to even; saturating.
fn e4m3_nearest(s: f32) -> u8 {
    if s.is_nan() {
        return 0x7f;
    }
    let distance = |byte: u8| (f64::from(e4m3_value(byte)) - f64::from(s.min(448.0))).abs();
    (0..=0x7eu8).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap()
}

/// Nearest code; ties to even; saturating; NaN gives 7.
pub(crate) fn e2m1_nearest(v: f32) -> u8 {
    if v.is_nan() {
        return 7;
    }
    const VALUES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let distance = |code: u8| (VALUES[usize::from(code)] - f64::from(v.abs().min(6.0))).abs();
    let code = (0..8u8).min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap();
    code | if v.is_sign_negative() { 8 } else { 0 }
}

impl Oracle {
    /// Asks the device for the reciprocals that `encode` needs.
    fn new(codecs: &Codecs, encode: f32, exact: bool) -> Self {
        let first = codecs.rcp(&[6.0, encode]).unwrap();
        let (rcp6, rcp_encode) = (first[0], first[1]);
        let products: Vec<f32> = (0..128u8).map(|b| e4m3_value(b) * rcp_encode).collect();
        let multipliers = if exact {
            (0..128u8).map(|b| (1.0 / (e4m3_value(b) * (1.0 / encode))).min(f32::MAX)).collect()
        } else {
            codecs.rcp(&products).unwrap()
        };
        Self { encode, exact, rcp6, multipliers }
    }

    /// Scale byte and codes of a block.
    pub(crate) fn block(&self, x: &[f32]) -> (u8, [u8; 8]) {
        if self.encode == 0.0 {
            return (0, [0; 8]);
        }
        let amax = x.iter().fold(f32::NAN, |a, &v| a.max(v.abs()));
        let s = if self.exact { amax * (self.encode * (1.0 / 6.0)) } else { self.encode * (amax * self.rcp6) };
        let byte = e4m3_nearest(s);
        let o = if byte == 0 { 0.0 } else { self.multipliers[usize::from(byte)] };
        let code = |v: f32| {
            let product = v * o;
            e2m1_nearest(if product.is_nan() { f32::NAN } else { product })
        };
        (byte, std::array::from_fn(|i| code(x[2 * i]) | code(x[2 * i + 1]) << 4))
    }
}

/// Oracles by encode scale; per-token scales are the reciprocals of the device, too.
pub(crate) struct Oracles {
    codecs: Codecs,
    exact: bool,
    known: HashMap<u32, Oracle>,
}

impl Oracles {
    pub(crate) fn new(gpu: &Gpu, exact: bool) -> Self {
        let codecs = Codecs::load(&gpu.device, &nvfp4_cuda::pack::search_path()).unwrap();
        Self { codecs, exact, known: HashMap::new() }
    }

    pub(crate) fn encode(&mut self, encode: f32) -> &Oracle {
        let (codecs, exact) = (&self.codecs, self.exact);
        self.known.entry(encode.to_bits()).or_insert_with(|| Oracle::new(codecs, encode, exact))
    }

    /// The encode scale of a row whose decode scale is `decode`.
    pub(crate) fn of_decode(&mut self, decode: f32) -> &Oracle {
        let encode = if decode <= 0.0 {
            0.0
        } else if self.exact {
            1.0 / decode
        } else {
            self.codecs.rcp(&[decode]).unwrap()[0]
        };
        self.encode(encode)
    }
}
