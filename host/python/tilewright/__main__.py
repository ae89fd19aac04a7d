"""`python -m tilewright` is the command."""

from __future__ import annotations

import sys

from ._command import main

sys.exit(main())
