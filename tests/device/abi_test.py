"""luced/device/abi.py is what luce.h says, by the generator and by the C++ compiler."""

from __future__ import annotations

import ctypes
import runpy
import subprocess
from pathlib import Path

import pytest

from luced.device import abi

ROOT = Path(__file__).parents[2]
GENERATOR = runpy.run_path(str(ROOT / "kernels/tools/gen_abi.py"))
HEADER = (ROOT / "kernels/include/luce.h").read_text()


def test_committed_bindings_are_fresh() -> None:
    assert GENERATOR["generate"](HEADER) == (ROOT / "luced/device/abi.py").read_text(), "run kernels/tools/gen_abi.py"


def test_a_form_it_does_not_know_is_refused() -> None:
    with pytest.raises(KeyError, match="double"):
        GENERATOR["generate"](HEADER.replace("float eps;", "double eps;"))
    with pytest.raises(AssertionError, match="cannot read field"):
        GENERATOR["generate"](HEADER.replace("float eps;", "float (*eps)(int);"))
    with pytest.raises(AssertionError, match="cannot read enum"):
        GENERATOR["generate"](HEADER.replace("LUCE_SILU = 0", "LUCE_SILU"))


def test_structs_lie_as_the_compiler_lays_them(tmp_path: Path) -> None:
    expected, lines = [], []
    for c_name in GENERATOR["Header"](HEADER).structs:
        struct = getattr(abi, GENERATOR["class_name"](c_name))
        expected.append(ctypes.sizeof(struct))
        lines.append(f"sizeof({c_name})")
        for field in struct._fields_:
            expected.append(getattr(struct, field[0]).offset)
            lines.append(f"offsetof({c_name}, {field[0]})")
    source = tmp_path / "layout.cpp"
    body = "".join(f'  std::printf("%zu\\n", {line});\n' for line in lines)
    source.write_text(f'#include <cstddef>\n#include <cstdio>\n#include "luce.h"\nint main() {{\n{body}}}\n')
    program = tmp_path / "layout"
    subprocess.run(["c++", f"-I{ROOT / 'kernels/include'}", source, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in printed.split()] == expected
