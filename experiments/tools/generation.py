"""What generating text takes: a model and its tokenizer, and how to decode, from folders and settings."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from experiments.lab.packing import packed
from experiments.tools.tuned_file import tuned_file
from fastdec import folders
from fastdec.decoding.inputs import DEFAULT_MAX_LEN, check_ids, checked
from fastdec.decoding.methods.speculative import check_draft
from fastdec.decoding.protocol import promise_of
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.rules.rejection import Warped
from fastdec.decoding.rules.sampling import Sampling
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.folders import Folder
from fastdec.folders.drafts import load_draft
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import check_target
from fastdec.heads.transformed import Transformed
from fastdec.models.api import source_words
from fastdec.struct import Bound
from fastdec.tokenizers.reader import Reader

UNKNOWN = ' ⁇ '  # as SentencePiece writes it, and others do not
DRAFTED, COPIED = 4, 9  # tokens a call, by a draft model and by lookup
TREE = 'mc_sim_7b_63'  # of Medusa's heads, as deep as there are any
GUESSED, WIDTH = 7, 8  # in a row by an autoregressive draft network; children of each node, where it drafts a tree


@dataclasses.dataclass(frozen=True)
class Settings:
  """What the text depends on, prompts and folders' contents aside; fields are the flags of `experiments.generate`."""

  model: str
  draft: str | None = None
  lookup: bool = False
  heads: str | None = None
  medusa: str | None = None
  choices: str | None = None
  gamma: int | None = None
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  max_len: int = DEFAULT_MAX_LEN
  seed: int = 0
  draft_head: str | None = None
  nodes: int | None = None
  strategy: str | None = None
  lookahead: bool = False
  dtype: str | None = None
  pool: str | None = None

  def __post_init__(self) -> None:
    drafters = {'draft': self.draft, 'lookup': self.lookup or None, 'heads': self.heads, 'medusa': self.medusa}
    drafters |= {'draft-head': self.draft_head, 'strategy': self.strategy, 'lookahead': self.lookahead or None}
    given = [f'--{name}' for name, value in drafters.items() if value is not None]
    if len(given) > 1:
      raise UserError(f'{" and ".join(given)} each say how to draft: give one of them')
    if self.choices is not None and self.medusa is None:
      raise UserError(f'--choices={self.choices} is about a tree of drafts: give --medusa=folder too')
    if self.nodes is not None and self.draft_head is None:
      raise UserError(f'--nodes={self.nodes} is about the tree of a draft network: give --draft-head=folder too')
    if self.pool is not None and not (self.lookup or self.lookahead):
      raise UserError(f'--pool={self.pool} has guesses for text that is drafted from: give --lookahead or --lookup too')
    if self.gamma is not None and self.lookahead:
      raise UserError(f'--gamma={self.gamma} is about a chain, and --lookahead guesses n-grams: leave it out')
    if self.gamma is not None and self.medusa is not None:
      raise UserError(f'--gamma={self.gamma} is about a chain, and --medusa drafts a tree: give --choices instead')
    if self.strategy is not None and (self.gamma is not None or self.temperature or self.top_k or self.top_p != 1):
      raise UserError(
        f'--strategy={self.strategy} has its own --gamma, --temperature, --top_k and --top_p: leave them out'
      )
    if self.strategy is not None and self.dtype is not None:
      raise UserError(f'--strategy={self.strategy} has its own type of numbers: leave out --dtype={self.dtype}')
    if self.gamma is not None and not given:
      raise UserError(f'--gamma={self.gamma} is about drafts: give --draft=folder, --lookup or another drafter too')
    if self.temperature != 0:
      _ = self.sampling  # refuses laws that are none
    if not self.samples and (self.top_k, self.top_p) != (0, 1.0):
      remedy = 'give --temperature=1 too' if self.medusa is None else '--medusa does not sample, so leave them out'
      raise UserError(f'--top_k={self.top_k} and --top_p={self.top_p} are about sampling: {remedy}')

  @property
  def samples(self) -> bool:
    """Whether tokens are drawn. Medusa's are not: at a temperature above 0 it accepts what is typical."""
    return self.temperature != 0 and self.medusa is None

  @property
  def heads_folder(self) -> str | None:
    return self.heads if self.medusa is None else self.medusa

  @property
  def sampling(self) -> Sampling:
    """The law to draw from, where the temperature is not 0."""
    return Sampling(self.temperature, self.top_k, self.top_p)

  @property
  def plain(self) -> Any:
    """One token a call: what the strategy is measured against."""
    return fd.Sample(self.temperature, self.top_k, self.top_p) if self.samples else fd.Greedy()

  @property
  def plain_name(self) -> str:
    return 'sampling one by one' if self.samples else 'greedy decoding'

  @property
  def warnings(self) -> list[str]:
    """What to say at the end of text that is not the model's own."""
    if self.temperature == 0 or self.samples:
      return []
    return [f'not lossless: drafts were accepted where typical at temperature {self.temperature:g} (Typical)']


@dataclasses.dataclass(frozen=True)
class Language:
  """A model with its tokenizer, its parameters unread: from text to ids, and back.

  Attributes:
    opened: the folders that the settings name, by their paths, each opened once.
  """

  model: Any
  tokenizer: Any
  settings: Settings
  opened: Mapping[str, Folder] = dataclasses.field(default_factory=dict, kw_only=True)

  @classmethod
  def of(cls, settings: Settings, prompts: Sequence[str]) -> 'Language':
    """What configs and tokenizers say, the prompts being all right for it.

    Raises:
      UserError: a folder that is no model, or has no tokenizer; prompts that are empty or too long; a draft model that
        reads text otherwise, or not as far; heads of another model, or a tree that they cannot fill.
    """
    target = folders.open(settings.model, settings.dtype)
    opened = {settings.model: target}
    language = cls(target.model, target.tokenizer, settings, opened=opened)
    language.check(prompts)
    for path in (settings.draft, settings.heads_folder):
      if path is not None and path not in opened:
        opened[path] = folders.open(path, settings.dtype)
    if settings.draft is not None:
      draft = opened[settings.draft]
      check_same_ids(language.tokenizer, draft.tokenizer, settings)
      longest = max(map(language.ids, prompts), key=len)
      max_len, prompt, _ = checked(language.model, [longest], None, None, settings.max_len, None)
      check_draft(language.model, draft.model, prompt, max_len)
    if language.pool is not None:
      language.pool.check(language.model.vocab_size)
    if settings.heads_folder is not None:
      check_heads(language.model, opened[settings.heads_folder].heads, settings)
    return language

  def load(self) -> 'Generator':
    """Reads the parameters: of the target, the largest, last."""
    settings, tuned, folder = self.settings, self.tuned, self.opened[self.settings.model]
    if tuned is None:
      strategy = strategy_of(settings, *self.drafter(), self.pool)
    else:
      strategy, folder = tuned.strategy, folders.open(settings.model, tuned.dtype)
      settings = dataclasses.replace(settings, strategy=None, dtype=tuned.dtype, **law_of(strategy))
    model, params = packed(folder.model, folder.params())
    return Generator(model, self.tokenizer, settings, params, strategy, opened=self.opened)

  @functools.cached_property
  def tuned(self) -> fd.Tuned | None:
    """What was tuned for the model, its heads or draft read; None where the settings do not ask for it."""
    if self.settings.strategy is None:
      return None
    return fd.load_tuned(self.settings.model, file=tuned_file(self.settings.strategy), prepare=packed)

  @functools.cached_property
  def pool(self) -> fd.NGramPool | None:
    """The n-grams that the settings name."""
    return None if self.settings.pool is None else fd.load_pool(self.settings.pool)

  def drafter(self) -> tuple[Any, Any, Any]:
    """The draft model, the heads and the draft network that the settings name, as (module, params); None for others."""
    settings, (draft, heads, network) = self.settings, (None, None, None)
    if settings.draft is not None:
      folder = self.opened[settings.draft]
      draft = packed(folder.model, folder.params())
    if settings.heads_folder is not None:
      folder = self.opened[settings.heads_folder]
      heads = packed(folder.heads, folder.head_params())
    if settings.draft_head is not None:
      network = packed(*load_draft(settings.draft_head, settings.dtype))
      check_target(Bound(*network), self.model)
    return draft, heads, network

  def check(self, prompts: Sequence[str]) -> None:
    """Raises UserError, naming the first, where prompts are empty, too long, or hold what the model does not know."""
    limit = self.model.max_positions
    for i, prompt in enumerate(prompts):
      ids = self.ids(prompt)
      name = 'the prompt' if len(prompts) == 1 else f'prompt {i + 1}'
      if not prompt.strip() or not ids:
        raise UserError(f'{name} is empty: give some text to go on from')
      after = 1 if self.is_translator else len(ids)  # positions of the decoder before the first token
      if limit is not None and max(len(ids), after + self.settings.max_len - 1) > limit:
        given = f'{name} has {len(ids)} tokens'
        raise UserError(
          f"{given}, which with --max_len={self.settings.max_len} exceeds the model's {limit} positions: "
          'shorten it, or lower --max_len'
        )
      check_ids(f"{name}'s tokens", np.array([ids]), source_words(self.model))

  @property
  def is_translator(self) -> bool:
    """Whether the prompt is a source, of which the output is no continuation."""
    return self.model.start_id is not None

  def ids(self, prompt: str) -> list[int]:
    """The prompt's ids; a source ends in an end token."""
    ids = list(self.tokenizer.encode(prompt))
    ends = self.model.eos_ids if self.is_translator else ()
    return [*ids, *ends[:1]] if ids and ends and ids[-1] not in ends else ids

  def text(self, prompt: str, tokens: Sequence[int]) -> str:
    """What generated tokens say, spaces as they follow the prompt."""
    reader = self.reader(prompt)
    return reader.add(list(tokens)) + reader.finish()

  def reader(self, prompt: str) -> 'Reader':
    """For the tokens that follow this prompt."""
    return Reader(self.tokenizer, [] if self.is_translator else self.ids(prompt))


@dataclasses.dataclass(frozen=True)
class Generator(Language):
  """The same with its parameters, and how to decode."""

  params: Any
  strategy: Any

  @property
  def warnings(self) -> list[str]:
    """What to say at the end of text that is not the model's own."""
    if self.settings.warnings or promise_of(self.strategy.effective_rule) != 'relaxed':
      return self.settings.warnings
    return ['not lossless: what was tuned accepts more than what the model would have written']

  @property
  def most_drafted(self) -> int:
    """Tokens that one call can accept."""
    strategy = self.strategy
    if isinstance(strategy, fd.Eagle):
      return int(strategy.depth)
    if isinstance(strategy, fd.BlockDraft):
      assert strategy.k is not None  # by its __post_init__
      return int(strategy.k) - 1
    if isinstance(strategy, fd.Medusa):
      assert isinstance(strategy.choices, Topology)  # which Medusa makes of all others
      return strategy.choices.max_depth
    if isinstance(strategy, fd.Lookahead):
      return int(strategy.ngram) - 1
    return strategy.drafter.nodes - 1


def strategy_of(
  settings: Settings, draft: Any, heads: Any, network: Any = None, pool: fd.NGramPool | None = None
) -> Any:
  """How to decode; draft model, heads, draft network and pool as they were loaded, None where there are none."""
  law = {'temperature': settings.temperature, 'top_k': settings.top_k, 'top_p': settings.top_p}
  if draft is not None:
    return fd.Speculative(draft=draft, gamma=settings.gamma or DRAFTED, same_ids=True, **law)  # `check_same_ids`
  if network is not None and isinstance(network[0], BlockNetwork):
    return fd.BlockDraft(network, None if settings.gamma is None else settings.gamma + 1, settings.nodes, **law)
  if network is not None:
    width = 1 if settings.nodes is None else WIDTH
    return fd.Eagle(network, settings.gamma or GUESSED, width, settings.nodes, **law)
  if settings.lookup:
    return fd.PromptLookup(k=(settings.gamma or COPIED) + 1, pool=pool, **law)
  if settings.lookahead:
    return fd.Lookahead(pool=pool, **law, **({} if pool is None else {'ngram': pool.ngram}))
  if settings.medusa is not None:
    whole = fd.medusa_choices(TREE)
    choices = [path for path in whole if len(path) <= heads[0].depth] if settings.choices is None else settings.choices
    return fd.Medusa(heads, choices, fd.Typical(temperature=settings.temperature) if settings.temperature else Exact())
  if heads is not None:
    rule = settings.sampling if settings.temperature else Exact()
    return fd.Blockwise(heads, None if settings.gamma is None else settings.gamma + 1, rule)
  return settings.plain


def law_of(strategy: Any) -> dict[str, Any]:
  """Temperature, top-k and top-p of a strategy that draws tokens; nothing for another."""
  rule = strategy.effective_rule
  sampling = rule.sampling if isinstance(rule, Warped) else rule
  if not isinstance(sampling, Sampling):
    return {}
  return {'temperature': float(sampling.temperature), 'top_k': int(sampling.top_k), 'top_p': float(sampling.top_p)}


def check_heads(model: Any, heads: Any, settings: Settings) -> None:
  """Raises UserError where heads, whose parameters are unread, cannot draft for the model what is asked for."""
  trunk = model.model if isinstance(model, Transformed) else model
  hidden, root = jnp.zeros((1, trunk.config.d_model)), jnp.zeros(1, jnp.int32)

  def drafted(trunk_params: Any, head_params: Any) -> Any:
    strategy = strategy_of(settings, None, (heads, head_params))  # in here, because it cuts the heads that it needs
    return strategy.drafter.propose(Bound(trunk, trunk_params), hidden, root, None)[0].tokens

  key = jax.random.key(0)
  jax.eval_shape(drafted, jax.eval_shape(trunk.init, key), jax.eval_shape(heads.init, key))


def check_same_ids(tokenizer: Any, other: Any, settings: Settings) -> None:
  """Raises UserError where the ids that both tokenizers have do not all mean the same."""
  sources = [one.source.words for one in (tokenizer, other) if hasattr(one, 'source')]
  if len(sources) == 2 and sources[0] != sources[1]:
    raise UserError(f'{settings.draft} reads other source words than {settings.model}: give one with its dictionaries')
  for token in range(min(tokenizer.vocab_size, other.vocab_size)):
    here, there = (one.decode([token]) for one in (tokenizer, other))
    if here != there and {here, there} != {'', UNKNOWN}:
      raise UserError(
        f'{settings.draft} has {other.vocab_size} tokens and {settings.model} {tokenizer.vocab_size}, of which number'
        f' {token} is {there!r} and {here!r}: give a draft model with the same tokenizer'
      )


def read_prompts(path: pathlib.Path, what: str = 'a prompt') -> list[str]:
  """The lines of a file of prompts, or of `what` a file has on each line.

  Raises:
    UserError: it cannot be read, is empty or not UTF-8, or has an empty line.
  """
  try:
    data = path.read_bytes()
    text = data.decode()
  except OSError as error:
    raise UserError(f'cannot read {path} ({error.strerror}): give a text file with {what} on each line') from None
  except UnicodeDecodeError as error:
    line = data[: error.start].count(b'\n') + 1
    raise UserError(f'line {line} of {path} is not UTF-8: convert the text') from None
  if not text:
    raise UserError(f'{path} is empty: give {what} on each line')
  lines = text.removesuffix('\n').split('\n')  # only a newline ends a line, as for `wc -l`
  for i, line in enumerate(lines):
    if not line.strip():
      raise UserError(f'line {i + 1} of {path} is empty: give {what} on each line')
  return [line.removesuffix('\r') for line in lines]


def accepted_shares(histogram: Sequence[int], most: int) -> list[float]:
  """For each place below the root: the share of calls that accepted a draft there.

  Args:
    histogram: entry i: how many calls emitted i + 1 tokens.
    most: places.
  """
  calls = sum(histogram)
  return [sum(histogram[place:]) / calls for place in range(1, most + 1)] if calls else []


def counted(histogram: Sequence[int], most: int) -> str:
  """Tokens per call and, where drafts are made, the share of calls that accepted one at each place; '' without calls.

  The call that ends a text counts like the others, though what an end or max_len cuts off might have been accepted.
  """
  if not sum(histogram):
    return ''
  tokens = sum(size * count for size, count in enumerate(histogram, start=1))
  text = f'{tokens / sum(histogram):.2f} tokens per call'
  shares = accepted_shares(histogram, most)
  listed = ', '.join(f'{place}: {share:.0%}' for place, share in enumerate(shares, start=1))
  return f'{text}\naccepted at {listed}' if shares else text
