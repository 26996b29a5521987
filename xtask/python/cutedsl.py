"""Compiles FlashInfer's CuTe DSL GEMM kernels ahead of time; needs no GPU, no PyTorch and no CUDA toolkit.

    compile.py --arch sm_100a --request request.json --out FOLDER

The request is {"recorder": C source, "kernels": [...]}; each kernel is
    {"name", "program": "persistent" | "split_k" | "b12x", "tile": [m, n], "cluster": [m, n], "split_k", "tile_k",
     "swap_ab", "prefetch", "l2": "none" | "a_first" | "b_first" | "both_last", "output": "bf16" | "f16",
     "shapes": [[m, n, k, clusters], ...]}.
For each kernel the folder gets NAME.cubin, NAME.ptx and NAME.launches: what the host function that the DSL compiles
beside the kernel launches for each of the shapes, as a recorder in the place of the CUDA runtime sees it.
`report.json` says what was compiled, with which versions, and how long it took.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--arch", required=True)
parser.add_argument("--request", type=Path, required=True)
parser.add_argument("--out", type=Path, required=True)
arguments = parser.parse_args()
request = json.loads(arguments.request.read_text())
out = arguments.out.resolve()
dump = out / "dump"
dump.mkdir(parents=True, exist_ok=True)
# The DSL reads these when it is imported.
os.environ["CUTE_DSL_ARCH"] = arguments.arch
os.environ["CUTE_DSL_KEEP"] = "ptx,cubin"
os.environ["CUTE_DSL_DUMP_DIR"] = str(dump)

import cutlass
import cutlass.cute as cute
import cuda.bindings.driver as cuda
from cutlass.cute.runtime import make_ptr
from importlib.metadata import version
from importlib.util import find_spec


class Placeholder:
    """Stands for whatever the kernel files name of PyTorch; they use it in signatures only."""

    def __call__(self, *positional, **named):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder()

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__


class PlaceholderModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name in ("Tensor", "dtype", "device") else Placeholder()


def import_kernels():
    """Lets the kernel files be imported without the packages' own __init__, which need PyTorch and a GPU."""
    torch = PlaceholderModule("torch")
    torch.__path__, torch.__spec__ = [], None
    sys.modules["torch"], sys.modules["torch.cuda"] = torch, PlaceholderModule("torch.cuda")
    root = Path(find_spec("flashinfer").submodule_search_locations[0])
    for name in ("flashinfer", "flashinfer.gemm", "flashinfer.gemm.kernels", "flashinfer.cute_dsl"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    return root / "gemm" / "kernels"


kernels_folder = import_kernels()
OUTPUTS = {"bf16": cutlass.BFloat16, "f16": cutlass.Float16}
SOURCES = {
    "persistent": ["dense_blockscaled_gemm_sm100.py", "dense_blockscaled_gemm_sm100_common.py"],
    "split_k": ["dense_blockscaled_gemm_sm100_splitk.py", "dense_blockscaled_gemm_sm100_common.py"],
    "b12x": ["dense_blockscaled_gemm_sm120_b12x.py"],
}


def program(kernel):
    """The vendor's kernel object."""
    tile = tuple(kernel["tile"])
    if kernel["program"] == "persistent":
        from flashinfer.gemm.kernels.dense_blockscaled_gemm_sm100 import Sm100BlockScaledPersistentDenseGemmKernel

        return Sm100BlockScaledPersistentDenseGemmKernel(
            16,
            tile,
            tuple(kernel["cluster"]),
            use_prefetch=kernel["prefetch"],
            enable_pdl=True,
            mma_inst_tile_k=kernel["tile_k"] // 64,
            a_l2_evict_first=kernel["l2"] == "a_first",
            b_l2_evict_first=kernel["l2"] == "b_first",
            a_l2_evict_last=kernel["l2"] == "both_last",
            b_l2_evict_last=kernel["l2"] == "both_last",
        )
    if kernel["program"] == "split_k":
        from flashinfer.gemm.kernels.dense_blockscaled_gemm_sm100_splitk import Sm100BlockScaledSplitKGemmKernel

        return Sm100BlockScaledSplitKGemmKernel(16, tile, kernel["split_k"], enable_pdl=True)
    from flashinfer.gemm.kernels.dense_blockscaled_gemm_sm120_b12x import DenseGemmKernel

    return DenseGemmKernel(
        16, tile, (1, 1), use_prefetch=kernel["prefetch"], enable_pdl=True, swap_ab=kernel["swap_ab"]
    )


def compiled(kernel):
    """The kernel behind a host function that takes pointers, sizes and the number of clusters that fit the device."""
    gemm = program(kernel)
    # b12x swaps inside: its operands and its output stay as they are.
    transposed = kernel["swap_ab"] and kernel["program"] != "b12x"

    @cute.jit
    def entry(
        a: cute.Pointer,
        b: cute.Pointer,
        c: cute.Pointer,
        sfa: cute.Pointer,
        sfb: cute.Pointer,
        alpha: cute.Pointer,
        m: cutlass.Int32,
        n: cutlass.Int32,
        k: cutlass.Int32,
        clusters: cutlass.Int32,
        stream: cuda.CUstream,
    ):
        row_major = lambda pointer, rows, columns: cute.make_tensor(
            pointer, cute.make_ordered_layout((rows, columns), order=(1, 0))
        )
        if cutlass.const_expr(transposed):
            output = cute.make_tensor(c, cute.make_ordered_layout((m, n), order=(0, 1)))
        else:
            output = row_major(c, m, n)
        gemm.wrapper(
            row_major(a, m, k),
            row_major(b, n, k),
            output,
            cutlass.Int64((m + 127) // 128),
            cutlass.Int64((n + 127) // 128),
            cutlass.Int64((k // 16 + 3) // 4),
            1,
            sfa,
            sfb,
            cute.make_tensor(alpha, cute.make_layout((1,))),
            clusters,
            stream,
            transposed,
        )

    pointer = lambda dtype, alignment: make_ptr(dtype, alignment, cute.AddressSpace.gmem, assumed_align=alignment)
    return cute.compile(
        entry,
        pointer(cutlass.Float4E2M1FN, 32),
        pointer(cutlass.Float4E2M1FN, 32),
        pointer(OUTPUTS[kernel["output"]], 16),
        pointer(cutlass.Float8E4M3FN, 16),
        pointer(cutlass.Float8E4M3FN, 16),
        pointer(cutlass.Float32, 4),
        cutlass.Int32(256),
        cutlass.Int32(256),
        cutlass.Int32(256),
        cutlass.Int32(148),
        cuda.CUstream(0),
        options="--opt-level 2",
    )


def run(command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def record(name, sizes, shapes):
    """Runs the host function over the recorder for every shape."""
    libraries = Path(find_spec("nvidia_cutlass_dsl").submodule_search_locations[0]) / "cu13" / "lib"
    recorder = out / f"{name}.recorder"
    symbols = run(["nm", out / f"{name}.o"])
    symbol = lambda pattern: re.search(rf" T ({pattern})$", symbols, re.MULTILINE).group(1)
    run(
        ["cc", "-O1", "-o", recorder, request["recorder"], out / f"{name}.o"]
        + [libraries / "libcuda_dialect_runtime_static.a", "-lstdc++", "-lm", "-ldl", "-lpthread"]
        + ["-Wl,--unresolved-symbols=ignore-all", "-no-pie"]
        + [f"-DINIT={symbol(f'_mlir_{name}_cuda_init')}"]
        + [f"-DLOAD={symbol(f'_mlir_{name}_cuda_load_to_device')}"]
        + [f"-DENTRY={symbol(f'_mlir_{name}__mlir_ciface_.*')}"]
        + [f"-DSIZES={','.join(map(str, sizes))}"]
    )
    lines = "".join(" ".join(map(str, shape)) + "\n" for shape in shapes)
    text = run([recorder], input=lines)
    for temporary in (recorder, out / f"{name}.o", out / f"{name}.h"):
        temporary.unlink()
    return text


def parameters(ptx):
    """Sizes of the kernel's parameters, from its declaration."""
    declaration = re.search(r"\.entry (\w+)\((.*?)\)", ptx, re.DOTALL)
    sizes = []
    for line in declaration.group(2).split(",\n"):
        array = re.search(r"\.b8 \w+\[(\d+)\]", line)
        scalar = re.search(r"\.param \.[busf](\d+) ", line)
        sizes.append(int(array.group(1)) if array else int(scalar.group(1)) // 8)
    return declaration.group(1), sizes


report = {"versions": {}, "sources": {}, "kernels": []}
for package in ("nvidia-cutlass-dsl", "flashinfer-python"):
    report["versions"][package] = version(package)
for kernel in request["kernels"]:
    start = time.monotonic()
    name = kernel["name"]
    for old in dump.iterdir():
        old.unlink()
    function = compiled(kernel)
    function.export_to_c(file_path=str(out), file_name=name, function_prefix=name)
    for extension in ("cubin", "ptx"):
        (file,) = dump.glob(f"*.{extension}")
        file.rename(out / f"{name}.{extension}")
    # The DSL ends the text with a zero byte.
    ptx = (out / f"{name}.ptx").read_bytes().rstrip(b"\0").decode()
    (out / f"{name}.ptx").write_text(ptx)
    symbol, sizes = parameters(ptx)
    (out / f"{name}.launches").write_text(record(name, sizes, kernel["shapes"]))
    for source in SOURCES[kernel["program"]]:
        digest = hashlib.sha256((kernels_folder / source).read_bytes()).hexdigest()
        report["sources"][f"flashinfer/gemm/kernels/{source}"] = digest
    seconds = time.monotonic() - start
    report["kernels"].append({"name": name, "symbol": symbol, "parameters": sizes, "seconds": round(seconds, 2)})
(out / "report.json").write_text(json.dumps(report))
