"""Commands: the only users of argparse and of printed tables."""
