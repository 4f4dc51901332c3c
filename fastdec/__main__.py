"""`python -m fastdec`, which is the command `fastdec`."""

import sys

from fastdec.cli import main

if __name__ == '__main__':
  sys.exit(main())
