"""Reads a checkpoint that `nvfp4 quantize` wrote with the library that defines its format, and compares.

Run by `cargo xtask test --upstream` in an environment made from upstream.lock:

    upstream.py versions
    upstream.py compare --format F --scheme S --checkpoint DIR --dequantized FILE --calibration FILE
    upstream.py demo-data --model DIR --sentences FILE --demo FILE

`compare` prints one JSON object and fails, naming the tensor, if anything differs from what `nvfp4 dequantize`
made of the same checkpoint (FILE, f32). compressed-tensors decodes to bf16 (f32 arithmetic, rounded once), so its
result is compared with FILE rounded to bf16; ModelOpt is compared in f32 and in bf16. All are compared bit for bit,
but for the sign of zero in ModelOpt, which has none. A compressed-tensors checkpoint is also loaded as a model, by
transformers.

`demo-data` runs the model in PyTorch and compares the inputs of block 0 with the demo data: an independent
implementation of what minilm.py computes.
"""

import argparse
import json
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file

PACKAGES = ["compressed-tensors", "nvidia-modelopt", "torch", "transformers", "safetensors", "numpy"]
BLOCK = 16
E2M1_MAX_TIMES_E4M3_MAX = 2688.0


def modules(tensors: dict, suffix: str) -> list[str]:
    found = sorted(name.removesuffix(suffix) for name in tensors if name.endswith(suffix))
    assert found, f"no tensor is named *{suffix}"
    return found


def same_bits(what: str, found: torch.Tensor, expected: torch.Tensor) -> int:
    assert found.shape == expected.shape, f"{what}: {found.shape} upstream, {expected.shape} here"
    assert found.dtype == expected.dtype, f"{what}: {found.dtype} upstream, {expected.dtype} here"
    integer = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[found.dtype]
    wrong = (found.contiguous().view(integer) != expected.contiguous().view(integer)).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(f"{what}{list(at)}: {found[at]!r} upstream, {expected[at]!r} here; {len(wrong)} differ")
    return found.numel()


def compressed_tensors(config: dict, tensors: dict, dequantized: dict, scheme: str) -> tuple[list[str], int, dict]:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    parsed = QuantizationConfig.model_validate(config["quantization_config"])
    assert parsed.format == "nvfp4-pack-quantized", parsed.format
    assert len(parsed.config_groups) == 1, parsed.config_groups
    (group,) = parsed.config_groups.values()
    assert (group.weights.num_bits, group.weights.group_size) == (4, BLOCK), group.weights
    assert (group.input_activations is not None) == (scheme == "w4a4"), group.input_activations
    compressor = BaseCompressor.get_value_from_registry(parsed.format)
    parameters = compressor.compression_param_names(group)
    assert ("input_global_scale" in parameters) == (scheme == "w4a4"), parameters

    names, values = modules(tensors, ".weight_packed"), 0
    for name in names:
        state = {parameter: tensors[f"{name}.{parameter}"] for parameter in parameters}
        weight = compressor.decompress(state, group)["weight"]
        values += same_bits(f"{name}.weight", weight, dequantized[f"{name}.weight"].to(torch.bfloat16))
    amax = {name: E2M1_MAX_TIMES_E4M3_MAX / tensors[f"{name}.input_global_scale"].item() for name in names if scheme == "w4a4"}
    return names, values, amax


def modelopt(config: dict, tensors: dict, dequantized: dict, scheme: str) -> tuple[list[str], int, dict]:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    quantization = config["quantization_config"]
    assert quantization["quant_method"] == "modelopt", quantization
    assert quantization["quant_algo"] == {"w4a4": "NVFP4", "w4a16": "W4A16_NVFP4"}[scheme], quantization

    names, values = modules(tensors, ".weight_scale_2"), 0
    for name in names:
        packed = tensors[f"{name}.weight"]
        shape = torch.Size((packed.shape[0], packed.shape[1] * 2))
        for dtype in (torch.float32, torch.bfloat16):
            weight = NVFP4QTensor(shape, dtype, packed).dequantize(
                dtype,
                scale=tensors[f"{name}.weight_scale"],
                double_scale=tensors[f"{name}.weight_scale_2"],
                block_sizes={-1: BLOCK},
            )
            # ModelOpt decodes code 8, which is -0, to +0; adding +0 makes every zero positive and changes nothing else.
            values += same_bits(f"{name}.weight", weight, dequantized[f"{name}.weight"].to(dtype) + 0.0)
    amax = {name: E2M1_MAX_TIMES_E4M3_MAX * tensors[f"{name}.input_scale"].item() for name in names if scheme == "w4a4"}
    stray = [name for name in tensors if name.endswith(".input_scale")]
    assert bool(stray) == (scheme == "w4a4"), stray
    return names, values, amax


def loaded_by_transformers(checkpoint: Path, dequantized: dict) -> int:
    """Loads the checkpoint as a user of transformers does, and compares the weights it computes with."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(checkpoint, dtype=torch.bfloat16)
    with torch.no_grad():
        output = model(torch.arange(100, 116)[None]).last_hidden_state  # transformers decompresses at the first call
    assert output.isfinite().all(), "the model's output is not finite"
    linears = {name: module for name, module in model.named_modules() if hasattr(module, "weight_scale")}
    for name, module in linears.items():
        expected = dequantized[f"{name}.weight"].to(torch.bfloat16)
        same_bits(f"{name}.weight in transformers", module.weight.detach(), expected)
    return len(linears)


def compare(args):
    config = json.loads((args.checkpoint / "config.json").read_text())
    tensors = {}
    for file in sorted(args.checkpoint.glob("*.safetensors")):
        tensors |= load_file(file)
    dequantized = load_file(args.dequantized)
    assert all(dequantized[name].dtype in (torch.float32, torch.bfloat16) for name in dequantized if name.endswith(".weight"))
    decode = {"compressed-tensors": compressed_tensors, "modelopt": modelopt}[args.format]
    names, values, amax = decode(config, tensors, dequantized, args.scheme)
    calibration = load_file(args.calibration)
    for name, found in amax.items():
        expected = calibration[f"{name}.input_amax"].item()
        assert abs(found / expected - 1.0) < 1e-6, f"{name}: input amax {found} in the checkpoint, {expected} calibrated"
    report = {"modules": len(names), "values": values, "input_scales": len(amax)}
    if args.format == "compressed-tensors":
        report["modules_in_transformers"] = loaded_by_transformers(args.checkpoint, dequantized)
        assert report["modules_in_transformers"] == len(names), report
    print(json.dumps(report))


def demo_data(args):
    from tokenizers import Tokenizer
    from transformers import AutoModel

    demo = load_file(args.demo)
    model = AutoModel.from_pretrained(args.model, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_padding()
    names = modules(demo, ".input")
    rows = {name: [] for name in names}
    for name in names:
        model.get_submodule(name).register_forward_pre_hook(lambda _, inputs, name=name: rows[name].append(inputs[0][0]))
    with torch.no_grad():
        for sentence in args.sentences.read_text(encoding="utf-8").splitlines():
            model(torch.tensor([tokenizer.encode(sentence).ids]))
    report = {}
    for name in names:
        expected, found = torch.cat(rows[name]).double(), demo[f"{name}.input"].double()
        assert found.shape == expected.shape, f"{name}.input: {found.shape} in the demo data, {expected.shape} in PyTorch"
        # bf16 has 8 significant bits, so rounding moves x by at most 2^-8 |x|; PyTorch's f32 arithmetic adds far less.
        excess = ((found - expected).abs() - expected.abs() * 2.0**-8).max().item()
        assert excess <= 1e-5, f"{name}.input differs from PyTorch by {excess} more than bf16 rounding explains"
        for parameter in ("weight", "bias"):
            original = model.get_submodule(name).get_parameter(parameter).detach().to(torch.bfloat16)
            same_bits(f"{name}.{parameter}", demo[f"{name}.{parameter}"], original)
        report[name] = {"tokens": found.shape[0], "largest_excess_over_bf16_rounding": max(excess, 0.0)}
    print(json.dumps(report))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("versions")
    sub = commands.add_parser("compare")
    sub.add_argument("--format", choices=["compressed-tensors", "modelopt"], required=True)
    sub.add_argument("--scheme", choices=["w4a4", "w4a16"], required=True)
    for name in ("checkpoint", "dequantized", "calibration"):
        sub.add_argument(f"--{name}", type=Path, required=True)
    sub = commands.add_parser("demo-data")
    for name in ("model", "sentences", "demo"):
        sub.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if args.command == "versions":
        print(json.dumps({package: version(package) for package in PACKAGES}))
    else:
        {"compare": compare, "demo-data": demo_data}[args.command](args)


if __name__ == "__main__":
    main()
