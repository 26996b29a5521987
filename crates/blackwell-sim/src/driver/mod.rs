//! The CUDA driver API: what a program finds in `libcuda.so.1`.
//!
//! The library of this crate, installed under that name (see [`install`](crate::install)), shows one device, the one that `NVFP4_SIM`
//! names; without it there is no device. Each file here implements one subject of the API. The types of parameters are those of
//! cuda.h, with handles as numbers. Differences to a real driver:
//!
//! * Work is done when it is given, in the calling thread; streams and events order nothing that is not in order already.
//! * A kernel that fails is reported on the standard error stream and through `cuLogs…`, and spoils its context as on a GPU: the
//!   launch succeeds, and every later call returns the code. With `CUDA_LAUNCH_BLOCKING=1` the launch returns it too.
//! * A function that is not implemented returns `CUDA_ERROR_NOT_SUPPORTED` and names itself on the standard error stream, once.

#![allow(non_snake_case, reason = "the functions' names are the API's")]

mod attribute;
mod boundary;
mod capture;
mod context;
mod copy;
mod device;
mod event;
mod function;
mod graph;
mod graph_node;
mod handle;
mod host;
mod launch;
mod library;
mod log;
mod memory;
mod module;
mod occupancy;
mod operation;
mod pointer;
mod pointer_attribute;
mod pool;
mod proc_address;
mod set;
mod state;
mod status;
mod stream;
mod stubs;
mod tensor_map;

use boundary::entries;

/// An exported function.
struct Entry {
    name: &'static str,
    address: *const (),
}

/// Every exported function.
fn all() -> impl Iterator<Item = &'static Entry> {
    let files = [
        attribute::ENTRIES,
        capture::ENTRIES,
        context::ENTRIES,
        copy::ENTRIES,
        device::ENTRIES,
        event::ENTRIES,
        function::ENTRIES,
        graph::ENTRIES,
        graph_node::ENTRIES,
        host::ENTRIES,
        launch::ENTRIES,
        library::ENTRIES,
        log::ENTRIES,
        memory::ENTRIES,
        module::ENTRIES,
        occupancy::ENTRIES,
        pointer_attribute::ENTRIES,
        pool::ENTRIES,
        proc_address::ENTRIES,
        set::ENTRIES,
        status::ENTRIES,
        stream::ENTRIES,
        stubs::ENTRIES,
        tensor_map::ENTRIES,
    ];
    files.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once() {
        let mut names: Vec<_> = all().map(|entry| entry.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(count > 500, "{count}");
        assert!(names.iter().all(|name| name.starts_with("cu")));
    }
}
