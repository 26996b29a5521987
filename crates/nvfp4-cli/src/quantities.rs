//! Numbers as people read them.

/// Bytes in binary units: `999 B`, `1.5 KiB`, `7.6 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that would be printed as 1024.0 belongs to the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A duration with three significant digits: `12.3 µs`, `4.56 ms`, `1.20 s`.
pub(crate) fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// A factor: `3.4x`.
pub(crate) fn factor(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.2}x") } else { format!("{factor:.1}x") }
}

/// `one module`, `2 modules`.
pub(crate) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("one {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (7_944_136, "7.6 MiB"),
            (70 << 30, "70.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (number, text) in cases {
            assert_eq!(bytes(number), text);
        }
        assert_eq!(seconds(1.234e-5), "12.3 µs");
        assert_eq!(seconds(0.00456), "4.56 ms");
        assert_eq!(seconds(120.0), "120 s");
        assert_eq!((factor(3.456), factor(12.34)), ("3.46x".into(), "12.3x".into()));
        assert_eq!((count(1, "layer"), count(0, "layer")), ("one layer".into(), "0 layers".into()));
    }
}
