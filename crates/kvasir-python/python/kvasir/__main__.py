"""``python -m kvasir …`` is the command ``kvasir …``."""

import os
import sys

from .testing import binary

if __name__ == "__main__":
    path = binary()
    os.execv(path, [path, *sys.argv[1:]])
