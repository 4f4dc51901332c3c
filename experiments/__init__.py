"""Launchers: `python -m experiments.<name> --config=configs/<page>.py:<choices>
--workdir=<folder>`."""

import sys

from fastdec import extras
from fastdec.errors import UserError

try:
  # what every launcher imports before `cli.run` can turn a mistake into a sentence
  with extras.explained():
    import absl  # noqa: F401
    import ml_collections  # noqa: F401
except UserError as error:
  print(error, file=sys.stderr)
  sys.exit(2)
