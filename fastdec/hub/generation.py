"""A Hugging Face folder's settings of decoding, in generation_config.json and config.json.

Older folders have only the second. Ids are heeded: ends, pad, start, and tokens that are never
emitted. Processors are read by `fd.Processors.of`, which `fd.Generator` does by itself. The other
defaults of `generate` are not heeded: the caller gives the strategy. A warning names those that
would change the output.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError, UserNote
from fastdec.fields import read, shown

REFUSED = ('forced_decoder_ids',)
# Defaults that change the output of `generate`, and the values that do nothing. First processors,
# then the others; those of sampling apply with `do_sample`.
PROCESSORS: dict[str, tuple[Any, ...]] = {
  'repetition_penalty': (1,), 'encoder_repetition_penalty': (1,), 'no_repeat_ngram_size': (0,),
  'encoder_no_repeat_ngram_size': (0,), 'min_length': (0,), 'min_new_tokens': (0,),
  'exponential_decay_length_penalty': (), 'forced_bos_token_id': (), 'forced_eos_token_id': (),
  'begin_suppress_tokens': ([],), 'sequence_bias': ([], {}),
}  # fmt: skip
UNHEEDED: dict[str, tuple[Any, ...]] = {
  'num_beams': (1,), 'num_beam_groups': (1,), 'penalty_alpha': (0,), 'guidance_scale': (1,),
  'force_words_ids': ([],), 'constraints': ([],), 'dola_layers': (), 'watermarking_config': (),
  'token_healing': (False,), 'stop_strings': ([], ''), 'max_time': (), 'max_length': (20,),
  'max_new_tokens': (),
}  # fmt: skip
UNHEEDED_BEAMS: dict[str, tuple[Any, ...]] = {
  'length_penalty': (1,), 'early_stopping': (False,), 'diversity_penalty': (0,),
}  # fmt: skip
UNHEEDED_SAMPLING: dict[str, tuple[Any, ...]] = {
  'temperature': (1,), 'top_k': (0,), 'top_p': (1,), 'min_p': (0,), 'top_h': (), 'typical_p': (1,),
  'epsilon_cutoff': (0,), 'eta_cutoff': (0,),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Said:
  """Heeded settings, by their names in the files."""

  bos_token_id: int | None = None
  eos_token_id: int | tuple[int, ...] | None = None
  pad_token_id: int | None = None
  decoder_start_token_id: int | None = None
  suppress_tokens: tuple[int, ...] | None = None
  bad_words_ids: tuple[tuple[int, ...], ...] | None = None

  @property
  def ends(self) -> tuple[int, ...]:
    ends = self.eos_token_id
    return () if ends is None else ends if isinstance(ends, tuple) else (ends,)


def said_of(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Said:
  """Reads the ids of both files; those of generation_config.json win unless they are null.

  Raises:
    UserError: an id of another kind, or an end or start id outside the vocabulary.
  """
  older, newer = (
    read(Said, given, name, ': ', ignores=True)
    for given, name in ((config, 'config.json'), (generation, 'generation_config.json'))
  )
  given = {name: value for name, value in vars(newer).items() if value is not None}
  said, words = dataclasses.replace(older, **given), config['vocab_size']
  for name, ids in (
    ('eos_token_id', said.ends),
    ('decoder_start_token_id', (said.decoder_start_token_id,)),
  ):
    for token in ids:
      if token is not None and not 0 <= token < words:
        raise UserError(
          f'{name}={token} is not among the ids of vocab_size={words} in config.json: mend either'
        )
  return said


def end_and_pad(
  config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[tuple[int, ...], int]:
  """Returns the ids that end a text, and the padding id; if that is null, an end id."""
  said = said_of(config, generation)
  ends, pad = said.ends, said.pad_token_id
  if pad is None or not 0 <= pad < config['vocab_size']:  # old Llama folders have -1
    pad = ends[0] if ends else 0
  return ends, pad


def pad_of_sources(config: Mapping[str, Any], generation: Mapping[str, Any]) -> int:
  """Returns the id that pads sources; their mask is true on all other ids.

  Raises:
    UserError: it is null, or not in the vocabulary.
  """
  pad, words = said_of(config, generation).pad_token_id, config['vocab_size']
  if pad is None:
    raise UserError(
      'pad_token_id=null in config.json is not supported: give the id that fills up short sources'
    )
  if not 0 <= pad < words:
    raise UserError(
      f'pad_token_id={pad} is not among the ids of vocab_size={words} in config.json: mend either'
    )
  return pad


def suppressed(config: Mapping[str, Any], generation: Mapping[str, Any]) -> set[int]:
  """Returns the ids that are never emitted, as in `generate`.

  End ids among the bad words are allowed; sequences of several tokens are processors.
  config.json counts only without generation_config.json.

  Raises:
    UserError: another setting of `generate` that changes the output.
  """
  given, name = (generation, 'generation_config.json') if generation else (config, 'config.json')
  for setting in REFUSED:
    if given.get(setting) not in (None, [], {}):
      raise UserError(
        f'{setting}={shown(given[setting])} of generation_config.json is not supported: remove it'
      )
  said = read(Said, given, name, ': ', ignores=True)
  words = said.bad_words_ids or ()
  ends = said_of(config, generation).ends
  single = {word[0] for word in words if len(word) == 1}
  ids = {*(said.suppress_tokens or ()), *(single - {*ends})}
  return {token for token in ids if 0 <= token < config['vocab_size']}


def warn_of_defaults(
  folder: pathlib.Path, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> None:
  """Warns by one `UserNote` of all defaults of `generate` that change its output but not ours."""
  given, name = (generation, 'generation_config.json') if generation else (config, 'config.json')
  names = dict(UNHEEDED)
  if given.get('num_beams') not in (None, 1):
    names |= UNHEEDED_BEAMS
  if given.get('do_sample') is True:
    names |= UNHEEDED_SAMPLING
  found = [
    f'{key}={shown(given[key])}'
    for key, neutral in names.items()
    if given.get(key) not in (None, *neutral)
  ]
  if given.get('do_sample') is True:
    found.insert(0, 'do_sample=True')
  if found:
    told = f'{folder / name} has defaults of `generate` that are not heeded: {", ".join(found)}'
    warnings.warn(
      f'{told}. The strategy that you give chooses tokens, and max_len alone limits them.',
      UserNote,
      stacklevel=3,
    )


def processors_in(given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a folder that are processors, and change something."""
  found = {
    key: given[key] for key, neutral in PROCESSORS.items() if given.get(key) not in (None, *neutral)
  }
  if any(len(word) > 1 for word in given.get('bad_words_ids') or ()):
    found['bad_words_ids'] = given['bad_words_ids']
  return found


def warn_of_processors(path: pathlib.Path, given: Mapping[str, Any]) -> None:
  """Warns by one `UserNote` of processors among the settings of a folder, which are to be given."""
  if found := processors_in(given):
    told = ', '.join(f'{key}={shown(value)}' for key, value in found.items())
    warnings.warn(
      f'{path} has processors of `generate`: {told}. fd.Generator heeds them;'
      ' fd.decode does if you give it processors=fd.Processors.of(path).',
      UserNote,
      stacklevel=3,
    )
