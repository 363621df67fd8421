//! Latches: a counter with a key of its own, whose end is announced on a channel. In the format
//! `redisson` it is an `RCountDownLatch`.
//!
//! A step that was sent again finds its note, so that no latch is counted down twice for one call.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::backend::Backend;
use super::client::{Call, Script};
use super::settings::Format;
use super::{redisson, unexpected};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::store::{ClaimId, Latches};

static SET: Script = Script::new(include_str!("latch/set.lua"));
static COUNT_DOWN: Script = Script::new(include_str!("latch/count_down.lua"));
static COUNT: Script = Script::new(include_str!("latch/count.lua"));

/// What the channels of Redisson's latches begin with.
const CHANNELS: &str = "redisson_countdownlatch__channel__";

/// What the channels of our own latches end with: so does no inbox.
pub(super) const CHANNELS_END: &[u8] = b"}:latch";

struct LatchKeys {
    latch: String,
    /// Of one step: its reply, for the case that the step is sent again.
    note: String,
    channel: String,
}

impl Backend {
    fn latch_keys(&self, name: &Name) -> Result<LatchKeys> {
        let key = self.settings.key(name);
        let step = ClaimId::from_bits(fastrand::u128(..)).reveal();
        if self.settings.format == Format::Palisade {
            let latch = format!("{key}:latch");
            return Ok(LatchKeys {
                note: format!("{latch}:{step}"),
                channel: latch.clone(),
                latch,
            });
        }
        redisson::check_key(name, &key)?;
        if self.client.settings().is_cluster() && key.contains(['{', '}']) {
            return Err(Error::config(format!(
                "{name} cannot be a latch of Redisson in a cluster: its channel would be in another slot; \
                 take a name without braces"
            )));
        }
        Ok(LatchKeys {
            note: format!("palisade:1:redisson-latch:{{{key}}}:{step}"),
            channel: format!("{CHANNELS}{{{key}}}"),
            latch: key,
        })
    }

    fn latch_call(&self, script: &'static Script, keys: &LatchKeys) -> Call {
        Call::new(script, &keys.latch)
            .beside(&keys.note)
            .text(&keys.channel)
            .text(if self.is_sharded() { "c" } else { "" })
    }

    async fn latch_number(self: &Arc<Self>, call: &Call) -> Result<u32> {
        match self.call(call).await?.value {
            // A peer may have counted further down than to nothing.
            Value::Int(number) => Ok(u32::try_from(number.max(0)).unwrap_or(u32::MAX)),
            _ => Err(unexpected()),
        }
    }
}

#[async_trait]
impl Latches for Arc<Backend> {
    async fn set_latch(&self, name: &Name, count: u32) -> Result<bool> {
        let call = self.latch_call(&SET, &self.latch_keys(name)?);
        Ok(self.latch_number(&call.number(count.into())).await? == 1)
    }

    async fn count_down(&self, name: &Name) -> Result<u32> {
        self.latch_number(&self.latch_call(&COUNT_DOWN, &self.latch_keys(name)?))
            .await
    }

    async fn latch_count(&self, name: &Name) -> Result<u32> {
        self.latch_number(&self.latch_call(&COUNT, &self.latch_keys(name)?))
            .await
    }

    async fn latch_after_change(&self, name: &Name, longest: Duration) -> Result<u32> {
        let keys = self.latch_keys(name)?;
        let call = self.latch_call(&COUNT, &keys);
        let first = self.call(&call).await?;
        let changed = self.channels.listen(&keys.channel, &first.server, self);
        let mut notified = std::pin::pin!(changed.notified());
        notified.as_mut().enable();
        let left = self.latch_number(&call).await?;
        if left == 0 || tokio::time::timeout(longest, notified).await.is_err() {
            return Ok(left);
        }
        self.latch_number(&call).await
    }
}
