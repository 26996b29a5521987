//! The plans of a layer: one for each range of row counts and pair of element types, made at first use.

use nvfp4_core::{DType, Error, LinearPlan, Memory};
use std::sync::{Arc, PoisonError, RwLock};

/// Rows up to which plans are made for powers of two; beyond, for its multiples.
const LARGEST_POWER: usize = 8192;

/// The number of rows that a call with `m` rows is planned for: the next power of two up to 8192, then the next
/// multiple of 8192. At least `m`.
pub fn row_bucket(m: usize) -> usize {
    if m <= LARGEST_POWER { m.next_power_of_two() } else { m.checked_next_multiple_of(LARGEST_POWER).unwrap_or(m) }
}

/// What a plan is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey {
    pub(crate) input: DType,
    pub(crate) output: DType,
    /// Which of the layer's backends.
    pub(crate) backend: usize,
    /// Rows planned for.
    pub(crate) rows: usize,
}

type Plan<M> = Arc<dyn LinearPlan<M>>;

/// Plans by key. Reading takes a shared lock for the time of a short search.
#[derive(Debug)]
pub(crate) struct PlanCache<M: Memory> {
    entries: RwLock<Vec<(PlanKey, Plan<M>)>>,
}

impl<M: Memory> Default for PlanCache<M> {
    fn default() -> Self {
        Self { entries: RwLock::default() }
    }
}

fn find<M: Memory>(entries: &[(PlanKey, Plan<M>)], key: PlanKey) -> Option<Plan<M>> {
    entries.iter().find(|(k, _)| *k == key).map(|(_, plan)| plan.clone())
}

impl<M: Memory> PlanCache<M> {
    /// The plan for `key`, made by `make` if there is none yet.
    pub(crate) fn get_or_make(
        &self,
        key: PlanKey,
        make: impl FnOnce() -> Result<Box<dyn LinearPlan<M>>, Error>,
    ) -> Result<Plan<M>, Error> {
        if let Some(plan) = find(&self.entries.read().unwrap_or_else(PoisonError::into_inner), key) {
            return Ok(plan);
        }
        let plan: Plan<M> = make()?.into();
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have planned the same in the meantime; then all use that one.
        if let Some(earlier) = find(&entries, key) {
            return Ok(earlier);
        }
        entries.push((key, plan.clone()));
        Ok(plan)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_rows_and_are_fixed_points() {
        assert_eq!(row_bucket(2001), 2048);
        for m in (1..=8192).chain([8193, 8192 * 3, 8192 * 3 + 1, usize::MAX / 2, usize::MAX]) {
            let bucket = row_bucket(m);
            assert!(bucket >= m, "{m}");
            assert_eq!(row_bucket(bucket), bucket, "{m}");
        }
        let buckets: std::collections::BTreeSet<_> = (1..=8192).map(row_bucket).collect();
        assert_eq!(buckets.len(), 14);
    }
}
