"""`python -m compactord_demo`: the same as the command `compactord-demo`."""

import sys

from compactord_demo.command import main

sys.exit(main())
