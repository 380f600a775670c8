"""Locks where Python has no fcntl, as on Windows."""

from new_process import run_python

HOLDER = """
import subprocess, sys
sys.modules["fcntl"] = None
from pathlib import Path
from transformer_norms.storage.locks import take_lock
folder = Path(sys.argv[1])
lock = take_lock(folder)
"""
TEST = """
assert lock.holds(folder) and take_lock(folder) is None
lock.release()
holding = HOLDER + "print(lock is not None, flush=True); sys.stdin.read()"
other = subprocess.Popen([sys.executable, "-W", "ignore", "-c", holding, folder],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert other.stdout.readline() == b"True\\n"
assert take_lock(folder) is None
other.kill()
other.wait()
lock = take_lock(folder)
folder.rename(folder.with_name("moved"))
folder.mkdir()
assert not lock.holds(folder)
"""


def test_without_fcntl_a_lock_keeps_others_out_and_ends_with_its_holder(tmp_path):
    (tmp_path / "locked").mkdir()
    run_python(f"{HOLDER}HOLDER = {HOLDER!r}\n{TEST}", tmp_path / "locked")
    assert not [*(tmp_path / "moved").iterdir()]
