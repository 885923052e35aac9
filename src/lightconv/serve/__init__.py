"""The server: `lightconv serve`.

pool      worker processes that decode, and the queue in front of them
texts     long texts and HTML in pieces, words and their alignment
api       checked requests and their descriptions (/openapi.json)
app       routes, limits, metrics
front     the HTTP server: limits of connections, draining
"""
