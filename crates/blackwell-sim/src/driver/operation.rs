//! What a stream or a graph can do.

use super::{
    boundary::Failure, context::Context, copy::Transfer, event::Event, graph::Executable, launch::KernelLaunch,
    pointer::Host, set::Set, state::Driver,
};
use std::sync::Arc;

/// One operation, with its operands as they were when it was given.
#[derive(Clone)]
pub(super) enum Operation {
    /// Nothing; a node that others depend on.
    Empty,
    /// A kernel.
    Kernel(Arc<KernelLaunch>),
    /// A copy.
    Copy(Transfer),
    /// Bytes set to a value.
    Set(Set),
    /// A function of the host.
    Host(HostCall),
    /// An event that happens.
    Record(Arc<Event>),
    /// An event that is waited for: there is nothing to wait for.
    Wait,
    /// Memory that a graph allocates: it has its address, and the graph keeps it.
    Allocate(u64),
    /// Memory that a graph frees: it is the graph's, so nothing happens.
    Free(u64),
    /// Another graph.
    Graph(Arc<Executable>),
}

/// A function of the host with its argument.
#[derive(Clone)]
pub(super) struct HostCall {
    pub(super) function: unsafe extern "C" fn(usize),
    pub(super) data: Host,
}

impl Operation {
    /// Does it, in the calling thread. A kernel that fails spoils the context; the others fail here.
    pub(super) fn execute(&self, driver: &Driver, context: &Context) -> Result<(), Failure> {
        match self {
            Self::Empty | Self::Wait | Self::Allocate(_) | Self::Free(_) => Ok(()),
            Self::Kernel(launch) => launch.execute(driver, context),
            Self::Copy(copy) => copy.execute(driver),
            Self::Set(set) => set.execute(driver),
            Self::Host(HostCall { function, data }) => {
                // The device is not held: the function may wait for other threads that use it.
                // SAFETY: who gave the function promises that it can be called with this argument, from any thread.
                unsafe { function(data.0) };
                Ok(())
            }
            Self::Record(event) => {
                event.happen();
                Ok(())
            }
            Self::Graph(graph) => graph.execute(driver, context),
        }
    }

    /// Its number as `CUgraphNodeType`.
    pub(super) const fn node_type(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Copy(_) => 1,
            Self::Set(_) => 2,
            Self::Host(_) => 3,
            Self::Graph(_) => 4,
            Self::Empty => 5,
            Self::Wait => 6,
            Self::Record(_) => 7,
            Self::Allocate(_) => 10,
            Self::Free(_) => 11,
        }
    }
}
