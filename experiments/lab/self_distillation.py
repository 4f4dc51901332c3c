"""Self-distillation (Cai et al. 2024, section 2.3.2): what a language model itself writes after the
beginnings of the training text, or of other text, as text to train heads and drafts on.

  folder/   the text and its ids, as `model_text` has them: a line for each beginning, in the same order, as source and
            target; the records say which model wrote it, after how many tokens
  folder/parts/   while it is being written: shards of outputs
"""

import contextlib
import json
import pathlib
import shutil
import time

import numpy as np
from jaxtyping import Int

import fastdec as fd
from experiments.lab import sources
from experiments.lab.captions import Captions, beginnings_of, prompts_of
from experiments.lab.model_text import RECORDS, author_of, ended, record_of, save_ids
from experiments.lab.shards import Shards, make_all
from experiments.lab.text import Split, TextConfig, listed
from fastdec import folders
from fastdec.data.text.corpus import open_text
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.pool import decode_each
from fastdec.errors import UserError
from fastdec.files import write_json, write_text
from fastdec.training.progress import Progress

ROWS = 64  # prompts at once
SHARD_SIZE = 2000  # beginnings between two points to resume from
Prompts = Int[np.ndarray, 'n s']


def wanted(
  model: pathlib.Path, prompt: int, max_len: int, files: str = '', cache: str = ''
) -> dict[str, object]:
  """What the text depends on, the training text's beginnings aside.

  Args:
    model: the workdir of the language model.
    prompt: tokens of a beginning.
    max_len: tokens that it writes at most.
    files: of text to begin from in place of the training text, with commas between them ('': none).
    cache: of prepared text.
  """
  record = {'model': folders.content(model), 'prompt': prompt, 'max_len': max_len}
  if files:
    record['sources'] = [text.key[:16] for text in sources.texts_of(listed(files), cache)]
  return record


def is_written(folder: pathlib.Path, record: dict[str, object], split: str = 'train') -> bool:
  """Whether the folder holds this text of a split, whole."""
  with contextlib.suppress(UserError):  # what cannot be read is written again
    there = record_of(folder, split)
    return all(
      there.get(name) == record.get(name) for name in ('model', 'prompt', 'max_len', 'sources')
    )
  return False


def write(
  folder: pathlib.Path,
  model: pathlib.Path,
  text: Captions,
  data: TextConfig,
  prompt: int,
  max_len: int,
  files: str = '',
  budget: float | None = None,
) -> bool:
  """Has the model in a workdir go on greedily from the first `prompt` tokens of each line; true
  when all is written.

  A beginning that comes more than once is gone on from once, and stays as often as it came. The dev
  set comes first.

  Args:
    text: the training text, and the dev set's.
    budget: seconds after which no further shard is begun; at least one is.
    folder, model, data, prompt, max_len, files: see `wanted`.
  """
  start = time.monotonic()
  record = wanted(model, prompt, max_len, files, data.cache)
  writer = _Writer(folder, model, data, max_len, record)
  if not is_written(folder, record, 'dev'):
    prompts = prompts_of(text, 'dev', prompt, text.model.config.bos_id)
    with Progress(len(prompts), 'dev beginning') as progress:
      writer.save('dev', writer.continued(prompts, progress))
  if is_written(folder, record):
    return True
  prompts, back = np.unique(_beginnings(text, data, prompt, files), axis=0, return_inverse=True)
  shards = Shards(writer.parts(), SHARD_SIZE, len(prompts))
  with Progress(len(prompts), 'beginning') as progress:
    if not make_all(
      shards,
      lambda span: writer.continued(prompts[span.start : span.stop], progress),
      progress,
      start,
      budget,
    ):
      return False
  made = [ids for shard in range(len(shards)) for ids in shards.read(shard) or ()]
  writer.save('train', [made[i] for i in back.ravel()])
  shutil.rmtree(shards.folder)
  return True


def _beginnings(text: Captions, data: TextConfig, prompt: int, files: str) -> Prompts:
  """Those of the training text, or of the files."""
  if not files:
    return prompts_of(text, 'train', prompt, text.model.config.bos_id)
  lines = [line for line, _ in sources.alone(sources.texts_of(listed(files), data.cache), 'train')]
  tokens = Ragged.of(text.tokenizer.encode_lines(lines))
  return beginnings_of(tokens, prompt, text.model.config.bos_id, files)


class _Writer:
  """The language model at work."""

  def __init__(
    self,
    folder: pathlib.Path,
    model: pathlib.Path,
    data: TextConfig,
    max_len: int,
    record: dict[str, object],
  ) -> None:
    self._folder, self._data, self._max_len, self._record = folder, data, max_len, record
    self._model, self._params = fd.load(model)
    self._tokenizer = folders.load_tokenizer(model)

  def parts(self) -> pathlib.Path:
    """The folder of the shards; those of another text are removed."""
    folder = self._folder / 'parts'
    if record_of(folder) != json.loads(json.dumps(self._record)):
      shutil.rmtree(folder, ignore_errors=True)
      write_json(folder / 'config.json', self._record)
    return folder

  def continued(self, prompts: Prompts, progress: Progress) -> list[list[int]]:
    """The ids of each beginning and of what the model writes after it."""
    ids: list[list[int]] = [[] for _ in prompts]
    for finished in decode_each(
      self._model, self._params, list(prompts), fd.Greedy(), self._max_len, ROWS
    ):
      decoded = finished.decoded.checked()
      for i, tokens, length in zip(finished.indices, decoded.tokens, decoded.lengths, strict=True):
        written = [
          token for token in tokens[: int(length)].tolist() if token not in self._model.eos_ids
        ]
        ids[i] = ended([*prompts[i][1:].tolist(), *written])
      progress.add(len(finished.indices))
    return ids

  def save(self, split: Split, ids: list[list[int]]) -> None:
    """Writes a split's lines and ids, then the record that says they are whole."""
    files = [
      self._folder / f'{split}.{language}' for language in (self._data.source, self._data.target)
    ]
    whole = '\n'.join(map(self._tokenizer.decode, ids)) + '\n'
    for file in files:
      write_text(file, whole)
    written = Ragged.of(ids)
    key = open_text(self._data.lines_of(self._folder, split), self._data.cache).key
    saved = save_ids(self._folder, TokenPairs(written, written), self._tokenizer, key, split)
    author = author_of(self._model, self._params, self._tokenizer)
    write_json(self._folder / RECORDS[split], {**self._record, 'teacher': author, 'ids': saved})
