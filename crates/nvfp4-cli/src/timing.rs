//! Times of things that are compared with each other.

use std::time::Instant;

/// The best times of several pieces of work, run in turns so that a slow moment of the machine hits all of them.
///
/// `work` is called with the index of a piece, `0..pieces`; every piece is run once to warm up, then `rounds` times.
/// Returns the best time of each, in seconds.
pub(crate) fn best_of<E>(
    rounds: usize,
    pieces: usize,
    mut work: impl FnMut(usize) -> Result<(), E>,
) -> Result<Vec<f64>, E> {
    let mut best = vec![f64::INFINITY; pieces];
    for round in 0..=rounds {
        for (piece, best) in best.iter_mut().enumerate() {
            let start = Instant::now();
            work(piece)?;
            let seconds = start.elapsed().as_secs_f64();
            if round > 0 || rounds == 0 {
                *best = best.min(seconds);
            }
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_run_in_every_round() {
        let mut calls = Vec::new();
        let best = best_of(3, 2, |piece| {
            calls.push(piece);
            Ok::<(), ()>(())
        });
        assert_eq!(calls, [0, 1, 0, 1, 0, 1, 0, 1]);
        assert!(best.unwrap().iter().all(|seconds| seconds.is_finite()));
        assert_eq!(best_of(3, 2, |piece| if piece == 1 { Err("no") } else { Ok(()) }), Err("no"));
    }
}
