//! The locks of Redisson, in Java, and ours with `format=redisson`.

mod library;
mod sabotage;

pub use library::{Library, Lock, Program};
pub use sabotage::{Mistake, Saboteur};
