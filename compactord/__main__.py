"""Entry point of `python -m compactord`, the same as the command `compactord`."""

import sys

from compactord.cli.command import main

sys.exit(main())
