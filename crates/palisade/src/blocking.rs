//! For programs without a runtime: every verb of this crate in a blocking form.
//!
//! There is no twin of the API to learn. Nothing in this crate needs the caller's runtime, so any
//! of its futures can be waited for on a plain thread:
//!
//! ```
//! use palisade::blocking::Wait;
//!
//! # fn main() -> palisade::Result<()> {
//! let locks = palisade::connect("memory:").wait()?;
//! let guard = locks.mutex("report").acquire().wait()?;
//! println!("I hold the lock, fence {}", guard.fence());
//! guard.release().wait()?;
//! # Ok(())
//! # }
//! ```

/// Waits for a future on this thread. Do not use it inside an async task: it blocks the task's
/// thread.
pub trait Wait: Future + Sized {
    /// Blocks until the future is ready.
    fn wait(self) -> Self::Output {
        pollster::block_on(self)
    }
}

impl<F: Future> Wait for F {}
