"""Parallel text of an experiment: where it is, its tokenizer, its batches, its prompts; people's,
or what a model has written.

A folder of `own` has lines to read, and beside them the ids as they were written:
  train.<source>, train.<target>   lines that translate each other
  train.npy                        their ids (see `TokenPairs`)
  dev.<source>, dev.<target>, dev.npy, dev.json
                                   the same of the dev sources, if the model wrote greedily:
                                   held out, to watch heads and drafts
  config.json                      written last: what made them, whose ids they are

A line that is decoded and encoded again may have other ids than the model wrote (one line in forty,
of small models), and heads are to guess what it writes. So the ids are trained on, where they are
of these lines and this tokenizer; else the lines.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Array, Int

from experiments.lab.settings import Count, Zero
from experiments.lab.train import author_of, without_heads
from fastdec import folders
from fastdec.data.text.caching import shortened, tokenizer_of, tokens_of, union_of
from fastdec.data.text.corpus import TextData, load_pairs, open_text
from fastdec.data.text.lines import Pair
from fastdec.data.text.packing import packed_batches
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.models.api import Model, Params, source_pad
from fastdec.tokenizers.sentencepiece import EOS_ID, PAD_ID, Tokenizer

Split = Literal['train', 'dev']  # of what a model wrote
RECORDS = {'train': 'config.json', 'dev': 'dev.json'}
WRITE_OWN = (
  'write it by experiments.distill --teacher=BASE --config.distill.beam=1, BASE being the folder'
  ' of the base'
)
DEV_BATCHES = 8  # of training size: what an evaluation during training looks at


@dataclasses.dataclass(frozen=True)
class TextConfig:
  """Parallel text, and its cutting into batches of rows x row_length tokens a side."""

  kind: Literal['embedded', 'files', 'archives', 'tfds'] = 'embedded'
  folder: str = ''  # of files: folder/<train>.<source><suffix> and so on; of archives and TFDS
  train: str = ''
  dev: str = ''
  test: str = ''
  suffix: str = ''
  source: str = 'en'
  target: str = 'de'
  vocab_size: Count = 4000  # of the joint SentencePiece vocabulary
  rows: Count = 32  # of a batch
  row_length: Count = 64  # tokens; longer sentences are left out of training
  max_train: Zero = 0  # pairs; 0: all
  cache: str = 'out/data'  # prepared text, shared by all runs
  # Folders of finished experiments.distill, with commas between them, to train on in place of
  # people's text: by a teacher, or (own) by the base itself, greedily, to train heads on.
  distilled: str = ''
  own: str = ''
  mixed: bool = False  # people's text is trained on too

  @property
  def key(self) -> str:
    """A hash of the text to train on, wherever it lies, and of its cutting: what a stage made from
    it depends on."""
    people = open_text(self.data, self.cache).key
    written = _key(self, _states(self)) if self.written else ''
    sizes = self.vocab_size, self.rows, self.row_length, self.source, self.target
    return hashlib.sha256(repr((people, written, sizes)).encode()).hexdigest()[:16]

  def open(self) -> 'Text':
    """Prepares the text and learns the pieces, where that has not been done; then opens them."""
    return Text.of(self)

  @property
  def data(self) -> TextData:
    """Places of the lines, those of training as people wrote them."""
    max_train = self.max_train or None
    if self.kind == 'embedded':
      return TextData('embedded', max_train=max_train)
    if self.kind == 'tfds':
      return TextData(
        'tfds', folder=self.folder, source=self.source, target=self.target, max_train=max_train
      )
    folder = pathlib.Path(self.folder)
    if not self.folder or not folder.is_dir():
      raise UserError(
        f"there is no folder '{self.folder}' with the text: name it by --config.data.folder=..."
      )
    if self.kind == 'archives':
      return TextData(
        'archives', folder=self.folder, source=self.source, target=self.target, max_train=max_train
      )
    train, dev, test = (
      self._files(folder / stem, self.suffix) for stem in (self.train, self.dev, self.test)
    )
    return TextData('files', train=train, dev=dev, test=test, max_train=max_train)

  @property
  def written(self) -> tuple[pathlib.Path, ...]:
    """The folders of what a model wrote (experiments.distill), where that is trained on: the base,
    or a teacher."""
    return tuple(map(pathlib.Path, listed(self.own or self.distilled)))

  @property
  def training(self) -> tuple[TextData, ...]:
    """Places of the lines to train on: those of each folder that a model wrote, or of `data`, or
    both."""
    written = tuple(self.lines_of(folder, 'train') for folder in self.written)
    return written if written and not self.mixed else (*written, self.data)

  def lines_of(self, folder: pathlib.Path, split: Split) -> TextData:
    """Places of the lines of a split that a model wrote."""
    if not folder.is_dir():
      name = 'own' if self.own else 'distilled'
      remedy = f'run experiments.distill, or leave --config.data.{name} empty'
      raise UserError(f"there is no folder '{folder}' with {name} text: {remedy}")
    files = self._files(folder / split)
    return TextData('files', train=files) if split == 'train' else TextData('files', dev=files)

  def _files(self, stem: pathlib.Path, suffix: str = '') -> tuple[str, ...]:
    return tuple(f'{stem}.{language}{suffix}' for language in (self.source, self.target))


def _states(data: TextConfig) -> tuple[Any, ...]:
  """Path, time and size of each file that a model wrote."""
  files = [str(folder / 'config.json') for folder in data.written]
  for lines in data.training:
    files += lines.train
  stats = ((path, os.stat(path)) for path in files if os.path.exists(path))
  return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


@functools.lru_cache
def _key(data: TextConfig, files: tuple[Any, ...]) -> str:
  """The key of the text to train on, kept while its files are these: to open the text takes a
  while."""
  keys = []
  for folder in data.written:
    keys.append(key_of(folder, open_text(data.lines_of(folder, 'train'), data.cache).key))
  if data.mixed:
    keys.append(open_text(data.data, data.cache).key)
  return keys[0] if len(keys) == 1 else hashlib.sha256(' '.join(keys).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Text:
  """Lines, tokenizer and ids of an experiment."""

  config: TextConfig
  tokenizer: Tokenizer
  tokenizer_path: pathlib.Path
  _batches: dict[tuple[str, int, int], Any] = dataclasses.field(
    default_factory=dict, repr=False, compare=False
  )

  @classmethod
  def of(cls, config: TextConfig) -> Self:
    """Prepares the text and learns the pieces, where that has not been done; then opens them."""
    text = open_text(config.data, config.cache)
    for i, folder in enumerate(config.written):  # a mistake shows before the tokenizer is learnt
      lines = config.lines_of(folder, 'train')
      if config.own:
        check_written(folder, is_greedy=not i)
      open_text(lines, config.cache)
    return cls(config, *tokenizer_of(text, config.vocab_size, config.cache))

  @property
  def content(self) -> str:
    """A hash of the lines as people wrote them."""
    return open_text(self.config.data, self.config.cache).key[:16]

  def model_of(self, config: Any) -> Model:
    """The model of these sizes, over these pieces."""
    return folders.model_of(dataclasses.replace(config, vocab_size=self.tokenizer.vocab_size))

  def fresh(self, model: Any, key: Array) -> Params:
    """Parameters to begin at."""
    return model.init(key)

  def check_base(self, folder: pathlib.Path) -> None:
    """Raises UserError where the model of a run has other pieces than this text: then it was
    trained on other text."""
    if getattr(folders.load_tokenizer(folder), 'model_proto', None) != self.tokenizer.model_proto:
      remedy = 'give a run of the same config, on the same text'
      raise UserError(f'{folder} was trained on other text than this config means: {remedy}')
    for own in self.config.written if self.config.own else ():
      check_author(own, folder, self.tokenizer)

  def pairs(self, split: str) -> list[Pair]:
    """All lines of a split, in memory; of several texts, one behind the other."""
    config, pairs = self.config, []
    for data in config.training if split == 'train' else (config.data,):
      pairs += load_pairs(data, split, config.cache)
    return pairs

  def tokens(self, split: str, max_length: int | None = None) -> TokenPairs:
    """Ids of a split, computed once; of several texts, each pair of a later one that no earlier one
    has."""
    config = self.config
    if split == 'train' and config.written:
      parts = [self._written(folder, 'train', max_length) for folder in config.written]
      if config.mixed:
        parts.append(self._people(split, max_length))
      if len(parts) == 1:
        return parts[0]
      pieces = hashlib.sha256(self.tokenizer.model_proto).hexdigest()
      return union_of(
        parts, _key(config, _states(config)), pieces, max_length, cache_dir=config.cache
      )
    return self._people(split, max_length)

  def own_dev(self) -> TokenPairs:
    """Ids of what the model itself writes for the dev sources; it lies beside the (first) text that
    is trained on.

    Raises:
      UserError: there is none.
    """
    folders = self.config.written
    if not folders:
      raise UserError(
        "the text is people's, which has no own text of the dev set: name a model's, by data.own"
      )
    if not record_of(folders[0], 'dev'):
      remedy = 'give its command again (with distill.beam=1), which adds that'
      raise UserError(f'{folders[0]} has no text of the dev set: {remedy}')
    return self._written(folders[0], 'dev', None)

  def _written(self, folder: pathlib.Path, split: Split, max_length: int | None) -> TokenPairs:
    """Ids of what a model wrote: as it wrote them, where they are of these lines and this
    tokenizer."""
    config = self.config
    text = open_text(config.lines_of(folder, split), config.cache)
    ids = ids_of(folder, self.tokenizer, text.key, split)
    if ids is None:
      return tokens_of(text, split, self.tokenizer, max_length, config.cache)
    return shortened(ids, key_of(folder, text.key, split), max_length, config.cache)

  def _people(self, split: str, max_length: int | None) -> TokenPairs:
    """Ids of what people wrote."""
    config = self.config
    return tokens_of(
      open_text(config.data, config.cache), split, self.tokenizer, max_length, config.cache
    )

  def train_batches(self, rows: int = 0, seed: int = 0) -> Any:
    """Endless packed batches, reshuffled every epoch; 0 rows: as many as the config says."""
    return self._packed('train', rows or self.config.rows, seed)

  def dev_batches(self) -> list[Any]:
    """Packed batches of the dev set, the same for every seed, at most `DEV_BATCHES`, none twice."""
    config = self.config
    return _first(
      self._packed('dev', config.rows, 0), self.tokens('dev', config.row_length), config
    )

  def own_dev_batches(self) -> list[Any]:
    """As many batches of `own_dev`: what heads and drafts are watched on that train on own text."""
    return self.batches_of(self.own_dev())

  def batches_of(self, pairs: TokenPairs) -> list[Any]:
    """As many batches of other pairs, without those that are too long to train on; none where all
    are."""
    config = self.config
    pairs = pairs.at_most(config.row_length)
    if not len(pairs):
      return []
    return _first(packed_batches(pairs, config.rows, config.row_length, 0), pairs, config)

  def _packed(self, split: str, rows: int, seed: int) -> Any:
    """Batches of a split; packing takes a while, so each kind of them is kept."""
    if (split, rows, seed) not in self._batches:
      config = self.config
      tokens = self.tokens(split, config.row_length)
      self._batches[split, rows, seed] = packed_batches(tokens, rows, config.row_length, seed)
    return self._batches[split, rows, seed]


def listed(names: str) -> list[str]:
  """The names that stand with commas between them.

  >>> listed('one, other')
  ['one', 'other']
  """
  stripped = (name.strip() for name in names.split(','))
  return [name for name in stripped if name]


def _first(packed: Any, pairs: TokenPairs, config: TextConfig) -> list[Any]:
  """The first batches that these pairs fill, at most `DEV_BATCHES`."""
  full = int(pairs.lengths.max(1).sum()) // (config.rows * config.row_length)
  return [packed[i] for i in range(min(max(full, 1), DEV_BATCHES))]


# --- text that a model has written


def record_of(folder: pathlib.Path, split: str = 'train') -> dict[str, Any]:
  """Reads config.json (of dev: dev.json); {} where there is none.

  Raises:
    UserError: it cannot be read.
  """
  path = folder / RECORDS[split]
  if not os.path.lexists(path):
    return {}
  try:
    return read_json(path)
  except UserError as error:
    raise UserError(f'{error}; or remove {folder}, and let it be made again') from None


def check_written(folder: pathlib.Path, is_greedy: bool) -> None:
  """Raises UserError where a folder has no finished text that says which model has written it;
  `is_greedy`: or it was written by a search."""
  record = record_of(folder)
  if 'teacher' not in record:
    raise UserError(f'{folder} is no finished text of experiments.distill: {WRITE_OWN}')
  # a language model goes on greedily
  beam = record['distill'].get('beam') if 'distill' in record else 1
  if is_greedy and beam != 1:
    raise UserError(
      f'the text in {folder} was written by a search with beam={beam}, not greedily: {WRITE_OWN}'
    )


def check_author(folder: pathlib.Path, base: pathlib.Path, tokenizer: Tokenizer) -> None:
  """Raises UserError where the text in a folder was not written by the run in `base`, its heads
  aside."""
  model, params = without_heads(*folders.load(base))
  if record_of(folder).get('teacher') != author_of(model, params, tokenizer):
    raise UserError(f'the text in {folder} was written by another model than {base}: {WRITE_OWN}')


def ended(ids: list[int]) -> list[int]:
  """The ids of an output up to its end, which is added where the output was cut; without
  padding."""
  written = ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids
  return [*(token for token in written if token != PAD_ID), EOS_ID]


def save_ids(
  folder: pathlib.Path, pairs: TokenPairs, tokenizer: Tokenizer, lines: str, split: str = 'train'
) -> dict[str, str]:
  """Writes the ids; returns what the split's record is to say of them.

  Args:
    pairs: the ids, pair by pair as the lines stand.
    lines: the key of the lines (`Corpus.key`).
  """
  pairs.save(folder / f'{split}.npy')
  return {'tokenizer': _sha256(tokenizer.model_proto), 'lines': lines, 'content': _content(pairs)}


def ids_of(
  folder: pathlib.Path, tokenizer: Tokenizer, lines: str, split: str = 'train'
) -> TokenPairs | None:
  """The ids of lines with this key, mapped into memory; None where they are another tokenizer's, or
  of other lines."""
  said = _said(folder, lines, split)
  if said.get('tokenizer') != _sha256(tokenizer.model_proto):
    return None
  pairs = TokenPairs.load(folder / f'{split}.npy')
  return pairs if pairs is not None and _content(pairs) == said.get('content') else None


def key_of(folder: pathlib.Path, lines: str, split: str = 'train') -> str:
  """A hash of what there is to train on: the lines, by their key, and the ids where these are
  theirs."""
  content = _said(folder, lines, split).get('content')
  return lines[:16] if content is None else _sha256(f'{lines} {content}'.encode())


def _said(folder: pathlib.Path, lines: str, split: str = 'train') -> dict[str, str]:
  """Entry of the split's record about the ids, if they are of these lines."""
  said = record_of(folder, split).get('ids')
  return said if isinstance(said, dict) and said.get('lines') == lines else {}


def _content(pairs: TokenPairs) -> str:
  digest = hashlib.sha256()
  for side in (pairs.source, pairs.target):
    digest.update(np.ascontiguousarray(side.lengths, '<i8').data)
    digest.update(np.ascontiguousarray(side.tokens, '<i4').data)
  return digest.hexdigest()[:16]


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()[:16]


# --- inputs of `fd.decode`


def check_sources(tokens: TokenPairs, limit: int | None, which: str = '') -> None:
  """Raises UserError, naming the first, where sources are longer than the model's positions."""
  too_long = np.flatnonzero(tokens.source.lengths > (limit or np.inf))
  if too_long.size:
    first = int(too_long[0])
    sentence = ' '.join(filter(None, ('sentence', str(first + 1), which)))
    others = f' (the first of {too_long.size} that are too long)' if too_long.size > 1 else ''
    given = f'{sentence} has {int(tokens.source.lengths[first])} tokens with its end{others}'
    raise UserError(f'{given}, and the model has {limit} positions: shorten or split it')


def padded_sources(tokens: TokenPairs, model: Any, which: str) -> Int[np.ndarray, 'n s']:
  """Sources as the inputs of one `fd.decode`; a UserError, which names them (`which`), where one is
  too long."""
  check_sources(tokens, model.max_positions, which)
  width = -(-int(tokens.source.lengths.max()) // 16) * 16  # few programs serve all
  width = min(width, model.max_positions or width)
  found = np.full((len(tokens), width), source_pad(model), np.int32)
  for i in range(len(tokens)):
    found[i, : tokens.source.lengths[i]] = tokens.source[i]
  return found


def inputs_of(text: Text, model: Any, split: str, n: int) -> Int[np.ndarray, 'n s']:
  """Inputs of `fd.decode`: sources, or for a language model the beginnings of its sentences.

  Args:
    n: tokens of a sentence.
  """
  if model.start_id is None:
    return prompts_of(text, split, n, model.config.bos_id)
  return padded_sources(text.tokens(split), model, f'of the {split} set')


def prompts_of(text: Text, split: str, n: int, first: int) -> Int[np.ndarray, 'n s']:
  """BOS and the first n tokens of every caption that has more than n."""
  return beginnings_of(text.tokens(split).target, n, first, f'the {split} set')


def beginnings_of(tokens: Ragged, n: int, first: int, where: str) -> Int[np.ndarray, 'n s']:
  """BOS and the first n tokens of every sentence that has more than n, its end being one; `where`
  they are from."""
  found = [[first, *tokens[i][:n]] for i in range(len(tokens)) if tokens.lengths[i] > n]
  if not found:
    raise UserError(
      f'config.measure.prompt={n} tokens are too long, no sentence of {where} has more: give fewer'
    )
  return np.array(found, np.int32)
