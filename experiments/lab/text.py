"""Parallel text of an experiment, by people or by a model: its files, tokenizer, batches, prompts.

A folder that `lab/own.py` has written holds lines to read, and their ids:
  train.<source>, train.<target>   lines that translate each other
  train-<digest>.npy               their ids (see `TokenPairs`), named by lines and tokenizer
  dev.<source> and so on           the same for the dev sources, if the model wrote greedily;
                                   heads and drafts are evaluated on it
  config.json                      written last: which model wrote them

A line that is decoded and encoded again may have other ids than the model wrote (one line in forty,
for small models), and heads have to guess the ids that it writes. So training reads the ids if they
belong to these lines and this tokenizer; otherwise it encodes the lines.
"""

import dataclasses
import hashlib
import pathlib
from typing import Any, Literal

import numpy as np
from jaxtyping import Array, Int

from experiments.lab.train import Count, Rows, Zero, author_of, check_read, say_left_out
from fastdec import folders
from fastdec.data.text.caching import make_tokenizer, make_tokens, make_union
from fastdec.data.text.corpus import Corpus, TextData, open_text
from fastdec.data.text.lines import Pair
from fastdec.data.text.packing import packed_batches
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.data.text.tokens import TokenPairs
from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.folders.folder import hash_file
from fastdec.heads.transformed import without_heads
from fastdec.models.api import Model, Params, source_pad
from fastdec.models.taps import Taps
from fastdec.struct import Bound
from fastdec.training.drafts.trainer import read_trunk

Split = Literal['train', 'dev']  # of a model's text
RECORD = 'config.json'
WRITE_OWN = (
  'write it by experiments.distill --teacher=BASE --config.distill.beam=1, BASE being the folder'
  ' of the base'
)
DEV_BATCHES = 8  # batches of training size that an evaluation during training reads


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
  rows: Rows = 32  # of a batch
  row_length: Count = 64  # tokens; longer sentences are left out of training
  max_train: Zero = 0  # pairs; 0: all
  cache: str = 'out/data'  # prepared text, shared by all runs
  # Folders of finished experiments.distill, with commas between them, whose text replaces people's
  # in training: written by a teacher, or (own) by the base itself, greedily, for heads.
  distilled: str = ''
  own: str = ''
  mixed: bool = False  # people's text is trained on too

  def __post_init__(self) -> None:
    of_files = dict.fromkeys(('train', 'dev', 'test', 'suffix'), ('files',))
    check_read(self, {'folder': ('files', 'archives', 'tfds'), **of_files})

  @property
  def originals(self) -> 'TextConfig':
    """The text as people wrote it, which a base is trained on."""
    return dataclasses.replace(self, distilled='', own='', mixed=False)

  @property
  def key(self) -> str:
    """A hash of the text to train on and to evaluate on, not of its place, and of the sizes of its
    batches: all that a stage depends on."""
    people = open_text(self.data, self.cache).key
    sizes = self.vocab_size, self.rows, self.row_length, self.source, self.target
    return _sha256(repr((people, self.written_content, sizes)).encode())

  @property
  def written_content(self) -> str:
    """Hashes of the text by the base or a teacher, and of its ids; '' if there is none."""
    decisive = []
    for folder in self.written:
      decisive.append(open_text(self.lines_of(folder, 'train'), self.cache).key)
      for file in sorted(folder.glob('*.npy')):
        decisive.append(hash_file(file))
    if self.mixed and self.written:
      decisive.append('mixed')
    return ' '.join(decisive)

  def open(self) -> 'Text':
    """Opens the text and its tokenizer, which are prepared the first time."""
    people = open_text(self.data, self.cache)
    for i, folder in enumerate(self.written):  # a mistake shows before the tokenizer is learnt
      lines = self.lines_of(folder, 'train')
      if self.own:
        check_written(folder, is_greedy=i == 0)
      open_text(lines, self.cache)
    return Text(self, people, *make_tokenizer(people, self.vocab_size, self.cache))

  @property
  def data(self) -> TextData:
    """Files of people's text."""
    folder = pathlib.Path(self.folder)
    same: Any = {'max_train': self.max_train or None}
    if self.kind == 'embedded':
      return TextData(**same)
    if self.kind != 'tfds' and not (self.folder and folder.is_dir()):
      raise UserError(
        f"there is no folder '{self.folder}' with the text: name it by --config.data.folder=..."
      )
    if self.kind == 'files':
      for split in ('train', 'dev', 'test'):
        same[split] = self._files(folder / getattr(self, split), self.suffix)
      return TextData('files', **same)
    return TextData(self.kind, folder=self.folder, source=self.source, target=self.target, **same)

  @property
  def written(self) -> tuple[pathlib.Path, ...]:
    """The folders of text by the base or a teacher; none if people's text is trained on."""
    return tuple(map(pathlib.Path, split_names(self.own or self.distilled)))

  def lines_of(self, folder: pathlib.Path, split: Split) -> TextData:
    """Files of a split that a model wrote."""
    if not folder.is_dir():
      name = 'own' if self.own else 'distilled'
      remedy = f'run experiments.distill, or leave --config.data.{name} empty'
      raise UserError(f"there is no folder '{folder}' with {name} text: {remedy}")
    files: Any = {split: self._files(folder / split)}
    return TextData('files', **files)

  def _files(self, stem: pathlib.Path, suffix: str = '') -> tuple[str, ...]:
    return tuple(f'{stem}.{language}{suffix}' for language in (self.source, self.target))


@dataclasses.dataclass(frozen=True)
class Text:
  """The opened text of an experiment: people's lines, the tokenizer, the ids to train on."""

  config: TextConfig
  people: Corpus
  tokenizer: Tokenizer
  tokenizer_path: pathlib.Path

  @property
  def content(self) -> str:
    """A hash of people's lines, and of those that a model wrote."""
    content, written = self.people.key[:16], self.config.written_content
    return f'{content} {_sha256(written.encode())}' if written else content

  def pairs(self, split: str) -> list[Pair]:
    """People's lines of a split, in memory."""
    return list(self.people.pairs(split))

  def model_of(self, config: Any) -> Model:
    """The model of these sizes, over the vocabulary of the text."""
    return folders.model_of(dataclasses.replace(config, vocab_size=self.tokenizer.vocab_size))

  def fresh(self, model: Any, key: Array) -> Params:
    """Parameters to begin with."""
    return model.init(key)

  def read_base(self, folder: pathlib.Path) -> Bound:
    """Returns the base of a run, without heads; see `check_base`."""
    base = read_trunk(folder)
    self.check_base(folder)
    return base

  def check_base(self, folder: pathlib.Path) -> None:
    """Raises UserError where the model of a run has other pieces than this text: then it was
    trained on other text."""
    file = folders.open(folder).path / 'tokenizer.model'
    pieces = file.read_bytes() if file.is_file() else None
    if pieces != self.tokenizer.model_proto:
      remedy = 'give a run of the same config, on the same text'
      raise UserError(f'{folder} was trained on other text than this config means: {remedy}')
    for own in self.config.written if self.config.own else ():
      check_author(own, folder, self.tokenizer)

  def tokens(self, split: str, max_length: int | None = None) -> TokenPairs:
    """Ids of a split, which are cached. For training they may come from several texts: of each
    later text, those pairs that no earlier one has."""
    config, parts = self.config, []
    for folder in config.written if split == 'train' else ():
      parts.append(self._written(folder, 'train', max_length))
    if config.mixed or not parts:
      parts.append(make_tokens(self.people, split, self.tokenizer, max_length, config.cache))
    if len(parts) == 1:
      return parts[0]
    pieces = _sha256(self.tokenizer.model_proto)
    return make_union(parts, config.key, pieces, max_length, cache_dir=config.cache)

  def save(self, folder: pathlib.Path, base: Bound, heads: Any = None) -> None:
    """Writes a model, perhaps with heads, as the result of a training."""
    path = self.tokenizer_path
    folders.save(base.module, base.params, folder / 'model', heads, tokenizer=path)

  def written_words(self) -> Int[np.ndarray, ' n']:
    """All tokens of the training text that a draft would guess."""
    return self.tokens('train', self.config.row_length).target.tokens

  def draft_batches(self) -> list[Any]:
    """Batches on which drafts are evaluated: what the base writes, if it has written some."""
    return self.dev_batches(self.own_dev() if self.config.own else None)

  def with_states(self, target: Bound, taps: Taps) -> 'Text':
    """Returns itself: a base reads its text again in each step."""
    return self

  def own_dev(self) -> TokenPairs:
    """Ids that the model itself writes for the dev sources, from the first folder of `own`.

    Raises:
      UserError: there is none.
    """
    folder = self.config.written[0]
    if not (folder / f'dev.{self.config.source}').is_file():
      remedy = 'let it be written again, with distill.beam=1'
      raise UserError(f'{folder} has no text of the dev set: {remedy}')
    return self._written(folder, 'dev', None)

  def _written(self, folder: pathlib.Path, split: Split, max_length: int | None) -> TokenPairs:
    """Ids of a model's text, as it wrote them if they belong to these lines and this tokenizer."""
    text = open_text(self.config.lines_of(folder, split), self.config.cache)
    ids = TokenPairs.load(ids_of(folder, split, text.key, self.tokenizer))
    if ids is None:
      return make_tokens(text, split, self.tokenizer, max_length, self.config.cache)
    return ids if max_length is None else ids.at_most(max_length)

  def train_batches(self, rows: int = 0, seed: int = 0) -> Any:
    """Endless packed batches, reshuffled every epoch; 0 rows: as many as the config says."""
    length = self.config.row_length
    pairs = self.tokens('train', length)
    self._say_left_out(pairs, 'training')
    return packed_batches(pairs, rows or self.config.rows, length, seed)

  def dev_batches(self, pairs: TokenPairs | None = None) -> list[Any]:
    """At most `DEV_BATCHES` packed batches of the dev set, or of other pairs, without pairs too
    long to train on; the same for every seed.

    Raises:
      UserError: all are too long.
    """
    rows, length = self.config.rows, self.config.row_length
    if pairs is None:
      pairs = self.tokens('dev')
    pairs = pairs.at_most(length)
    self._say_left_out(pairs, 'dev')
    full = int(pairs.lengths.max(1, initial=0).sum()) // (rows * length)
    packed = packed_batches(pairs, rows, length, 0)
    return [packed[i] for i in range(min(max(full, 1), DEV_BATCHES))]

  def _say_left_out(self, pairs: TokenPairs, name: str) -> None:
    reason = f'a side is empty or has more than row_length={self.config.row_length} tokens'
    say_left_out(pairs.dropped, len(pairs), f'pairs of the {name} text', reason)


def split_names(names: str) -> list[str]:
  """Splits a list of names with commas.

  >>> split_names('one, other')
  ['one', 'other']
  """
  return [name.strip() for name in names.split(',') if name.strip()]


# --- text by a model


def record_of(folder: pathlib.Path) -> dict[str, Any]:
  """Reads config.json; {} where there is none."""
  file = folder / RECORD
  return read_json(file) if file.exists() else {}


def ids_of(folder: pathlib.Path, split: Split, lines: str, tokenizer: Tokenizer) -> pathlib.Path:
  """The file of the ids of these lines (`Corpus.key`) by this tokenizer."""
  return folder / f'{split}-{_sha256(lines.encode() + tokenizer.model_proto)}.npy'


def check_written(folder: pathlib.Path, is_greedy: bool) -> None:
  """Raises UserError where a folder holds no finished text of a known model, or where it has to be
  greedy and was written by a search."""
  record = record_of(folder)
  if not {'teacher', 'beam'} <= set(record):
    raise UserError(f'{folder} is not a finished text of experiments.distill: {WRITE_OWN}')
  if is_greedy and record['beam'] != 1:
    raise UserError(
      f'the text in {folder} was written by a search with beam={record["beam"]}, not greedily:'
      f' {WRITE_OWN}'
    )


def check_author(folder: pathlib.Path, base: pathlib.Path, tokenizer: Tokenizer) -> None:
  """Raises UserError where the text in a folder was not written by the run in `base`; its heads do
  not count."""
  model, params = without_heads(*folders.load(base))
  if record_of(folder).get('teacher') != author_of(model, params, tokenizer):
    raise UserError(f'the text in {folder} was written by another model than {base}: {WRITE_OWN}')


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()[:16]


# --- inputs of `fd.decode`


def check_sources(tokens: TokenPairs, limit: int | None, which: str = 'of the text') -> None:
  """Raises UserError, naming the first, where sources are longer than the model's positions."""
  too_long = np.flatnonzero(tokens.source.lengths > (limit or np.inf))
  if too_long.size:
    length = tokens.source.lengths[too_long[0]]
    raise UserError(
      f'sentence {too_long[0] + 1} {which} has {length} tokens, and the model has {limit}'
      ' positions: shorten or split it'
    )


def inputs_of(text: Text, model: Any, split: str, n: int) -> Int[np.ndarray, 'n s']:
  """Inputs of `fd.decode`: sources, or for a language model the first n tokens of sentences."""
  if model.start_id is None:
    return prompts_of(text, split, n, model.config.bos_id)
  return padded_sources(text.tokens(split), model, f'of the {split} set')


def padded_sources(tokens: TokenPairs, model: Any, which: str) -> Int[np.ndarray, 'n s']:
  """Sources as the inputs of one `fd.decode`. Where one is too long, a UserError names the text by
  `which`."""
  check_sources(tokens, model.max_positions, which)
  width = -(-int(tokens.source.lengths.max()) // 16) * 16  # few programs serve all
  width = min(width, model.max_positions or width)
  padded = np.full((len(tokens), width), source_pad(model), np.int32)
  for i in range(len(tokens)):
    padded[i, : tokens.source.lengths[i]] = tokens.source[i]
  return padded


def prompts_of(text: Text, split: str, n: int, first: int) -> Int[np.ndarray, 'n s']:
  """The `first` id, BOS, and the first n tokens of every caption with more than n, counting its
  end."""
  tokens = text.tokens(split).target
  prompts = []
  for i in np.flatnonzero(tokens.lengths > n):
    prompts.append([first, *tokens[i][:n]])
  reason = f'they have measure.prompt={n} tokens or fewer'
  say_left_out(len(tokens) - len(prompts), len(prompts), f'sentences of the {split} set', reason)
  if not prompts:
    raise UserError(
      f'config.measure.prompt={n} tokens are too long, no sentence of the {split} set has more:'
      ' give fewer'
    )
  return np.array(prompts, np.int32)
