//! The policies of the streams of an engine: those of their class, or those that the caller has given.

use std::sync::Arc;

use streamvm_ep::DeviceId;
use streamvm_instructions::Error;
use streamvm_stream::{StreamClass, StreamKey, StreamPolicy, StreamType, policy_for};

/// Policies that the caller has given, the latest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies(Vec<(DeviceId, StreamType, Arc<dyn StreamPolicy>)>);

impl Policies {
    /// Gives the streams of a type on a device a policy, in place of an earlier one.
    pub(crate) fn give(&mut self, device: DeviceId, stream_type: StreamType, policy: Arc<dyn StreamPolicy>) {
        self.0.push((device, stream_type, policy));
    }

    /// The policy of a stream.
    ///
    /// # Errors
    /// [`Error::NoStream`] if the stream cannot have the policy that the caller has given.
    pub(crate) fn of(&self, key: StreamKey) -> Result<Arc<dyn StreamPolicy>, Error> {
        let class = StreamClass::of(&key);
        let is_for = |(device, stream_type, _): &&(DeviceId, StreamType, _)| {
            (*device, *stream_type) == (key.device, key.stream_type)
        };
        let Some((_, _, given)) = self.0.iter().rev().find(is_for) else { return Ok(policy_for(class)) };
        given.check(class).map_err(|reason| Error::NoStream { stream: key, reason })?;
        Ok(given.clone())
    }
}
