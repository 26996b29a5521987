//! Two e2m1 codes a byte.
