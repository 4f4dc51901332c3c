"""`python -m fastdec`, which is the command `fastdec`."""

from fastdec.cli import main

if __name__ == '__main__':
  main()
