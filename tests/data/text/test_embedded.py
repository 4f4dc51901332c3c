"""The embedded corpus: pinned, disjoint, in right German where a rule of grammar can be checked."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from fastdec.data.text import embedded, embedded_sentences
from fastdec.data.text.corpus import TextData, load_pairs


def corpus() -> list[embedded.Pair]:
  return [pair for split in embedded.SIZES for pair in embedded.generate(split)]


def test_the_first_thousand_training_pairs_are_pinned():
  lines = '\n'.join(line for pair in embedded.generate('train')[:1000] for line in pair)
  digest = hashlib.sha256(lines.encode()).hexdigest()
  assert digest == '84d3c647910dcd2a6f40510ad7f337215bc20c73e0650a41e3ae43aabeece35e'


def test_no_line_occurs_twice_in_any_split():
  for side in zip(*corpus(), strict=True):
    assert len(set(side)) == len(side) == sum(embedded.SIZES.values())


def test_lines_are_plain_sentences():
  for line in (line for pair in corpus() for line in pair):
    assert line == ' '.join(line.split()) and '{' not in line
    assert line[-1] in '.?' and not line[0].islower()
    assert 5 <= len(line.split()) <= 25


@pytest.mark.parametrize(('template', 'wordings'), embedded_sentences.TEMPLATES)
def test_every_wording_says_what_the_english_says_and_one_is_likeliest(template: str, wordings):
  fields = lambda text: set(re.findall(r'{([a-z]+\d?)', text))
  for _, german in wordings:
    assert fields(german) == fields(template)
  weights = sorted((weight for weight, _ in wordings), reverse=True)
  assert len(weights) >= 2 and weights[0] > weights[1]


def test_wordings_come_up_in_proportion_to_their_weights():
  trains = [german for english, german in corpus() if english.startswith('The train to')]
  patterns = r'^Der Zug nach .* ab\.$', r'^Um .* ab\.$', r'^Der Zug nach .* verlässt'
  shares = [
    sum(bool(re.search(pattern, german)) for german in trains) / len(trains) for pattern in patterns
  ]
  np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.05)


@pytest.mark.parametrize(
  ('wrong', 'why'),
  [
    (
      r'\b(in|nach|aus) (Schweiz|Slowakei|Türkei|Ukraine|Mongolei|Irak|Iran|Jemen|Libanon|Tschad)\b',
      'article',
    ),
    (r'\b(von|an) der (Lehrer|Pilot|Journalist)\b', 'case'),
    (r'\b(dem|den) (Pilot|Journalist)\b', 'weak noun'),
    (r'\bum eins Uhr\b|\bhalb ein\b', 'one'),
    (r'\b(weil|dass|ob|wenn) [^,.?]*\b(muss|wohnt|hat) \w+', 'the verb comes last'),
    (r'\beinhunderteins\b', 'declined one'),
  ],
)
def test_german_obeys_its_grammar(wrong: str, why: str):
  offending = [german for _, german in corpus() if re.search(wrong, german)]
  assert not offending, (why, offending[:3])


def test_it_is_the_text_of_kind_embedded(tmp_path: Path):
  for split in embedded.SIZES:
    assert load_pairs(TextData(), split, tmp_path) == list(embedded.generate(split))
