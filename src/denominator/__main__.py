"""`python -m denominator` is the same command as `denominator`."""

from denominator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
