//! The modes of guards, as types: a resource cannot be given a reader's fence by mistake.

use std::fmt;

use crate::fence::{Fence, SharedFence};
use crate::store::Mode;

mod sealed {
    pub trait Sealed {}
}

/// How a guard holds. Sealed: [`Exclusive`], [`Shared`], [`Permits`] and [`AnyMode`].
pub trait GuardMode: sealed::Sealed + Send + Sync + 'static {
    /// The type of [`Guard::fence`](super::Guard::fence): only an exclusive grant's fence may be
    /// checked by a resource.
    type Fence: From<Fence> + fmt::Display + Copy;

    /// Whether a grant of this mode makes such a guard.
    #[doc(hidden)]
    fn fits(mode: Mode) -> bool;
}

macro_rules! guard_modes {
    ($($(#[$doc:meta])* $name:ident: $fits:pat => $fence:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}

        impl sealed::Sealed for $name {}

        impl GuardMode for $name {
            type Fence = $fence;

            fn fits(mode: Mode) -> bool {
                matches!(mode, $fits)
            }
        }
    )*};
}

guard_modes! {
    /// The guard of a mutex, or of the write side of a rwlock.
    Exclusive: Mode::Exclusive => Fence;
    /// The guard of a reader.
    Shared: Mode::Shared => SharedFence;
    /// The guard of a semaphore's permits.
    Permits: Mode::Permits(_) => SharedFence;
    /// A guard whose mode is known only at run time; see
    /// [`Guard::into_any_mode`](super::Guard::into_any_mode).
    AnyMode: _ => SharedFence;
}
