"""Runs `compactord-demo` as `python -m compactord_demo`."""

import sys

from compactord_demo.command import main

sys.exit(main())
