"""A Hugging Face folder's settings of decoding, in generation_config.json and config.json.

Older folders have only the second. fastdec uses the ids: ends, pad, start, and tokens that are
never emitted. `fd.Processors.of` reads processors, which `fd.Generator` does by itself. It ignores
the other defaults of `generate`, since the caller gives the strategy, and warns of those that would
change the output.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from fastdec.errors import UserError, UserNote
from fastdec.fields import quote
from fastdec.hub.families import read_fields

NEWER, OLDER = 'generation_config.json', 'config.json'
REFUSED = ('forced_decoder_ids',)
# Defaults that change the output of `generate`, and their values that change nothing: processors,
# then the others. Those of sampling apply with `do_sample`.
PROCESSORS: dict[str, tuple[Any, ...]] = {
  'repetition_penalty': (1,), 'encoder_repetition_penalty': (1,), 'no_repeat_ngram_size': (0,),
  'encoder_no_repeat_ngram_size': (0,), 'min_length': (0,), 'min_new_tokens': (0,),
  'exponential_decay_length_penalty': (), 'forced_bos_token_id': (), 'forced_eos_token_id': (),
  'begin_suppress_tokens': ([],), 'sequence_bias': ([], {}),
}  # fmt: skip
IGNORED: dict[str, tuple[Any, ...]] = {
  'num_beams': (1,), 'num_beam_groups': (1,), 'penalty_alpha': (0,), 'guidance_scale': (1,),
  'force_words_ids': ([],), 'constraints': ([],), 'dola_layers': (), 'watermarking_config': (),
  'token_healing': (False,), 'stop_strings': ([], ''), 'max_time': (), 'max_length': (20,),
  'max_new_tokens': (),
}  # fmt: skip
IGNORED_BEAMS: dict[str, tuple[Any, ...]] = {
  'length_penalty': (1,), 'early_stopping': (False,), 'diversity_penalty': (0,),
}  # fmt: skip
IGNORED_SAMPLING: dict[str, tuple[Any, ...]] = {
  'temperature': (1,), 'top_k': (0,), 'top_p': (1,), 'min_p': (0,), 'top_h': (), 'typical_p': (1,),
  'epsilon_cutoff': (0,), 'eta_cutoff': (0,),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GenerationIds:
  """Ids of tokens that decoding uses, by their names in the files."""

  bos_token_id: int | None = None
  eos_token_id: int | tuple[int, ...] | None = None
  pad_token_id: int | None = None
  decoder_start_token_id: int | None = None
  suppress_tokens: tuple[int, ...] | None = None
  bad_words_ids: tuple[tuple[int, ...], ...] | None = None

  @property
  def ends(self) -> tuple[int, ...]:
    """The ids that end a text; a file may name one, several or none."""
    if self.eos_token_id is None:
      return ()
    if isinstance(self.eos_token_id, int):
      return (self.eos_token_id,)
    return self.eos_token_id


def generation_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> GenerationIds:
  """Reads the ids of both files; those of generation_config.json win unless they are null.

  Raises:
    UserError: an id has a wrong type, or an end or start id is outside the vocabulary.
  """
  ids = merge_ids(config, generation)
  for token in ids.ends:
    _check_id('eos_token_id', token, config)
  if ids.decoder_start_token_id is not None:
    _check_id('decoder_start_token_id', ids.decoder_start_token_id, config)
  return ids


def merge_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> GenerationIds:
  """Reads the ids of both files without comparing them with the vocabulary."""
  ids = read_fields(GenerationIds, config, OLDER)
  newer = read_fields(GenerationIds, generation, NEWER)
  for name, value in vars(newer).items():
    if value is not None:
      ids = dataclasses.replace(ids, **{name: value})
  return ids


def _check_id(name: str, token: int, config: Mapping[str, Any]) -> None:
  words = config['vocab_size']
  if not 0 <= token < words:
    raise UserError(
      f'{name}={token} is not among the ids of vocab_size={words} in config.json: fix one of them'
    )


def end_and_pad(
  config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[tuple[int, ...], int]:
  """Returns the ids that end a text, and the padding id; if that is null, an end id."""
  ids = generation_ids(config, generation)
  ends, pad = ids.ends, ids.pad_token_id
  if pad is None or not 0 <= pad < config['vocab_size']:  # old Llama folders have -1
    pad = ends[0] if ends else 0
  return ends, pad


def pad_of_sources(config: Mapping[str, Any], generation: Mapping[str, Any]) -> int:
  """Returns the id that pads sources; their mask is true on all other ids.

  Raises:
    UserError: it is null, or not in the vocabulary.
  """
  pad = generation_ids(config, generation).pad_token_id
  if pad is None:
    raise UserError(
      'pad_token_id=null in config.json is not supported: give the id that fills up short sources'
    )
  _check_id('pad_token_id', pad, config)
  return pad


def suppressed_ids(config: Mapping[str, Any], generation: Mapping[str, Any]) -> set[int]:
  """Returns the ids that are never emitted, as in `generate`.

  End ids among the bad words are allowed; sequences of several tokens are processors. config.json
  is used only without generation_config.json.

  Raises:
    UserError: a setting of `generate` is not supported.
  """
  settings, file_name = (generation, NEWER) if generation else (config, OLDER)
  for name in REFUSED:
    if settings.get(name) not in (None, [], {}):
      raise UserError(
        f'{name}={quote(settings[name])} of generation_config.json is not supported: remove it'
      )
  ids = read_fields(GenerationIds, settings, file_name)
  never = {word[0] for word in ids.bad_words_ids or () if len(word) == 1}
  never.difference_update(generation_ids(config, generation).ends)
  never.update(ids.suppress_tokens or ())
  return {token for token in never if 0 <= token < config['vocab_size']}


def warn_of_defaults(
  folder: pathlib.Path, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> None:
  """Warns by one `UserNote` of all defaults of `generate` that change its output but not ours."""
  settings, file_name = (generation, NEWER) if generation else (config, OLDER)
  neutral_values = dict(IGNORED)
  ignored = []
  if settings.get('num_beams') not in (None, 1):
    neutral_values |= IGNORED_BEAMS
  if settings.get('do_sample') is True:
    neutral_values |= IGNORED_SAMPLING
    ignored.append('do_sample=True')
  for name, value in _effective(settings, neutral_values).items():
    ignored.append(f'{name}={quote(value)}')
  if ignored:
    warnings.warn(
      f'{folder / file_name} has defaults of `generate` that fastdec ignores: {", ".join(ignored)}.'
      ' The strategy that you give chooses tokens, and only max_len limits them.',
      UserNote,
      stacklevel=3,
    )


def _effective(
  settings: Mapping[str, Any], neutral_values: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
  """Returns the settings of these names whose values change something."""
  effective = {}
  for name, neutral in neutral_values.items():
    if settings.get(name) not in (None, *neutral):
      effective[name] = settings[name]
  return effective


def processors_in(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a folder that are processors, and change something."""
  processors = _effective(settings, PROCESSORS)
  if any(len(word) > 1 for word in settings.get('bad_words_ids') or ()):
    processors['bad_words_ids'] = settings['bad_words_ids']
  return processors


def warn_of_processors(path: pathlib.Path, settings: Mapping[str, Any]) -> None:
  """Warns by one `UserNote` of a folder's processors, which `fd.decode` does not read itself."""
  processors = processors_in(settings)
  if processors:
    names = ', '.join(f'{name}={quote(value)}' for name, value in processors.items())
    warnings.warn(
      f'{path} has processors of `generate`: {names}. fd.Generator applies them;'
      ' fd.decode does if you give it processors=fd.Processors.of(path).',
      UserNote,
      stacklevel=3,
    )
