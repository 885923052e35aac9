"""Commands: one file each, the only users of argparse and of printed tables."""
