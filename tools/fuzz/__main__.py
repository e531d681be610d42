"""See `tools.fuzz.run`."""

from __future__ import annotations

import os
import sys
import tempfile

from tools.fuzz.run import main

if __name__ == "__main__":
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    sys.exit(main())
