//! Shared by all servers: how each is set up and started, and that it is a
//! [`Server`](crate::Server).

/// For a server with the field `server`, whose `Setup` has the field `place` and the function
/// `start_once`. With `clock`, both have a field of that name, too.
macro_rules! server {
    ($server:ident) => {
        impl Setup {
            /// Puts it on a host of a [`crate::lan::Lan`]. Its certificate does not know the
            /// address there.
            #[must_use]
            pub fn on(mut self, host: &crate::lan::Host) -> Self {
                self.place = crate::lan::Place::on(host);
                self
            }

            /// Starts it, and returns when it answers.
            ///
            /// # Panics
            ///
            /// When it does not start.
            #[must_use]
            pub fn start(&self) -> $server {
                crate::error::OrPanic::or_panic(self.try_start())
            }

            pub(crate) fn try_start(&self) -> crate::error::Result<$server> {
                crate::process::with_free_ports(|| self.start_once())
            }
        }

        impl $server {
            /// Starts a plain one.
            ///
            /// # Panics
            ///
            /// When it does not start.
            #[must_use]
            pub fn start() -> Self {
                Self::with().start()
            }

            /// For one that is not plain.
            #[must_use]
            pub fn with() -> Setup {
                Setup::default()
            }
        }

        impl std::ops::Deref for $server {
            type Target = crate::Server;

            fn deref(&self) -> &crate::Server {
                &self.server
            }
        }
    };
    ($server:ident, clock) => {
        server!($server);

        impl Setup {
            #[doc = concat!("Gives it a wall clock of its own: see [`", stringify!($server), "::clock`].")]
            #[must_use]
            pub fn clock(mut self) -> Self {
                self.clock = true;
                self
            }
        }

        impl $server {
            /// Its own wall clock.
            ///
            /// # Panics
            ///
            /// When [`Setup::clock`] did not ask for one.
            #[track_caller]
            #[must_use]
            pub fn clock(&self) -> &crate::clock::Clock {
                self.clock.as_ref().expect("started with .clock()")
            }
        }
    };
}

pub(crate) use server;
