//! Graphs: nodes with dependencies, and their replay.

use super::{
    boundary::{Failure, call},
    context::Context,
    handle::{Handle, fresh},
    operation::Operation,
    pointer::Out,
    state::{Driver, driver, lock},
    status::Status,
    stream::enqueue,
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
};

/// A graph that is being made.
pub(super) struct Graph {
    pub(super) handle: Handle,
    pub(super) nodes: Mutex<Vec<Arc<Node>>>,
}

/// A node of a graph.
pub(super) struct Node {
    pub(super) handle: Handle,
    pub(super) graph: Handle,
    pub(super) operation: Operation,
    pub(super) dependencies: Mutex<Vec<Handle>>,
}

/// A graph that can be launched: operations in an order that its dependencies allow.
pub(super) struct Executable {
    operations: Vec<Operation>,
    flags: u64,
}

impl Graph {
    pub(super) fn new(driver: &Driver) -> Arc<Self> {
        let graph = Arc::new(Self { handle: fresh(), nodes: Mutex::default() });
        driver.graphs.insert(graph.handle, graph.clone());
        graph
    }

    /// Adds a node; returns its handle.
    pub(super) fn add(&self, driver: &Driver, operation: Operation, dependencies: Vec<Handle>) -> Handle {
        let handle = fresh();
        let node = Node { handle, graph: self.handle, operation, dependencies: Mutex::new(dependencies) };
        let node = Arc::new(node);
        driver.nodes.insert(handle, node.clone());
        lock(&self.nodes).push(node);
        handle
    }

    /// Forgets the graph, its nodes and the memory that they allocate. Executables keep their operations.
    pub(super) fn destroy(&self, driver: &Driver) {
        // The handle may be gone already, if the caller has destroyed the graph.
        let _ = driver.graphs.remove(self.handle);
        for node in lock(&self.nodes).drain(..) {
            let _ = driver.nodes.remove(node.handle);
            if let Operation::Allocate(address) = node.operation {
                let _ = driver.allocations.free(driver, address);
            }
        }
    }

    /// True if every node of `from` is one of `to` or one that they depend on.
    pub(super) fn reach(&self, from: &[Handle], to: &[Handle]) -> bool {
        let dependencies: HashMap<Handle, Vec<Handle>> =
            lock(&self.nodes).iter().map(|node| (node.handle, lock(&node.dependencies).clone())).collect();
        let (mut seen, mut open) = (HashSet::new(), to.to_vec());
        while let Some(node) = open.pop() {
            if seen.insert(node) {
                open.extend(dependencies.get(&node).into_iter().flatten());
            }
        }
        from.iter().all(|node| seen.contains(node))
    }

    /// The nodes, each after those that it depends on.
    fn ordered(&self) -> Result<Vec<Arc<Node>>, Failure> {
        let mut waiting = lock(&self.nodes).clone();
        let (mut done, mut order) = (HashSet::new(), Vec::new());
        while !waiting.is_empty() {
            let before = order.len();
            waiting.retain(|node| {
                let ready = lock(&node.dependencies).iter().all(|dependency| done.contains(dependency));
                if ready {
                    done.insert(node.handle);
                    order.push(node.clone());
                }
                !ready
            });
            if order.len() == before {
                let message = format!("{} nodes depend on each other in a circle", waiting.len());
                return Err(Failure::loud(Status::INVALID_VALUE, message));
            }
        }
        Ok(order)
    }

    pub(super) fn executable(&self, flags: u64) -> Result<Executable, Failure> {
        let operations = self.ordered()?.iter().map(|node| node.operation.clone()).collect();
        Ok(Executable { operations, flags })
    }
}

impl Executable {
    /// Does every operation. A kernel that fails ends the graph.
    pub(super) fn execute(&self, driver: &Driver, context: &Context) -> Result<(), Failure> {
        for operation in &self.operations {
            operation.execute(driver, context)?;
            if context.healthy().is_err() {
                break;
            }
        }
        Ok(())
    }
}

super::entries! {
    cuGraphCreate, cuGraphDestroy, cuGraphClone, cuGraphInstantiate_v2, cuGraphInstantiateWithFlags, cuGraphInstantiateWithParams, cuGraphExecDestroy, cuGraphExecGetFlags, cuGraphLaunch, cuGraphUpload,
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphCreate(graph: Out<Handle>, flags: u32) -> Status {
    call("cuGraphCreate", || {
        let driver = driver()?;
        if flags != 0 || graph.is_null() {
            return Err(Failure::quiet(Status::INVALID_VALUE));
        }
        graph.set("phGraph", Graph::new(driver).handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: Handle) -> Status {
    call("cuGraphDestroy", || {
        let driver = driver()?;
        driver.graphs.get(graph)?.destroy(driver);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphClone(clone: Out<Handle>, original: Handle) -> Status {
    call("cuGraphClone", || {
        let driver = driver()?;
        let original = driver.graphs.get(original)?;
        let copy = Graph::new(driver);
        let mut handles = HashMap::new();
        for node in original.ordered()? {
            let dependencies =
                lock(&node.dependencies).iter().filter_map(|old| handles.get(old).copied()).collect();
            handles.insert(node.handle, copy.add(driver, node.operation.clone(), dependencies));
        }
        clone.set("phGraphClone", copy.handle)
    })
}

fn instantiate(executable: Out<Handle>, graph: Handle, flags: u64) -> Result<(), Failure> {
    let driver = driver()?;
    let new = driver.graphs.get(graph)?.executable(flags)?;
    let handle = fresh();
    executable.set("phGraphExec", handle)?;
    driver.executables.insert(handle, Arc::new(new));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiate_v2(
    executable: Out<Handle>,
    graph: Handle,
    node: Out<Handle>,
    log: Out<u8>,
    bytes: usize,
) -> Status {
    call("cuGraphInstantiate_v2", || {
        node.set_if_wanted(0);
        if bytes > 0 {
            log.set_if_wanted(0);
        }
        instantiate(executable, graph, 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, flags: u64) -> Status {
    call("cuGraphInstantiateWithFlags", || instantiate(executable, graph, flags))
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct InstantiateParameters {
    flags: u64,
    stream: Handle,
    failed_node: Handle,
    result: u32,
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithParams(
    executable: Out<Handle>,
    graph: Handle,
    parameters: Out<InstantiateParameters>,
) -> Status {
    const SUCCESS: u32 = 0;
    call("cuGraphInstantiateWithParams", || {
        let given = parameters.get("instantiateParams")?;
        instantiate(executable, graph, given.flags)?;
        parameters.set("instantiateParams", InstantiateParameters { failed_node: 0, result: SUCCESS, ..given })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(executable: Handle) -> Status {
    call("cuGraphExecDestroy", || driver()?.executables.remove(executable).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecGetFlags(executable: Handle, flags: Out<u64>) -> Status {
    call("cuGraphExecGetFlags", || flags.set("flags", driver()?.executables.get(executable)?.flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(executable: Handle, stream: Handle) -> Status {
    call("cuGraphLaunch", || {
        let executable = driver()?.executables.get(executable)?;
        enqueue(stream, Operation::Graph(executable))
    })
}

/// There is nowhere to upload to.
#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(executable: Handle, stream: Handle) -> Status {
    call("cuGraphUpload", || {
        driver()?.executables.get(executable)?;
        super::stream::resolve(stream).map(drop)
    })
}
