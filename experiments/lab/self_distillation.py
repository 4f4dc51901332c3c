"""Self-distillation (Cai et al. 2024, section 2.3.2): what a language model itself writes after the beginnings of the
training text, as text to train heads on.

  folder/   the text and its ids, as `model_text` has them: a line for each beginning, in the same order, as source and
            target; config.json says which model wrote it, after how many tokens
"""

import contextlib
import pathlib

import numpy as np

import fastdec as fd
from experiments.lab.captions import Captions, prompts_of
from experiments.lab.model_text import ended, record_of, save_ids
from experiments.lab.progress import Progress
from experiments.lab.text import TextConfig
from fastdec import folders, gate
from fastdec.data.text.corpus import TextData, open_text
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.pool import decode_each
from fastdec.errors import UserError
from fastdec.files import write_json, write_text

ROWS = 64  # prompts at once


def wanted(model: pathlib.Path, prompt: int, max_len: int) -> dict[str, object]:
  """What the text depends on, its beginnings aside."""
  return {'model': folders.content(model), 'prompt': prompt, 'max_len': max_len}


def is_written(folder: pathlib.Path, record: dict[str, object]) -> bool:
  """Whether the folder holds this text, whole."""
  with contextlib.suppress(UserError):  # what cannot be read is written again
    return {name: value for name, value in record_of(folder).items() if name != 'ids'} == record
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
  lines, ids = [''] * len(prompts), [[0]] * len(prompts)
  with Progress(len(prompts), 'beginning') as progress:
    for finished in gate.passing(decode_each(target, params, list(prompts), fd.Greedy(), max_len, ROWS)):
      decoded = finished.decoded.checked()
      for i, tokens, length in zip(finished.indices, decoded.tokens, decoded.lengths, strict=True):
        written = [token for token in tokens[: int(length)].tolist() if token not in target.eos_ids]
        ids[i] = ended([*prompts[i][1:].tolist(), *written])
        lines[i] = tokenizer.decode(ids[i])
      progress.add(len(finished.indices))
  whole = '\n'.join(lines[i] for i in back.ravel()) + '\n'
  files = [folder / f'train.{language}' for language in (data.source, data.target)]
  for file in files:
    write_text(file, whole)
  written = Ragged.of([ids[i] for i in back.ravel()])
  key = open_text(TextData('files', train=tuple(map(str, files))), data.cache).key
  saved = save_ids(folder, TokenPairs(written, written), tokenizer, key)
  write_json(folder / 'config.json', {**wanted(model, prompt, max_len), 'ids': saved})
