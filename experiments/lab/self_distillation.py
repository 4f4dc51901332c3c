"""Self-distillation (Cai et al. 2024, section 2.3.2): what a language model itself writes after the beginnings of the
training text, as text to train heads on.

  folder/train.<language>   a line for each beginning, in the same order
  folder/config.json        written last: which model wrote it, after how many tokens
"""

import json
import pathlib

import numpy as np

import fastdec as fd
from experiments.lab.captions import Captions, prompts_of
from experiments.lab.progress import Progress
from experiments.lab.text import TextConfig
from fastdec import folders
from fastdec.decoding.pool import decode_each
from fastdec.files import write_json, write_text

ROWS = 64  # prompts at once


def record_of(model: pathlib.Path, prompt: int, max_len: int) -> dict[str, object]:
  """What the text depends on, its beginnings aside."""
  return {'model': folders.content(model), 'prompt': prompt, 'max_len': max_len}


def is_written(folder: pathlib.Path, record: dict[str, object]) -> bool:
  """Whether the folder holds this text, whole."""
  try:
    return json.loads((folder / 'config.json').read_text()) == record
  except (OSError, ValueError):
    return False


def write(
  folder: pathlib.Path, model: pathlib.Path, text: Captions, data: TextConfig, prompt: int, max_len: int
) -> None:
  """Has the model in a workdir go on greedily from the first `prompt` tokens of each line of the training text.

  A beginning that comes more than once is gone on from once, and stays as often as it came.
  """
  target, params = fd.load(model)
  tokenizer = folders.load_tokenizer(model)
  prompts, back = np.unique(prompts_of(text, 'train', prompt), axis=0, return_inverse=True)
  lines = [''] * len(prompts)
  with Progress(len(prompts), 'beginning') as progress:
    for finished in decode_each(target, params, list(prompts), fd.Greedy(), max_len, ROWS):
      for i, tokens, length in zip(finished.indices, finished.decoded.tokens, finished.decoded.lengths, strict=True):
        written = [token for token in tokens[: int(length)].tolist() if token not in target.eos_ids]
        lines[i] = tokenizer.decode([*prompts[i][1:].tolist(), *written])
      progress.add(len(finished.indices))
  whole = '\n'.join(lines[i] for i in back.ravel()) + '\n'
  for language in {data.source, data.target}:
    write_text(folder / f'train.{language}', whole)
  write_json(folder / 'config.json', record_of(model, prompt, max_len))
