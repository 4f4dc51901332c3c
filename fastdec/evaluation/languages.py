"""Names of languages by ISO 639: 'zh-CN', 'zh_TW', 'zho_Hans', 'chi' and 'cmn' are all 'zh'."""

import re

from fastdec.errors import UserError
from fastdec.fields import quote

# ISO 639-1, and names of three letters of the languages that BLEU treats in a way of their own.
CODES = """
  aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
  dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia
  id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo
  lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl
  ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti
  tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
NAMES = {  # Chinese as it is spoken in a region has a code of its own
  'bo': 'bod tib',
  'de': 'deu ger',
  'dz': 'dzo',
  'ja': 'jpn',
  'km': 'khm',
  'lo': 'lao',
  'my': 'mya bur',
  'th': 'tha',
  'zh': 'zho chi cmn yue wuu hak hsn gan cdo nan lzh',
}
CODE_OF = {code: code for code in CODES.split()}
for _code, _names in NAMES.items():
  CODE_OF |= dict.fromkeys(_names.split(), _code)


def code_of(name: str) -> str | None:
  """Returns a language's code, of two letters for those of `NAMES`; None if no language has it.

  Args:
    name: a code, which a script, a region and so on may follow: 'zho_Hans', 'de-AT', 'ja_XX'.

  >>> code_of('zho_Hans'), code_of('de-AT'), code_of('ceb'), code_of('jp')
  ('zh', 'de', 'ceb', None)
  """
  match = re.fullmatch(r'([a-z]{2,3})([-_][a-z0-9]{1,8})*', name.lower())
  if match is None:
    return None
  code = match[1]
  if len(code) == 3:
    return CODE_OF.get(code, code)  # nearly all words of three letters are codes of a language
  return CODE_OF.get(code)


def check_language(name: str, what: str = '') -> str:
  """Returns the code of a language, or raises UserError with a message that starts with `what`."""
  code = code_of(name)
  if code is None:
    raise UserError(
      f'{what}{quote(name)} is not a language: give a code of ISO 639, such as de, zh-CN, zho_Hans'
    )
  return code
