"""The server: `lightconv serve`.

pool      worker processes, and the queue in front of them
worker    the process that decodes: running batches, words and kernels
texts     long texts and HTML in pieces; the language of a text
api       checked requests and their descriptions (/openapi.json)
app       routes, limits, metrics
front     the HTTP server: limits of connections, draining
"""
