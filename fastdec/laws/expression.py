"""The process that compiles a regular expression for `automaton`: a text in, a line of JSON out.

It runs as a script and imports outlines-core alone. Its own limits bound expressions that would
take any time and memory.
"""

import importlib
import json
import re
import sys
from typing import Any

MEMORY = 2**31  # bytes
SECONDS = 10  # of processor time
MOST_STATES = 8192  # those of the last character included
END = 256  # the number of the end, after those of the bytes
FIRST, LAST = '\U0010fffe', '\U0010ffff'  # stand before and after each text; no text has them
CLASS = r'\[(?!\^)\]?(?:\\.|[^\]\\])*\]'
WIDE = re.compile(rf'{CLASS}|\[\^(?!{FIRST})|\\.|\.', re.DOTALL)


def answer(pattern: str) -> dict[str, object]:
  """Returns the automaton over bytes of the texts that match as a whole, or why there is none.

  outlines-core ends a text where the first alternative does: of `a|ab` it would know `a` alone.
  A last character after the whole makes it try both. It also looks for texts that begin within the
  text, which may take a state for each set of such places: none begins without the first character.
  An expression that could match this character itself is better off without.
  """
  library: Any = importlib.import_module('outlines_core')  # of the extra 'constraint'
  before = '' if _is_wide(pattern) else FIRST
  try:
    words = {bytes([byte]): [byte] for byte in range(END)}
    index = library.Index(f'{before}(?:{pattern}){LAST}', library.Vocabulary(END, words))
  except (ValueError, MemoryError) as error:
    return {'refused': str(error)}
  first, after = index.get_initial_state(), index.get_transitions()
  for byte in before.encode():
    first = after[first][byte]
  if len(after) > MOST_STATES:
    return {'states': len(after)}
  ends, matches, steps = index.get_final_states(), [], []
  for state, row in after.items():
    steps += [[state, byte, next_state] for byte, next_state in row.items() if byte != END]
    last = state
    for byte in LAST.encode():
      last = after.get(last, {}).get(byte)
    if last in ends:
      matches.append(state)
  others = {state for step in steps for state in (step[0], step[2])} - {first}
  return {'states': [first, *sorted(others)], 'matches': matches, 'steps': steps}


def _is_wide(pattern: str) -> bool:
  """True if an expression may match FIRST; a wrong answer costs time alone."""
  wide = ('.', '[^', r'\D', r'\W', r'\S', r'\P', r'\p')
  return any(found in wide for found in WIDE.findall(pattern))


def main() -> None:
  try:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  except (ImportError, ValueError, OSError):  # a system without limits: the parent kills it late
    pass
  print(json.dumps(answer(sys.stdin.read())))


if __name__ == '__main__':
  main()
