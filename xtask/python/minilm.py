"""all-MiniLM-L6-v2 in float64 numpy: the inputs of its linear layers over a file of sentences.

Two commands, both run by `cargo xtask` in an environment made from minilm.lock:

  demo       writes the six linear layers of block 0 (bf16) and their inputs, one row a token, to a safetensors
             file, and NOTE.md beside it
  calibrate  writes `<module>.input_amax`, the largest |input| over all tokens, for every linear layer

The arithmetic is float64, so what is rounded to bf16 or f32 in the end does not depend on the machine's BLAS.
Sentences are run one by one: no padding token ever exists.
"""

import argparse
import hashlib
import json
import math
import sys
from datetime import date
from pathlib import Path

import numpy as np
import safetensors.numpy
import tokenizers


class MiniLM:
    """A BERT encoder that records what enters each linear layer."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "config.json").read_text())
        assert config["model_type"] == "bert" and config["hidden_act"] == "gelu", config
        self.heads = config["num_attention_heads"]
        self.blocks = config["num_hidden_layers"]
        self.eps = config["layer_norm_eps"]
        self.f32 = safetensors.numpy.load_file(folder / "model.safetensors")
        self.tensors = {name: tensor.astype(np.float64) for name, tensor in self.f32.items()}
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.inputs: dict[str, list[np.ndarray]] = {}

    def linear(self, module: str, x: np.ndarray) -> np.ndarray:
        self.inputs.setdefault(module, []).append(x)
        return x @ self.tensors[f"{module}.weight"].T + self.tensors[f"{module}.bias"]

    def layer_norm(self, module: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.eps)
        return normed * self.tensors[f"{module}.weight"] + self.tensors[f"{module}.bias"]

    def attention(self, module: str, x: np.ndarray) -> np.ndarray:
        def split(name):  # [tokens, hidden] -> [heads, tokens, head]
            return self.linear(f"{module}.self.{name}", x).reshape(len(x), self.heads, -1).transpose(1, 0, 2)

        query, key, value = split("query"), split("key"), split("value")
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        context = (weights @ value).transpose(1, 0, 2).reshape(x.shape)
        return self.layer_norm(f"{module}.output.LayerNorm", self.linear(f"{module}.output.dense", context) + x)

    def block(self, index: int, x: np.ndarray) -> np.ndarray:
        module = f"encoder.layer.{index}"
        x = self.attention(f"{module}.attention", x)
        hidden = gelu(self.linear(f"{module}.intermediate.dense", x))
        return self.layer_norm(f"{module}.output.LayerNorm", self.linear(f"{module}.output.dense", hidden) + x)

    def embed(self, sentence: str) -> np.ndarray:
        ids = self.tokenizer.encode(sentence).ids
        table = {name: self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")}
        x = table["word"][ids] + table["position"][: len(ids)] + table["token_type"][0]
        return self.layer_norm("embeddings.LayerNorm", x)

    def run(self, sentences: list[str], blocks: int):
        """Runs the first `blocks` blocks, after all of them the pooler, over each sentence."""
        for number, sentence in enumerate(sentences, 1):
            x = self.embed(sentence)
            for index in range(blocks):
                x = self.block(index, x)
            if blocks == self.blocks:
                self.linear("pooler.dense", x[:1])
            progress(number, len(sentences))


def progress(done: int, total: int):
    """One line that counts on a terminal; on anything else only its last state."""
    if sys.stderr.isatty() or done == total:
        print(f"\r{done}/{total} sentences", end="\n" if done == total else "", file=sys.stderr, flush=True)


def gelu(x: np.ndarray) -> np.ndarray:
    erf = np.fromiter(map(math.erf, (x / math.sqrt(2.0)).ravel()), np.float64, x.size).reshape(x.shape)
    return 0.5 * x * (1.0 + erf)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """The bf16 codes of finite values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    assert np.isfinite(x).all()
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write(path: Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str]):
    """A safetensors file whose bytes depend on nothing but the arguments (the library's metadata order is random)."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(data.tobytes() for _, (_, data) in sorted(tensors.items()))
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


NOTE = """\
# minilm_block0.safetensors

Block 0 of all-MiniLM-L6-v2 and what real sentences feed it: the data of `nvfp4 demo`.

- Model: sentence-transformers/all-MiniLM-L6-v2, licensed under Apache-2.0 (`LICENSE` beside this file).
- Taken from: {source}
- Made by: `cargo xtask demo-data` on {date}, from the {count} sentences of `xtask/python/sentences.txt`
  (sha256 `{sentences_sha256}`).
- Changed from the original: only the six linear layers of encoder block 0 are kept, and their f32 weights and
  biases are rounded to bf16.
- Added: `<module>.input`, the activations that enter each layer, bf16, one row a token ({tokens} tokens, no padding).
  They come from a float64 forward pass with the original f32 weights.

| module | weight | input |
| --- | --- | --- |
{table}
"""


def demo(model: MiniLM, sentences: list[str], out: Path, metadata: dict[str, str]):
    model.run(sentences, blocks=1)
    tensors = {}
    for module, rows in model.inputs.items():
        for parameter in ("weight", "bias"):
            tensors[f"{module}.{parameter}"] = ("BF16", bf16_bits(model.f32[f"{module}.{parameter}"]))
        tensors[f"{module}.input"] = ("BF16", bf16_bits(np.concatenate(rows)))
    write(out, tensors, metadata)
    rows = [
        f"| {module} | {list(model.f32[f'{module}.weight'].shape)} | {list(tensors[f'{module}.input'][1].shape)} |"
        for module in model.inputs
    ]
    tokens = tensors["encoder.layer.0.output.dense.input"][1].shape[0]
    note = NOTE.format(date=date.today(), count=len(sentences), tokens=tokens, table="\n".join(rows), **metadata)
    (out.parent / "NOTE.md").write_text(note, encoding="utf-8", newline="\n")


def calibrate(model: MiniLM, sentences: list[str], out: Path, metadata: dict[str, str]):
    model.run(sentences, blocks=model.blocks)
    amax = {
        f"{module}.input_amax": ("F32", np.array([max(np.abs(x).max() for x in rows)], np.float32))
        for module, rows in model.inputs.items()
    }
    write(out, amax, metadata)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["demo", "calibrate"])
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json, model.safetensors, tokenizer.json")
    parser.add_argument("--sentences", type=Path, required=True, help="text file, one sentence a line")
    parser.add_argument("--source", required=True, help="where the model comes from, for the file's metadata")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    text = args.sentences.read_bytes()
    sentences = text.decode("utf-8").splitlines()
    assert sentences and all(sentences), "one sentence a line, no empty line"
    model = MiniLM(args.model)
    metadata = {"source": args.source, "sentences_sha256": hashlib.sha256(text).hexdigest()}
    {"demo": demo, "calibrate": calibrate}[args.command](model, sentences, args.out, metadata)


if __name__ == "__main__":
    main()
