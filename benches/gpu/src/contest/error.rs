//! Why something was not measured.

use streamvm::ep::cuda::CompileError;

/// Why a bench or a contender gave no figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// streamvm refused or failed.
    #[error("streamvm: {0}")]
    Engine(#[from] streamvm::Error),
    /// A list could not be built.
    #[error("a list could not be built: {0}")]
    Build(#[from] streamvm::BuildError),
    /// PTX was no text.
    #[error(transparent)]
    Ptx(#[from] CompileError),
    /// A driver call by hand failed.
    #[error("the driver, called by hand: {0:?}")]
    Driver(#[from] cudarc::driver::DriverError),
    /// A call of cuBLAS by hand failed.
    #[error("cuBLAS, called by hand: {0:?}")]
    Cublas(#[from] cudarc::cublas::result::CublasError),
    /// Something is not on this machine.
    #[error("{0}")]
    Missing(String),
    /// The work that was measured is not the work that was asked for, so the figure would mean nothing.
    #[error("{who} computed the wrong thing: {found}")]
    Wrong {
        /// Whose work.
        who: &'static str,
        /// What was found and what should be.
        found: String,
    },
}
