"""The report: one page that opens from the file system, with verdicts, tables, figures and an explorable carrier.

`charts` turns a matplotlib figure into panels that answer to the mouse and the keyboard; `explore` is the carrier with
sliders; `contents` gathers what is on disk; `page` writes the file.
"""
