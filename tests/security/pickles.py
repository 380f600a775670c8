"""Files that would run code if anything unpickled, imported, resolved or evaluated them."""

import base64
import gzip
import io
import json
import marshal
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import torch
import yaml
from hydra.utils import instantiate

Run = Callable[[bytes], object]


class Calls:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def payloads(canary: Path) -> dict[str, tuple[bytes, Run]]:
    """The content of each file, and what loads it as a careless reader of its format does. Whoever
    runs it makes the canary."""
    code = f"open({str(canary)!r}, 'w').close()"
    touch = Calls(open, str(canary), "w")
    plain = pickle.dumps(touch)
    calls = {
        "os.system": Calls(os.system, f"touch '{canary}'"),
        "exec": Calls(exec, code),
        "eval": Calls(eval, code),
        "subprocess": Calls(subprocess.check_call, ["touch", str(canary)]),
        "partial": Calls(partial(open, str(canary)), "w"),
        "inside a value": {"step": 6, "rng": [touch]},
        "pickle in a pickle": Calls(pickle.loads, plain),
    }
    save_old = partial(torch.save, _use_new_zipfile_serialization=False)
    hydra = f'{{"_target_": "builtins.open", "_args_": ["{canary}", "w"]}}'
    nested = Calls(_load_torch, _saved(torch.save, touch))
    pickled = {f"protocol {number}": pickle.dumps(touch, protocol=number) for number in (0, 2, 5)}
    pickled |= {name: pickle.dumps(call) for name, call in calls.items()}
    made: dict[str, tuple[bytes, Run]] = {
        **{name: (data, pickle.loads) for name, data in pickled.items()},
        "by hand": (f"cbuiltins\nopen\n(S{str(canary)!r}\nS'w'\ntR.".encode(), pickle.loads),
        "gzip": (gzip.compress(plain), lambda data: pickle.loads(gzip.decompress(data))),
        "joblib": (_saved(joblib.dump, touch), lambda data: joblib.load(io.BytesIO(data))),
        "numpy objects": (
            _saved(lambda value, file: np.save(file, value), np.array([touch], object)),
            lambda data: np.load(io.BytesIO(data), allow_pickle=True),
        ),
        "torch": (_saved(torch.save, {"model": touch}), _load_torch),
        "torch, as it was": (_saved(save_old, {"model": touch}), _load_torch),
        "torch in torch": (_saved(torch.save, nested), _load_torch),
        "marshal": (
            marshal.dumps(compile(code, "hostile", "exec")),
            lambda data: exec(marshal.loads(data)),
        ),
        "a zip of code": (
            _saved(_zip, {"__main__.py": code.encode(), "data.pkl": plain}),
            lambda data: exec(zipfile.ZipFile(io.BytesIO(data)).read("__main__.py")),
        ),
        "after a safetensors header": (
            _safetensors(plain),
            lambda data: pickle.loads(data[8 + int.from_bytes(data[:8], "little") :]),
        ),
        "yaml": (
            f"!!python/object/apply:builtins.open ['{canary}', w]\n".encode(),
            yaml.unsafe_load,
        ),
        "hydra": (hydra.encode(), lambda data: instantiate(json.loads(data))),
        "base64": (
            json.dumps({"__reduce__": base64.b64encode(plain).decode()}).encode(),
            lambda data: pickle.loads(base64.b64decode(json.loads(data)["__reduce__"])),
        ),
    }
    assert not canary.exists()
    return made


def _load_torch(data: bytes) -> object:
    return torch.load(io.BytesIO(data), weights_only=False)


def _zip(files: dict[str, bytes], file) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def _saved(save, value) -> bytes:
    file = io.BytesIO()
    save(value, file)
    return file.getvalue()


def _safetensors(data: bytes) -> bytes:
    """A file whose header is right, and whose one tensor is a pickle."""
    about = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    header = json.dumps({"__metadata__": {"pickle": data.hex()}, "token": about}).encode()
    return len(header).to_bytes(8, "little") + header + data
