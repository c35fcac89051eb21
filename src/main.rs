//! The command `pipewright`: hands over to [`cli`] and turns its answer into an exit code.

mod cli;

use std::process::ExitCode;

/// Counts the memory of each rank, so that a run can report what it really used.
#[cfg(feature = "exec")]
#[global_allocator]
static ALLOCATOR: pipewright::exec::memory::CountingAllocator = pipewright::exec::memory::CountingAllocator;

fn main() -> ExitCode {
    // Whatever the user gives us must not panic; if something does, it is our fault and has its own exit code.
    std::panic::catch_unwind(cli::main).unwrap_or_else(|_| cli::exit::bug())
}
