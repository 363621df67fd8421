//! The recipes whose locks are nodes in ZooKeeper, in the order of their numbers: those of Apache
//! Curator and ours, and those of kazoo and ours with `format=kazoo`.

mod library;
mod sabotage;

pub use library::{Library, Program, Recipe};
pub use sabotage::{Mistake, Saboteur};
