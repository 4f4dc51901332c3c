"""What is compared: the images of fine-tuned models against those of the baseline, as table2 left
them.

A file is <split>-k<k>-<regime>-<rule>.npz with uint8 arrays 'input' [n, 8, 8, 3] and 'output' [n,
32, 32, 3], or of 16 x 16 pixels, the same pictures in the same order in all files. Method 1 is each
of the regime 'finetune' with the rules of Table 3; method 2, the baseline, is "Regular, exact, k =
1". Files of other regimes and rules are none of this study's.
"""

import dataclasses
import hashlib
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastdec.data.images.resizing import SIDES, SMALL
from fastdec.errors import UserError

RULES = ('exact', 'distance-2')
NAME = re.compile(r'(?P<split>.+?)-k(?P<k>\d+)-(?P<regime>regular|finetune)-(?P<rule>.+)')
SHAPES = {'input': [(SMALL, SMALL, 3)], 'output': [(side, side, 3) for side in reversed(SIDES)]}
REMEDY = 'python -m experiments.table2 with the same --workdir makes it'


class Trial(NamedTuple):
  """One question: picture `image` enlarged by method 1 (k, rule), or by the baseline?"""

  k: int
  rule: str
  image: int


@dataclasses.dataclass(frozen=True)
class Study:
  """The images of a study; `digest` (hex) changes when any of them does."""

  inputs: np.ndarray  # uint8[n, 8, 8, 3]
  baseline: np.ndarray  # uint8[n, h, h, 3]
  outputs: dict[tuple[int, str], np.ndarray]  # (k, rule) -> uint8[n, h, h, 3]
  digest: str

  @classmethod
  def of(cls, workdir: Path) -> 'Study':
    """The study of a workdir of table2.

    Raises:
      UserError: there are no images, no baseline, two splits, or files that are damaged or of
        different pictures.
    """
    folder = workdir / 'images'
    if not workdir.is_dir():
      raise UserError(
        f'there is no folder {workdir}: give --workdir of a finished table2, {REMEDY}'
      )
    files = _files(folder)
    methods = sorted(method for method in files if method[0] != 1)
    if not methods:
      raise UserError(
        f'{folder} holds no images of fine-tuned models (such as'
        f' dev-k4-finetune-exact.npz): {REMEDY}'
      )
    if (1, 'exact') not in files:
      raise UserError(f'{folder} lacks the baseline, <split>-k1-regular-exact.npz: {REMEDY}')
    read = {method: _read(path) for method, path in files.items()}
    inputs, baseline = read[1, 'exact']
    for method in methods:
      if not np.array_equal(read[method][0], inputs) or read[method][1].shape != baseline.shape:
        raise UserError(
          f'{files[method]} shows other pictures than the baseline {files[1, "exact"].name}: remove'
          ' the '
          f'older of the two, {REMEDY}'
        )
    outputs = {method: read[method][1] for method in methods}
    return cls(inputs, baseline, outputs, _digest(inputs, baseline, outputs))

  @property
  def trials(self) -> list[Trial]:
    """All questions: every picture under every method 1."""
    return [Trial(*method, image) for method in self.outputs for image in range(len(self.inputs))]


def _files(folder: Path) -> dict[tuple[int, str], Path]:
  """{(k, rule): file} of what a study shows; the baseline is (1, 'exact')."""
  found, splits = {}, set()
  for path in sorted(folder.glob('*.npz')):
    match = NAME.fullmatch(path.stem)
    if match is None:
      continue
    k, regime, rule = int(match['k']), match['regime'], match['rule']
    if (k, regime, rule) == (1, 'regular', 'exact') or (
      k > 1 and regime == 'finetune' and rule in RULES
    ):
      found[k, rule] = path
      splits.add(match['split'])
  if len(splits) > 1:
    raise UserError(
      f'{folder} holds images of the splits {", ".join(sorted(splits))}: a study shows one, so move'
      ' the '
      f'files of the others elsewhere'
    )
  return found


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
  """'input' and 'output' of a file, checked."""
  try:
    with np.load(path, allow_pickle=False) as arrays:
      pair = tuple(arrays[name] for name in SHAPES)
  except KeyError as error:
    raise UserError(f'{path} cannot be shown, {error.args[0]}: remove it, {REMEDY}') from None
  except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
    raise UserError(f'{path} cannot be read ({error}): remove it, {REMEDY}') from None
  for (name, shapes), array in zip(SHAPES.items(), pair, strict=True):
    if (
      array.dtype != np.uint8
      or array.shape not in [(len(pair[0]), *shape) for shape in shapes]
      or not len(array)
    ):
      expected = ' or '.join(f'uint8[n, {", ".join(map(str, shape))}]' for shape in shapes)
      given = f"its '{name}' is {array.dtype}{list(array.shape)} and not {expected}"
      raise UserError(f'{path} cannot be shown, {given}: remove it, {REMEDY}')
  return pair


def _digest(
  inputs: np.ndarray, baseline: np.ndarray, outputs: dict[tuple[int, str], np.ndarray]
) -> str:
  """A hash of the images themselves, not of how the files were packed."""
  digest = hashlib.sha256()
  for name, array in [('input', inputs), ('baseline', baseline), *outputs.items()]:
    digest.update(f'{name} {array.shape}'.encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  return digest.hexdigest()
