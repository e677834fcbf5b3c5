"""The safetensors format, as far as tests need it: a header in JSON, then the data."""

import json
import math

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "I32": 4, "I64": 8, "U8": 1}


def write(path, tensors):
    """tensors: name → (dtype, shape, bytes)."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        assert len(data) == math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text +
                     b"".join(data for _, _, data in tensors.values()))


def read(path):
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   content[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write_folder(folder, tensors, shards):
    """As Hugging Face lays a model out: shards, and an index of them."""
    folder.mkdir()
    names, places = list(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        write(folder / file, part)
        places |= {name: file for name in part}
    total = sum(len(data) for _, _, data in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": places}))


def read_folder(folder):
    """Every tensor of every file below."""
    return {name: tensor for path in sorted(folder.rglob("*.safetensors"))
            for name, tensor in read(path).items()}
