"""An English-German corpus made on the spot from CLDR's localisation data.

Names of countries and languages, currencies, units, dates and times come from CLDR by way of Babel,
numbers in words from num2words, people, cities and things from
`fastdec.data.text.embedded_sentences`. The text changes with the CLDR release, so pyproject pins
Babel. English lines are all different, and so are German ones: what is in dev or test is nowhere
else.
"""

import datetime
import functools
import hashlib
import importlib.metadata
import itertools
import pathlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastdec import extras
from fastdec.data.text import embedded_sentences as words

with extras.explained():
  from babel import Locale, dates, numbers, units
  from num2words import num2words

SIZES = {'dev': 500, 'test': 500, 'train': 20_000}
SEED = 2018

Number = int | float
Pair = tuple[str, str]
Forms = dict[str, str]  # '' is the plain form, 'dat' the one that '{person_dat}' asks for
Drawn = tuple[Forms, Forms]  # in English and in German
Slot = Callable[[random.Random], Drawn]


@functools.lru_cache
def generate(split: str) -> tuple[Pair, ...]:
  """The (English, German) lines of 'train', 'dev' or 'test': the same ones each time."""
  start = {'dev': 0, 'test': SIZES['dev'], 'train': SIZES['dev'] + SIZES['test']}[split]
  return tuple(itertools.islice(_pairs(), start, start + SIZES[split]))


def content_key() -> str:
  """Changes when the corpus may have: a hash of what it is made from."""
  digest = hashlib.sha256()
  for file in (__file__, words.__file__):
    digest.update(pathlib.Path(file).read_bytes())
  for package in ('Babel', 'num2words'):
    digest.update(importlib.metadata.version(package).encode())
  return digest.hexdigest()


def _pairs() -> Iterator[Pair]:
  """Pairs without end, no line of which occurs in another: first those of dev, then test, then
  train."""
  rng, seen = random.Random(SEED), set()
  while True:
    english, german = sentence(rng)
    if english not in seen and german not in seen:
      seen.update((english, german))
      yield english, german


def sentence(rng: random.Random) -> Pair:
  """One pair of lines: a template, its fields drawn, and one of its German wordings."""
  template, wordings = rng.choice(words.TEMPLATES)
  (german,) = rng.choices([text for _, text in wordings], [weight for weight, _ in wordings])
  filled_en, filled_de, drawn = {}, {}, []
  for slot, number in dict.fromkeys(re.findall(r'{([a-z]+?)(\d?)(?:_[a-z]+)?}', template)):
    value = SLOTS[slot](rng)
    while value in drawn:
      value = SLOTS[slot](rng)
    drawn.append(value)
    for filled, forms in zip((filled_en, filled_de), value, strict=True):
      filled.update({f'{slot}{number}{form and "_"}{form}': text for form, text in forms.items()})
  return _finish(template.format_map(filled_en)), _finish(german.format_map(filled_de))


def _finish(text: str) -> str:
  """A capital at the start, and plain spaces where CLDR has unbreakable and narrow ones."""
  text = ' '.join(text.split())
  return text[0].upper() + text[1:]


def _person(rng: random.Random) -> Drawn:
  english, (nominative, accusative, dative), female = rng.choice(words.PEOPLE)
  german = {'': nominative, 'acc': accusative, 'dat': dative, 'they': 'sie' if female else 'er'}
  return {'': english, 'they': 'she' if female else 'he'}, german


def _country(rng: random.Random) -> Drawn:
  code = rng.choice(words.COUNTRIES)
  english, german = Locale('en').territories[code], Locale('de').territories[code]
  if code in words.FEMININE_COUNTRIES:
    forms = {'in': f'in der {german}', 'to': f'in die {german}', 'from': f'aus der {german}'}
  elif code in words.MASCULINE_COUNTRIES:
    forms = {'in': f'im {german}', 'to': f'in den {german}', 'from': f'aus dem {german}'}
  else:
    forms = {'in': f'in {german}', 'to': f'nach {german}', 'from': f'aus {german}'}
  return {'': english}, forms


def _language(rng: random.Random) -> Drawn:
  code = rng.choice(words.LANGUAGES)
  german = Locale('de').languages[code]
  return {'': Locale('en').languages[code]}, {'': german, 'acc': f'{german}e', 'dat': f'{german}en'}


def _document(rng: random.Random) -> Drawn:
  english, german = rng.choice(words.DOCUMENTS)
  return {'': english}, {'': german, 'acc': re.sub('^der ', 'den ', german)}


def _clock(rng: random.Random) -> Drawn:
  """A time as it is said: German counts the half hour towards the next one ('halb vier' is
  3:30)."""
  kind, hour = rng.randrange(4), rng.randrange(1, 13)
  following = hour % 12 + 1
  now, later = num2words(hour), num2words(following)
  english = (f"{now} o'clock", f'quarter past {now}', f'half past {now}', f'quarter to {later}')[
    kind
  ]
  now, later = num2words(hour, lang='de'), num2words(following, lang='de')
  full = 'ein' if hour == 1 else now
  german = (f'{full} Uhr', f'Viertel nach {now}', f'halb {later}', f'Viertel vor {later}')[kind]
  return {'': english}, {'': german}


def _weekday(rng: random.Random) -> Drawn:
  day = _day(rng)
  german = dates.format_date(day, 'EEEE', 'de')
  return {'': dates.format_date(day, 'EEEE', 'en')}, {'': german, 'every': f'{german.lower()}s'}


def _span(rng: random.Random) -> Drawn:
  start = rng.randrange(1950, 2010)
  years = {'': str(start), 'end': str(start + rng.randrange(2, 16))}
  return years, years


def _one_of(pairs: Sequence[Pair]) -> Slot:
  """A slot for words that have one form."""

  def draw(rng: random.Random) -> Drawn:
    english, german = rng.choice(pairs)
    return {'': english}, {'': german}

  return draw


def _shown(draw: Callable[[random.Random], Any], show: Callable[[Any, str], str]) -> Slot:
  """A slot for a value that each language shows in its own way."""
  show = functools.lru_cache(maxsize=None)(show)

  def draw_both(rng: random.Random) -> Drawn:
    value = draw(rng)
    return {'': show(value, 'en')}, {'': show(value, 'de')}

  return draw_both


def _quantity(*choices: tuple[str, Sequence[Number]]) -> Slot:
  """A slot for '12.5 kilograms': a unit of CLDR and its values."""

  def draw(rng: random.Random) -> tuple[Number, str]:
    unit, values = rng.choice(choices)
    return rng.choice(values), unit

  return _shown(draw, lambda quantity, locale: units.format_unit(*quantity, locale=locale))


def _from_now(sign: int) -> Slot:
  """A slot for 'in 3 days' or '3 days ago'."""

  def draw(rng: random.Random) -> tuple[str, datetime.timedelta]:
    unit, days, most = rng.choice((('hour', 1 / 24, 23), ('day', 1, 30), ('week', 7, 8)))
    return unit, sign * rng.randrange(2, most + 1) * datetime.timedelta(days=days)

  return _shown(
    draw,
    lambda drawn, locale: dates.format_timedelta(
      drawn[1], granularity=drawn[0], threshold=10_000, add_direction=True, locale=locale
    ),
  )


def _day(rng: random.Random) -> datetime.date:
  return datetime.date(2020, 1, 1) + datetime.timedelta(days=rng.randrange(3650))


def _time(rng: random.Random) -> datetime.time:
  return datetime.time(rng.randrange(6, 24), rng.randrange(0, 60, 5))


def _money(amounts: Sequence[Number]) -> Callable[[random.Random], tuple[Number, str]]:
  return lambda rng: (rng.choice(amounts), rng.choice(words.CURRENCIES))


NUMBERS = [n for n in range(2, 120) if n != 101]  # 'einhunderteins' would need a declined 'eins'
FULL_DATE = {'en': 'EEEE, MMMM d, y', 'de': "EEEE, 'dem' d. MMMM y"}
TIME = {'en': 'h:mm a', 'de': "H:mm 'Uhr'"}
PERCENT = {'en': '#,##0.#%', 'de': '#,##0.# %'}
SLOTS: dict[str, Slot] = {
  'person': _person,
  'country': _country,
  'language': _language,
  'document': _document,
  'clock': _clock,
  'day': _weekday,
  'span': _span,
  'ago': _from_now(-1),
  'ahead': _from_now(1),
  'city': _one_of(words.CITIES),
  'product': _one_of(words.PRODUCTS),
  'message': _one_of(words.MESSAGES),
  'liquid': _one_of(words.LIQUIDS),
  'food': _one_of(words.FOODS),
  'date': _shown(_day, lambda day, locale: dates.format_date(day, 'long', locale)),
  'fulldate': _shown(_day, lambda day, locale: dates.format_date(day, FULL_DATE[locale], locale)),
  'month': _shown(_day, lambda day, locale: dates.format_date(day, 'MMMM', locale)),
  'time': _shown(_time, lambda time, locale: dates.format_time(time, TIME[locale], locale=locale)),
  'year': _shown(lambda rng: rng.randrange(1950, 2025), lambda year, _: str(year)),
  'platform': _shown(lambda rng: rng.randrange(1, 25), lambda platform, _: str(platform)),
  'number': _shown(
    lambda rng: rng.choice(NUMBERS), lambda number, locale: num2words(number, lang=locale)
  ),
  'ordinal': _shown(
    lambda rng: rng.randrange(2, 60),
    lambda number, locale: num2words(number, to='ordinal', lang=locale),
  ),
  'percent': _shown(
    lambda rng: rng.randrange(1, 1000) / 1000,
    lambda share, locale: numbers.format_percent(share, PERCENT[locale], locale=locale),
  ),
  'price': _shown(
    _money([n / 2 - 0.01 for n in range(4, 1800)]),
    lambda money, locale: numbers.format_currency(*money, locale=locale),
  ),
  'amount': _shown(
    _money(range(20, 5000, 10)),
    lambda money, locale: numbers.format_currency(
      *money, locale=locale, format_type='name', currency_digits=False
    ),
  ),
  'distance': _quantity(('length-kilometer', range(20, 2500)), ('length-mile', range(20, 1500))),
  'duration': _quantity(('duration-hour', range(2, 10)), ('duration-minute', range(5, 60))),
  'weight': _quantity(
    ('mass-gram', range(50, 1000, 10)), ('mass-kilogram', [n / 2 for n in range(3, 41)])
  ),
  'volume': _quantity(('volume-milliliter', range(50, 1000, 50)), ('volume-liter', range(2, 9))),
  'temperature': _quantity(('temperature-celsius', range(-15, 39))),
}
