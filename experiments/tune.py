"""Finds the fastest way to decode here: on this machine, with this model, for prompts such as
these.

  python -m experiments.tune --model=folder --prompts=lines.txt
  python -m experiments.tune --model=folder --prompts=lines.txt --draft-head=folder \\
    --heads=folder --draft=smaller
  python -m experiments.generate --model=folder --prompt="A man in" --strategy=tuned

Greedy decoding, prompt lookup, lookahead and whatever the given drafters can do, in several sizes,
decode the same prompts in turn; who falls behind is dropped. Within --budget the fastest is found
that keeps --promise:

  exact     the output is the model's own greedy output (the default)
  law       tokens have the law of sampling at --temperature (the default where that is above 0)
  relaxed   anything goes: top-n and typical acceptance of heads take part too

Greedy decoding (above temperature 0, sampling) takes part and is kept unless something is faster
beyond noise. Printed for each candidate: tokens a call; milliseconds a call and a token, prompts
included; tokens a second; how many times as fast as greedy decoding, with the interval that holds
95 % of 1000 samples of the prompts; and how many texts equal greedy decoding's.

The choice is written beside the model, tuned.json (--output names another file), where
--strategy=tuned of experiments.generate and experiments.translate, and fd.load_tuned, find it.

--dtypes=float32,int8 tunes in several types, one after another, drafters in the type of the model
(all: float32, int8, and bfloat16 where the machine has units for it). In another type it is another
model, whose own greedy output is kept. --batches=1,8 tunes with several numbers of prompts decoded
at once. Each has its share of the budget, and the most tokens a second win.

--heads takes any prediction heads, as a chain and as trees that are fitted to the prompts (or that
--choices says).
--draft-head takes EAGLE, MTP, DFlash, DSpark and our own draft networks. --gammas and --nodes say
which lengths of drafts, and which sizes of trees, are tried. --strategy, once or more, tries others
that draft with nothing, in the words of Python: --strategy='jacobi(k=4)'.
"""

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string('model', None, 'folder of a model, or of a finished run', required=True)
PROMPTS = flags.DEFINE_string('prompts', None, 'file with a prompt on each line', required=True)
DRAFT = flags.DEFINE_string('draft', None, 'folder of a smaller model that drafts')
LOOKUP = flags.DEFINE_bool('lookup', True, 'tries drafts copied from the text so far')
LOOKAHEAD = flags.DEFINE_bool('lookahead', True, 'tries n-grams that the model has guessed before')
HEADS = flags.DEFINE_string('heads', None, 'folder of prediction heads')
DRAFT_HEAD = flags.DEFINE_string(
  'draft-head', None, 'folder of a draft network: EAGLE, MTP, DFlash, DSpark, ours'
)
STRATEGY = flags.DEFINE_multi_string(
  'strategy', [], "a strategy without heads or draft to try too, such as 'jacobi(k=4)'"
)
CHOICES = flags.DEFINE_string(
  'choices', None, 'the tree of --heads: a published name, or a JSON file'
)
GAMMAS = flags.DEFINE_list('gammas', None, 'tokens drafted a call in a row, such as 2,4,8')
NODES = flags.DEFINE_list('nodes', None, 'nodes of trees, the root included, such as 8,16,32')
PROMISE = flags.DEFINE_enum(
  'promise', None, ['exact', 'law', 'relaxed'], 'what the output must keep'
)
TEMPERATURE = flags.DEFINE_float(
  'temperature', 0.0, '0: the most likely tokens; else samples', lower_bound=0
)
TOP_K = flags.DEFINE_integer(
  'top_k', 0, 'samples among the k most likely tokens (0: all)', lower_bound=0
)
TOP_P = flags.DEFINE_float('top_p', 1.0, 'samples among the fewest tokens of this probability')
MAX_LEN = flags.DEFINE_integer('max_len', 64, 'the most tokens of an output', lower_bound=1)
BATCHES = flags.DEFINE_list('batches', ['1'], 'numbers of prompts decoded at once, such as 1,8')
DTYPES = flags.DEFINE_list(
  'dtypes', None, "types of numbers, such as float32,int8, or all (none: the model's own)"
)
BUDGET = flags.DEFINE_string('budget', '2m', 'time for all of it, such as 90s or 5m')
CORES = cli.cores_flag()
OUTPUT = flags.DEFINE_string(
  'output', None, "file to write (none: tuned.json in the model's folder)"
)


def main(_: list[str]) -> None:
  import pathlib

  from experiments.lab import cores
  from experiments.lab.show import plain_console
  from experiments.tools import tuning
  from experiments.tools.generation_settings import Settings
  from fastdec.files import read_prompts

  budget = cli.seconds(BUDGET.value)
  assert budget is not None  # by its default
  settings = Settings(
    MODEL.value,
    temperature=TEMPERATURE.value,
    top_k=TOP_K.value,
    top_p=TOP_P.value,
    max_len=MAX_LEN.value,
  )
  given = {
    'draft': DRAFT.value,
    'draft_head': DRAFT_HEAD.value,
    'heads': HEADS.value,
    'lookup': LOOKUP.value or None,
    'lookahead': LOOKAHEAD.value or None,
  }
  drafters = {name: {name: value} for name, value in given.items() if value is not None}
  plain = {'temperature': 0.0, 'top_k': 0, 'top_p': 1.0}  # the words have their own
  drafters |= {words: {'strategy': words, **plain} for words in STRATEGY.value}
  asked = tuning.Asked(
    settings,
    drafters,
    CHOICES.value,
    _numbers('gammas', 1),
    _numbers('nodes', 2),
    PROMISE.value,
    tuning.types_of(DTYPES.value),
    tuple(dict.fromkeys(_numbers('batches', 1) or ())),
  )
  cores.settle(MODEL.value, max(asked.rows), CORES.value)
  prompts = read_prompts(pathlib.Path(PROMPTS.value))
  output = None if OUTPUT.value is None else pathlib.Path(OUTPUT.value)
  tuning.tune(plain_console(), asked, prompts, budget, output)


def _numbers(name: str, least: int) -> list[int] | None:
  """Reads the whole numbers of a flag that lists them; None if it is not given."""
  from fastdec.errors import UserError

  given = flags.FLAGS[name].value
  if given is None:
    return None
  if not given or not all(word.isdecimal() and least <= int(word) < 1000 for word in given):
    raise UserError(
      f'--{name}={",".join(given)} is not possible: give whole numbers from {least}'
      ' to 999, such as 4,8'
    )
  return [int(word) for word in given]


if __name__ == '__main__':
  cli.run(main)
