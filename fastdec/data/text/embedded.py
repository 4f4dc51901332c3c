"""An English-German corpus of 21,000 simple sentences that comes with the package.

All English lines differ, and so do the German ones, so no sentence is in two splits.

Licence: a grammar of ours wrote the sentences; they are Apache-2.0, like the code. Their names of
countries, languages, currencies, units, days and months are from Unicode's CLDR 47, by way of Babel
2.18. Unicode's licence for these, Unicode-3.0, is in the archive as LICENSE.unicode.
"""

import pathlib

from fastdec.data.text.lines import LinePair, Lines

ARCHIVE = pathlib.Path(__file__).with_name('embedded.tgz')


def in_archive(split: str) -> LinePair:
  """Names the English and the German lines of 'train' (20,000), 'dev' or 'test' (500 each)."""
  english, german = (Lines(str(ARCHIVE), f'{split}.{language}') for language in ('en', 'de'))
  return english, german
