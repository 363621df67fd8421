//! The connections: one tonic channel for each member, in the runtime that polls the requests.
//!
//! All requests of a lock client are polled inside that client's runtime, so it has one set. Data
//! clients have no runtime of their own, and may be used from several.

use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Handle, Id};
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};

/// Connections are kept for so many runtimes. A runtime that has ended is pushed out by later ones.
const RUNTIMES: usize = 4;

#[derive(Default)]
pub(crate) struct Channels(Mutex<Vec<ChannelSet>>);

/// The channels of one runtime, by member; none for a member that was not asked yet.
struct ChannelSet {
    runtime: Id,
    channels: Vec<Option<Channel>>,
}

impl Channels {
    /// The channel to the member with this index. A new one connects at its first request, and
    /// again whenever it has broken.
    pub(crate) fn get(&self, member: usize, endpoint: &Endpoint) -> Result<Channel> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::config("etcd is used outside of a tokio runtime"))?
            .id();
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = sets
            .iter()
            .position(|set| set.runtime == runtime)
            .unwrap_or_else(|| {
                if sets.len() >= RUNTIMES {
                    sets.remove(0);
                }
                sets.push(ChannelSet {
                    runtime,
                    channels: Vec::new(),
                });
                sets.len() - 1
            });
        let Some(set) = sets.get_mut(at) else {
            return Ok(endpoint.connect_lazy());
        };
        if set.channels.len() <= member {
            set.channels.resize(member + 1, None);
        }
        // The task that drives the connection is spawned here, in the current runtime.
        Ok(match set.channels.get_mut(member) {
            Some(channel) => channel
                .get_or_insert_with(|| endpoint.connect_lazy())
                .clone(),
            None => endpoint.connect_lazy(),
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn each_runtime_has_its_channels_and_few_are_kept() {
        let (channels, endpoint) = (
            Channels::default(),
            Endpoint::from_static("http://127.0.0.1:1"),
        );
        assert!(channels.get(0, &endpoint).is_err(), "outside of a runtime");
        let runtimes: Vec<_> = (0..2 * RUNTIMES)
            .map(|_| Builder::new_current_thread().enable_all().build().unwrap())
            .collect();
        for runtime in &runtimes {
            let _inside = runtime.enter();
            for member in [0, 2, 2] {
                channels.get(member, &endpoint).unwrap();
            }
            let sets = channels.0.lock().unwrap();
            let own = sets.last().unwrap();
            assert_eq!(own.runtime, runtime.handle().id());
            let open: Vec<bool> = own.channels.iter().map(Option::is_some).collect();
            assert_eq!(open, [true, false, true]);
        }
        assert_eq!(channels.0.lock().unwrap().len(), RUNTIMES);
    }
}
