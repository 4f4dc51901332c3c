"""Generates text with a trained model, and shows it as it is accepted, block by block.

  python -m experiments.generate --model=folder --prompt="A man in" [one of these]
    --draft=smaller            speculative decoding
    --lookup                   drafts copied from the text so far
    --lookahead                the model guesses for itself
    --lookahead --pool=file    n-grams of other texts too, see experiments.pool
    --heads=folder             blockwise decoding
    --medusa=folder            heads that draft a tree
    --draft-head=folder        draft networks: EAGLE, DFlash, ...
    --strategy=tuned           the strategy that experiments.tune has found
    --strategy='jacobi(k=4)'   any other, in words
  python -m experiments.generate --model=folder --prompts=lines.txt --output=out.jsonl [the same]

The model goes on from the prompt; one with an encoder translates it. With --temperature it samples,
whatever drafts but Medusa. At the end come tokens per call, the share of calls that accepted a
draft at each place, tokens per second and the ratio to one token a call, timed in turn when all is
compiled.

--heads and --medusa take the same folders, of any prediction heads: a chain of each head's first
choice, or a tree of several. --choices says which: a published tree's name, or a JSON file with
paths of ranks, [[0], [0, 0], [1], ...]; without it, that part of mc_sim_7b_63 for which there are
heads. A tree given that is deeper than the heads is refused. With --temperature Medusa accepts what
is typical (Cai et al. 2024, section 2.3.1), which is no sampling and not lossless, as the last line
then says: no token is drawn, and --seed changes nothing.

--draft-head takes what fd.load_draft does: a run of configs/drafts.py, or a draft as it is
published. It drafts a chain of --gamma tokens (an autoregressive one 7, a block all its guesses),
or with --nodes a tree of so many, the root included, as deep. First its best guesses are compared
with what the model writes: few right ones mean that the draft is of another model, or is read
wrongly.

--strategy=tuned takes what `experiments.tune` found fastest for this model: its heads or draft, its
temperature, its type of numbers, and its number of prompts at once unless there is --rows.
--strategy also takes a strategy in the words of Python, with --draft, --heads or --draft-head for
the folder that it drafts with: --strategy='eagle(depth=7, width=8, nodes=32)'.

Of many prompts, one a line, each yields a JSON line as it ends, the longest first; once all have,
the file is put in the order of the prompts. {"index": 0, "prompt": ..., "text": ..., "tokens": 12,
"blocks": [0, 1, 3]}: the line of the prompt, from 0, the tokens generated, an end included, the
model's calls that emitted one token, two, three. All lines together give tokens per call and the
shares accepted. A run that was stopped goes on by the same command. Beside the output, in
out.jsonl.settings.json, stands what it depends on; an output of other settings is refused.
"""

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string('model', None, 'folder of a model, or of a finished run', required=True)
PROMPT = flags.DEFINE_string('prompt', None, 'text to go on from, or to translate')
PROMPTS = flags.DEFINE_string('prompts', None, 'file with a prompt on each line')
OUTPUT = flags.DEFINE_string('output', None, 'file for the JSON lines of --prompts')
DRAFT = flags.DEFINE_string('draft', None, 'folder of a smaller model that drafts')
LOOKUP = flags.DEFINE_bool('lookup', False, 'copies drafts from the text so far')
LOOKAHEAD = flags.DEFINE_bool(
  'lookahead', False, 'guesses n-grams that the model has guessed before'
)
POOL = flags.DEFINE_string(
  'pool', None, 'file of n-grams that --lookahead or --lookup guess too, of experiments.pool'
)
HEADS = flags.DEFINE_string('heads', None, 'folder of prediction heads that draft')
MEDUSA = flags.DEFINE_string('medusa', None, 'folder of prediction heads that draft a tree')
DRAFT_HEAD = flags.DEFINE_string(
  'draft-head', None, 'folder of a draft network: EAGLE, MTP, DFlash, DSpark, ours'
)
STRATEGY = flags.DEFINE_string(
  'strategy',
  None,
  "'tuned': what experiments.tune has found; a file that it wrote; or words, 'jacobi(k=4)'",
)
NODES = flags.DEFINE_integer(
  'nodes', None, 'the tree of --draft-head, the root included', lower_bound=2
)
CHOICES = flags.DEFINE_string(
  'choices', None, 'the tree of --medusa: a published name, or a JSON file'
)
GAMMA = flags.DEFINE_integer(
  'gamma',
  None,
  'tokens drafted a call (draft: 4, draft-head: 7 or all, lookup: 9, heads: all)',
  lower_bound=1,
)
TEMPERATURE = flags.DEFINE_float(
  'temperature', 0.0, '0: the most likely tokens; else samples', lower_bound=0
)
TOP_K = flags.DEFINE_integer(
  'top_k', 0, 'samples among the k most likely tokens (0: all)', lower_bound=0
)
TOP_P = flags.DEFINE_float('top_p', 1.0, 'samples among the fewest tokens of this probability')
MAX_LEN = flags.DEFINE_integer('max_len', 64, 'the most tokens of an output', lower_bound=1)
SEED = flags.DEFINE_integer('seed', 0, 'of sampling', lower_bound=0, upper_bound=2**32 - 1)
DTYPE = flags.DEFINE_string(
  'dtype', None, "float32, bfloat16, int8, ...: of model and drafter (none: the model's own)"
)
ROWS = flags.DEFINE_integer(
  'rows', None, 'prompts of a file decoded at once (none: as tuned, or 16)', lower_bound=1
)
CORES = cli.cores_flag()
REPEATS = flags.DEFINE_integer(
  'repeats', 3, 'rounds of timing after a prompt (0: none)', lower_bound=0
)


def main(_: list[str]) -> None:
  import pathlib

  from experiments.lab import cores
  from experiments.lab.show import plain_console
  from experiments.tools import generation, prompt_file, self_check, streaming, tuned_file
  from experiments.tools.generation_settings import Settings
  from fastdec.files import read_prompts

  _check()
  settings = Settings(
    model=MODEL.value,
    draft=DRAFT.value,
    lookup=LOOKUP.value,
    heads=HEADS.value,
    medusa=MEDUSA.value,
    choices=CHOICES.value,
    gamma=GAMMA.value,
    temperature=TEMPERATURE.value,
    top_k=TOP_K.value,
    top_p=TOP_P.value,
    max_len=MAX_LEN.value,
    seed=SEED.value,
    draft_head=DRAFT_HEAD.value,
    nodes=NODES.value,
    strategy=STRATEGY.value,
    lookahead=LOOKAHEAD.value,
    dtype=DTYPE.value,
    pool=POOL.value,
  )
  rows = (
    1 if PROMPTS.value is None else tuned_file.rows_at_once(ROWS.value, MODEL.value, STRATEGY.value)
  )
  cores.settle(MODEL.value, rows, CORES.value)
  console = plain_console()
  if PROMPT.value is not None:
    generator = generation.Language.of(settings, [PROMPT.value]).load()
    self_check.say(console, generator, PROMPT.value)
    streaming.show(console, generator, PROMPT.value, REPEATS.value)
    return
  assert PROMPTS.value is not None and OUTPUT.value is not None  # by `_check`
  prompts = read_prompts(pathlib.Path(PROMPTS.value))
  language = generation.Language.of(settings, prompts)
  output = prompt_file.Output.of(pathlib.Path(OUTPUT.value), settings, prompts, language.opened)
  generator = language.load()
  self_check.say(console, generator, prompts[0])
  prompt_file.write(console, output, generator, prompts, rows)


def _check() -> None:
  """Mistakes that show without a look at any file."""
  from fastdec.errors import UserError

  if (PROMPT.value is None) == (PROMPTS.value is None):
    given = (
      'there is nothing to go on from'
      if PROMPT.value is None
      else ('--prompt and --prompts are both given')
    )
    raise UserError(f'{given}: give --prompt=text, or --prompts=file with --output=out.jsonl')
  if (PROMPTS.value is None) != (OUTPUT.value is None):
    raise UserError(
      '--prompts and --output belong together: give --prompts=file and --output=out.jsonl'
    )
  if PROMPT.value is not None:
    try:
      PROMPT.value.encode()
    except UnicodeEncodeError:
      raise UserError('--prompt is not UTF-8: convert the text') from None
    if not PROMPT.value.strip():
      raise UserError('the prompt is empty: give some text to go on from')


if __name__ == '__main__':
  cli.run(main)
