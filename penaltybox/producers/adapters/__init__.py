"""Logs of other people's limiters, read as decisions: one module per format, `registry` names them.

Here nothing reads files, clocks or networks. A line of a log is evidence that its requester had a part in writing: see
`reading` for what a format may take from it.
"""
