//! An interpreter of PTX, the assembly language of CUDA, for tests: it runs kernels as a compiler has written them, on a CPU, and stops where a GPU would go on with
//! garbage.
//!
//! A launch fails with an error that names the kernel, the line of PTX, the block, the thread and the address ([`FaultKind`]):
//!
//! * an access outside of the allocations that the launch was given, or a write where only reads are allowed;
//! * a misaligned access;
//! * a read of a register, or of shared, local or global memory, that has no value yet;
//! * a race: two threads access one byte of shared or global memory, one of them writes, and no barrier of their block lies between. Atomic and volatile accesses may race,
//!   and so may a read of global memory and a write of the value that is there already;
//! * a barrier that not all threads of a block come to;
//! * an integer division by 0, and a thread that does not end.
//!
//! [`Module::new`] refuses what it does not know. Of the functions that a driver links to kernels it has `cudaGraphSetConditional`, which stores the value at the
//! address that is the handle. [`Coverage`] counts which instructions have been reached. The interpreter knows the instructions that NVRTC 12.0
//! emits for the kernels of this project, and their relatives: PTX 8.0 as described in NVIDIA's "Parallel Thread Execution ISA". Warps are not modelled: threads of a block run
//! one after the other, from barrier to barrier, in an order that a seed draws; after atomic operations, fences and volatile accesses others may come
//! between.
//!
//! ```
//! use streamvm_ptx::{Access, Coverage, Launch, Memory, Module};
//!
//! let module = Module::new(
//!     ".version 8.0
//!     .target sm_70
//!     .address_size 64
//!     .visible .entry twice(.param .u64 numbers)
//!     {
//!         .reg .b32 %r<4>;
//!         .reg .b64 %rd<4>;
//!         ld.param.u64 %rd1, [numbers];
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4;
//!         add.s64 %rd3, %rd1, %rd2;
//!         ld.global.u32 %r2, [%rd3];
//!         add.s32 %r3, %r2, %r2;
//!         st.global.u32 [%rd3], %r3;
//!         ret;
//!     }",
//! )?;
//! let (address, mut memory) = (0x7000_0000u64, Memory::new());
//! let numbers: Vec<u8> = [1u32, 2, 3].iter().flat_map(|number| number.to_le_bytes()).collect();
//! let numbers = memory.add("the numbers", address, numbers, Access::ReadWrite);
//! let mut coverage = Coverage::new(&module);
//! let mut launch = Launch {
//!     kernel: "twice",
//!     grid: [1, 1, 1],
//!     block: [3, 1, 1],
//!     shared_bytes: 0,
//!     parameters: &address.to_le_bytes(),
//!     seed: 1,
//!     limit: 1000,
//! };
//! module.launch(&launch, &mut memory, &mut coverage)?;
//! assert_eq!(memory.bytes(numbers), [2, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0]);
//! assert_eq!(coverage.counts(&module), (8, 8));
//!
//! // One thread too many.
//! launch.block = [4, 1, 1];
//! let error = module.launch(&launch, &mut memory, &mut coverage).unwrap_err();
//! assert!(error.to_string().contains("line 12 (`ld.global.u32 %r2, [%rd3];`), block [0, 0, 0], thread [3, 0, 0]: reads 4 bytes at 0x7000000c"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod code;
mod compute;
pub mod plant;
mod run;
mod text;

pub use code::{END_OF_WINDOWS, Module};
pub use run::coverage::{Coverage, Unreached};
pub use run::fault::{Attempt, Fault, FaultKind, LaunchError};
pub use run::launch::Launch;
pub use run::memory::{Access, Memory};
pub use text::syntax::ParseError;
