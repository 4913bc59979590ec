"""all-MiniLM-L6-v2 by PyTorch and ONNX Runtime, as the cases `minilm_BATCH`.

model.py export MODEL FILE writes the model as ONNX, with the fusions of ONNX Runtime's own optimizer for BERT.
"""

import pathlib
import sys

import numpy as np

TOKENS = 128


def tokens(texts):
    """As `tokens` in src/model.rs."""
    text, place = np.mgrid[0:texts, 0:TOKENS]
    ids = 1_996 + (text * 131 + place * 7_919) % 20_000
    ids[:, 0], ids[:, -1] = 101, 102
    return ids.astype(np.int64)


def encoder(folder, attention):
    """The encoder with mean pooling, as a module of PyTorch: embeddings of length 1 of tokens and their mask."""
    import torch
    from safetensors.torch import load_file
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            config = BertConfig.from_json_file(pathlib.Path(folder) / "config.json")
            config._attn_implementation = attention
            self.bert = BertModel(config, add_pooling_layer=False)
            missing, _ = self.bert.load_state_dict(load_file(pathlib.Path(folder) / "model.safetensors"), strict=False)
            if missing:
                raise SystemExit(f"{folder} has no {missing}")

        def forward(self, ids, mask):
            states = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(states.dtype)
            mean = (states * weights).sum(1) / weights.sum(1)
            return torch.nn.functional.normalize(mean, dim=1)

    return Encoder().eval()


def in_torch(folder):
    """Calls of a batch size, each of which gives embeddings as an array."""
    import torch

    model = encoder(folder, "sdpa")

    def of_batch(batch):
        ids = torch.from_numpy(tokens(batch))
        mask = torch.ones_like(ids)
        return lambda: model(ids, mask).numpy()

    return of_batch


def in_onnxruntime(file, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def of_batch(batch):
        ids = tokens(batch)
        feeds = {"ids": ids, "mask": np.ones_like(ids)}
        return lambda: session.run(None, feeds)[0]

    return of_batch


def export(folder, file):
    import json
    import tempfile

    import onnx
    import torch
    from onnxruntime.transformers import optimizer

    model, ids = encoder(folder, "eager"), torch.from_numpy(tokens(2))
    with tempfile.TemporaryDirectory() as temporary:
        plain = str(pathlib.Path(temporary) / "plain.onnx")
        axes = {"ids": {0: "texts", 1: "tokens"}, "mask": {0: "texts", 1: "tokens"}}
        with torch.no_grad():
            torch.onnx.export(
                model, (ids, torch.ones_like(ids)), plain, input_names=["ids", "mask"], output_names=["embeddings"],
                dynamic_axes=axes, dynamo=False, opset_version=17,
            )
        config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        fused = optimizer.optimize_model(plain, model_type="bert", num_heads=heads, hidden_size=hidden)
        onnx.save(fused.model, file)
        counts = fused.get_fused_operator_statistics()
        print("fused: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count), file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "export":
        raise SystemExit("usage: model.py export MODEL FILE")
    export(*sys.argv[2:])
