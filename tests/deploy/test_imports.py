"""What importing the room brings along."""

from __future__ import annotations

import subprocess
import sys


def test_the_room_is_imported_without_its_dependencies() -> None:
    heavy = ("constriction", "safetensors", "onnx", "onnxruntime", "onnxscript", "rich")
    code = f"import sys, paretorch.deploy; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
