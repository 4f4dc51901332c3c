"""Code of the pages under docs/ and of the README runs, on tiny models in folders of the names that
the pages use."""

import dataclasses
import importlib.util
import re

import jax
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.data.text.sentencepiece import Tokenizer
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.models.transformer import Transformer, TransformerConfig
from tests.pages import ADD, ROOT

BLOCK = re.compile(r'^```python\n(.*?)^```', re.DOTALL | re.MULTILINE)
OWN_PROCESS = ('scale.md',)  # which needs eight devices: test_docs
TAKES_TIMES = 'fastest.md'
NEEDS_MORE = 'constraints.md'  # the extra 'constraint'
LINES = [
  'A man in a red hat', 'Two dogs run', 'the cat sat . the cat', 'A man rides a bicycle.',
  '{"name": "tan", "age": 120, "hats": ["red"]}', '3456789',
]  # fmt: skip
WORDS = 80
SIZES = dict(vocab_size=WORDS, d_model=8, d_ff=12, heads=2)


def pages():
  for page in sorted([ROOT / 'README.md', *(ROOT / 'docs').rglob('*.md')]):
    if page.name not in OWN_PROCESS and page not in ADD and BLOCK.search(page.read_text()):
      marks = [pytest.mark.slow] if page.name == TAKES_TIMES else []
      is_bare = page.name == NEEDS_MORE and importlib.util.find_spec('outlines_core') is None
      marks += [pytest.mark.skip('outlines-core is not installed')] if is_bare else []
      yield pytest.param(page, id=name(page), marks=marks)


def name(page):
  return str(page.relative_to(ROOT))


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with what pages load: a language model and what drafts for it, a translator."""
  place, keys = tmp_path_factory.mktemp('docs'), jax.random.split(jax.random.key(0), 6)
  (place / 'lines.txt').write_text('\n'.join(LINES * 4) + '\n')
  Tokenizer.train(LINES, place / 'pieces', vocab_size=WORDS)
  layers = LMConfig(**SIZES, layers=1, windows=(0,), norm_epsilon=1e-5)
  model, there = LM(layers), place / 'path' / 'to'
  for folder, key in (('model', keys[0]), ('smaller', keys[1])):
    folders.save(model, model.init(key), there / folder, tokenizer=place / 'pieces')
  medusa = MedusaHeads(2, d_model=8, vocab_size=WORDS)
  fd.save_heads(there / 'medusa', (medusa, medusa.init(keys[2])), 'model')
  of_target = dict(layers=dataclasses.replace(layers), vocab_size=WORDS, d_target=8)
  for folder, network in (
    ('eagle', EagleNetwork(**of_target)),
    ('block', BlockNetwork(**of_target, k=4)),
  ):
    fd.save_draft(there / folder, (network, network.init(keys[3])))
  sizes = TransformerConfig(**SIZES, encoder_layers=1, decoder_layers=1)
  heads, translator = BlockwiseHeads(k=4, d_model=8, d_ff=6), Transformer(sizes)
  run = place / 'out' / 'quickstart' / 'k8-finetune'
  parts = heads, heads.init(keys[4])
  folders.save(translator, translator.init(keys[5]), run, parts, place / 'pieces')
  return place


@pytest.mark.wide('README.md', 'docs/index.md', 'docs/own/drafter.md')
@pytest.mark.parametrize('page', list(pages()))
def test_the_code_of_a_page_runs_in_order(page, place, monkeypatch):
  monkeypatch.chdir(place)
  text = page.read_text()
  names = {'__name__': page.stem}
  for block in BLOCK.finditer(text):
    # Empty lines before the block, so that an error names the line of the page.
    before = '\n' * text.count('\n', 0, block.start(1))
    exec(compile(before + block[1], str(page), 'exec'), names)


@pytest.mark.parametrize('page', list(pages()))
def test_a_page_uses_what_there_is(page):
  """This notices a changed name without running all pages."""
  for code in BLOCK.findall(page.read_text()):
    compile(code, str(page), 'exec')
    assert all(hasattr(fd, used) for used in re.findall(r'\bfd\.(\w+)', code))
