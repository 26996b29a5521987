//! Progress bars on standard error.

use crate::session::Session;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nvfp4::checkpoint::{Progress, ProgressUpdate};

/// A bar that is shown if standard error is a terminal and the user did not ask for quiet, and vanishes when dropped.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// For work that reports bytes.
    pub(crate) fn bytes(session: &Session) -> Self {
        Self::new(session, 0, "{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left  {wide_msg}")
    }

    /// For work of `steps` steps.
    pub(crate) fn steps(session: &Session, steps: u64) -> Self {
        Self::new(session, steps, "{bar:30} {pos}/{len}  {wide_msg}")
    }

    fn new(session: &Session, length: u64, template: &str) -> Self {
        // On anything but a terminal, indicatif hides this target itself.
        let target = if session.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        // A template that does not parse would show as the default bar; a test holds ours.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    /// Begins a step.
    pub(crate) fn step(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.inc(1);
    }
}

impl Progress for Bar {
    fn update(&self, update: ProgressUpdate<'_>) {
        self.0.set_length(update.bytes_total);
        self.0.set_position(update.bytes_done);
        if self.0.message() != update.tensor {
            self.0.set_message(update.tensor.to_string());
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_follow_the_work_whether_shown_or_not() {
        for quiet in [true, false] {
            let session = Session { out: crate::output::Output::new(), json: false, quiet };
            let bar = Bar::steps(&session, 3);
            bar.step("one");
            bar.step("two");
            assert_eq!((bar.0.position(), bar.0.length(), bar.0.message()), (2, Some(3), "two".into()));
            let bar = Bar::bytes(&session);
            assert_eq!((bar.0.position(), bar.0.length()), (0, Some(0)));
        }
    }
}
