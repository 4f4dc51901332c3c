"""The process that renders chat templates for `chat`: one JSON line in, one JSON line out.

It runs as a script and imports only `transformers`, which renders in Jinja's sandbox.
"""

import importlib
import json
import signal
import sys

MEMORY = 2**30  # bytes
LONGEST = 2**22  # characters of a text
SECONDS = 30  # of one text; the process ends itself even if its parent is gone


def answer(line):
  """Returns the rendered text, or a sentence that says why rendering failed."""
  jinja2 = importlib.import_module('jinja2')  # both are of the extra 'hf'
  library = importlib.import_module('transformers.utils.chat_template_utils')
  try:
    (text,), _ = library.render_jinja_template(**json.loads(line))
  except jinja2.TemplateSyntaxError as error:
    return {'refused': f'the chat template has a mistake in line {error.lineno}: {error}'}
  except MemoryError:
    return {'refused': f'the chat template takes more than {MEMORY >> 30} GB of memory'}
  except Exception as error:
    if type(error) is jinja2.TemplateError:  # raise_exception, which templates call
      return {'refused': f'the chat template refuses these messages: {error}'}
    reason = f'{type(error).__name__}: {error}'.splitlines()[0]
    return {'refused': f'the chat template fails on these messages: {reason[:500]}'}
  if len(text) > LONGEST:
    return {'refused': f'the chat template writes more than {LONGEST} characters'}
  return {'text': text}


def main():
  warm_up = '{"conversations": [[]], "chat_template": ""}'
  answer(warm_up)  # imports everything before the memory is bounded
  try:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  except (ImportError, ValueError, OSError):  # some systems cannot limit memory, only time
    pass
  print('ready', flush=True)
  for line in sys.stdin:
    signal.alarm(SECONDS)
    print(json.dumps(answer(line)), flush=True)
    signal.alarm(0)


if __name__ == '__main__':
  main()
