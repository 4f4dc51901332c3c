"""The process that renders chat templates for `chat`: a JSON line in, a JSON line out.

It runs as a script, and imports Jinja alone."""

import datetime
import json
import signal
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 2**30  # bytes
LONGEST = 2**24  # characters of a text
SECONDS = 30  # of one text; the process ends itself if nobody else has


class Marked(Extension):
  """{% generation %} ... {% endgeneration %}, which marks answers for training: its content."""

  tags = {'generation'}  # noqa: RUF012

  def parse(self, parser):
    number = next(parser.stream).lineno
    body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
    return nodes.Scope(body, lineno=number)


class Refused(jinja2.TemplateError):
  """The template's own complaint."""


def raise_exception(message):
  raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
  """JSON as `transformers` writes it: without HTML's escapes."""
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


def strftime_now(form):
  return datetime.datetime.now().strftime(form)


def environment():
  """Returns what templates run in, as of `transformers`."""
  made = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Marked]
  )
  made.filters['tojson'] = tojson
  made.globals |= {'raise_exception': raise_exception, 'strftime_now': strftime_now}
  return made


def answer(environment, request):
  """Returns the text, or a sentence on why there is none."""
  try:
    text = environment.from_string(request['template']).render(**request['values'])
  except jinja2.TemplateSyntaxError as error:
    return {'refused': f'the chat template has a mistake in line {error.lineno}: {error}'}
  except Refused as error:
    return {'refused': f'the chat template refuses these messages: {error}'}
  except MemoryError:
    return {'refused': f'the chat template takes more than {MEMORY >> 30} GB of memory'}
  except Exception as error:  # of Jinja or Python, such as the sum of a number and a text
    told = f'{type(error).__name__}: {error}'
    return {'refused': f'the chat template fails on these messages: {told[:500]}'}
  if len(text) > LONGEST:
    return {'refused': f'the chat template writes more than {LONGEST} characters'}
  return {'text': text}


def main():
  try:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  except (ImportError, ValueError, OSError):  # a system without: its time is bounded all the same
    pass
  made = environment()
  print('ready', flush=True)
  for line in sys.stdin:
    signal.alarm(SECONDS)
    print(json.dumps(answer(made, json.loads(line))), flush=True)
    signal.alarm(0)


if __name__ == '__main__':
  main()
