//! One global scale for a tensor whose parts have several.
