//! Three families of stores, one kit each. A store fills in a kit; it does not write a loop.
//!
//! | kit | the store must be able to | stores |
//! |---|---|---|
//! | [`line`] | apply one event of the line to one name in one atomic step, and push to one inbox | memory, SQLite, Redis |

pub(crate) mod line;
