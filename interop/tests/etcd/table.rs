//! The tests of `exclusion` and `contests` for every peer, each a test of its own: what fails is
//! named.

use palisade_interop::Fault;
use palisade_interop::etcd::Library;

use crate::{contests, exclusion, ours};

/// Which of two is the holder.
type Pair = (Library, Library);

fn ours_first(peer: Library) -> Pair {
    (ours(), peer)
}

fn theirs_first(peer: Library) -> Pair {
    (peer, ours())
}

macro_rules! peers {
    ($($module:ident: $library:ident),+ $(,)?) => {
        $(mod $module {
            use super::*;

            const PEER: Library = Library::$library;

            both_ways! {
                holds: ours_holds, theirs_holds;
                gives_up: theirs_gives_up, ours_gives_up;
                crashes: ours_crashes, theirs_crashes;
                crashes_in_line: ours_crashes_in_line, theirs_crashes_in_line;
                releases_in_vain: ours_releases_in_vain, theirs_releases_in_vain;
                extends: ours_extends, theirs_extends;
            }

            #[test]
            fn contest() -> Result<(), Fault> {
                contests::pair(ours(), PEER)
            }
        })+

        #[test]
        fn no_peer_is_forgotten() {
            assert_eq!(Library::PEERS, [$(Library::$library),+]);
        }
    };
}

macro_rules! both_ways {
    ($($check:ident: $ours:ident, $theirs:ident;)+) => {
        $(
            #[test]
            fn $ours() -> Result<(), Fault> {
                exclusion::$check(ours_first(PEER))
            }

            #[test]
            fn $theirs() -> Result<(), Fault> {
                exclusion::$check(theirs_first(PEER))
            }
        )+
    };
}

peers! {
    go: Go,
    etcdctl_holds: EtcdctlHolds,
    etcdctl_runs: EtcdctlRuns,
}
