//! In whose runtime a request runs, for stores that have connections in more than their client's own.

use tokio::runtime::{Handle, RuntimeFlavor};

/// The runtime of whoever calls, if its own threads wait for what is asked there.
///
/// Who blocks on a runtime of many threads is in none of them, and has a thread to wake in any case: the client's own, which has
/// nothing else to do, is the cheapest.
pub(super) fn of_caller() -> Option<Handle> {
    let runtime = Handle::try_current().ok()?;
    (runtime.runtime_flavor() == RuntimeFlavor::CurrentThread || tokio::task::try_id().is_some()).then_some(runtime)
}

/// Whether connections can live in a runtime: it may have been built without IO. Tokio tells only by a panic.
pub(super) fn has_io(runtime: &Handle) -> bool {
    let _inside = runtime.enter();
    std::panic::catch_unwind(|| drop(tokio::net::UnixDatagram::unbound())).is_ok()
}
