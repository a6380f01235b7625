"""What `import orbit_ckpt` adds to `import jax`.

A clock would make this test fail on a busy machine, so it looks at what is imported instead.
`benchmarks/import_time.py` has the milliseconds.
"""

from __future__ import annotations

import subprocess
import sys

# Each takes a few milliseconds at most; TensorStore, which takes ten, is what every save needs.
EXPECTED = {"crc32c", "etils", "msgspec", "orbit_ckpt", "tensorstore", "typing_extensions"}

SCRIPT = """
import sys, jax
before = {name.partition(".")[0] for name in sys.modules}
import orbit_ckpt
print(*{name.partition(".")[0] for name in sys.modules} - before)
"""


def test_import_brings_in_no_package_beyond_the_expected() -> None:
    output = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    added = {name for name in output.split() if not name.startswith("_")}  # Cython adds such names
    assert added - sys.stdlib_module_names <= EXPECTED
