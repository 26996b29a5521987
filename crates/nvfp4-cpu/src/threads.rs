//! Threads: rayon's current pool, or none without the feature.

/// Work that can be cut in two at any unit.
pub(crate) trait Divisible: Sized + Send {
    /// Number of units.
    fn len(&self) -> usize;
    /// The first `units` units, and the rest.
    fn split_at(self, units: usize) -> (Self, Self);
}

/// Threads that [`for_each_piece`] may use.
pub(crate) fn count() -> usize {
    #[cfg(feature = "rayon")]
    return rayon::current_num_threads();
    #[cfg(not(feature = "rayon"))]
    return 1;
}

fn join(a: impl FnOnce() + Send, b: impl FnOnce() + Send) {
    #[cfg(feature = "rayon")]
    rayon::join(a, b);
    #[cfg(not(feature = "rayon"))]
    {
        a();
        b();
    }
}

/// Cuts `work` into pieces of at most `grain` units, at multiples of `grain`, and calls `each` on all of them. A
/// work of one piece stays on this thread and wakes no other.
pub(crate) fn for_each_piece<W: Divisible>(work: W, grain: usize, each: &(impl Fn(W) + Sync)) {
    let grain = grain.max(1);
    let pieces = work.len().div_ceil(grain);
    if pieces <= 1 {
        return each(work);
    }
    let (left, right) = work.split_at(pieces / 2 * grain);
    join(|| for_each_piece(left, grain, each), || for_each_piece(right, grain, each));
}

/// Units in a piece, so that each thread gets a few pieces (to even out their speeds) of at least `least` units.
/// One piece if there is too little work to be worth waking a thread: some tens of µs of it.
pub(crate) fn grain(units: usize, least: usize, multiply_adds: usize) -> usize {
    const WORTH_WAKING: usize = 1 << 18;
    let threads = count();
    if threads == 1 || multiply_adds < WORTH_WAKING {
        return units.max(1);
    }
    let pieces = (4 * threads).min(multiply_adds / (WORTH_WAKING / 2));
    units.div_ceil(pieces.max(1)).next_multiple_of(least.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    struct Range(std::ops::Range<usize>);

    impl Divisible for Range {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn split_at(self, units: usize) -> (Self, Self) {
            let middle = self.0.start + units;
            (Self(self.0.start..middle), Self(middle..self.0.end))
        }
    }

    #[test]
    fn pieces_cover_the_work_once_and_start_at_multiples_of_the_grain() {
        for (len, grain) in [(0, 4), (1, 4), (4, 4), (5, 4), (17, 4), (100, 7), (3, 0)] {
            let seen = Mutex::new(Vec::new());
            for_each_piece(Range(0..len), grain, &|piece: Range| seen.lock().unwrap().push(piece.0));
            let mut seen = seen.into_inner().unwrap();
            seen.sort_by_key(|r| r.start);
            assert!(seen.iter().all(|r| r.len() <= grain.max(1) && r.start.is_multiple_of(grain.max(1))));
            assert_eq!(seen.into_iter().flatten().collect::<Vec<_>>(), (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn small_work_is_one_piece() {
        assert_eq!(grain(100, 4, 1000), 100);
        assert!(grain(1 << 20, 4, usize::MAX).is_multiple_of(4) || count() == 1);
    }
}
