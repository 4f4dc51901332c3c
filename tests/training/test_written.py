"""What a model writes is found again by content, and held out by content."""

import dataclasses
import random

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.cli.own_text import OwnText, save_texts
from fastdec.training import written
from fastdec.training.stage import digest
from fastdec.training.written import Writing, choose_held_out, read_content, write_part
from tests.training.drafts.small import MODELS, bound

PROMPTS = [[5, 6], [7], [5, 6]]


def test_a_part_is_written_once_and_found_by_its_prompts_and_their_place(tmp_path, monkeypatch):
  target = bound(MODELS['lm'])
  greedy = Writing(target, fd.Greedy(), 4, 4)
  drawn = dataclasses.replace(greedy, strategy=fd.Sample(), key=jax.random.key(0), draws=2)
  outputs = {name: [] for name in ('greedy', 'drawn')}
  for _ in range(2):  # the second time from the disk
    outputs['greedy'].append(write_part(tmp_path / 'greedy', greedy, PROMPTS, 0))
    outputs['drawn'].append(write_part(tmp_path / 'drawn', drawn, PROMPTS, 0))
    monkeypatch.setattr(written, '_decode', lambda *args: pytest.fail('written again'))
  for name, (first, second) in outputs.items():
    assert first == second and [len(one) for one in first] == [len(first[0])] * 3, name
  (one,), (other,), (again,) = outputs['greedy'][0]
  assert one == again != other  # a prompt that is there twice
  assert len({tuple(text) for texts in outputs['drawn'][0] for text in texts}) > 3

  # Other prompts, other orders and other places are other parts.
  asked = []
  monkeypatch.setattr(written, '_decode', lambda _, *part: asked.append(part) or iter(()))
  for prompts, first in ((PROMPTS[:2], 0), (PROMPTS[::-1][1:], 0), (PROMPTS, 3), ([[5], [6]], 0)):
    write_part(tmp_path / 'greedy', greedy, prompts, first)
  assert len(asked) == 4


def test_states_and_trainings_are_named_by_all_that_they_read(tmp_path):
  for name, seed in {'base': 0, 'same': 0, 'other': 1}.items():
    fd.save(MODELS['lm'], MODELS['lm'].init(jax.random.key(seed)), tmp_path / name)

  def key(texts=((1, 2), (3,)), held_out=((4,),), model='base', rows=2, length=8):
    folder = tmp_path / digest({'texts': texts, 'held': held_out})
    folder.mkdir(exist_ok=True)
    save_texts(folder, [(text, text) for text in texts], [(text, text) for text in held_out])
    text = OwnText(folder, bound(MODELS['lm']), str(tmp_path / model), rows, length)
    return digest({'data': text})

  same = key()
  assert key(model='same') == same  # wherever it is
  others = [key(texts=((1, 3), (3,))), key(texts=((1,), (2, 3))), key(held_out=((5,),))]
  others += [key(model='other'), key(rows=4), key(length=9)]
  assert len({same, *others}) == 7


@pytest.mark.parametrize('seed', range(20))
def test_a_content_is_held_out_wherever_it_is(seed):
  draw = random.Random(seed)
  contents = [draw.randrange(draw.randint(2, 60)) for _ in range(draw.randint(2, 200))]
  contents += [-1, -2]
  share = draw.randint(2, 30)
  held_out = choose_held_out(contents, share)
  count = np.isin(contents, list(held_out)).sum()
  least = min(map(contents.count, contents))
  assert held_out < set(contents) and 0 < count <= max(len(contents) // share, least)


@pytest.mark.parametrize('prompt, content', [
  (' A  man\tin ', 'A man in'),
  ([{'role': 'user', 'content': 'A man\nin'}], 'A man in'),
  ([{'role': 'system', 'content': 'x'}, {'role': 'user', 'content': 'A man in'}], 'A man in'),
  ([{'role': 'user', 'content': 'A man in'}, {'role': 'user', 'content': 'x'}], 'A man in'),
  ([{'role': 'user', 'content': [{'text': 'A'}]}], '[{"text": "A"}]'),
  ([{'role': 'assistant', 'content': 'A man in'}], 'A man in'),
])  # fmt: skip
def test_the_words_by_which_a_prompt_is_held_out(prompt, content):
  assert read_content(prompt) == content
