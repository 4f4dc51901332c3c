"""Translates sentences with a trained run, and marks the blocks: what each call of the model wrote.

  python -m experiments.translate --workdir=out/quickstart/k8-finetune "a sentence" "another"
  python -m experiments.translate --workdir=... --input=lines.txt
  cat lines.txt | python -m experiments.translate --workdir=...
  python -m experiments.translate --workdir=out/quickstart/base --beam=4 --nbest=2 "a sentence"

With --beam it searches instead, and prints each hypothesis behind its score. --strategy=tuned
translates by what experiments.tune found fastest for the model: in the type of numbers and as many
at once as it found.
"""

import itertools
import sys
from typing import Any

from absl import flags

from experiments.lab import cli

WORKDIR = flags.DEFINE_string('workdir', None, 'folder of a finished run', required=True)
INPUT = flags.DEFINE_string('input', None, 'file with a sentence on each line')
RULE = flags.DEFINE_string('rule', 'exact', 'exact, top-N or min-N')
STRATEGY = flags.DEFINE_string(
  'strategy', None, "'tuned': what experiments.tune has found; or a file that it wrote"
)
DTYPE = flags.DEFINE_string(
  'dtype', None, "float32, bfloat16, int8, ...: of model and heads (none: the model's own)"
)
BEAM = flags.DEFINE_integer('beam', None, 'searches with this many beams instead', lower_bound=1)
LENGTH_PENALTY = flags.DEFINE_float('length_penalty', 0.6, "GNMT's alpha, of --beam")
NBEST = flags.DEFINE_integer(
  'nbest', 1, 'hypotheses of each sentence, at most --beam', lower_bound=1
)
MAX_LEN = flags.DEFINE_integer('max_len', 100, 'the most tokens of a sentence', lower_bound=1)
ROWS = flags.DEFINE_integer(
  'rows', None, 'sentences decoded at once (none: as tuned, or 16)', lower_bound=1
)
CORES = cli.cores_flag()
PLAIN = flags.DEFINE_bool('plain', False, 'print the translations alone')


def main(words: list[str]) -> None:
  from experiments.lab import cores, decoding, show
  from experiments.lab.show import plain_console
  from experiments.tools import tuned_file
  from fastdec import folders
  from fastdec.data.text.packing import tokenise
  from fastdec.decoding.protocol import finish_reason
  from fastdec.errors import UserError
  from fastdec.folders import packed

  search = _search()  # a mistake shows before the model is loaded
  decoding.rule_of(RULE.value)
  lines = _lines(words)
  rows = min(tuned_file.rows_at_once(ROWS.value, WORKDIR.value, STRATEGY.value), len(lines))
  cores.settle(WORKDIR.value, rows, CORES.value)
  tuned = _tuned()
  folder = folders.open(WORKDIR.value, DTYPE.value if tuned is None else tuned.dtype)
  if folder.model.start_id is None:
    raise UserError(
      f'{WORKDIR.value} is a language model, which goes on from a text: give it to'
      ' experiments.generate, or a model with an encoder'
    )
  (model, params), tokenizer = packed(folder.model, folder.params()), folder.tokenizer
  heads = packed(folder.heads, folder.head_params()) if folder.has_heads else None
  strategy = search or (tuned.strategy if tuned else decoding.strategy_of(heads, RULE.value))
  tokens = tokenise([(line, '') for line in lines], tokenizer)
  out = decoding.translate(model, params, tokenizer, tokens, strategy, MAX_LEN.value, rows)
  console = plain_console()
  cut = 0
  for ids, length in zip(out.tokens, out.lengths, strict=True):
    cut += finish_reason(folder.model, ids[:length].tolist()) == 'length'
  if cut:
    told = f'{cut} of {len(lines)} translations were cut at --max_len={MAX_LEN.value}'
    print(f'{told}: raise it for longer ones', file=sys.stderr)
  for score, line in itertools.chain(*(out.hypotheses or [])):
    console.print(line if PLAIN.value else f'{score:8.3f}  {line}')
  if out.hypotheses is not None:
    return
  for line, ids, sizes in zip(out.lines, out.tokens, out.block_sizes, strict=True):
    console.print(line if PLAIN.value else show.marked(show.blocks_of(tokenizer, ids, sizes)))


def _search() -> Any:
  """The beam search that is asked for, None without --beam."""
  import fastdec as fd

  if BEAM.value is None:
    if NBEST.value > 1:
      raise fd.UserError(f'--nbest={NBEST.value} needs a search: give --beam={NBEST.value} or more')
    return None
  if RULE.value != 'exact':
    raise fd.UserError(
      f'--rule={RULE.value} is about blocks, and --beam={BEAM.value} writes none: give one of them'
    )
  return fd.Beam(BEAM.value, length_penalty=LENGTH_PENALTY.value, n_best=NBEST.value)


def _tuned() -> Any:
  """Tuned strategy of the model; None without --strategy."""
  import fastdec as fd
  from experiments.tools.tuned_file import tuned_file
  from fastdec.decoding.rules.rejection import sampling_of
  from fastdec.folders import packed

  if STRATEGY.value is None:
    return None
  if RULE.value != 'exact' or BEAM.value is not None:
    other = f'--beam={BEAM.value}' if BEAM.value is not None else f'--rule={RULE.value}'
    raise fd.UserError(
      f'--strategy={STRATEGY.value} and {other} each say how to decode: give one of them'
    )
  if DTYPE.value is not None:
    raise fd.UserError(
      f'--strategy={STRATEGY.value} has its own type of numbers: leave out --dtype={DTYPE.value}'
    )
  tuned = fd.load_tuned(WORKDIR.value, file=tuned_file(STRATEGY.value), prepare=packed)
  if sampling_of(tuned.strategy.effective_rule):
    raise fd.UserError(
      f'--strategy={STRATEGY.value} samples, and translations are not drawn: tune at temperature 0'
    )
  return tuned


def _lines(words: list[str]) -> list[str]:
  """The sentences, from the one place that has them; bytes that are no UTF-8 are a mistake."""
  from fastdec.errors import UserError
  from fastdec.files import read_bytes, text_of

  if words and INPUT.value is not None:
    raise UserError('there are sentences on the command line and --input: give one of them')
  if not words and INPUT.value is None and (sys.stdin is None or sys.stdin.isatty()):
    raise UserError(
      'there is nothing to translate: give sentences, --input=FILE, or lines on standard input'
    )
  name = 'the command line' if words else 'standard input' if INPUT.value is None else INPUT.value
  if words:
    data = '\n'.join(word.replace('\n', ' ') for word in words).encode(errors='surrogateescape')
  elif INPUT.value is None:
    data = sys.stdin.buffer.read()
  else:
    try:
      data = read_bytes(INPUT.value)
    except OSError as error:
      raise UserError(f'cannot read {name} ({error.strerror}): give a text file') from None
  text = text_of(data, name)
  if not text and not words:
    raise UserError(f'{name} is empty: give a sentence on each line')
  return text.removesuffix('\n').split('\n')  # only a newline ends a line, as for `wc -l`


if __name__ == '__main__':
  cli.run(main, words=True)
