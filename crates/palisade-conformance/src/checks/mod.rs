//! The checks, by what they look at.

pub mod cancel;
pub mod contract;
pub mod election;
pub mod history;
pub mod loss;
pub mod modes;
pub mod mutex;
pub mod overload;
pub mod processes;
pub mod runtimes;
pub mod times;
