"""Commands: the only users of argparse and of printed tables.

What loads torch or numpy is imported below the checks of the arguments, so that --help and mistakes
are answered at once.
"""
