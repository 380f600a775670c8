"""Files that would run code if anything unpickled, imported, resolved or evaluated them."""

import base64
import gzip
import io
import json
import marshal
import pickle
import zipfile
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import torch


class Calls:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def payloads(canary: Path) -> dict[str, bytes]:
    """The content of each file. Whoever runs it makes the canary."""
    import os
    import subprocess

    code = f"open({str(canary)!r}, 'w').close()"
    touch = Calls(open, str(canary), "w")
    plain = pickle.dumps(touch)
    made = {
        "protocol 0": pickle.dumps(touch, protocol=0),
        "protocol 2": pickle.dumps(touch, protocol=2),
        "protocol 5": pickle.dumps(touch, protocol=5),
        "os.system": pickle.dumps(Calls(os.system, f"touch '{canary}'")),
        "exec": pickle.dumps(Calls(exec, code)),
        "eval": pickle.dumps(Calls(eval, code)),
        "subprocess": pickle.dumps(Calls(subprocess.check_call, ["touch", str(canary)])),
        "partial": pickle.dumps(Calls(partial(open, str(canary)), "w")),
        "inside a value": pickle.dumps({"step": 6, "rng": [touch]}),
        "by hand": b"cbuiltins\nopen\n(S" + repr(str(canary)).encode() + b"\nS'w'\ntR.",
        "pickle in a pickle": pickle.dumps(Calls(pickle.loads, plain)),
        "gzip": gzip.compress(plain),
        "joblib": _saved(joblib.dump, touch),
        "numpy objects": _saved(
            lambda value, file: np.save(file, value), np.array([touch], object)
        ),
        "torch": _saved(torch.save, {"model": touch}),
        "torch, as it was": _saved(
            partial(torch.save, _use_new_zipfile_serialization=False), {"model": touch}
        ),
        "torch in torch": _saved(torch.save, Calls(_load_torch, _saved(torch.save, touch))),
        "marshal": marshal.dumps(compile(code, "hostile", "exec")),
        "a zip of code": _zip({"__main__.py": code.encode(), "data.pkl": plain}),
        "behind a safetensors header": _safetensors(plain),
        "yaml": f"!!python/object/apply:builtins.open ['{canary}', w]\n".encode(),
        "hydra": f'{{"_target_": "builtins.open", "_args_": ["{canary}", "w"]}}'.encode(),
        "base64": json.dumps({"__reduce__": base64.b64encode(plain).decode()}).encode(),
    }
    assert not canary.exists()
    return made


def run_payload(name: str, data: bytes) -> None:
    """Loads the payload as a careless reader of that format does."""
    if name == "gzip":
        pickle.loads(gzip.decompress(data))
    elif name == "joblib":
        joblib.load(io.BytesIO(data))
    elif name == "numpy objects":
        np.load(io.BytesIO(data), allow_pickle=True)
    elif name.startswith("torch"):
        _load_torch(data)
    elif name == "marshal":
        exec(marshal.loads(data))
    elif name == "a zip of code":
        exec(zipfile.ZipFile(io.BytesIO(data)).read("__main__.py"))
    elif name == "behind a safetensors header":
        pickle.loads(data[8 + int.from_bytes(data[:8], "little") :])
    elif name == "yaml":
        import yaml

        yaml.unsafe_load(data)
    elif name == "hydra":
        from hydra.utils import instantiate

        instantiate(json.loads(data))
    elif name == "base64":
        pickle.loads(base64.b64decode(json.loads(data)["__reduce__"]))
    else:
        pickle.loads(data)


def _load_torch(data: bytes) -> object:
    return torch.load(io.BytesIO(data), weights_only=False)


def _saved(save, value) -> bytes:
    file = io.BytesIO()
    save(value, file)
    return file.getvalue()


def _zip(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def _safetensors(data: bytes) -> bytes:
    """A file whose header is right, and whose one tensor is a pickle."""
    about = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"pickle": data.hex()}, "token": about}).encode()
    return len(header).to_bytes(8, "little") + header + data
