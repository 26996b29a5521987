//! The nodes of graphs: adding them, asking about them.

use super::{
    boundary::{Failure, call},
    context::current,
    handle::Handle,
    launch::{KernelLaunch, NodeParameters},
    operation::{HostCall, Operation},
    pointer::{Host, In, Out},
    set::{Set, SetParameters},
    state::{driver, lock},
    status::Status,
};
use std::sync::Arc;

super::entries! {
    cuGraphGetNodes, cuGraphGetRootNodes, cuGraphGetEdges, cuGraphGetEdges_v2, cuGraphNodeGetType, cuGraphNodeGetContainingGraph, cuGraphNodeGetDependencies, cuGraphNodeGetDependencies_v2, cuGraphAddEmptyNode, cuGraphAddHostNode, cuGraphAddKernelNode_v2, cuGraphAddMemsetNode, cuGraphAddChildGraphNode, cuGraphAddDependencies, cuGraphAddDependencies_v2, cuGraphDestroyNode, cuGraphKernelNodeGetParams_v2, cuGraphMemFreeNodeGetParams,
}

/// Writes a list as the API returns lists: its length if no array is given, else as many as the array holds, the rest null.
fn put_list<T: Copy>(items: &[T], null: T, array: Out<T>, count: Out<usize>) -> Result<(), Failure> {
    if array.is_null() {
        return count.set("count", items.len());
    }
    let room = count.get("count")?;
    for index in 0..room {
        array.set_at(index, items.get(index).copied().unwrap_or(null));
    }
    count.set("count", items.len().min(room))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) -> Status {
    call("cuGraphGetNodes", || {
        let graph = driver()?.graphs.get(graph)?;
        let handles: Vec<_> = lock(&graph.nodes).iter().map(|node| node.handle).collect();
        put_list(&handles, 0, nodes, count)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetRootNodes(graph: Handle, nodes: Out<Handle>, count: Out<usize>) -> Status {
    call("cuGraphGetRootNodes", || {
        let graph = driver()?.graphs.get(graph)?;
        let nodes_of = lock(&graph.nodes);
        let roots = nodes_of.iter().filter(|node| lock(&node.dependencies).is_empty());
        let handles: Vec<_> = roots.map(|node| node.handle).collect();
        put_list(&handles, 0, nodes, count)
    })
}

fn edges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) -> Result<(), Failure> {
    let graph = driver()?.graphs.get(graph)?;
    let mut edges = Vec::new();
    for node in lock(&graph.nodes).iter() {
        edges.extend(lock(&node.dependencies).iter().map(|&dependency| (dependency, node.handle)));
    }
    let (sources, targets): (Vec<_>, Vec<_>) = edges.into_iter().unzip();
    if from.is_null() != to.is_null() {
        return Err(Failure::quiet(Status::INVALID_VALUE));
    }
    let room = count.get("numEdges")?;
    put_list(&sources, 0, from, count)?;
    count.set("numEdges", room)?;
    put_list(&targets, 0, to, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetEdges(graph: Handle, from: Out<Handle>, to: Out<Handle>, count: Out<usize>) -> Status {
    call("cuGraphGetEdges", || edges(graph, from, to, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphGetEdges_v2(
    graph: Handle,
    from: Out<Handle>,
    to: Out<Handle>,
    data: Out<u64>,
    count: Out<usize>,
) -> Status {
    call("cuGraphGetEdges_v2", || {
        edges(graph, from, to, count)?;
        (0..if data.is_null() { 0 } else { count.get("numEdges")? }).for_each(|index| data.set_at(index, 0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetType(node: Handle, kind: Out<u32>) -> Status {
    call("cuGraphNodeGetType", || kind.set("type", driver()?.nodes.get(node)?.operation.node_type()))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetContainingGraph(node: Handle, graph: Out<Handle>) -> Status {
    call("cuGraphNodeGetContainingGraph", || graph.set("phGraph", driver()?.nodes.get(node)?.graph))
}

fn dependencies(node: Handle, nodes: Out<Handle>, count: Out<usize>) -> Result<(), Failure> {
    let node = driver()?.nodes.get(node)?;
    let dependencies = lock(&node.dependencies).clone();
    put_list(&dependencies, 0, nodes, count)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetDependencies(node: Handle, nodes: Out<Handle>, count: Out<usize>) -> Status {
    call("cuGraphNodeGetDependencies", || dependencies(node, nodes, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetDependencies_v2(
    node: Handle,
    nodes: Out<Handle>,
    data: Out<u64>,
    count: Out<usize>,
) -> Status {
    call("cuGraphNodeGetDependencies_v2", || {
        dependencies(node, nodes, count)?;
        (0..if data.is_null() { 0 } else { count.get("numDependencies")? }).for_each(|i| data.set_at(i, 0));
        Ok(())
    })
}

fn add(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    operation: Operation,
) -> Result<(), Failure> {
    let driver = driver()?;
    let graph = driver.graphs.get(graph)?;
    let dependencies = dependencies.array("dependencies", count)?;
    for &dependency in &dependencies {
        if driver.nodes.get(dependency)?.graph != graph.handle {
            return Err(Failure::loud(Status::INVALID_VALUE, "a dependency is a node of another graph"));
        }
    }
    node.set("phGraphNode", graph.add(driver, operation, dependencies))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddEmptyNode(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
) -> Status {
    call("cuGraphAddEmptyNode", || add(node, graph, dependencies, count, Operation::Empty))
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HostParameters {
    function: Option<unsafe extern "C" fn(usize)>,
    data: Host,
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddHostNode(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: In<HostParameters>,
) -> Status {
    call("cuGraphAddHostNode", || {
        let HostParameters { function, data } = parameters.read("nodeParams")?;
        let function = function.ok_or(Failure::quiet(Status::INVALID_VALUE))?;
        add(node, graph, dependencies, count, Operation::Host(HostCall { function, data }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddKernelNode_v2(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: In<NodeParameters>,
) -> Status {
    call("cuGraphAddKernelNode_v2", || {
        let launch = KernelLaunch::of_node(&parameters.read("nodeParams")?)?;
        add(node, graph, dependencies, count, Operation::Kernel(Arc::new(launch)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddMemsetNode(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: In<SetParameters>,
    _context: Handle,
) -> Status {
    call("cuGraphAddMemsetNode", || {
        let set = Set::of_node(&parameters.read("memsetParams")?)?;
        add(node, graph, dependencies, count, Operation::Set(set))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddChildGraphNode(
    node: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    child: Handle,
) -> Status {
    call("cuGraphAddChildGraphNode", || {
        let child = driver()?.graphs.get(child)?.executable(0)?;
        add(node, graph, dependencies, count, Operation::Graph(Arc::new(child)))
    })
}

fn add_dependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Result<(), Failure> {
    let driver = driver()?;
    let graph = driver.graphs.get(graph)?.handle;
    for (from, to) in from.array("from", count)?.into_iter().zip(to.array("to", count)?) {
        let (source, target) = (driver.nodes.get(from)?, driver.nodes.get(to)?);
        if source.graph != graph || target.graph != graph {
            return Err(Failure::loud(Status::INVALID_VALUE, "a node of another graph"));
        }
        lock(&target.dependencies).push(from);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddDependencies(graph: Handle, from: In<Handle>, to: In<Handle>, count: usize) -> Status {
    call("cuGraphAddDependencies", || add_dependencies(graph, from, to, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddDependencies_v2(
    graph: Handle,
    from: In<Handle>,
    to: In<Handle>,
    data: In<u64>,
    count: usize,
) -> Status {
    call("cuGraphAddDependencies_v2", || {
        if data.array("edgeData", if data.is_null() { 0 } else { count })?.iter().any(|&edge| edge != 0) {
            return Err(Failure::loud(Status::NOT_SUPPORTED, "edges with data are not modelled"));
        }
        add_dependencies(graph, from, to, count)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroyNode(node: Handle) -> Status {
    call("cuGraphDestroyNode", || {
        let driver = driver()?;
        let node = driver.nodes.remove(node)?;
        let graph = driver.graphs.get(node.graph)?;
        let mut nodes = lock(&graph.nodes);
        nodes.retain(|other| other.handle != node.handle);
        for other in nodes.iter() {
            lock(&other.dependencies).retain(|dependency| *dependency != node.handle);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphKernelNodeGetParams_v2(node: Handle, parameters: Out<NodeParameters>) -> Status {
    call("cuGraphKernelNodeGetParams_v2", || {
        let node = driver()?.nodes.get(node)?;
        let Operation::Kernel(launch) = &node.operation else {
            return Err(Failure::loud(Status::INVALID_VALUE, "the node is no kernel"));
        };
        parameters.set("nodeParams", launch.node_parameters(current()?.handle))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphMemFreeNodeGetParams(node: Handle, address: Out<u64>) -> Status {
    call("cuGraphMemFreeNodeGetParams", || match driver()?.nodes.get(node)?.operation {
        Operation::Free(freed) => address.set("dptr_out", freed),
        _ => Err(Failure::loud(Status::INVALID_VALUE, "the node frees no memory")),
    })
}
