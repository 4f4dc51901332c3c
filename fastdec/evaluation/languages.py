"""Names of languages by ISO 639: 'zh-CN', 'zh_TW', 'zho_Hans', 'chi' and 'cmn' are all 'zh'."""

import re

from fastdec.errors import UserError
from fastdec.fields import shown

# Two letters, three, and an older or a librarian's name.
CODES = """
  aa/aar ab/abk ae/ave af/afr ak/aka am/amh an/arg ar/ara as/asm av/ava ay/aym az/aze ba/bak
  be/bel bg/bul bi/bis bm/bam bn/ben bo/bod/tib br/bre bs/bos ca/cat ce/che ch/cha co/cos cr/cre
  cs/ces/cze cu/chu cv/chv cy/cym/wel da/dan de/deu/ger dv/div dz/dzo ee/ewe el/ell/gre en/eng
  eo/epo es/spa et/est eu/eus/baq fa/fas/per ff/ful fi/fin fj/fij fo/fao fr/fra/fre fy/fry ga/gle
  gd/gla gl/glg gn/grn gu/guj gv/glv ha/hau he/heb/iw hi/hin ho/hmo hr/hrv ht/hat hu/hun
  hy/hye/arm hz/her ia/ina id/ind/in ie/ile ig/ibo ii/iii ik/ipk io/ido is/isl/ice it/ita iu/iku
  ja/jpn jv/jav/jw ka/kat/geo kg/kon ki/kik kj/kua kk/kaz kl/kal km/khm kn/kan ko/kor kr/kau
  ks/kas ku/kur kv/kom kw/cor ky/kir la/lat lb/ltz lg/lug li/lim ln/lin lo/lao lt/lit lu/lub
  lv/lav mg/mlg mh/mah mi/mri/mao mk/mkd/mac ml/mal mn/mon mr/mar ms/msa/may mt/mlt my/mya/bur
  na/nau nb/nob nd/nde ne/nep ng/ndo nl/nld/dut nn/nno no/nor nr/nbl nv/nav ny/nya oc/oci oj/oji
  om/orm or/ori os/oss pa/pan pi/pli pl/pol ps/pus pt/por qu/que rm/roh rn/run ro/ron/rum ru/rus
  rw/kin sa/san sc/srd sd/snd se/sme sg/sag sh/hbs si/sin sk/slk/slo sl/slv sm/smo sn/sna so/som
  sq/sqi/alb sr/srp ss/ssw st/sot su/sun sv/swe sw/swa ta/tam te/tel tg/tgk th/tha ti/tir tk/tuk
  tl/tgl tn/tsn to/ton tr/tur ts/tso tt/tat tw/twi ty/tah ug/uig uk/ukr ur/urd uz/uzb ve/ven
  vi/vie vo/vol wa/wln wo/wol xh/xho yi/yid/ji yo/yor za/zha zh/zho/chi zu/zul
"""
# Chinese as it is spoken in a region has a code of its own.
CHINESE = 'cmn yue wuu hak hsn gan cdo nan lzh'
CODE_OF = {name: codes[:2] for codes in CODES.split() for name in codes.split('/')}
CODE_OF |= dict.fromkeys(CHINESE.split(), 'zh')


def code_of(name: str) -> str | None:
  """Returns a language's code of two letters, or of three if it has none of two.

  It is None if no language has this name.

  Args:
    name: a code, which a script, a region and so on may follow: 'zho_Hans', 'de-AT', 'ja_XX'.

  >>> code_of('zho_Hans'), code_of('de-AT'), code_of('yor'), code_of('ceb')
  ('zh', 'de', 'yo', 'ceb')
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
      f'{what}{shown(name)} is not a language: give a code of ISO 639, such as de, zh-CN, zho_Hans'
    )
  return code
