//! Operations: work that a caller's function has started, and that goes on after the function has returned.

use std::fmt;

use crate::errors::call_error::FnError;

/// Work that a function has started: a request of a communication library, for example. The function hands it to the engine by returning an
/// [`Unfinished`]; its instruction has passed once the operation is over.
///
/// Until then the engine keeps the memory of the function's operands, and what follows on the stream waits. So an operation may use the addresses of
/// operands that its function has taken, until [`poll`](Operation::poll) has returned an error, or `Ok(true)`; on a device the commands that it has queued may use them
/// until the device has passed them.
pub trait Operation: Send + Sync {
    /// Whether the operation is over; on a stream of a device, whether its commands are queued. The engine asks again and again, one thread at a time, until this
    /// returns `Ok(true)` or an error; it must not block.
    ///
    /// # Errors
    ///
    /// The operation has failed, and uses the operands no longer.
    fn poll(&mut self) -> Result<bool, FnError>;

    /// On a stream of a device: looks at the queued commands, which may have failed or wait for ever. The engine calls this from time to time while they may run, if
    /// somebody waits for work of a device, and once when the device `has_passed` them; it must not block.
    ///
    /// # Errors
    ///
    /// The commands have failed. They have been ended, or the device has passed them; or the error is [`Error::DeviceLost`](crate::Error::DeviceLost), because they go on for
    /// ever: then all devices of that kind are lost.
    fn look(&mut self, has_passed: bool) -> Result<(), FnError> {
        let _ = has_passed;
        Ok(())
    }
}

/// The answer of a function that has started an [`Operation`]. It travels as the error of the function.
///
/// Functions on collective streams may give it. On a CPU the thread of these streams polls their operations side by side, and so may a thread that waits for one whose function is [helpable](crate::InlineFn::helpable). On a CUDA device the thread that launches
/// polls until the operation has queued its commands; then the device's order holds, and the engine [looks](Operation::look) at the operation until the device
/// has passed them. A function on another stream that threads of the host run may give it, too, but its thread does nothing else until the operation is over. On
/// other streams, and for a step of a program that is on no collective stream, it is an error like any other.
pub struct Unfinished(pub Box<dyn Operation>);

impl fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unfinished(..)")
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it has started an operation, which only threads of the host can poll")
    }
}

impl std::error::Error for Unfinished {}
