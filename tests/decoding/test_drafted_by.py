"""Wrong arguments for a draft, a rule, a tree or a pool: each mistake has its own message.

Most of them have another type, and the tests' own type checks would refuse them first. So they run
in a process without these checks, as users call fastdec.
"""

import json
import re
import subprocess
import sys

import jax
import pytest

import fastdec as fd
from fastdec.decoding.rules.matching import Drawn
from tests.decoding.fakes import HashHeads, HashLM

PARTS = """
import jax, numpy as np
import fastdec as fd
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.models.lm import LM, LMConfig
config = LMConfig(vocab_size=9, d_model=4, d_ff=6, layers=1, heads=2, key_heads=1)
model, heads = LM(config), BlockwiseHeads(2, 4, 4)
network = EagleNetwork(layers=config, vocab_size=9, d_target=4)
parts = model, heads, network
of_model, of_heads, of_network = ((part, part.init(jax.random.key(0))) for part in parts)
"""
SLIPS = {  # the message of each, as a regular expression
  'fd.Blockwise("heads")': "heads must be a pair .*, not 'heads': give both",
  'fd.Medusa(heads, [[0]])': 'heads must be a pair .*, not BlockwiseHeads',
  'fd.Speculative(model)': 'draft must be a pair .*, not LM',
  'fd.Eagle(None)': 'draft must be a pair .*, not NoneType',
  'fd.Blockwise(of_network)': 'with Heads, not with EagleNetwork: Eagle takes an',
  'fd.Medusa(of_model, [[0]])': 'with Heads, not with LM: .* Speculative a model',
  'fd.Speculative(of_heads)': 'with Model, not with BlockwiseHeads: .*Medusa take heads',
  'fd.Speculative(of_network)': 'with Model, not with EagleNetwork',
  'fd.Blockwise(of_heads[::-1])': 'with Heads, not with dict',
  'fd.Blockwise(of_heads, rule=fd.Exact)': r'rule=Exact is a class: .* such as Exact\(\)',
  'fd.Blockwise(of_heads, rule="exact")': "rule='exact' is not a rule: give one such as Exact",
  'fd.Blockwise(of_heads, rule=None)': 'rule=None is not a rule',
  'fd.Medusa(of_heads, [[0]], rule=2)': 'rule=2 is not a rule',
  'fd.Speculative(of_model, rule=fd.Rejection)': 'rule=Rejection is a class',
  'fd.Eagle(of_network, rule="exact")': "rule='exact' is not a rule",
  'fd.MinBlock(fd.Rejection(), 2)': r'MinBlock needs a rule that matches drafts, not Rejection\(.*:'
  ' give',
  'fd.MinBlock(2, fd.Exact())': 'MinBlock needs a rule that matches drafts, not 2',
  'fd.Medusa(of_heads, [0, 1])': 'choice 0 is not a path of ranks: give a list',
  'fd.Medusa(of_heads, [["a"]])': 'not a path of ranks',
  'fd.Medusa(of_heads, [[0.5]])': 'not a path of ranks',
  'fd.Medusa(of_heads, [[True]])': 'not a path of ranks',
  'fd.Medusa(of_heads, 5)': '5 is not a tree: give paths of ranks',
  'fd.Medusa(of_heads, None)': 'None is not a tree',
  'fd.Medusa(of_heads)': "Medusa: missing a required argument: 'choices': its arguments are h",
  'fd.Speculative()': "Speculative: missing a required argument: 'draft'",
  'fd.Jacobi(4, size=2)': "Jacobi: got an unexpected keyword argument 'size': its .* k, sampling",
  'fd.save_heads("heads", of_heads)': 'published heads names their model: give base_model',
  'fd.save_heads("heads", heads, "m")': 'heads must be a pair',
  'fd.Topology.from_choices("mc")': "'mc' is not a tree",
  'fd.PromptLookup(pool="pool.safetensors")': "pool='pool.safetensors' is not a pool of n-grams"
  ': give what load_pool',
  'fd.Lookahead(pool="pool.safetensors")': 'is not a pool of n-grams',
  'fd.save_pool({}, "pool.safetensors")': 'pool={} is not a pool of n-grams',
  'fd.shortlist(model, of_heads, np.arange(9), 4)': 'target must be a pair',
  'fd.shortlist(of_model, "heads", np.arange(9), 4)': "drafter must be a pair .*, not 'heads'",
  'fd.save_draft("draft", model)': 'draft must be a pair',
  'fd.save_draft("draft", of_model)': 'LM cannot be stored: give one of the types eagle, block',
  'fd.load_draft(".", taps=3)': 'taps=3 is not possible: give the numbers of layers, such as',
  'fd.load_draft(".", taps="deep")': "taps='deep' is not possible",
}
TRIALS = """
import json
messages = {}
for call in json.loads(sys.argv[1]):
  try:
    messages[call] = f'nothing, but {eval(call)}'
  except fd.UserError as error:
    messages[call] = str(error)
  except Exception as error:
    messages[call] = f'a traceback: {error!r}'
print(json.dumps(messages))
"""


@pytest.fixture(scope='module')
def messages(tmp_path_factory):
  """The message that each slip raises."""
  command = [sys.executable, '-c', f'import sys{PARTS}{TRIALS}', json.dumps(list(SLIPS))]
  run = subprocess.run(
    command, cwd=tmp_path_factory.mktemp('empty'), capture_output=True, text=True, check=True
  )
  return json.loads(run.stdout)


@pytest.mark.parametrize('call', SLIPS)
def test_a_slip_is_a_sentence(messages, call):
  assert re.search(SLIPS[call], messages[call]), messages[call]


def test_a_least_block_of_one_draws_where_its_rule_draws():
  """It promises the law of its rule, so it writes the same text as the rule, and a different text
  for each key."""
  rules = Drawn(fd.Sampling(1.0)), fd.MinBlock(Drawn(fd.Sampling(1.0)), 1)
  prompts, key = [[3, 4]] * 16, jax.random.key(0)
  plain, least = (
    fd.decode(HashLM(), {}, prompts, fd.Blockwise((HashHeads(), {}), 3, rule), max_len=6, key=key)
    for rule in rules
  )
  assert rules[1].promise == 'law' and (plain.tokens == least.tokens).all()
  assert len({tuple(row) for row in least.tokens.tolist()}) > 8
