"""Tensor files: .safetensors, which has bf16, and .npy."""

import json
import struct

import numpy as np

NAMES = {"f32": "F32", "f64": "F64", "f16": "F16", "bf16": "BF16", "i8": "I8", "i16": "I16", "i32": "I32", "i64": "I64",
         "u8": "U8", "u16": "U16", "u32": "U32", "u64": "U64", "bool": "BOOL"}


def content(array, dtype):
    if dtype == "bf16":
        array = (np.asarray(array, order="C").view(np.uint32) >> 16).astype(np.uint16)
    return array.tobytes()


def write_safetensors(path, tensors):
    """`tensors`: (array, dtype) by name."""
    header, pieces, offset = {}, [], 0
    for name, (array, dtype) in tensors.items():
        piece = content(array, dtype)
        header[name] = {"dtype": NAMES[dtype], "shape": list(array.shape), "data_offsets": [offset, offset + len(piece)]}
        pieces.append(piece)
        offset += len(piece)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(pieces))


def write_npy(path, array, column_major):
    np.save(path, np.asarray(array, order="F" if column_major else "C"))
