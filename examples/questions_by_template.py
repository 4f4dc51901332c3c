"""Prints questions made of templates, as JSON lines: prompts on which a draft can be trained.

Example:
  python -m examples.questions_by_template 2000 > questions.jsonl
  fastdec train-draft --model=folder --chat --prompts=questions.jsonl --out=draft

They ask for what chat models are mostly asked: explanations, texts, lists, advice, sums, code.
"""

import json
import pathlib
import random
import sys
import tomllib


def questions(count: int, seed: int = 0) -> list[dict[str, str]]:
  """Returns `count` different questions, each with its category."""
  read = tomllib.loads(pathlib.Path(__file__).with_suffix('.toml').read_text('utf-8'))
  templates, draw, lists = read['templates'], random.Random(seed), {}
  for name, text in read['words'].items():
    lists[name] = [' '.join(entry.split()) for entry in text.split(';')]
  asked: dict[str, str] = {}
  while len(asked) < count:
    category = draw.choice(list(templates))
    values: dict[str, object] = {}
    for name, entries in lists.items():
      values[name], values[f'{name}2'], values[f'{name}3'] = draw.sample(entries, 3)
    a, b, c = draw.randint(5, 60), draw.randint(2, 12), draw.randint(2, 9)
    numbers = {'a': a, 'b': b, 'c': c, 'three': 3 * a, 'big': 100 * b, 'ten': 10 * c}
    numbers['sum'] = b * a + c
    asked.setdefault(draw.choice(templates[category]).format(**values, **numbers), category)
  return [{'category': category, 'prompt': text} for text, category in asked.items()]


if __name__ == '__main__':
  if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
    sys.exit(__doc__)
  for question in questions(int(sys.argv[1])):
    print(json.dumps(question, ensure_ascii=False))
