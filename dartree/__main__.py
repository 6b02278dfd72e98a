"""``python -m dartree``."""

import sys

from dartree.cli import main

sys.exit(main())
