"""`python -m anex`."""

import sys

from anex.cli import main

sys.exit(main())
