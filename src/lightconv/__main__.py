"""`python -m lightconv` is the command `lightconv`."""

import sys

from lightconv.cli import main

sys.exit(main())
