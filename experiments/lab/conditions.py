"""What a measurement depends on beside the code that is measured: goes into every line of
results."""

from typing import Any

from fastdec.evaluation import rows

Conditions = dict[str, Any]


def here(config: str = '') -> Conditions:
  """The conditions of this process: machine, versions, commit and day.

  Args:
    config: the settings in a word, such as 'configs/wmt14.py:k=8'; launchers give
      `cli.config_string()`.
  """
  return {'config': config, **rows.conditions()}
