//! The functions that the library exports: those of the CUDA driver that streamvm calls, and a few of its own (`own`).
//!
//! Each call goes through `entry::enter`, which counts it, lets it fail if a test wants that, and checks that the driver is ready. Other
//! driver functions are missing: cudarc panics when it looks one up, so a test that needs one fails.
//!
//! Layer: uses `values`, `memory`, `kernels`, `objects`, `driver` and `commands`; is used by `tests`.

/// Exports driver calls, each with a body over the driver, and lists them for `cuGetProcAddress`.
macro_rules! driver_calls {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// * The duties of the CUDA driver's function of this name, as far as they concern memory of the caller: each pointer is
            ///   null or points to what the function reads or writes there. Handles and device addresses are checked.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
                crate::driver::entry::enter(stringify!($name), |$driver| $body)
            }
        )*

        /// Names and addresses of the calls in this file.
        pub(super) fn exported() -> Vec<(&'static str, usize)> {
            vec![$((stringify!($name), $name as *const () as usize)),*]
        }
    };
}

pub mod conditional;
pub mod context;
pub mod copy;
pub mod cublas;
pub mod device;
pub mod event;
pub mod graph;
pub mod init;
pub mod launch;
pub mod memory;
pub mod module;
pub mod nccl;
pub mod nvtx;
pub mod own;
pub mod set;
pub mod stream;

/// Names and addresses of all driver calls.
fn exported() -> Vec<(&'static str, usize)> {
    let files = [
        conditional::exported(),
        context::exported(),
        copy::exported(),
        device::exported(),
        event::exported(),
        graph::exported(),
        init::exported(),
        launch::exported(),
        memory::exported(),
        module::exported(),
        set::exported(),
        stream::exported(),
    ];
    files.concat()
}
