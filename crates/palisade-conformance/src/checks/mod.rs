//! The checks, by what they look at.

pub mod cancel;
pub mod contract;
pub mod modes;
pub mod mutex;
pub mod times;
